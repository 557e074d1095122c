//! Where a celld's output goes: a file that outlives the supervisor. A pipe that loses its reader would abort the process.
//!
//! `logs/<application>.log` is what is written now, `….log.1` what came before it. celld appends and never opens its log anew, so
//! a log that has grown long is copied aside and cut to nothing under it: a reader that follows starts again where the file is
//! shorter than before. What is written between the copy and the cut is lost.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use scafo_core::text::head;

use crate::state::remove;

/// A log longer than this is put aside, in bytes. Each application has two of them at most, and what it writes between two looks.
const ROTATE_AT: u64 = 10 * 1024 * 1024;
/// What is shown of what a process said before it ended, in bytes: some lines, which end in a record.
const TAIL: u64 = 1024;
/// Time between two looks.
const LOOKS: Duration = Duration::from_secs(1);
/// So much is kept of what is written between two looks, in bytes. What is beyond that is cut off again before the kernel brings it to
/// the disk, so that a flood costs its writer's time and nobody's disk.
const RATE: u64 = 1024 * 1024;

/// Opens the log for another process.
pub(super) fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// Removes a log with its old part.
pub(super) fn forget(path: &Path) -> io::Result<()> {
    [path, &with_suffix(path, ".1"), &with_suffix(path, ".new")].into_iter().try_for_each(remove)
}

/// How long a log is, in bytes; 0 when there is none.
pub(super) fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// The last lines that were written behind `from`, at most [`TAIL`] bytes of them, for people to read; `None` for nothing. A log
/// that was cut meanwhile is read from its start.
pub(super) fn tail(path: &Path, from: u64) -> Option<String> {
    let mut log = File::open(path).ok()?;
    let length = log.metadata().ok()?.len();
    let from = if length < from { 0 } else { from };
    let start = from.max(length.saturating_sub(TAIL));
    log.seek(SeekFrom::Start(start)).ok()?;
    let mut bytes = Vec::new();
    log.take(TAIL).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    // Cut in the middle of a line, it begins with the next one, if there is one.
    let whole = if start > from { text.split_once('\n').map_or(&*text, |(_, rest)| rest) } else { &*text };
    let printable: String = whole.chars().filter(|c| *c == '\n' || *c == '\t' || !c.is_control()).collect();
    let printable = head(printable.trim(), usize::try_from(TAIL).unwrap_or(usize::MAX));
    (!printable.is_empty()).then(|| printable.to_owned())
}

/// Keeps all logs of a directory short. Ends only when it is dropped.
pub(super) async fn keep_short(dir: PathBuf) {
    let mut lengths = Lengths::new();
    loop {
        tokio::time::sleep(LOOKS).await;
        let (dir, before) = (dir.clone(), std::mem::take(&mut lengths));
        match tokio::task::spawn_blocking(move || shorten_all(&dir, &before)).await {
            Ok(Ok(now)) => lengths = now,
            Ok(Err(error)) => tracing::debug!(%error, "cannot look at the logs"),
            Err(_) => {}
        }
    }
}

/// How long each log was at the last look.
type Lengths = BTreeMap<PathBuf, u64>;

fn shorten_all(dir: &Path, before: &Lengths) -> io::Result<Lengths> {
    let mut lengths = Lengths::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        // Not followed: a link is nothing of ours.
        let Some(metadata) = entry.metadata().ok().filter(|metadata| is_log && metadata.is_file()) else { continue };
        // One that was not there before began at nothing, except at the first look of all.
        let began = before.get(&path).copied().unwrap_or(if before.is_empty() { metadata.len() } else { 0 });
        match shortened(&path, metadata.len(), began) {
            Ok(length) => drop(lengths.insert(path, length)),
            Err(error) => tracing::warn!(path = %path.display(), %error, "cannot shorten a log"),
        }
    }
    Ok(lengths)
}

/// Cuts a log that has grown too fast, then one that has grown too long: how long it is now.
fn shortened(path: &Path, length: u64, began: u64) -> io::Result<u64> {
    let mut length = length;
    if length.saturating_sub(began) > RATE {
        let mut log = File::options().read(true).append(true).open(path)?;
        let beyond = log.metadata()?.len().saturating_sub(began + RATE);
        log.set_len(began + RATE)?;
        let per_second = RATE / LOOKS.as_secs().max(1);
        writeln!(log, "\nscafo: {beyond} bytes are left out here: more than {per_second} were written in a second")?;
        length = log.metadata()?.len();
    }
    if length > ROTATE_AT {
        shorten(path)?;
        length = 0;
    }
    Ok(length)
}

/// Puts the last [`ROTATE_AT`] bytes aside and cuts the log. On a full disk the old part is given up, so that the disk does not
/// stay full.
fn shorten(path: &Path) -> io::Result<()> {
    let mut log = File::options().read(true).write(true).open(path)?;
    if let Err(error) = put_aside(&mut log, path) {
        tracing::warn!(path = %path.display(), %error, "cannot keep the old part of a log");
    }
    log.set_len(0)
}

fn put_aside(log: &mut File, path: &Path) -> io::Result<()> {
    let beside = with_suffix(path, ".new");
    let start = log.metadata()?.len().saturating_sub(ROTATE_AT);
    log.seek(SeekFrom::Start(start))?;
    let copied = (|| {
        let mut copy = File::options().create(true).truncate(true).write(true).mode(0o600).open(&beside)?;
        io::copy(&mut log.take(ROTATE_AT), &mut copy)?;
        std::fs::rename(&beside, with_suffix(path, ".1"))
    })();
    if copied.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    copied
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_grows_is_cut_under_its_writer_and_a_short_one_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (long, short) = (dir.path().join("shop.log"), dir.path().join("blog.log"));
        open(&short).unwrap().write_all(b"one\n").unwrap();
        let mut writer = open(&long).unwrap();
        let half = vec![b'a'; usize::try_from(ROTATE_AT).unwrap() / 2];
        writer.write_all(&half).unwrap();
        writer.write_all(&half).unwrap();
        shorten_all(dir.path(), &Lengths::new()).unwrap();
        assert_eq!(long.metadata().unwrap().len(), ROTATE_AT, "not longer than the bound");
        writer.write_all(b"the last line\n").unwrap();
        shorten_all(dir.path(), &Lengths::new()).unwrap();
        writer.write_all(b"new\n").unwrap();
        assert_eq!(std::fs::read_to_string(&long).unwrap(), "new\n");
        let aside = std::fs::read(dir.path().join("shop.log.1")).unwrap();
        assert!(aside.len() as u64 == ROTATE_AT && aside.ends_with(b"the last line\n"));
        assert_eq!(std::fs::read_to_string(&short).unwrap(), "one\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn the_tail_of_a_log_is_what_this_process_wrote_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.log");
        assert_eq!((tail(&path, 0), length(&path)), (None, 0));
        let mut log = open(&path).unwrap();
        log.write_all(b"of the one before\n").unwrap();
        let from = length(&path);
        assert_eq!(tail(&path, from), None);
        log.write_all(b"one\n\x1b[31mError: two\x1b[0m\n").unwrap();
        assert_eq!(tail(&path, from).as_deref(), Some("one\n[31mError: two[0m"));
        log.write_all(format!("{}\nlast ü\n", "x".repeat(2000)).as_bytes()).unwrap();
        assert_eq!(tail(&path, from).as_deref(), Some("last ü"));
        log.write_all(&[0xff; 5000]).unwrap();
        assert!(tail(&path, from).unwrap().len() <= 1024);
        log.set_len(0).unwrap();
        log.write_all(b"anew\n").unwrap();
        assert_eq!(tail(&path, from).as_deref(), Some("anew"), "it was cut");
    }

    #[test]
    fn a_flood_is_cut_to_what_may_be_written_between_two_looks_and_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let (flood, quiet) = (dir.path().join("flood.log"), dir.path().join("quiet.log"));
        let mut writer = open(&flood).unwrap();
        writer.write_all(b"before\n").unwrap();
        open(&quiet).unwrap().write_all(b"quiet\n").unwrap();
        let mut lengths = shorten_all(dir.path(), &Lengths::new()).unwrap();
        let piece = vec![b'x'; usize::try_from(RATE).unwrap() * 2];
        for _ in 0..3 {
            writer.write_all(&piece).unwrap();
            lengths = shorten_all(dir.path(), &lengths).unwrap();
        }
        writer.write_all(b"after\n").unwrap();
        let text = std::fs::read_to_string(&flood).unwrap();
        let notes =
            text.lines().filter(|line| line.starts_with("scafo: ") && line.contains("bytes are left out")).count();
        assert_eq!((notes, text.lines().next(), text.lines().last()), (3, Some("before"), Some("after")));
        assert!(text.len() as u64 <= 3 * RATE + 1000, "{}", text.len());
        assert_eq!(std::fs::read_to_string(&quiet).unwrap(), "quiet\n");
    }

    #[test]
    fn a_log_whose_old_part_cannot_be_kept_is_cut_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.log");
        open(&path).unwrap().set_len(ROTATE_AT + 1).unwrap();
        std::fs::create_dir(dir.path().join("shop.log.new")).unwrap();
        shorten_all(dir.path(), &Lengths::new()).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 0);
    }
}

//! Where a celld's output goes: a file that outlives the supervisor. A pipe that loses its reader would abort the process.
//!
//! `logs/<application>.log` is what is written now, `….log.1` what came before it. celld appends and never opens its log anew, so
//! a log that has grown long is copied aside and cut to nothing under it: a reader that follows starts again where the file is
//! shorter than before. What is written between the copy and the cut is lost.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A log longer than this is put aside, in bytes. Each application has two of them at most, and what it writes between two looks.
const ROTATE_AT: u64 = 10 * 1024 * 1024;
/// Time between two looks: an application that prints 10 MB/s has doubled the bound by then.
const LOOKS: Duration = Duration::from_secs(1);

/// Opens the log for another process.
pub(super) fn open(path: &Path) -> io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// Keeps all logs of a directory short. Ends only when it is dropped.
pub(super) async fn keep_short(dir: PathBuf) {
    loop {
        tokio::time::sleep(LOOKS).await;
        let dir = dir.clone();
        if let Ok(Err(error)) = tokio::task::spawn_blocking(move || shorten_all(&dir)).await {
            tracing::debug!(%error, "cannot look at the logs");
        }
    }
}

fn shorten_all(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let path = entry.path();
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        // Not followed: a link is nothing of ours.
        if is_log
            && entry.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() > ROTATE_AT)
            && let Err(error) = shorten(&path)
        {
            tracing::warn!(path = %path.display(), %error, "cannot shorten a log");
        }
    }
    Ok(())
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
    use std::io::Write as _;

    #[test]
    fn a_log_that_grows_is_cut_under_its_writer_and_a_short_one_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let (long, short) = (dir.path().join("shop.log"), dir.path().join("blog.log"));
        open(&short).unwrap().write_all(b"one\n").unwrap();
        let mut writer = open(&long).unwrap();
        let half = vec![b'a'; usize::try_from(ROTATE_AT).unwrap() / 2];
        writer.write_all(&half).unwrap();
        writer.write_all(&half).unwrap();
        shorten_all(dir.path()).unwrap();
        assert_eq!(long.metadata().unwrap().len(), ROTATE_AT, "not longer than the bound");
        writer.write_all(b"the last line\n").unwrap();
        shorten_all(dir.path()).unwrap();
        writer.write_all(b"new\n").unwrap();
        assert_eq!(std::fs::read_to_string(&long).unwrap(), "new\n");
        let aside = std::fs::read(dir.path().join("shop.log.1")).unwrap();
        assert!(aside.len() as u64 == ROTATE_AT && aside.ends_with(b"the last line\n"));
        assert_eq!(std::fs::read_to_string(&short).unwrap(), "one\n");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_log_whose_old_part_cannot_be_kept_is_cut_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.log");
        open(&path).unwrap().set_len(ROTATE_AT + 1).unwrap();
        std::fs::create_dir(dir.path().join("shop.log.new")).unwrap();
        shorten_all(dir.path()).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 0);
    }
}

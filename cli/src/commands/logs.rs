//! `scafo logs`: what an application printed on this machine, out of the node's files. It works while no node runs, too.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;

use crate::args::LogsArgs;
use crate::error::{Failure, Outcome};
use crate::output::{Output, clean_lines, print};
use crate::target;

/// Time between two looks at a log that is followed.
const LOOK: Duration = Duration::from_millis(200);
/// What is read at once, in bytes.
const PIECE: usize = 64 * 1024;

/// `scafo logs`
pub(super) async fn run(args: LogsArgs, output: Output) -> Outcome {
    let state = target::local_state_dir(args.local.state_dir.as_deref());
    let path = state.join("logs").join(format!("{}.log", args.name));
    let (text, mut place) = last_lines(&path, args.lines).map_err(|error| unreadable(&path, &error))?;
    show(&text, output)?;
    if !args.follow {
        if text.is_empty() {
            output.say(&format!("{} has printed nothing on this machine", args.name));
        }
        return Ok(());
    }
    let mut pending = Vec::new();
    loop {
        let more = place.read(&path).map_err(|error| unreadable(&path, &error))?;
        if more.is_empty() {
            tokio::time::sleep(LOOK).await;
            continue;
        }
        pending.extend(more);
        // The rest of a line, or of a character, comes with the next piece; one without end is shown as it is.
        let whole = pending.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let shown = if whole == 0 && pending.len() > PIECE { pending.len() } else { whole };
        show(&pending.drain(..shown).collect::<Vec<u8>>(), output)?;
    }
}

/// What an application prints is foreign text. As JSON it is an object a line, with the text as it came.
fn show(text: &[u8], output: Output) -> Outcome {
    let text = String::from_utf8_lossy(text);
    if output.json() {
        return text.lines().try_for_each(|line| output.data(&json!({ "line": line }), String::new));
    }
    print(&clean_lines(&text))
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let failure = Failure::because(format!("cannot read {}", path.display()), error);
    match error.kind() {
        io::ErrorKind::PermissionDenied => failure.hint("run the command as root, or as the user that runs the node"),
        io::ErrorKind::NotFound => failure.hint(
            "no process of this application ever ran here: check its name (scafo app list), the state directory (--state-dir), \
             which node serves it (scafo app show), and whether it could not be started (scafo status)",
        ),
        _ => failure,
    }
}

/// How far a log was read, and which file it was.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    inode: u64,
    offset: u64,
    /// How it begins, as far as that was seen: a log that was begun anew begins otherwise.
    head: Vec<u8>,
}

/// Bytes of a log's beginning that tell it from the next one. Where an application always prints the same, a few lines of it may be
/// left out when its log begins anew.
const HEAD: u64 = 256;

impl Place {
    /// What is new, at most a piece of it. The node cuts a log that has grown long to nothing, and the end of a flood off: one that
    /// begins anew, or another file, is read from its start, and one that only lost its end from there.
    fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        let mut file = match File::open(path) {
            Ok(file) => file,
            // It comes back with the application's next process.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        if metadata.ino() != self.inode {
            *self = Self { inode: metadata.ino(), offset: 0, head: Vec::new() };
        } else if metadata.len() < self.offset {
            let is_same = !self.head.is_empty() && head(&mut file)?.starts_with(&self.head);
            *self = Self { inode: self.inode, offset: if is_same { metadata.len() } else { 0 }, head: Vec::new() };
        }
        if self.head.is_empty() {
            self.head = head(&mut file)?;
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.take(PIECE as u64).read_to_end(&mut bytes)?;
        self.offset += bytes.len() as u64;
        Ok(bytes)
    }
}

fn head(file: &mut File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(HEAD).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The last lines of a log, the part that was put aside included, and the place behind them.
fn last_lines(path: &Path, lines: usize) -> io::Result<(Vec<u8>, Place)> {
    let (mut text, place) = tail(path, lines)?;
    let found = count(&text);
    if found < lines {
        let aside = PathBuf::from(format!("{}.1", path.display()));
        match tail(&aside, lines - found) {
            Ok((before, _)) => text.splice(..0, before),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((text, place)),
            Err(error) => return Err(error),
        };
    }
    Ok((text, place))
}

/// How many lines there are, one without an end included.
fn count(text: &[u8]) -> usize {
    let ends = text.iter().filter(|byte| **byte == b'\n').count();
    ends + usize::from(text.last().is_some_and(|last| *last != b'\n'))
}

/// The last lines of one file, read from its end.
fn tail(path: &Path, lines: usize) -> io::Result<(Vec<u8>, Place)> {
    let mut file = File::open(path)?;
    let metadata = file.metadata()?;
    let end = metadata.len();
    let (mut start, mut newlines) = (end, 0);
    let mut text: Vec<u8> = Vec::new();
    // One line end more than lines: the one before the first of them.
    while start > 0 && newlines <= lines {
        let from = start.saturating_sub(PIECE as u64);
        let mut piece = vec![0; usize::try_from(start - from).unwrap_or(PIECE)];
        file.seek(SeekFrom::Start(from))?;
        file.read_exact(&mut piece)?;
        newlines += piece.iter().filter(|byte| **byte == b'\n').count();
        text.splice(..0, piece);
        start = from;
    }
    let surplus = count(&text).saturating_sub(lines);
    let ends = text.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    let start = if surplus == 0 { 0 } else { ends.take(surplus).nth(surplus - 1).unwrap_or(text.len()) };
    text.drain(..start);
    Ok((text, Place { inode: metadata.ino(), offset: end, head: head(&mut file)? }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn text(path: &Path, lines: usize) -> String {
        String::from_utf8(last_lines(path, lines).unwrap().0).unwrap()
    }

    #[test]
    fn the_last_lines_come_from_both_parts_of_a_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.log");
        std::fs::write(&path, "three\nfour\n").unwrap();
        assert_eq!((text(&path, 1), text(&path, 9)), ("four\n".to_owned(), "three\nfour\n".to_owned()));
        std::fs::write(dir.path().join("shop.log.1"), "one\ntwo\n").unwrap();
        assert_eq!((text(&path, 3), text(&path, 2)), ("two\nthree\nfour\n".to_owned(), "three\nfour\n".to_owned()));
        std::fs::write(&path, "three\nand no end").unwrap();
        assert_eq!((text(&path, 1), text(&path, 0)), ("and no end".to_owned(), String::new()));
        std::fs::write(&path, format!("{}\nlast\n", "x".repeat(3 * PIECE))).unwrap();
        assert_eq!((text(&path, 1).as_str(), text(&path, 2).len()), ("last\n", 3 * PIECE + 6));
    }

    #[test]
    fn a_log_that_is_followed_is_read_on_over_a_cut_and_a_new_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.log");
        std::fs::write(&path, "one\n").unwrap();
        let (_, mut place) = last_lines(&path, 0).unwrap();
        let mut writer = File::options().append(true).open(&path).unwrap();
        writer.write_all(b"two\n").unwrap();
        assert_eq!(place.read(&path).unwrap(), b"two\n");
        writer.set_len(5).unwrap();
        writer.write_all(b"[cut]\n").unwrap();
        writer.set_len(7).unwrap();
        assert_eq!(place.read(&path).unwrap(), b"");
        writer.write_all(b"on\n").unwrap();
        assert_eq!(place.read(&path).unwrap(), b"on\n", "what was read of a flood is not shown again");
        writer.set_len(0).unwrap();
        writer.write_all(b"three\n").unwrap();
        assert_eq!(place.read(&path).unwrap(), b"three\n");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(place.read(&path).unwrap(), b"");
        std::fs::write(&path, "anew, and longer than before\n").unwrap();
        assert_eq!(place.read(&path).unwrap(), b"anew, and longer than before\n");
        assert_eq!(place.read(&path).unwrap(), b"");
    }
}

//! Where a celld's output goes: a file that outlives the supervisor. A pipe that loses its reader would abort the process.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// A file longer than this is put aside when the process starts, in bytes.
const ROTATE_AT: u64 = 10 * 1024 * 1024;

/// Opens the log for another process, the old one put aside as `….1` when it has grown long.
pub(super) fn open(path: &Path) -> io::Result<File> {
    if path.metadata().is_ok_and(|metadata| metadata.len() > ROTATE_AT) {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".1");
        std::fs::rename(path, aside)?;
    }
    File::options().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn a_long_log_is_put_aside_and_a_short_one_continued() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("shop.log");
        open(&path).unwrap().write_all(b"one\n").unwrap();
        open(&path).unwrap().write_all(b"two\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
        File::options().write(true).open(&path).unwrap().set_len(ROTATE_AT + 1).unwrap();
        open(&path).unwrap();
        assert_eq!(path.metadata().unwrap().len(), 0);
        assert_eq!(dir.path().join("shop.log.1").metadata().unwrap().len(), ROTATE_AT + 1);
    }
}

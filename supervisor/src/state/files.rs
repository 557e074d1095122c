//! Small files: written beside, made durable, then renamed, so that a reader sees the old content or the new one.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest file that is read here. The largest one, the port book of ten thousand applications, has about 1 MiB.
const MAX_BYTES: u64 = 16 * 1024 * 1024;

/// Writes a file, mode 0600.
pub(crate) fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().ok_or_else(|| io::Error::other("a file has a directory"))?;
    let name = path.file_name().ok_or_else(|| io::Error::other("a file has a name"))?;
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(".new");
    let beside = dir.join(beside);
    let written = (|| {
        // One left by a crash may have another mode; a new one has ours.
        remove(&beside)?;
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)?;
        File::open(dir)?.sync_all()
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&beside);
    }
    written
}

/// Writes a JSON document.
pub(crate) fn write_json(path: &Path, document: &impl Serialize) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(document)?;
    text.push(b'\n');
    write_atomically(path, &text)
}

/// Reads a JSON document; `None` when there is no file. A file that is none is an error: it was written whole.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text)?;
    let document = serde_json::from_slice(&text).map_err(|error| {
        io::Error::new(io::ErrorKind::InvalidData, format!("line {}, column {}", error.line(), error.column()))
    })?;
    Ok(Some(document))
}

/// Removes a file that may not be there.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_file_is_replaced_whole_and_only_its_owner_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        assert_eq!(read_json::<Vec<u8>>(&path).unwrap(), None);
        write_json(&path, &[1, 2]).unwrap();
        write_json(&path, &[3]).unwrap();
        assert_eq!(read_json::<Vec<u8>>(&path).unwrap(), Some(vec![3]));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn what_cannot_be_written_leaves_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        write_json(&path, &1).unwrap();
        // A directory in the way of the new file.
        std::fs::create_dir(dir.path().join(".a.json.new")).unwrap();
        assert!(write_json(&path, &2).is_err());
        assert_eq!(read_json::<u8>(&path).unwrap(), Some(1));
    }
}

//! One process per directory, by an advisory lock that the kernel drops with the process.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::error::OpenError;

/// Held as long as the store is open.
pub(super) struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    /// Takes the lock or says who has it.
    pub(super) fn take(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join("lock");
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(OpenError::io("open the lock file", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(OpenError::InUse { dir: dir.to_owned(), holder: holder(&mut file) }),
            Err(error) => return Err(OpenError::io("lock", &path)(error.into())),
        }
        sign(&mut file);
        Ok(Self { _file: file })
    }
}

/// Leaves the pid for the message of the next one. The lock does not depend on it, so a full disk does not matter.
fn sign(file: &mut File) {
    let written = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "{}", std::process::id()));
    if let Err(error) = written {
        tracing::debug!(%error, "cannot write the pid into the lock file");
    }
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    // A pid has at most 10 digits.
    match file.take(10).read_to_string(&mut text).map(|_| text.trim().parse::<u32>()) {
        Ok(Ok(pid)) => format!(" (pid {pid})"),
        Ok(Err(_)) | Err(_) => String::new(),
    }
}

//! One supervisor for each state directory, and for each runtime directory.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, flock};

use super::cannot_write;
use crate::api::Error;

/// Held for as long as the supervisor lives; the kernel lets go of it however that ends. Children do not inherit it.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock, and writes our process id into it for whoever is refused.
    pub(crate) fn take(directory: &Path) -> Result<Self, Error> {
        let path = directory.join("lock");
        let fail = |error: &std::io::Error| cannot_write(&path, error);
        let options = File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(&path);
        let mut file = options.map_err(|error| fail(&error))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let mut holder = String::new();
            let _ = (&mut file).take(32).read_to_string(&mut holder);
            let holder = holder.trim();
            let who = if holder.is_empty() { "another process".to_owned() } else { format!("process {holder}") };
            return Err(Error::new(
                format!("a node already runs on {}: {who}", directory.display()),
                "stop that one first, or choose another state directory with --state-dir",
            ));
        }
        let mut write = || {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        write().map_err(|error| fail(&error))?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_supervisor_is_refused_and_told_who_has_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let first = Lock::take(dir.path()).unwrap();
        let refused = Lock::take(dir.path()).unwrap_err();
        assert!(refused.message.contains(&std::process::id().to_string()), "{refused:?}");
        drop(first);
        assert!(Lock::take(dir.path()).is_ok());
    }
}

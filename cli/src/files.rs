//! A user's files: written whole or not at all, durable before anything rests on them, readable by the user alone.

use std::fs::{File, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::env;
use crate::error::{Failure, Outcome};

/// The directory of what this command keeps for its user: `$XDG_CONFIG_HOME/scafo`, by default under `~/.config`.
pub(crate) fn config_directory() -> Option<PathBuf> {
    // A relative one is to be ignored (XDG Base Directory Specification).
    let config = env::path(env::XDG_CONFIG_HOME).filter(|path| path.is_absolute());
    let config = config.or_else(|| env::path(env::HOME).map(|home| home.join(".config")));
    config.map(|config| config.join("scafo"))
}

/// What to say where there is no such directory.
pub(crate) fn homeless() -> Failure {
    Failure::new("there is no place to keep it: neither XDG_CONFIG_HOME nor HOME is set").hint("set HOME")
}

/// Writes a file of mode 0600 that was not there.
///
/// # Errors
/// When it is there, or cannot be written.
pub(crate) fn create(path: &Path, content: &[u8]) -> Outcome {
    write(path, content, |file| file.persist_noclobber(path).map(drop).map_err(|error| error.error))
}

/// Writes a file of mode 0600 in the place of what was there.
///
/// # Errors
/// When it cannot be written; then what was there is there.
pub(crate) fn replace(path: &Path, content: &[u8]) -> Outcome {
    write(path, content, |file| file.persist(path).map(drop).map_err(|error| error.error))
}

/// Puts a file in the place of another one of the same directory, at once.
///
/// # Errors
/// When that fails; then nothing has moved.
pub(crate) fn supplant(new: &Path, old: &Path) -> Outcome {
    std::fs::rename(new, old).and_then(|()| sync_directory(old)).map_err(|error| unwritable(old, &error))
}

/// Keeps other commands from changing files of a directory until the answer is dropped.
///
/// # Errors
/// When another command has it, or the directory cannot be opened.
pub(crate) fn lock(directory: &Path) -> Outcome<File> {
    let file = File::open(directory)
        .map_err(|error| Failure::because(format!("cannot open {}", directory.display()), &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(Failure::new(format!("another command is changing files in {}", directory.display()))
                .hint("run it again when that has ended"))
        }
        Err(TryLockError::Error(error)) => {
            Err(Failure::because(format!("cannot lock {}", directory.display()), &error))
        }
    }
}

fn write(path: &Path, content: &[u8], persist: impl FnOnce(tempfile::NamedTempFile) -> std::io::Result<()>) -> Outcome {
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(directory(path))?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        persist(file)?;
        sync_directory(path)
    };
    write().map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::because(format!("cannot write {}", path.display()), error)
        .hint("see that the directory may be written and that its disk has room")
}

fn sync_directory(path: &Path) -> std::io::Result<()> {
    File::open(directory(path))?.sync_all()
}

/// A bare file name is in the working directory.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_is_the_users_alone_and_only_replaced_on_purpose() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        create(&path, b"one").unwrap();
        assert!(create(&path, b"two").is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        replace(&path, b"three").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"three");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn one_command_at_a_time_changes_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let first = lock(dir.path()).unwrap();
        assert!(lock(dir.path()).is_err());
        drop(first);
        assert!(lock(dir.path()).is_ok());
    }
}

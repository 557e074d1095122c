//! One supervisor for each state directory, and for each runtime directory.

use std::fs::{File, Metadata};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;

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

    /// The process that has the lock, without touching it: a supervisor that starts at this moment must find it free.
    pub(crate) fn holder(directory: &Path) -> Option<u32> {
        let path = directory.join("lock");
        // What a link leads to may be anybody's lock.
        let file = std::fs::symlink_metadata(&path).ok().filter(Metadata::is_file)?;
        let pid = std::fs::read_to_string(&path).ok()?.trim().parse().ok()?;
        let locks = std::fs::read_to_string("/proc/locks").unwrap_or_default();
        let mut holders = locks.lines().filter_map(lock).filter(|(_, inode)| *inode == file.ino()).peekable();
        // A file system that keeps its locks itself, as those in user space may, shows none of them there.
        let holds =
            if holders.peek().is_none() { writes(pid, &file) } else { holders.any(|(holder, _)| holder == pid) };
        holds.then_some(pid)
    }

    /// Whether this process has the lock, as far as this user can know: who has the lock of another user's node is not told.
    pub(crate) fn may_be_of(directory: &Path, pid: u32) -> bool {
        let path = directory.join("lock");
        let foreign = || {
            std::fs::symlink_metadata(&path).is_ok_and(|file| file.is_file() && file.uid() != geteuid().as_raw())
                && std::fs::read(&path).is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
        };
        Self::holder(directory) == Some(pid) || foreign()
    }
}

/// The process that has a lock, and the number of its file, in a line of `/proc/locks` (`proc_locks(5)`):
/// `1: FLOCK  ADVISORY  WRITE 812 00:2a:9163 0 EOF`.
fn lock(line: &str) -> Option<(u32, u64)> {
    let mut words = line.split_whitespace().skip(1);
    let (kind, holder, file) = (words.next()?, words.nth(2)?, words.next()?);
    let held = (holder.parse().ok()?, file.rsplit(':').next()?.parse().ok()?);
    (kind == "FLOCK").then_some(held)
}

/// Whether a process has this file open to read and to write, as a supervisor has its lock and whoever looks around has not. Known of
/// this user's processes only, and by root.
fn writes(pid: u32, file: &Metadata) -> bool {
    let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    open.flatten().any(|fd| {
        // The mode of the link is that of the descriptor.
        std::fs::symlink_metadata(fd.path()).is_ok_and(|link| link.mode() & 0o600 == 0o600)
            && std::fs::metadata(fd.path()).is_ok_and(|open| (open.dev(), open.ino()) == (file.dev(), file.ino()))
    })
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
        assert_eq!(Lock::holder(dir.path()), Some(std::process::id()));
        let linked = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(dir.path().join("lock"), linked.path().join("lock")).unwrap();
        assert_eq!(Lock::holder(linked.path()), None, "the lock of another directory");
        drop(first);
        assert_eq!(Lock::holder(dir.path()), None, "the file stays");
        assert!(Lock::take(dir.path()).is_ok());
    }

    #[test]
    fn a_lock_is_found_by_its_process_and_its_file() {
        let line = "1: FLOCK  ADVISORY  WRITE 812 00:2a:9163 0 EOF";
        assert_eq!(lock(line), Some((812, 9163)));
        for other in
            ["", "1: POSIX  ADVISORY  WRITE 812 00:2a:9163 0 EOF", "1: -> FLOCK  ADVISORY  WRITE 812 00:2a:9163 0 EOF"]
        {
            assert_eq!(lock(other), None, "{other}");
        }
    }

    #[test]
    fn where_the_kernel_shows_no_lock_its_holder_is_who_has_the_file_open_to_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let own = std::process::id();
        std::fs::write(&path, format!("{own}\n")).unwrap();
        assert_eq!(Lock::holder(dir.path()), None);
        let looking = File::open(&path).unwrap();
        assert_eq!(Lock::holder(dir.path()), None, "whoever only reads it");
        drop(looking);
        let held = File::options().read(true).write(true).open(&path).unwrap();
        assert_eq!(Lock::holder(dir.path()), Some(own));
        assert!(Lock::may_be_of(dir.path(), own));
        std::fs::write(&path, "1\n").unwrap();
        assert_eq!(Lock::holder(dir.path()), None, "it is open, but not to the one that it names");
        std::fs::write(&path, format!("{own}\n")).unwrap();
        std::fs::rename(&path, dir.path().join("other")).unwrap();
        std::fs::write(&path, format!("{own}\n")).unwrap();
        assert_eq!(Lock::holder(dir.path()), None, "another file is open");
        drop(held);
    }
}

//! The state directory: what a node keeps over restarts. Everything in it is written whole or not at all.

mod files;
mod identity;
mod lock;
mod owners;
mod ports;
mod users;

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

pub(crate) use files::{read_json, remove, write_json};
pub(crate) use identity::{EmbeddedBucket, ingress_token, node_id, node_key};
pub(crate) use lock::Lock;
pub(crate) use owners::{give, give_within, set_mode};
pub(crate) use ports::{Book, Pair};
pub(crate) use users::{Lent, Users, callers};

use scafo_core::ApplicationName;

use crate::api::Error;
use crate::daemon::Name;
use crate::sockets;

/// The layout of a state directory.
#[derive(Debug, Clone)]
pub(crate) struct Dirs {
    /// Absolute.
    pub(crate) state: PathBuf,
    /// Where the sockets are.
    pub(crate) runtime: PathBuf,
}

impl Dirs {
    /// Where a node was, if there was one; nothing is made. Its sockets may be elsewhere.
    pub(crate) fn of_earlier(state: &Path, runtime: &Path) -> Option<Self> {
        Some(Self { state: std::fs::canonicalize(state).ok()?, runtime: runtime.to_owned() })
    }

    /// Makes the directories; the sockets go elsewhere when their path would be too long for the kernel.
    pub(crate) fn create(state: &Path, runtime: &Path) -> Result<Self, Error> {
        private_dir(state).map_err(|error| cannot_write(state, &error))?;
        let state = std::fs::canonicalize(state).map_err(|error| cannot_write(state, &error))?;
        let runtime = std::path::absolute(runtime).map_err(|error| cannot_write(runtime, &error))?;
        let runtime = if fits(&runtime) { runtime } else { short_runtime_dir(&runtime) };
        private_dir(&runtime).map_err(|error| cannot_write(&runtime, &error))?;
        own(&runtime)?;
        let dirs = Self { state, runtime };
        for inner in ["registryd", "apiserver", "ingressd", "celld", "logs", "processes"] {
            private_dir(&dirs.state.join(inner)).map_err(|error| cannot_write(&dirs.state.join(inner), &error))?;
        }
        for server in sockets::SERVERS {
            let socket = dirs.socket(server);
            let directory = socket.parent().unwrap_or(&dirs.runtime);
            private_dir(directory).map_err(|error| cannot_write(directory, &error))?;
        }
        Ok(dirs)
    }

    /// Gives to each user what is its own, and lets it through to that. Without users everything stays ours.
    pub(crate) fn hand_out(&self, users: Option<&Users>) -> Result<(), Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error: io::Error| cannot_write(&path, &error)
        };
        let Some(users) = users else { return Ok(()) };
        for dir in [&self.state, &self.runtime, &self.state.join("celld"), &self.jobs()] {
            // A passage to what is theirs: nobody but us lists it.
            set_mode(dir, 0o711).map_err(failed(dir))?;
        }
        for (name, inner) in [
            (Name::Registryd, "registryd"),
            (Name::Apiserver, "apiserver"),
            (Name::Ingressd, "ingressd"),
            (Name::Bucketd, "bucket"),
        ] {
            let path = self.state.join(inner);
            private_dir(&path).map_err(failed(&path))?;
            let owner = users.daemon(name);
            // Deploy jobs go through the apiserver's to the project that was staged for them.
            let mode = if name == Name::Apiserver { 0o710 } else { 0o700 };
            give(&path, owner.uid, owner.gid, mode).map_err(failed(&path))?;
        }
        for server in sockets::SERVERS {
            let socket = self.socket(server);
            let directory = socket.parent().unwrap_or(&self.runtime);
            let (group, mode) = users.callers(server).map_or((0, 0o700), |group| (group, 0o710));
            give(directory, 0, group, mode).map_err(failed(directory))?;
        }
        Ok(())
    }

    /// Makes the directory of jobs, without what jobs left there that a crash cut off. Only for whoever has the lock.
    pub(crate) fn sweep_jobs(&self) -> Result<(), Error> {
        let jobs = self.jobs();
        match std::fs::remove_dir_all(&jobs) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %jobs.display(), %error, "cannot remove what old jobs left");
            }
            _ => {}
        }
        private_dir(&jobs).map_err(|error| cannot_write(&jobs, &error))
    }

    pub(crate) fn socket(&self, name: &str) -> PathBuf {
        self.runtime.join(name)
    }

    /// Private temporary directories of jobs.
    pub(crate) fn jobs(&self) -> PathBuf {
        self.state.join("jobs")
    }

    /// One application's own directory.
    pub(crate) fn application(&self, name: &str) -> PathBuf {
        self.state.join("celld").join(name)
    }

    /// An application's data directory.
    pub(crate) fn watch(&self, name: &str) -> PathBuf {
        self.application(name).join("watch")
    }

    /// The application whose data directory this is, if it is one of these.
    pub(crate) fn application_of(&self, watch: &Path) -> Option<ApplicationName> {
        let application: ApplicationName = watch.parent()?.file_name()?.to_str()?.parse().ok()?;
        (self.watch(application.as_str()) == watch).then_some(application)
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.state.join("logs").join(format!("{name}.log"))
    }

    pub(crate) fn processes(&self) -> PathBuf {
        self.state.join("processes")
    }
}

/// Longest path of a Unix socket: `sun_path` of unix(7) has 108 bytes, the last one is a zero.
const MAX_SOCKET_PATH: usize = 107;
/// The longest name of a socket in the runtime directory.
const LONGEST_SOCKET: &str = "/supervisor/sock";

fn fits(runtime: &Path) -> bool {
    runtime.as_os_str().len() + LONGEST_SOCKET.len() <= MAX_SOCKET_PATH
}

/// A short directory that belongs to this runtime directory alone.
fn short_runtime_dir(runtime: &Path) -> PathBuf {
    use sha2::Digest as _;
    use std::os::unix::ffi::OsStrExt as _;
    let digest = sha2::Sha256::digest(runtime.as_os_str().as_bytes());
    let name = format!("scafo-{}-{}", rustix::process::geteuid().as_raw(), hex::encode(&digest[..8]));
    let temp = std::env::temp_dir().join(&name);
    if fits(&temp) { temp } else { Path::new("/tmp").join(name) }
}

/// Refuses a directory that somebody else made, or that others may enter: whoever owns it could put sockets of their own there.
fn own(runtime: &Path) -> Result<(), Error> {
    let refuse = |why: &str| {
        Error::new(
            format!("the runtime directory {} {why}", runtime.display()),
            "remove it, or set runtimeDir (SCAFO_RUNTIME_DIR) to a directory of your own",
        )
    };
    let metadata = std::fs::symlink_metadata(runtime).map_err(|error| refuse(&format!("cannot be read: {error}")))?;
    if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(refuse("belongs to somebody else"));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(runtime, std::fs::Permissions::from_mode(0o700))
            .map_err(|error| refuse(&format!("is open to others and cannot be closed: {error}")))?;
    }
    Ok(())
}

/// Makes a directory, 0700, with those above it.
pub(crate) fn private_dir(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// The failure of writing in the state or the runtime directory, with what to do about it.
pub(crate) fn cannot_write(path: &Path, error: &io::Error) -> Error {
    let message = format!("cannot write {}: {error}", path.display());
    let hint = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "make space on that disk and start again",
        io::ErrorKind::PermissionDenied => {
            "run as the user that owns it, or set stateDir (SCAFO_STATE_DIR, --state-dir) to a directory of your own"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "mount it writable, or set stateDir (SCAFO_STATE_DIR, --state-dir) elsewhere"
        }
        _ => "check that the directory can be written, or set stateDir (SCAFO_STATE_DIR, --state-dir) elsewhere",
    };
    Error::new(message, hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_a_deep_directory_go_to_a_short_private_one() {
        let base = tempfile::tempdir().unwrap();
        let deep = base.path().join("d".repeat(120));
        let dirs = Dirs::create(&deep, &deep.join("run")).unwrap();
        assert!(dirs.socket(sockets::SUPERVISOR).as_os_str().len() <= MAX_SOCKET_PATH);
        assert_ne!(dirs.runtime, Dirs::create(&deep, &deep.join("run2")).unwrap().runtime);
        for made in [&dirs.runtime, &short_runtime_dir(&deep.join("run2"))] {
            assert_eq!(std::fs::metadata(made).unwrap().permissions().mode() & 0o777, 0o700);
            std::fs::remove_dir_all(made).unwrap();
        }
    }

    #[test]
    fn a_runtime_directory_is_closed_to_others() {
        let base = tempfile::tempdir().unwrap();
        let runtime = base.path().join("run");
        std::fs::create_dir(&runtime).unwrap();
        std::fs::set_permissions(&runtime, std::fs::Permissions::from_mode(0o755)).unwrap();
        Dirs::create(base.path(), &runtime).unwrap();
        assert_eq!(std::fs::metadata(&runtime).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn an_error_names_the_path_and_the_next_step() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = Dirs::create(&file.join("state"), &file.join("run")).unwrap_err();
        assert!(error.message.contains("file/state") && error.hint.contains("--state-dir"), "{error:?}");
    }
}

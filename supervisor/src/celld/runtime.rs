//! The celld executable of this node: where it is and which version it is. The version is read again whenever the file changes,
//! so that an upgrade is noticed at the next start of a process.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use scafo_core::config;
use scafo_core::{Problem, ProblemCode};
use tokio::sync::Mutex;

use super::version::Version;
use crate::api::Error;
use crate::job::{self, Why};
use crate::spawn::{Bond, Input, Limits, Output, Rights, Spawner, Spec};

/// How long `celld --version` may take. It prints one line; a cold disk is the slow part.
const VERSION_DEADLINE: Duration = Duration::from_secs(30);
/// The stand-in's executable, beside ours.
const STANDIN: &str = "celld-workerd";

/// The executable, if there is one.
#[derive(Debug)]
pub(crate) struct Runtime {
    path: Option<PathBuf>,
    spawner: Spawner,
    known: Mutex<Option<(Stamp, Version)>>,
}

/// Tells a file from the one that replaced it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    length: u64,
    modified: (i64, i64),
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = std::fs::metadata(path)?;
        Ok(Self { inode: metadata.ino(), length: metadata.len(), modified: (metadata.mtime(), metadata.mtime_nsec()) })
    }
}

impl Runtime {
    /// Looks for the executable: as configured, else `celld` on `PATH`, else, in development, the stand-in beside us.
    pub(crate) fn find(
        config: &config::Celld,
        environment: &BTreeMap<String, String>,
        standin_beside: Option<&Path>,
        spawner: Spawner,
    ) -> Result<Self, Error> {
        let path = match &config.path {
            Some(path) if path.components().count() == 1 => {
                Some(on_path(path, environment).ok_or_else(|| missing(path))?)
            }
            Some(path) if is_program(path) => Some(std::path::absolute(path).map_err(|_| missing(path))?),
            Some(path) => return Err(missing(path)),
            None => on_path(Path::new("celld"), environment)
                .or_else(|| standin_beside.map(|dir| dir.join(STANDIN)).filter(|path| is_program(path))),
        };
        Ok(Self { path, spawner, known: Mutex::new(None) })
    }

    /// The executable with its version.
    ///
    /// # Errors
    /// `capability-missing` with the reason when there is none that can be used.
    pub(crate) async fn current(&self) -> Result<(PathBuf, Version), Problem> {
        let missing = |detail: String| Problem::new(ProblemCode::CapabilityMissing, detail);
        let Some(path) = &self.path else {
            return Err(missing(
                "this node has no celld; install one or set celld.path on the node, then restart it".to_owned(),
            ));
        };
        let unreadable = |error: &io::Error| {
            missing("this node's celld cannot be read; see the node's log".to_owned())
                .because(format!("{}: {error}", path.display()))
        };
        let stamp = Stamp::of(path).map_err(|error| unreadable(&error))?;
        let mut known = self.known.lock().await;
        if let Some((seen, version)) = known.as_ref()
            && *seen == stamp
        {
            return Ok((path.clone(), version.clone()));
        }
        let output = self.ask(path).await.map_err(|error| unreadable(&error))?;
        let version = Version::of_output(&output).map_err(|unusable| {
            missing(format!("this node's celld cannot be used: {unusable}")).because(path.display())
        })?;
        *known = Some((stamp, version.clone()));
        Ok((path.clone(), version))
    }

    async fn ask(&self, path: &Path) -> io::Result<String> {
        let spec = Spec {
            program: path.to_owned(),
            arguments: vec!["--version".into()],
            environment: BTreeMap::new(),
            directory: Some(PathBuf::from("/")),
            input: Input::Nothing,
            output: Output::Piped,
            sockets: Vec::new(),
            bond: Bond::Bound,
            limits: Limits::default(),
            rights: Rights::default(),
        };
        let finished = job::run(&self.spawner, spec, VERSION_DEADLINE, std::future::pending(), None).await?;
        if finished.why != Why::ItEnded {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no version within the deadline"));
        }
        Ok(String::from_utf8_lossy(&finished.stdout).into_owned())
    }
}

fn missing(path: &Path) -> Error {
    Error::new(
        format!("there is no executable at {} (celld.path)", path.display()),
        "correct celld.path (SCAFO_CELLD_PATH), or leave it out to use the celld on PATH",
    )
}

fn on_path(name: &Path, environment: &BTreeMap<String, String>) -> Option<PathBuf> {
    let path = environment.get("PATH")?;
    std::env::split_paths(path).filter(|dir| dir.is_absolute()).map(|dir| dir.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process writes the executable: what forks here meanwhile would hold it open, and the kernel starts no file that
    /// somebody may write to (`ETXTBSY`, execve(2)).
    fn program(path: &Path, line: &str) {
        let text = path.with_extension("text");
        std::fs::write(&text, format!("#!/bin/sh\necho '{line}'\n")).unwrap();
        let mut install = std::process::Command::new("install");
        assert!(install.args(["-m", "755"]).args([&text, path]).status().unwrap().success());
    }

    fn config(path: Option<&Path>) -> config::Celld {
        config::Celld {
            path: path.map(Path::to_owned),
            port_range: 24_000..=24_001,
            env: BTreeMap::new(),
            uid_range: None,
        }
    }

    fn find(path: Option<&Path>, search: &Path, beside: Option<&Path>) -> Result<Runtime, Error> {
        let environment = BTreeMap::from([("PATH".to_owned(), search.display().to_string())]);
        Runtime::find(&config(path), &environment, beside, Spawner::start().unwrap())
    }

    #[tokio::test]
    async fn a_configured_celld_wins_over_path_and_that_over_the_standin() {
        let dir = tempfile::tempdir().unwrap();
        let (own, search, beside) = (dir.path().join("own"), dir.path().join("bin"), dir.path().join("beside"));
        for made in [&search, &beside] {
            std::fs::create_dir(made).unwrap();
        }
        program(&own, "celld 0.7.1");
        program(&beside.join(STANDIN), "celld-workerd 0.1.0");
        let version = async |runtime: Runtime| runtime.current().await.map(|(_, version)| version.to_string());
        let standin = find(None, &search, Some(&beside)).unwrap();
        assert_eq!(version(standin).await.unwrap(), "celld-workerd 0.1.0");
        assert!(version(find(None, &search, None).unwrap()).await.is_err(), "outside development there is no stand-in");
        program(&search.join("celld"), "celld 0.6.2");
        assert_eq!(version(find(None, &search, Some(&beside)).unwrap()).await.unwrap(), "0.6.2");
        assert_eq!(version(find(Some(&own), &search, Some(&beside)).unwrap()).await.unwrap(), "0.7.1");
        assert!(find(Some(&dir.path().join("none")), &search, None).unwrap_err().message.contains("none"));
    }

    #[tokio::test]
    async fn an_upgrade_is_noticed_and_an_old_release_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("celld");
        program(&path, "celld 0.6.0");
        let runtime = find(Some(&path), dir.path(), None).unwrap();
        assert_eq!(runtime.current().await.unwrap().1.to_string(), "0.6.0");
        program(&path, "celld 0.6.1-and-a-longer-line");
        assert_eq!(runtime.current().await.unwrap().1.to_string(), "0.6.1-and-a-longer-line");
        program(&path, "celld 0.3.0");
        let refused = runtime.current().await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::CapabilityMissing);
        assert!(refused.detail.contains("0.4"), "{}", refused.detail);
    }
}

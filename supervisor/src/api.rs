//! What the command line needs of the supervisor: what goes in, what comes out.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;
use scafo_core::NodeId;
use scafo_core::domain::Host;
/// A node ends with it too: `RestartPreventExitStatus` in the unit.
pub use scafo_proto::child::EXIT_REFUSED;
use serde::{Deserialize, Serialize};

use crate::spawn::proc;
use crate::state::Lock;

/// Name of the file in the state directory that says how to reach a running node. It is there only while the node runs.
pub const NODE_FILE: &str = "node.json";

/// Called once, when every process of the node is ready. The node keeps running whatever it does; when it fails, the node
/// stops and [`crate::run`] returns the failure.
pub type OnReady = Box<dyn FnOnce(Ready) -> BoxFuture<'static, Result<(), Error>> + Send>;

/// Reads the configuration again, on SIGHUP. Of what it gives, the ingress tokens, the node's labels and the log's filter are taken.
pub type Reload = Box<dyn Fn() -> Result<scafo_core::config::Config, Error> + Send + Sync>;

/// How to run, beside the configuration.
#[derive(Default)]
pub struct Options {
    /// A node for development: the stand-in runtime is allowed, SIGHUP stops the node, the ingress polls quickly.
    pub dev: Option<DevOptions>,
    /// See [`OnReady`].
    pub on_ready: Option<OnReady>,
    /// Where the executables are; by default beside this one, or `SCAFO_LIBEXEC`.
    pub executables: Option<PathBuf>,
    /// See [`Reload`].
    pub reload: Option<Reload>,
    /// This process's environment, whole. Only a few variables of it reach children, each by name.
    pub environment: BTreeMap<String, String>,
}

/// The tools of the stand-in runtime; a real celld needs esbuild only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DevOptions {
    /// The native `workerd` executable.
    pub workerd: Option<PathBuf>,
    /// The native `esbuild` executable.
    pub esbuild: Option<PathBuf>,
}

/// How to reach a node that is ready. Stands in [`NODE_FILE`] while it runs; holds no secrets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ready {
    /// The node's id.
    pub node: NodeId,
    /// Base URL of the API, as programs on this machine reach it.
    pub api: String,
    /// Every address that the API listens on.
    pub api_listen: Vec<SocketAddr>,
    /// Base URL of our own ingress, when it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress: Option<String>,
    /// Base URL of the embedded bucket, when it is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucket: Option<String>,
    /// Where the metrics are, when they are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
    /// The platform domains.
    pub platform_domains: Vec<Host>,
    /// The file with the ingress token.
    pub ingress_token_file: PathBuf,
    /// The state directory, absolute.
    pub state_dir: PathBuf,
    /// The registry's socket for the node's own command line.
    pub admin_socket: PathBuf,
    /// The runtime's version; absent when there is no runtime.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub celld_version: Option<String>,
    /// Whether the runtime is the development stand-in.
    pub standin: bool,
    /// What is asked of a node and this one does not hold, one sentence each, for people.
    #[serde(default)]
    pub not_enforced: Vec<String>,
    /// When the supervisor was started, in clock ticks since the boot of the machine: another process may have its number by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started: Option<u64>,
    /// Process ids when it became ready.
    pub pids: Pids,
}

/// Process ids of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Pids {
    pub supervisor: u32,
    pub registryd: u32,
    pub routerd: u32,
    pub apiserver: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bucketd: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingressd: Option<u32>,
}

impl Ready {
    /// Reads the file of the node that runs on `state_dir`; `None` when none runs there, also when one was killed and left its
    /// file behind.
    ///
    /// # Errors
    /// When there is a file that cannot be read.
    pub fn try_load(state_dir: &Path) -> Result<Option<Self>, Error> {
        let path = state_dir.join(NODE_FILE);
        let text = match std::fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(Error::new(
                    format!("cannot read {}: {error}", path.display()),
                    "run the command as the user that runs the node",
                ));
            }
        };
        let ready: Self = serde_json::from_slice(&text).map_err(|error| {
            Error::new(
                format!("{} is not readable: {error}", path.display()),
                "the node may be of another version; restart it",
            )
        })?;
        Ok(Some(ready).filter(|ready| ready.lives_on(state_dir)))
    }

    /// Whether its supervisor is there, no later process with its number, and holds `state_dir`: a file can be part of any checkout,
    /// and what it names is given keys and tokens; a held lock cannot. One of an older version did not say when it was started.
    fn lives_on(&self, state_dir: &Path) -> bool {
        let pid = self.pids.supervisor;
        let now = proc::start_time(pid);
        now.is_some_and(|now| self.started.is_none_or(|then| then == now)) && Lock::may_be_of(state_dir, pid)
    }
}

/// The process id of the supervisor that has `state_dir`, ready or not; `None` when there is none, or when this user cannot see it.
pub fn holder(state_dir: &Path) -> Option<u32> {
    Lock::holder(state_dir)
}

/// How a node ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Asked to, everything in order.
    Stopped,
    /// Asked to twice: what had not ended yet was killed.
    Hurried,
}

/// Why a node does not run: what happened and what to do next, for a person to read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// What happened, and where.
    pub message: String,
    /// The next step.
    pub hint: String,
    /// The exit code that the process should end with: 1, or [`EXIT_REFUSED`].
    pub exit_code: u8,
}

impl Error {
    /// A failure that another try may not meet.
    pub fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into(), exit_code: 1 }
    }

    /// A refusal: the same try would end the same way.
    pub fn refused(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { exit_code: EXIT_REFUSED, ..Self::new(message, hint) }
    }
}

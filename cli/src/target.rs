//! Which node a command talks to, and with which key.
//!
//! A flag wins over the environment. Without either it is the node on this machine: the one of `./.scafo` when that is there,
//! else the one of `/var/lib/scafo`; where it listens stands in the file that its supervisor keeps there while it runs.

use std::path::{Path, PathBuf};

use scafo_core::OperatorId;
use scafo_supervisor::{NODE_FILE, Ready};

use crate::args::TargetArgs;
use crate::client::{ApiUrl, Client};
use crate::env;
use crate::error::{Failure, Outcome};
use crate::keys::{self, Signer};

/// State directory of a development node, in the directory of the project.
pub(crate) const DEV_STATE_DIR: &str = ".scafo";
/// State directory of an installed node.
const SYSTEM_STATE_DIR: &str = "/var/lib/scafo";
/// The operator key of a development node, in its state directory.
pub(crate) const DEV_KEY: &str = "operator.key";

/// A node that was found.
pub(crate) struct Target {
    /// Its API.
    pub(crate) client: Client,
    /// What it says of itself, when it is on this machine.
    pub(crate) local: Option<Ready>,
    key: Option<PathBuf>,
    operator: Option<OperatorId>,
}

/// Where to look.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Url(ApiUrl),
    StateDir(PathBuf),
}

/// What the environment says.
#[derive(Debug, Default)]
struct Surroundings {
    url: Option<String>,
    state_dir: Option<PathBuf>,
    /// Whether `./.scafo` is there.
    dev_state_dir: bool,
}

impl Surroundings {
    fn real() -> Self {
        Self {
            url: env::text(env::URL),
            state_dir: env::path(env::STATE_DIR),
            dev_state_dir: Path::new(DEV_STATE_DIR).is_dir(),
        }
    }
}

impl Target {
    /// Finds the node.
    ///
    /// # Errors
    /// When no node runs where one should.
    pub(crate) fn find(args: &TargetArgs) -> Outcome<Self> {
        let (api, local) = match place(args, Surroundings::real())? {
            Place::Url(api) => (api, None),
            Place::StateDir(state_dir) => {
                let node = running(&state_dir)?;
                let api = node.api.parse().map_err(|error| {
                    Failure::new(format!("{} names no API: {error}", state_dir.join(NODE_FILE).display()))
                        .hint("restart the node")
                })?;
                (api, Some(node))
            }
        };
        let operator = match (&args.operator, env::text(env::OPERATOR)) {
            (Some(id), _) => Some(id.clone()),
            (None, Some(text)) => {
                Some(text.parse().map_err(|problem| Failure::usage(format!("{}: {problem}", env::OPERATOR)))?)
            }
            (None, None) => None,
        };
        let key = args.key.clone().or_else(|| env::path(env::KEY));
        Ok(Self { client: Client::new(api)?, local, key, operator })
    }

    /// The key to sign with: the one that was named, else the node's own (development), else the user's.
    ///
    /// # Errors
    /// When there is none, or more than one that it could be, or it cannot be used.
    pub(crate) fn signer(&self) -> Outcome<Signer> {
        if let Some(path) = &self.key {
            return Signer::read(path, self.operator.clone());
        }
        let own = keys::directory().unwrap_or_default();
        if let Some(id) = &self.operator {
            let path = own.join(format!("{id}.pem"));
            if path.exists() {
                return Signer::read(&path, Some(id.clone()));
            }
        }
        let development = self.local.as_ref().map(|node| node.state_dir.join(DEV_KEY));
        if let Some(path) = development.filter(|path| path.exists()) {
            return Signer::read(&path, self.operator.clone());
        }
        let found = keys::list(&own);
        match found.as_slice() {
            [only] if self.operator.is_none() => Signer::read(only, None),
            [] | [_] => Err(Failure::new(format!("no operator key was found, also not in {}", own.display()))
                .hint("give one with --key FILE, or make the first one on a node with `scafo operator init`")),
            _ => Err(Failure::usage(format!("there are several operator keys in {}", own.display()))
                .hint("say which with --operator ID")),
        }
    }
}

fn place(args: &TargetArgs, around: Surroundings) -> Outcome<Place> {
    if let Some(url) = &args.url {
        return Ok(Place::Url(url.clone()));
    }
    if let Some(state_dir) = &args.state_dir {
        return Ok(Place::StateDir(state_dir.clone()));
    }
    if let Some(text) = around.url {
        return match text.parse() {
            Ok(url) => Ok(Place::Url(url)),
            Err(error) => Err(Failure::new(format!("{} is no address of an API: {error}", env::URL))),
        };
    }
    Ok(Place::StateDir(usual_state_dir(around.state_dir, around.dev_state_dir)))
}

/// The state directory of the node on this machine that a command without flags means.
pub(crate) fn local_state_dir(flag: Option<&Path>) -> PathBuf {
    let around = Surroundings::real();
    flag.map_or_else(|| usual_state_dir(around.state_dir, around.dev_state_dir), Path::to_owned)
}

fn usual_state_dir(variable: Option<PathBuf>, dev_state_dir: bool) -> PathBuf {
    variable.unwrap_or_else(|| PathBuf::from(if dev_state_dir { DEV_STATE_DIR } else { SYSTEM_STATE_DIR }))
}

/// The node that runs on a state directory.
///
/// # Errors
/// When none runs there, or its file cannot be read.
pub(crate) fn running(state_dir: &Path) -> Outcome<Ready> {
    match Ready::try_load(state_dir) {
        Ok(Some(node)) => Ok(node),
        Ok(None) => Err(Failure::new(format!("no node runs on {}", state_dir.display()))
            .hint("start one with `scafo dev` (or `scafo sail`), or name another with --state-dir or --url")),
        Err(error) => Err(Failure::new(error.message).hint(error.hint)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> ApiUrl {
        text.parse().unwrap()
    }

    #[test]
    fn a_flag_wins_over_the_environment_and_that_over_what_is_there() {
        let around = || Surroundings {
            url: Some("http://variable".to_owned()),
            state_dir: Some("variable".into()),
            dev_state_dir: true,
        };
        let both =
            TargetArgs { url: Some(url("http://flag")), state_dir: Some("flag".into()), ..TargetArgs::default() };
        assert_eq!(place(&both, around()).unwrap(), Place::Url(url("http://flag")));
        let directory = TargetArgs { state_dir: Some("flag".into()), ..TargetArgs::default() };
        assert_eq!(place(&directory, around()).unwrap(), Place::StateDir("flag".into()));
        let none = TargetArgs::default();
        assert_eq!(place(&none, around()).unwrap(), Place::Url(url("http://variable")));
        let without_url = Surroundings { url: None, ..around() };
        assert_eq!(place(&none, without_url).unwrap(), Place::StateDir("variable".into()));
    }

    #[test]
    fn without_a_word_it_is_the_development_node_here_else_the_installed_one() {
        for (dev_state_dir, expected) in [(true, ".scafo"), (false, "/var/lib/scafo")] {
            let around = Surroundings { dev_state_dir, ..Surroundings::default() };
            assert_eq!(place(&TargetArgs::default(), around).unwrap(), Place::StateDir(expected.into()));
        }
    }

    #[test]
    fn a_directory_without_a_running_node_says_how_to_start_one() {
        let dir = tempfile::tempdir().unwrap();
        let refused = running(dir.path()).err().unwrap();
        let report = refused.report().unwrap();
        assert!(report.message().contains("no node runs on") && report.next().unwrap().contains("scafo dev"));
    }
}

//! Which node a command talks to, and with which key.
//!
//! A flag wins over the environment, and what is in the working directory over what is set for the user: first `--url`,
//! `--state-dir` or `--context`, then `SCAFO_CONTEXT`, `SCAFO_URL` and `SCAFO_STATE_DIR`, then `./.scafo` when it is there, then the
//! current context, and last the node of `/var/lib/scafo`. A node on this machine is found by the file that its supervisor keeps in
//! the state directory while it runs.

use std::path::{Path, PathBuf};

use scafo_core::OperatorId;
use scafo_supervisor::{NODE_FILE, Ready, holder};

use crate::args::TargetArgs;
use crate::client::{ApiUrl, Client};
use crate::contexts::{Context, ContextName, Contexts};
use crate::env;
use crate::error::{Failure, Outcome};
use crate::keys::{self, Signer, Whose};
use crate::output::Output;

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
    whose: Whose,
}

/// Where to look.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Url(ApiUrl),
    StateDir(PathBuf),
    Context(ContextName),
    /// Nobody says.
    Unsaid,
}

/// What the environment says.
#[derive(Debug, Default)]
struct Surroundings {
    context: Option<String>,
    url: Option<String>,
    state_dir: Option<PathBuf>,
    /// Whether `./.scafo` is there.
    dev_state_dir: bool,
}

impl Surroundings {
    fn real() -> Self {
        Self {
            context: env::text(env::CONTEXT),
            url: env::text(env::URL),
            state_dir: env::path(env::STATE_DIR),
            dev_state_dir: Path::new(DEV_STATE_DIR).is_dir(),
        }
    }
}

impl Target {
    /// Finds the node. Says so when that is the current context's, which nothing on the command line shows.
    ///
    /// # Errors
    /// When no node runs where one should.
    pub(crate) fn find(args: &TargetArgs, output: Output) -> Outcome<Self> {
        match place(args, Surroundings::real())? {
            Place::Url(api) => Self::at(api, args, None),
            Place::StateDir(state_dir) => Self::on(&state_dir, args),
            Place::Context(name) => {
                let contexts = Contexts::load()?;
                let context = contexts.get(&name)?;
                Self::at(context.url.clone(), args, Some(context))
            }
            Place::Unsaid => {
                let contexts = Contexts::load()?;
                let Some(name) = &contexts.current else { return Self::on(Path::new(SYSTEM_STATE_DIR), args) };
                let context = contexts.get(name)?;
                output.say(&format!("context {name}: {}", context.url));
                Self::at(context.url.clone(), args, Some(context))
            }
        }
    }

    /// A node anywhere.
    fn at(api: ApiUrl, args: &TargetArgs, context: Option<&Context>) -> Outcome<Self> {
        let (key, whose) = credentials(args, context)?;
        Ok(Self { client: Client::new(api)?, local: None, key, whose })
    }

    /// A node on this machine.
    fn on(state_dir: &Path, args: &TargetArgs) -> Outcome<Self> {
        let node = running(state_dir)?;
        let api = node.api.parse().map_err(|error| {
            Failure::new(format!("{} names no API: {error}", state_dir.join(NODE_FILE).display()))
                .hint("restart the node")
        })?;
        Ok(Self { local: Some(node), ..Self::at(api, args, None)? })
    }

    /// The key to sign with.
    ///
    /// # Errors
    /// Those of [`Self::key_file`], and when the key cannot be used.
    pub(crate) fn signer(&self) -> Outcome<Signer> {
        Signer::read(&self.key_file()?, &self.whose)
    }

    /// What is known of the id of the key to sign with.
    pub(crate) const fn whose(&self) -> &Whose {
        &self.whose
    }

    /// The file with the key: the one that was named, else the operator's, else the node's own (development), else the user's
    /// only one.
    ///
    /// # Errors
    /// When there is none, or more than one that it could be.
    pub(crate) fn key_file(&self) -> Outcome<PathBuf> {
        if let Some(path) = &self.key {
            return Ok(path.clone());
        }
        let own = keys::directory().unwrap_or_default();
        let named = match &self.whose {
            Whose::Given(id) | Whose::Otherwise(id) => Some(id),
            Whose::Unsaid => None,
        };
        if let Some(path) = named.and_then(|id| keys::find(&own, id)) {
            return Ok(path);
        }
        let development = self.local.as_ref().map(|node| node.state_dir.join(DEV_KEY));
        if let Some(path) = development.filter(|path| path.exists()) {
            return Ok(path);
        }
        let missing = |what: String| {
            Err(Failure::new(format!("{what}, also not in {}", own.display()))
                .hint("give one with --key FILE, or make the first one on a node with `scafo operator init`"))
        };
        match (keys::list(&own).as_slice(), named) {
            (_, Some(id)) => missing(format!("no key of the operator `{id}` was found")),
            ([], None) => missing("no operator key was found".to_owned()),
            ([only], None) => Ok(only.clone()),
            (_, None) => Err(Failure::usage(format!("there are several operator keys in {}", own.display()))
                .hint("say which with --operator ID")),
        }
    }
}

/// The key's file and what is known of its id. What names the node names them too, unless a flag does.
fn credentials(args: &TargetArgs, context: Option<&Context>) -> Outcome<(Option<PathBuf>, Whose)> {
    let key = args.key.clone().or_else(|| context.and_then(|context| context.key.clone()));
    let key = key.or_else(|| env::path(env::KEY));
    // A key from elsewhere is not the context's operator's.
    let pair = context.filter(|context| args.key.is_none() && (context.key.is_some() || context.operator.is_some()));
    let whose = match (&args.operator, pair) {
        (Some(id), _) => Whose::Given(id.clone()),
        (None, Some(context)) => context.operator.clone().map_or(Whose::Unsaid, Whose::Otherwise),
        (None, None) => operator_of_environment()?,
    };
    Ok((key, whose))
}

fn operator_of_environment() -> Outcome<Whose> {
    let Some(text) = env::text(env::OPERATOR) else { return Ok(Whose::Unsaid) };
    let id: Result<OperatorId, _> = text.parse();
    id.map(Whose::Given).map_err(|problem| Failure::usage(format!("{}: {problem}", env::OPERATOR)))
}

fn place(args: &TargetArgs, around: Surroundings) -> Outcome<Place> {
    if let Some(url) = &args.url {
        return Ok(Place::Url(url.clone()));
    }
    if let Some(state_dir) = &args.state_dir {
        return Ok(Place::StateDir(state_dir.clone()));
    }
    if let Some(name) = &args.context {
        return Ok(Place::Context(name.clone()));
    }
    if let Some(text) = around.context {
        let name = text.parse().map(Place::Context);
        return name.map_err(|error| Failure::new(format!("{} is no name of a context: {error}", env::CONTEXT)));
    }
    if let Some(text) = around.url {
        let url = text.parse().map(Place::Url);
        return url.map_err(|error| Failure::new(format!("{} is no address of an API: {error}", env::URL)));
    }
    Ok(match around.state_dir {
        Some(state_dir) => Place::StateDir(state_dir),
        None if around.dev_state_dir => Place::StateDir(DEV_STATE_DIR.into()),
        None => Place::Unsaid,
    })
}

/// The state directory of the node on this machine that a command without flags means.
pub(crate) fn local_state_dir(flag: Option<&Path>) -> PathBuf {
    let Surroundings { state_dir, dev_state_dir, .. } = Surroundings::real();
    let usual = || PathBuf::from(if dev_state_dir { DEV_STATE_DIR } else { SYSTEM_STATE_DIR });
    flag.map(Path::to_owned).or(state_dir).unwrap_or_else(usual)
}

/// The node that runs on a state directory.
///
/// # Errors
/// When none runs there, or its file cannot be read.
pub(crate) fn running(state_dir: &Path) -> Outcome<Ready> {
    match Ready::try_load(state_dir) {
        Ok(Some(node)) => Ok(node),
        Ok(None) => Err(not_ready(state_dir)),
        Err(error) => Err(Failure::new(error.message).hint(error.hint)),
    }
}

fn not_ready(state_dir: &Path) -> Failure {
    let place = state_dir.display();
    match holder(state_dir) {
        Some(pid) => Failure::new(format!("the node on {place} (process {pid}) runs and is not ready yet"))
            .hint("its log says what it waits for, most often its bucket; try again in a moment"),
        None => Failure::new(format!("no node runs on {place}"))
            .hint("start one with `scafo dev` (or `scafo sail`), or name another with --state-dir, --url or --context"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn url(text: &str) -> ApiUrl {
        text.parse().unwrap()
    }

    /// Each of what may be said, the strongest first, and where it leads. With the stronger ones gone, the next one counts.
    #[test]
    fn a_flag_wins_over_the_environment_and_that_over_what_is_there() {
        let mut args = TargetArgs {
            url: Some(url("http://flag")),
            state_dir: Some("flag".into()),
            context: Some("flag".parse().unwrap()),
            ..TargetArgs::default()
        };
        let around = |gone: usize| Surroundings {
            context: (gone < 4).then(|| "variable".to_owned()),
            url: (gone < 5).then(|| "http://variable".to_owned()),
            state_dir: (gone < 6).then(|| "variable".into()),
            dev_state_dir: gone < 7,
        };
        for (gone, expected) in [
            Place::Url(url("http://flag")),
            Place::StateDir("flag".into()),
            Place::Context("flag".parse().unwrap()),
            Place::Context("variable".parse().unwrap()),
            Place::Url(url("http://variable")),
            Place::StateDir("variable".into()),
            Place::StateDir(".scafo".into()),
            Place::Unsaid,
        ]
        .into_iter()
        .enumerate()
        {
            match gone {
                1 => args.url = None,
                2 => args.state_dir = None,
                3 => args.context = None,
                _ => {}
            }
            assert_eq!(place(&args, around(gone)).unwrap(), expected, "{gone}");
        }
    }

    #[test]
    fn a_context_names_the_key_too_and_a_flag_wins_over_it() {
        let context =
            Context { url: url("http://a"), key: Some("context.pem".into()), operator: Some("ops".parse().unwrap()) };
        let id = |text: &str| text.parse().unwrap();
        for (args, key, whose) in [
            (TargetArgs::default(), "context.pem", Whose::Otherwise(id("ops"))),
            (TargetArgs { key: Some("flag.pem".into()), ..TargetArgs::default() }, "flag.pem", Whose::Unsaid),
            (TargetArgs { operator: Some(id("me")), ..TargetArgs::default() }, "context.pem", Whose::Given(id("me"))),
        ] {
            assert_eq!(credentials(&args, Some(&context)).unwrap(), (Some(key.into()), whose));
        }
    }

    #[test]
    fn a_directory_without_a_running_node_says_how_to_start_one() {
        let dir = tempfile::tempdir().unwrap();
        let refused = running(dir.path()).err().unwrap();
        let report = refused.report().unwrap();
        assert!(report.message().contains("no node runs on") && report.next().unwrap().contains("scafo dev"));
    }

    #[test]
    fn a_node_that_is_not_ready_yet_is_told_from_none() {
        let dir = tempfile::tempdir().unwrap();
        let mut lock = std::fs::File::create(dir.path().join("lock")).unwrap();
        writeln!(lock, "{}", std::process::id()).unwrap();
        lock.lock().unwrap();
        let refused = running(dir.path()).err().unwrap();
        let report = refused.report().unwrap();
        assert!(report.message().contains("is not ready yet") && report.next().unwrap().contains("its log"));
        drop(lock);
        let refused = running(dir.path()).err().unwrap();
        assert!(refused.report().unwrap().message().contains("no node runs on"), "a killed node leaves the file");
    }
}

//! The command line: words in, one [`Command`] out. Values are separate arguments; `--option=value` is unknown, as in celld.

use std::{ffi::OsString, path::PathBuf};

use crate::{
    Failure,
    environment::Environment,
    failure::{Context, Outcome},
};

/// What the process was asked to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Print the help of everything.
    Help,
    /// Print the version line.
    Version,
    /// Run a node.
    Node(StoreOptions, NodeOptions),
    /// Build a project and publish it.
    Deploy(StoreOptions, DeployOptions),
    /// Print the help of `deploy`.
    DeployHelp,
    /// Check listeners, bucket and fleet.
    Diagnose(StoreOptions, NodeOptions, DiagnoseOptions),
}

/// Where the bucket is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreOptions {
    /// `--bucket [s3://]NAME[/PREFIX]`.
    pub bucket: Option<String>,
    /// `--endpoint URL`.
    pub endpoint: Option<String>,
    /// `--region R`.
    pub region: Option<String>,
}

/// How a node listens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeOptions {
    /// `--listen IP:PORT`, the public listener.
    pub listen: Option<String>,
    /// `--internal-listen IP:PORT`, for peers and operators.
    pub internal_listen: Option<String>,
    /// `--advertise ADDR:PORT`, how peers reach the internal listener.
    pub advertise: Option<String>,
    /// `--unsafe-public-advertise`.
    pub unsafe_public_advertise: bool,
    /// `--trust-forwarded-headers`.
    pub trust_forwarded_headers: bool,
    /// `--control-plane`, which the stand-in refuses.
    pub control_plane: bool,
}

/// What `deploy` publishes, and how it tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeployOptions {
    /// A project directory or its configuration file; the working directory if there is none.
    pub project: Option<PathBuf>,
    /// Build and print, write nothing.
    pub dry_run: bool,
    /// One JSON object on standard output.
    pub json: bool,
}

/// What `diagnose` looks at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiagnoseOptions {
    /// Peers to look at; all where there is none.
    pub peers: Vec<String>,
    /// Leave the write probe out.
    pub read_only: bool,
    /// One JSON object per row.
    pub json: bool,
}

/// The word with which the process starts itself as workerd's forerunner.
pub(crate) const EXEC_WORKERD: &str = "__exec-workerd";

/// The first argument of a process that is to confine itself and become esbuild.
pub(crate) const EXEC_BUNDLER: &str = "__exec-bundler";

/// Any of these in the environment makes a bare call a node rather than a call for help.
const NODE_VARIABLES: [&str; 4] = ["CELLD_BUCKET", "CELLD_ADDR", "CELLD_INTERNAL_ADDR", "CELLD_ADVERTISE"];

/// Commands of celld that need what the stand-in has not got.
const MISSING_COMMANDS: [&str; 11] =
    ["d1", "connect", "credentials", "token", "disconnect", "dev", "cell", "kv", "queue", "r2", "containers"];

/// Reads the arguments behind the program's name.
///
/// # Errors
/// An unknown option or word, or an option without its value.
pub fn parse(arguments: impl IntoIterator<Item = OsString>, environment: &Environment) -> Outcome<Command> {
    let mut words = arguments.into_iter();
    let Some(first) = words.next() else {
        let node =
            NODE_VARIABLES.iter().any(|name| environment.text(name).is_some()) || environment.flag("CELLD_CLOUD");
        return Ok(if node { Command::Node(StoreOptions::default(), NodeOptions::default()) } else { Command::Help });
    };
    let mut words = words
        .map(|word| word.into_string().map_err(|word| Failure::new(format!("argument {word:?} is not UTF-8 text"))))
        .collect::<Outcome<Vec<_>>>()?
        .into_iter();
    match first.to_str() {
        Some("--help" | "-h" | "help") => Ok(Command::Help),
        Some("--version" | "-V" | "version") => Ok(Command::Version),
        Some("deploy") => deploy(&mut words),
        Some("diagnose") => diagnose(&mut words),
        Some(word) if MISSING_COMMANDS.contains(&word) => {
            Err(Failure::new(format!("the development stand-in has no `{word}`: use celld itself for it")))
        }
        Some(word) => node(&mut std::iter::once(word.to_owned()).chain(words)),
        None => Err(Failure::new(format!("argument {first:?} is not UTF-8 text"))),
    }
}

fn node(words: &mut dyn Iterator<Item = String>) -> Outcome<Command> {
    let (mut store, mut node) = Default::default();
    while let Some(word) = words.next() {
        if !store_option(&mut store, &word, words)? && !node_option(&mut node, &word, words)? {
            return Err(unknown(&word));
        }
    }
    Ok(Command::Node(store, node))
}

fn deploy(words: &mut dyn Iterator<Item = String>) -> Outcome<Command> {
    let mut store = StoreOptions::default();
    let mut options = DeployOptions::default();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" | "-h" => return Ok(Command::DeployHelp),
            "--dry-run" => options.dry_run = true,
            "--json" => options.json = true,
            "--config" => project(&mut options, value("--config", words)?)?,
            option if option.starts_with('-') => {
                if !store_option(&mut store, &word, words)? {
                    return Err(unknown(&word));
                }
            }
            _ => project(&mut options, word)?,
        }
    }
    Ok(Command::Deploy(store, options))
}

fn project(options: &mut DeployOptions, path: String) -> Outcome<()> {
    match &options.project {
        Some(first) => Err(Failure::new(format!("deploy takes one project: {} and {path:?} are two", first.display()))),
        None => {
            options.project = Some(path.into());
            Ok(())
        }
    }
}

fn diagnose(words: &mut dyn Iterator<Item = String>) -> Outcome<Command> {
    let (mut store, mut node) = Default::default();
    let mut options = DiagnoseOptions::default();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" | "-h" => return Ok(Command::Help),
            "--peer" => options.peers.push(value("--peer", words)?),
            "--read-only" => options.read_only = true,
            "--json" => options.json = true,
            _ => {
                if !store_option(&mut store, &word, words)? && !node_option(&mut node, &word, words)? {
                    return Err(unknown(&word));
                }
            }
        }
    }
    Ok(Command::Diagnose(store, node, options))
}

fn store_option(store: &mut StoreOptions, word: &str, words: &mut dyn Iterator<Item = String>) -> Outcome<bool> {
    match word {
        "--bucket" => store.bucket = Some(value(word, words)?),
        "--endpoint" => store.endpoint = Some(value(word, words)?),
        "--region" => store.region = Some(value(word, words)?),
        _ => return Ok(false),
    }
    Ok(true)
}

fn node_option(node: &mut NodeOptions, word: &str, words: &mut dyn Iterator<Item = String>) -> Outcome<bool> {
    match word {
        "--listen" => node.listen = Some(value(word, words)?),
        "--internal-listen" => node.internal_listen = Some(value(word, words)?),
        "--advertise" => node.advertise = Some(value(word, words)?),
        "--unsafe-public-advertise" => node.unsafe_public_advertise = true,
        "--trust-forwarded-headers" => node.trust_forwarded_headers = true,
        "--control-plane" => node.control_plane = true,
        "--no-control-plane" => node.control_plane = false,
        _ => return Ok(false),
    }
    Ok(true)
}

fn value(option: &str, words: &mut dyn Iterator<Item = String>) -> Outcome<String> {
    words.next().context(|| format!("{option} needs a value behind it"))
}

fn unknown(word: &str) -> Failure {
    Failure::new(format!("unknown argument {word:?}: see `celld-workerd --help`"))
}

/// The text of `--help`.
pub(crate) const HELP: &str = "\
celld-workerd, a development stand-in for celld: runs a Workers application in workerd

Usage:
  celld-workerd [OPTIONS]                 run a node
  celld-workerd deploy [PROJECT] [OPTIONS]  build a project and publish it (see `deploy --help`)
  celld-workerd diagnose [OPTIONS] [--peer ID]... [--read-only] [--json]
  celld-workerd --version | --help        only as the first argument

Options (the variable in brackets holds where the option is not given):
  --bucket [s3://]NAME[/PREFIX]   bucket of the fleet [CELLD_BUCKET]; without one: in memory, answers 404
  --endpoint URL                  S3 endpoint [S3_ENDPOINT]
  --region R                      region [AWS_REGION, AWS_DEFAULT_REGION; us-east-1]
  --listen IP:PORT                public listener [CELLD_ADDR; 127.0.0.1:8080]
  --internal-listen IP:PORT       listener for peers and operators [CELLD_INTERNAL_ADDR; 127.0.0.1:0]
  --advertise HOST:PORT           how peers reach the internal listener [CELLD_ADVERTISE]
  --unsafe-public-advertise       let --advertise be a public address
  --trust-forwarded-headers       let X-Forwarded-Host and X-Forwarded-Proto shape request.url

Tools: CELLD_STANDIN_WORKERD and CELLD_ESBUILD are the paths of workerd and esbuild; otherwise both come from PATH.
Durable Objects keep their data below CELLD_WATCH on this one machine; nothing is replicated.
";

/// The text of `deploy --help`.
pub(crate) const DEPLOY_HELP: &str = "\
celld-workerd deploy: build a Worker with esbuild and publish it in the bucket of a fleet

Usage: celld-workerd deploy [PROJECT] [--config PATH] [--bucket [s3://]NAME[/PREFIX]] [--endpoint URL] [--region R]
                            [--dry-run] [--json]

PROJECT is a directory with wrangler.jsonc or wrangler.json, or that file; the working directory if it is left out.
  --config PATH   the same as PROJECT
  --dry-run       build and print the version, write nothing; needs no bucket
  --json          print one JSON object instead of the version line

Running nodes take the new deployment in place: within CELLD_DEPLOY_POLL_S, or at once on POST /reload.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Outcome<Command> {
        parse(words.iter().map(OsString::from), &Environment::default())
    }

    fn refusal(words: &[&str]) -> String {
        parsed(words).unwrap_err().chain()
    }

    #[test]
    fn a_bare_call_is_help_unless_the_environment_makes_it_a_node() {
        assert_eq!(parsed(&[]).unwrap(), Command::Help);
        for name in NODE_VARIABLES {
            let environment = Environment::from_iter([(name, "x")]);
            assert!(matches!(parse([], &environment).unwrap(), Command::Node(..)), "{name}");
            let blank = Environment::from_iter([(name, " ")]);
            assert_eq!(parse([], &blank).unwrap(), Command::Help, "{name}");
        }
        let cloud = Environment::from_iter([("CELLD_CLOUD", "1")]);
        assert!(matches!(parse([], &cloud).unwrap(), Command::Node(..)));
    }

    #[test]
    fn help_and_version_count_only_as_the_first_argument() {
        for word in ["--help", "-h", "help"] {
            assert_eq!(parsed(&[word]).unwrap(), Command::Help);
        }
        for word in ["--version", "-V", "version"] {
            assert_eq!(parsed(&[word]).unwrap(), Command::Version);
            assert!(refusal(&["--listen", "127.0.0.1:1", word]).contains(word));
        }
    }

    #[test]
    fn values_are_separate_arguments() {
        assert!(refusal(&["--bucket=b"]).contains("unknown argument"));
        assert!(refusal(&["--bucket"]).contains("--bucket needs a value"));
        let Command::Node(store, node) =
            parsed(&["--bucket", "b/p", "--listen", "127.0.0.1:1", "--internal-listen", "127.0.0.1:2"]).unwrap()
        else {
            panic!("not a node");
        };
        assert_eq!(store.bucket.as_deref(), Some("b/p"));
        assert_eq!(node.internal_listen.as_deref(), Some("127.0.0.1:2"));
    }

    #[test]
    fn unknown_words_and_options_are_refused() {
        for words in [&["run"][..], &["--frobnicate"], &["deploy", "--listen", "x"], &["diagnose", "now"], &["kv"]] {
            assert!(parsed(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn deploy_takes_one_project_in_either_spelling() {
        let Command::Deploy(_, options) = parsed(&["deploy", "--json", "app", "--dry-run"]).unwrap() else {
            panic!("not a deploy");
        };
        assert_eq!(options, DeployOptions { project: Some("app".into()), dry_run: true, json: true });
        assert!(refusal(&["deploy", "a", "--config", "b"]).contains("one project"));
        assert_eq!(parsed(&["deploy", "--help"]).unwrap(), Command::DeployHelp);
    }
}

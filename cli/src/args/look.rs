//! `scafo status`, `scafo routes`, and what the registry remembers.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use scafo_core::config::parse_duration;
use scafo_core::{ApplicationName, NodeId};

use super::{LocalArgs, RegistryArgs, TargetArgs};

/// Show what a node runs and whether all is well
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// Show which hosts the fleet answers on, and where each leads
///
/// Reads the document that ingresses pull, with the node's ingress token.
#[derive(Debug, Args)]
pub(crate) struct RoutesArgs {
    /// `table`, `generic` (the document itself), or a native format that the node renders, such as `traefik`
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub(crate) format: String,

    /// Put this node's upstreams first; `self` is the node that answers
    #[arg(long, value_name = "NODE")]
    pub(crate) prefer: Option<NodeId>,

    /// A file with an ingress token [default: the one of the node on this machine]
    #[arg(long, value_name = "FILE")]
    pub(crate) ingress_token_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// Show what an application printed on this machine
///
/// Reads the node's files, as root or as the node's own user; the node need not run. At most the last 20 MiB are kept of each
/// application, and of what it prints 1 MiB a second.
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The application
    #[arg(value_name = "APP")]
    pub(crate) name: ApplicationName,

    /// How many lines of what is there
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    pub(crate) lines: usize,

    /// Show what it prints from now on, until Ctrl-C
    #[arg(long, short)]
    pub(crate) follow: bool,

    #[command(flatten)]
    pub(crate) local: LocalArgs,
}

/// What to do with deployments.
#[derive(Debug, Subcommand)]
pub(crate) enum DeploymentCommand {
    /// List what was ever published of an application, the newest first
    ///
    /// Asks the registry of a node on this machine, as root or as the node's own user.
    List(HistoryArgs),
    Prune(PruneArgs),
}

/// Remove what the runtime keeps of deployments that nobody needs
///
/// What is served stays, and what any node reports to serve, the newest deployments, and everything that is young. Deploys have to be
/// frozen meanwhile (`scafo fleet freeze`): the runtime shares files between deployments and does not upload what is there.
///
/// Unstable: it removes objects of the runtime, and only of releases whose objects were looked at.
#[derive(Debug, Args)]
pub(crate) struct PruneArgs {
    /// The application
    #[arg(value_name = "APP")]
    pub(crate) name: ApplicationName,

    /// How many of the newest deployments stay
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub(crate) keep: usize,

    /// What was written within this time stays, such as 30d
    #[arg(long, value_name = "DURATION", default_value = "30d", value_parser = parse_age)]
    pub(crate) older_than: Duration,

    /// Say what would go, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

fn parse_age(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "write a duration like 30d or 12h".to_owned())
}

/// Which part of an application's history.
#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// The application
    #[arg(value_name = "APP")]
    pub(crate) name: ApplicationName,

    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: usize,

    #[command(flatten)]
    pub(crate) local: RegistryArgs,
}

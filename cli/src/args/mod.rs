//! The command line, and with it the reference: what a command does, what happens meanwhile, and what the defaults are. Help,
//! man pages and completions are all made from here.

// These comments are shown on terminals, where marks around every name only disturb.
#![allow(clippy::doc_markdown)]

mod app;
mod bucket;
mod context;
mod deploy;
mod fleet;
mod look;
mod node;
mod nodes;
mod observe;
mod operator;
mod shell;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use scafo_core::OperatorId;
use scafo_core::record::Replicas;

pub(crate) use self::app::{
    AppArgs, AppCommand, AppDeleteArgs, AppLabelsArgs, AppListArgs, AppReplicasArgs, AppSelectorArgs, DomainAddArgs,
    DomainCommand, DomainRemoveArgs, LeaseCommand, LeaseDropArgs,
};
pub(crate) use self::bucket::{BucketArgs, FleetArgs, RegistryArgs};
pub(crate) use self::context::{ContextAddArgs, ContextCommand, ContextNameArgs};
pub(crate) use self::deploy::DeployArgs;
pub(crate) use self::fleet::{
    FleetCommand, FleetFreezeArgs, FleetStatusArgs, FleetUnfreezeArgs, TrustCommand, TrustRemoveArgs, TrustSetArgs,
    TrustShowArgs,
};
pub(crate) use self::look::{DeploymentCommand, HistoryArgs, LogsArgs, PruneArgs, RoutesArgs, StatusArgs};
pub(crate) use self::node::{DevArgs, SailArgs};
pub(crate) use self::nodes::{NodeArgs, NodeCommand, NodeDrainArgs, NodeListArgs, NodeRemoveArgs};
pub(crate) use self::observe::{MetricsArgs, TracesArgs, WithinArgs};
pub(crate) use self::operator::{
    OperatorAddArgs, OperatorCommand, OperatorInitArgs, OperatorListArgs, OperatorRevokeArgs, OperatorRotateArgs,
};
pub(crate) use self::shell::{CompletionsArgs, ManArgs};
use crate::client::ApiUrl;
use crate::contexts::ContextName;

/// Fleet control for Workers-style applications.
#[derive(Debug, Parser)]
#[command(
    name = "scafo",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = "Exit status: 0 when it was done, 1 when it was refused or failed, 2 when the command line is wrong."
)]
pub(crate) struct Cli {
    /// Print data as JSON on standard output
    ///
    /// What a command has to say to people goes to standard error, with and without this flag.
    #[arg(long, global = true, display_order = 100)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Dev(DevArgs),
    Sail(SailArgs),
    Deploy(DeployArgs),
    Status(StatusArgs),
    Routes(RoutesArgs),
    Logs(LogsArgs),
    Metrics(MetricsArgs),
    Traces(TracesArgs),
    /// Look at applications and decide about them
    #[command(subcommand)]
    App(AppCommand),
    /// List the deploys of an application, the newest first
    ///
    /// Asks the registry of a node on this machine, as root or as the node's own user. The deploys of the last seven days are
    /// kept.
    Deploys(HistoryArgs),
    /// Look at what was published
    #[command(subcommand)]
    Deployment(DeploymentCommand),
    /// Decide about the fleet as a whole
    #[command(subcommand)]
    Fleet(FleetCommand),
    /// Look at the nodes of the fleet, and take one out of it
    ///
    /// Through the registry of a node on this machine, as root or as the node's own user; it may be another node than the one
    /// that is meant.
    #[command(subcommand)]
    Node(NodeCommand),
    /// Manage the keys that may operate the fleet
    #[command(subcommand)]
    Operator(OperatorCommand),
    /// Decide which workload tokens may deploy an application
    #[command(subcommand)]
    Trust(TrustCommand),
    /// Give names to installations and their keys
    #[command(subcommand)]
    Context(ContextCommand),
    Completions(CompletionsArgs),
    Man(ManArgs),
}

/// Which node to talk to, and with which key.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Which node, which key")]
pub(crate) struct TargetArgs {
    /// State directory of a node on this machine [default: SCAFO_STATE_DIR, else ./.scafo when it is there, else the current
    /// context, else /var/lib/scafo]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Base URL of the API of any node [default: SCAFO_URL]
    #[arg(long, value_name = "URL", conflicts_with = "context")]
    pub(crate) url: Option<ApiUrl>,

    /// An installation by the name that `scafo context add` gave it [default: SCAFO_CONTEXT]
    #[arg(long, value_name = "NAME", conflicts_with = "state_dir")]
    pub(crate) context: Option<ContextName>,

    /// File with an operator's private key, PKCS#8 PEM [default: the context's, else SCAFO_KEY, else the node's, else yours]
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,

    /// The key's id [default: SCAFO_OPERATOR, else what stands in the key's file or beside it]
    #[arg(long, value_name = "ID")]
    pub(crate) operator: Option<OperatorId>,
}

/// The node on this machine whose registry is asked directly.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct LocalArgs {
    /// State directory of the node [default: SCAFO_STATE_DIR, else ./.scafo when it is there, else /var/lib/scafo]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// `K=V` with a key that is not empty; the value may hold further equals signs.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it as K=V".to_owned()),
    }
}

fn parse_replicas(text: &str) -> Result<Replicas, String> {
    if text == "all" {
        return Ok(Replicas::All);
    }
    text.parse().map(Replicas::Count).map_err(|_| "must be `all` or a whole number of at least 1".to_owned())
}

#[cfg(test)]
mod tests;

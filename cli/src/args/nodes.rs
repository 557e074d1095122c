//! `scafo node`.

use std::time::Duration;

use clap::{Args, Subcommand};
use scafo_core::NodeId;
use scafo_core::config::parse_duration;

use super::RegistryArgs;

/// What to do with nodes.
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List the nodes of the fleet
    List(NodeListArgs),
    Drain(NodeDrainArgs),
    /// Take a drain back, however far it is
    Undrain(NodeArgs),
    Remove(NodeRemoveArgs),
}

/// Arguments of `scafo node list`.
#[derive(Debug, Args)]
pub(crate) struct NodeListArgs {
    #[command(flatten)]
    pub(crate) local: RegistryArgs,
}

/// Have the other nodes take over what a node serves, and then stop it there
///
/// The node takes nothing new. Once others serve all that it serves it leaves the routes, and after a hold its processes end; no
/// request is lost. Where nobody takes over in time it serves on and the drain has failed. The command follows until the end; ending
/// it early changes nothing, and giving it again goes on.
#[derive(Debug, Args)]
pub(crate) struct NodeDrainArgs {
    /// The node
    #[arg(value_name = "NODE")]
    pub(crate) node: NodeId,

    /// How long others have to take over, such as 5m [default: drain.timeout of the node that is asked]
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout)]
    pub(crate) timeout: Option<Duration>,

    /// Go after that time even if nobody has taken over: what only this node serves is away then
    #[arg(long)]
    pub(crate) force: bool,

    /// Ask, and do not follow
    #[arg(long)]
    pub(crate) no_wait: bool,

    #[command(flatten)]
    pub(crate) local: RegistryArgs,
}

/// One node and no more to say.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// The node
    #[arg(value_name = "NODE")]
    pub(crate) node: NodeId,

    #[command(flatten)]
    pub(crate) local: RegistryArgs,
}

/// Forget a node
///
/// One that is drained, or that shows no signs of life any more. Its id stays its own: only a node with the same key can come back
/// under it.
#[derive(Debug, Args)]
pub(crate) struct NodeRemoveArgs {
    /// The node
    #[arg(value_name = "NODE")]
    pub(crate) node: NodeId,

    /// Although it lives: it stops when it finds out
    #[arg(long)]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) local: RegistryArgs,
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "write a duration like 30s, 5m or 2h".to_owned())
}

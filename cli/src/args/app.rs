//! `scafo app`.

use clap::{Args, Subcommand};
use scafo_core::ApplicationName;
use scafo_core::domain::Host;
use scafo_core::record::Replicas;

use super::{FleetArgs, RegistryArgs, parse_pair, parse_replicas};

/// What to do with applications.
#[derive(Debug, Subcommand)]
pub(crate) enum AppCommand {
    /// List the applications that the key reaches
    List(AppListArgs),
    /// Show one application
    Show(AppArgs),
    /// Stop serving an application, for good unless it is taken back
    ///
    /// It stops at once on every node, and its hosts leave the routes. Nothing is deleted: `scafo app unretire` takes it back,
    /// and a week later `scafo app delete` may delete it.
    Retire(AppArgs),
    /// Take a retired application back
    Unretire(AppArgs),
    Delete(AppDeleteArgs),
    Selector(AppSelectorArgs),
    Replicas(AppReplicasArgs),
    Labels(AppLabelsArgs),
    /// Stop an application from outside, whatever its owner wants
    ///
    /// Admins only. Each node stops serving it with its next pass, its hosts leave the routes, and it takes no deploys. Nothing is
    /// deleted; `scafo app unblock` brings back what was.
    Block(AppArgs),
    /// Lift a block
    ///
    /// Admins only. What the application was before is served again.
    Unblock(AppArgs),
    /// Decide which hosts an application answers at, beside those under the platform domains
    #[command(subcommand)]
    Domain(DomainCommand),
    /// Look after the leases of the runtime
    #[command(subcommand)]
    Lease(LeaseCommand),
}

/// What to do with leases of the runtime.
#[derive(Debug, Subcommand)]
pub(crate) enum LeaseCommand {
    Drop(LeaseDropArgs),
}

/// Remove a lease that the runtime cannot read
///
/// One that is damaged keeps an application from starting. One that can be read is left alone, whatever it says: the runtime
/// collects it itself, and it may be the only way to data that is not recovered yet.
///
/// Unstable: it removes an object of the runtime.
#[derive(Debug, Args)]
pub(crate) struct LeaseDropArgs {
    /// The application
    #[arg(value_name = "APP")]
    pub(crate) name: ApplicationName,

    /// The process's name in the runtime's fleet: the last part of the lease's key, without `.json`
    #[arg(value_name = "NODE")]
    pub(crate) node: String,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

/// Arguments of `scafo app list`.
#[derive(Debug, Args)]
pub(crate) struct AppListArgs {
    #[command(flatten)]
    pub(crate) target: FleetArgs,
}

/// One application and no more to say.
#[derive(Debug, Args)]
pub(crate) struct AppArgs {
    /// The application
    #[arg(value_name = "APP")]
    pub(crate) name: ApplicationName,

    #[command(flatten)]
    pub(crate) target: FleetArgs,
}

/// Delete an application with everything that it has stored
///
/// Durable Objects and their data included. It has to be retired, and for a week. Its domains can be claimed by others
/// afterwards. The work is done by the node that coordinates, whichever is asked.
#[derive(Debug, Args)]
pub(crate) struct AppDeleteArgs {
    /// The application
    #[arg(value_name = "APP")]
    pub(crate) name: ApplicationName,

    /// Delete it although it is not retired, or not for a week
    #[arg(long)]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) target: FleetArgs,
}

/// Decide which nodes may serve an application
///
/// Those that have all the labels. When no node has them the application keeps no place, which `scafo status` shows.
#[derive(Debug, Args)]
pub(crate) struct AppSelectorArgs {
    /// The application
    #[arg(value_name = "APP")]
    pub(crate) name: ApplicationName,

    /// The labels that a node must have, instead of those that were asked for until now
    #[arg(value_name = "K=V", value_parser = parse_pair, required_unless_present = "any", conflicts_with = "any")]
    pub(crate) labels: Vec<(String, String)>,

    /// Any node may
    #[arg(long)]
    pub(crate) any: bool,

    #[command(flatten)]
    pub(crate) target: FleetArgs,
}

/// Decide how many nodes shall serve an application
#[derive(Debug, Args)]
pub(crate) struct AppReplicasArgs {
    /// The application
    #[arg(value_name = "APP")]
    pub(crate) name: ApplicationName,

    /// A number of at least 1, or `all` for each node that may
    #[arg(value_name = "N", value_parser = parse_replicas)]
    pub(crate) replicas: Replicas,

    #[command(flatten)]
    pub(crate) target: FleetArgs,
}

/// Replace the fleet's own notes on an application
///
/// Admins only, and only admins see them. scafo never looks at what they say.
#[derive(Debug, Args)]
pub(crate) struct AppLabelsArgs {
    /// The application
    #[arg(value_name = "APP")]
    pub(crate) name: ApplicationName,

    /// The labels, instead of all that were there
    #[arg(value_name = "K=V", value_parser = parse_pair, required_unless_present = "clear", conflicts_with = "clear")]
    pub(crate) labels: Vec<(String, String)>,

    /// Leave none
    #[arg(long)]
    pub(crate) clear: bool,

    #[command(flatten)]
    pub(crate) target: FleetArgs,
}

/// What to do with an application's own hosts.
#[derive(Debug, Subcommand)]
pub(crate) enum DomainCommand {
    Add(DomainAddArgs),
    /// Give a host up
    ///
    /// The application stops answering there, and others may claim it.
    Remove(DomainRemoveArgs),
    /// List an application's own hosts
    List(AppArgs),
}

/// Claim a host for an application
///
/// The first that claims it has it. The name has to lead to an ingress of the fleet, which is for its owner to arrange.
#[derive(Debug, Args)]
pub(crate) struct DomainAddArgs {
    /// The application
    #[arg(value_name = "APP")]
    pub(crate) name: ApplicationName,

    /// A host with at least two labels, such as shop.example
    #[arg(value_name = "HOST")]
    pub(crate) host: Host,

    /// Claim the label below it too
    ///
    /// ENV.HOST then leads to the application APP-ENV when that is served, and to this one otherwise. Needs a key that reaches
    /// every application whose name starts with APP-.
    #[arg(long)]
    pub(crate) wildcard: bool,

    #[command(flatten)]
    pub(crate) target: FleetArgs,
}

/// Arguments of `scafo app domain remove`.
#[derive(Debug, Args)]
pub(crate) struct DomainRemoveArgs {
    /// The application
    #[arg(value_name = "APP")]
    pub(crate) name: ApplicationName,

    /// The host
    #[arg(value_name = "HOST")]
    pub(crate) host: Host,

    #[command(flatten)]
    pub(crate) target: FleetArgs,
}

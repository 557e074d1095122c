//! `scafo dev` and `scafo sail`.

use std::path::PathBuf;

use clap::Args;

use crate::settings::ConfigArgs;

/// Run a whole node on this machine, for development
///
/// Starts everything that a node has, with an embedded bucket and our own ingress, makes an operator key, and stays in the
/// foreground until Ctrl-C. Needs no configuration: the state is kept in ./.scafo, applications answer under dev.localhost, the
/// API listens on 127.0.0.1:7400 and the ingress on 127.0.0.1:8080 (--api-listen, --ingress-listen; port 0 picks a free one).
/// Where no celld is on PATH it runs applications with a development stand-in, which is not for production.
///
/// With --json one line is printed on standard output when the node is ready, and nothing after it.
#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// The directory with the stand-in's tools, as `npm ci` makes it in runtime/node_modules
    ///
    /// Default: SCAFO_RUNTIME_TOOLS, else the nearest runtime/node_modules above the executable.
    #[arg(long, value_name = "DIR")]
    pub(crate) tools: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

/// Run this node
///
/// Starts and watches every process of the node and stays in the foreground until it is asked to end. Reads
/// /etc/scafo/scafo.toml when it is there; the environment rules over the file, and flags rule over both. A setting is spelled
/// alike in all three: node.address in the file, SCAFO_NODE_ADDRESS, --node-address.
///
/// Exits with 78 when trying again would change nothing, such as with a bucket that belongs to another installation.
#[derive(Debug, Args)]
pub(crate) struct SailArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

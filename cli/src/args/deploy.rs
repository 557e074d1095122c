//! `scafo deploy`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use scafo_core::ApplicationName;
use scafo_core::record::Replicas;

use super::{TargetArgs, parse_pair, parse_replicas};

/// Deploy a project and follow it until it is served
///
/// Packs the directory, uploads it, and reports each step until every node that the application is placed on serves it; then
/// prints the URL. The application is created by its first deploy. When a deploy fails, what was served before is served on.
///
/// Left out of the archive: .git, .scafo, .wrangler, node_modules/.cache, and at the top level .env and .dev.vars files.
/// node_modules goes along, because the node bundles. The project on this machine is never changed.
#[derive(Debug, Args)]
pub(crate) struct DeployArgs {
    /// The project: a directory with wrangler.jsonc or wrangler.json
    #[arg(value_name = "DIR", default_value = ".")]
    pub(crate) dir: PathBuf,

    /// The application to deploy to [default: `name` of the project's configuration]
    #[arg(long, value_name = "NAME")]
    pub(crate) app: Option<ApplicationName>,

    /// How many nodes shall serve it, or `all` [default: as it is]
    #[arg(long, value_name = "N", value_parser = parse_replicas)]
    pub(crate) replicas: Option<Replicas>,

    /// Only nodes with this label may serve it; may be given several times [default: as it is]
    #[arg(long, value_name = "K=V", value_parser = parse_pair)]
    pub(crate) selector: Vec<(String, String)>,

    /// Set a variable of the Worker for this deploy; may be given several times
    #[arg(long, value_name = "K=V", value_parser = parse_pair)]
    pub(crate) var: Vec<(String, String)>,

    /// Publish `main` as it is, without bundling
    #[arg(long)]
    pub(crate) no_bundle: bool,

    /// Wait for nothing
    ///
    /// Fail at once when the node's deploy queue is full, and return as soon as the node has accepted the deploy.
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// Pack and say what would be sent, and send nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

impl DeployArgs {
    /// The node selector, when one was given.
    pub(crate) fn node_selector(&self) -> Option<BTreeMap<String, String>> {
        (!self.selector.is_empty()).then(|| self.selector.iter().cloned().collect())
    }
}

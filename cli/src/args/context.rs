//! `scafo context`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use scafo_core::OperatorId;

use crate::client::ApiUrl;
use crate::contexts::ContextName;

/// What to do with named installations.
#[derive(Debug, Subcommand)]
pub(crate) enum ContextCommand {
    Add(ContextAddArgs),
    /// List them; an asterisk marks the current one
    List,
    /// Make one the current one
    ///
    /// It is used where nothing else names a node: no flag, no variable, and no ./.scafo in this directory.
    Use(ContextNameArgs),
    /// Forget one
    ///
    /// The key's file stays.
    Remove(ContextNameArgs),
}

/// Give an installation a name
///
/// Commands then take --context NAME. Kept in $XDG_CONFIG_HOME/scafo/contexts.toml. A name that is there already is replaced.
#[derive(Debug, Args)]
pub(crate) struct ContextAddArgs {
    /// Letters, digits, dots, hyphens and underscores
    #[arg(value_name = "NAME")]
    pub(crate) name: ContextName,

    /// Base URL of the API of any node of it, or of its ingress
    #[arg(long, value_name = "URL")]
    pub(crate) url: ApiUrl,

    /// File with your private key there [default: found anew by each command]
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,

    /// The key's id, where the file does not say it
    #[arg(long, value_name = "ID")]
    pub(crate) operator: Option<OperatorId>,
}

/// A context that is there.
#[derive(Debug, Args)]
pub(crate) struct ContextNameArgs {
    /// Its name
    #[arg(value_name = "NAME")]
    pub(crate) name: ContextName,
}

//! `scafo operator`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use scafo_core::OperatorId;
use scafo_core::record::Role;

use super::{FleetArgs, RegistryArgs, TargetArgs};

/// What to do with operator keys.
#[derive(Debug, Subcommand)]
pub(crate) enum OperatorCommand {
    Init(OperatorInitArgs),
    Add(OperatorAddArgs),
    /// List the keys that the fleet knows
    ///
    /// An admin sees all of them, any other key itself, the one that it replaced and the one that replaces it.
    List(OperatorListArgs),
    Rotate(OperatorRotateArgs),
    Revoke(OperatorRevokeArgs),
}

/// Make the first admin key of the fleet
///
/// Runs on a node, as root or as the node's own user, or on the bucket itself. The key is kept in $XDG_CONFIG_HOME/scafo/keys, readable by you alone;
/// the fleet learns its public half only. With an id whose key is there already, that key is used: repeating the command is safe.
#[derive(Debug, Args)]
pub(crate) struct OperatorInitArgs {
    /// The key's id [default: made from the key]
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<OperatorId>,

    /// Make an admin although the fleet has operators, for example when every admin key is lost
    #[arg(long)]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) local: RegistryArgs,
}

/// Let another key operate the fleet
///
/// The key reaches what --applications says, and no more than yours does. Either somebody sends their public key (--public-key),
/// or the command makes a key for them and writes it to a file that you hand over (--key-out). Repeating the command with the same
/// file is safe.
///
/// Somebody's public key: openssl genpkey -algorithm ed25519 -out my.pem; openssl pkey -in my.pem -pubout
#[derive(Debug, Args)]
pub(crate) struct OperatorAddArgs {
    /// The key's id [default: made from the key]
    #[arg(value_name = "ID")]
    pub(crate) id: Option<OperatorId>,

    /// Applications that it reaches: names, prefixes such as shop-*, or * alone; comma-separated, or several times
    #[arg(long, value_name = "LIST", required = true, value_delimiter = ',')]
    pub(crate) applications: Vec<String>,

    /// What it may do there
    #[arg(long, value_name = "ROLE", default_value = "operator")]
    pub(crate) role: Tier,

    /// File with the public key, PEM or JWK
    #[arg(long, value_name = "FILE", required_unless_present = "key_out", conflicts_with = "key_out")]
    pub(crate) public_key: Option<PathBuf>,

    /// File to write a new private key to, readable by you alone
    #[arg(long, value_name = "FILE")]
    pub(crate) key_out: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) target: FleetArgs,
}

/// The tier of a key on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tier {
    /// Deploys applications and manages their settings
    Operator,
    /// Decides about the whole fleet
    Admin,
}

impl From<Tier> for Role {
    fn from(tier: Tier) -> Self {
        match tier {
            Tier::Operator => Self::Operator,
            Tier::Admin => Self::Admin,
        }
    }
}

/// Arguments of `scafo operator list`.
#[derive(Debug, Args)]
pub(crate) struct OperatorListArgs {
    #[command(flatten)]
    pub(crate) target: FleetArgs,
}

/// Replace your key by a new one
///
/// Makes a key, has the fleet accept it in the place of yours, with the same rights, sees that it works, puts it into the file where
/// yours was, and takes yours away. Whatever happens in between, the file holds a key that works; run the command again to go on
/// where it stopped. The new key has another id, which stands in the file.
#[derive(Debug, Args)]
pub(crate) struct OperatorRotateArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// Take a key away
///
/// Nodes may accept it for up to 60 seconds more, but not for what needs an operator's record. Its id is never given again. The last
/// key and the last admin key stay.
#[derive(Debug, Args)]
pub(crate) struct OperatorRevokeArgs {
    /// The key's id; not your own, which `scafo operator rotate` replaces
    #[arg(value_name = "ID")]
    pub(crate) id: OperatorId,

    #[command(flatten)]
    pub(crate) target: FleetArgs,
}

//! `scafo fleet` and `scafo trust`.

use clap::{Args, Subcommand};
use scafo_core::ApplicationName;

use super::{FleetArgs, RegistryArgs};

/// What to do with the fleet as a whole.
#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    Freeze(FleetFreezeArgs),
    /// Take deploys again
    ///
    /// Admins only. Nodes take deploys again from their next one on.
    Unfreeze(FleetUnfreezeArgs),
    /// Show whether deploys are frozen, who coordinates, and what has no place
    Status(FleetStatusArgs),
}

/// Refuse every deploy until further notice
///
/// Admins only. Nothing else changes: what is served is served on, and applications can be retired and deleted. Freezing twice is
/// one freeze, with the first reason.
#[derive(Debug, Args)]
pub(crate) struct FleetFreezeArgs {
    /// Why, in one line of at most 200 characters: whoever is refused reads it
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,

    #[command(flatten)]
    pub(crate) target: FleetArgs,
}

/// Arguments of `scafo fleet unfreeze`.
#[derive(Debug, Args)]
pub(crate) struct FleetUnfreezeArgs {
    #[command(flatten)]
    pub(crate) target: FleetArgs,
}

/// Arguments of `scafo fleet status`.
#[derive(Debug, Args)]
pub(crate) struct FleetStatusArgs {
    #[command(flatten)]
    pub(crate) target: FleetArgs,
}

/// What to do with trust policies.
#[derive(Debug, Subcommand)]
pub(crate) enum TrustCommand {
    Set(TrustSetArgs),
    /// Show which workload tokens may deploy an application
    Show(TrustShowArgs),
    /// Admit no workload tokens any more
    Remove(TrustRemoveArgs),
}

/// Let a CI system's tokens deploy an application, without a key of ours
///
/// Runs on a node, as root or as the node's own user, or on the bucket itself. The rule takes the place of the one with the same issuer and audience; other
/// rules stay. The application need not exist yet: the first deploy creates it.
///
/// GitHub Actions: --issuer https://token.actions.githubusercontent.com --subject 'repo:OWNER/REPO:ref:refs/heads/main'
///
/// GitLab CI: --issuer https://gitlab.com --subject 'project_path:GROUP/PROJECT:ref_type:branch:ref:main'
#[derive(Debug, Args)]
pub(crate) struct TrustSetArgs {
    /// The application
    #[arg(value_name = "APP")]
    pub(crate) name: ApplicationName,

    /// What the tokens name as their issuer: an https URL, exactly as it stands in them
    #[arg(long, value_name = "URL", value_parser = parse_issuer)]
    pub(crate) issuer: String,

    /// Patterns of what the tokens name as their subject; an asterisk stands for any run of characters
    #[arg(long = "subject", value_name = "PATTERN", required = true, num_args = 1..)]
    pub(crate) subjects: Vec<String>,

    /// What the tokens are made out to
    #[arg(long, value_name = "AUD", default_value = "scafo")]
    pub(crate) audience: String,

    #[command(flatten)]
    pub(crate) local: RegistryArgs,
}

/// Arguments of `scafo trust show`.
#[derive(Debug, Args)]
pub(crate) struct TrustShowArgs {
    /// The application
    #[arg(value_name = "APP")]
    pub(crate) name: ApplicationName,

    #[command(flatten)]
    pub(crate) local: RegistryArgs,
}

/// Arguments of `scafo trust remove`.
#[derive(Debug, Args)]
pub(crate) struct TrustRemoveArgs {
    /// The application
    #[arg(value_name = "APP")]
    pub(crate) name: ApplicationName,

    /// Only the rules of this issuer [default: all of them]
    #[arg(long, value_name = "URL")]
    pub(crate) issuer: Option<String>,

    #[command(flatten)]
    pub(crate) local: RegistryArgs,
}

/// A rule whose issuer nobody may ask for its keys would admit nobody.
fn parse_issuer(text: &str) -> Result<String, String> {
    if scafo_core::trust::is_fetchable(text) {
        return Ok(text.to_owned());
    }
    Err("must be an https URL without user, query and fragment".to_owned())
}

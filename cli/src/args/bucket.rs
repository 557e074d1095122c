//! Where commands work that need only the records: a node, or the bucket itself.

use clap::Args;

use super::{LocalArgs, TargetArgs};

/// The bucket itself.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Without a node")]
pub(crate) struct BucketArgs {
    /// Work on the records in this bucket, and ask no node
    ///
    /// With AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of somebody who may read and write there: he may do what an admin may.
    #[arg(long, value_name = "NAME", conflicts_with = "state_dir")]
    pub(crate) bucket: Option<String>,

    /// What stands before every key [default: SCAFO_BUCKET_PREFIX]
    #[arg(long, value_name = "PREFIX", requires = "bucket")]
    pub(crate) bucket_prefix: Option<String>,

    /// Base URL of an S3-compatible store [default: SCAFO_BUCKET_ENDPOINT, else AWS]
    #[arg(long, value_name = "URL", requires = "bucket")]
    pub(crate) bucket_endpoint: Option<String>,

    /// The region [default: SCAFO_BUCKET_REGION, else AWS_REGION, else us-east-1]
    #[arg(long, value_name = "REGION", requires = "bucket")]
    pub(crate) bucket_region: Option<String>,
}

/// Any node with a key, or the bucket itself.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct FleetArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,

    #[command(flatten)]
    pub(crate) bucket: BucketArgs,
}

/// The registry of a node on this machine, or the bucket itself.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct RegistryArgs {
    #[command(flatten)]
    pub(crate) local: LocalArgs,

    #[command(flatten)]
    pub(crate) bucket: BucketArgs,
}

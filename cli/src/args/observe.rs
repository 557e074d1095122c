//! `scafo metrics` and `scafo traces`: what the nodes measured and traced.

use std::time::Duration;

use clap::Args;
use scafo_core::config::parse_duration;
use scafo_core::{ApplicationName, NodeId};

use super::RegistryArgs;

/// Longest time that may be looked back: more than any node keeps.
const SINCE_MAX: Duration = Duration::from_hours(3650 * 24);

/// Show what the nodes of the fleet measured
///
/// Reads the observations in the bucket, through the registry of a node on this machine or, with --bucket, by itself. They are kept
/// for `observe.retention`, and the last minute is not there yet. Of more files than --files the first and the last of each node are
/// read and others evenly in between.
///
/// Sums such as counters show by how much they grew; one that started again counts from there.
#[derive(Debug, Args)]
pub(crate) struct MetricsArgs {
    /// Metrics whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub(crate) name: Option<String>,

    /// Metrics about this application
    #[arg(long = "application", visible_alias = "app", value_name = "APP")]
    pub(crate) application: Option<ApplicationName>,

    /// Show the buckets of histograms too
    #[arg(long)]
    pub(crate) buckets: bool,

    /// How many series at most
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub(crate) limit: usize,

    #[command(flatten)]
    pub(crate) within: WithinArgs,
}

/// Show what the nodes of the fleet traced
///
/// Reads the observations in the bucket, through the registry of a node on this machine or, with --bucket, by itself. They are kept
/// for `observe.retention`, and the last minute is not there yet. Of more files than --files the newest are read.
#[derive(Debug, Args)]
pub(crate) struct TracesArgs {
    /// Show the spans of one trace, named by its id or how that begins
    #[arg(long, value_name = "ID", value_parser = parse_trace)]
    pub(crate) trace: Option<String>,

    /// Traces with a span whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub(crate) name: Option<String>,

    /// Traces about this application
    #[arg(long = "application", visible_alias = "app", value_name = "APP")]
    pub(crate) application: Option<ApplicationName>,

    /// Traces in which something failed
    #[arg(long)]
    pub(crate) failed: bool,

    /// How many traces at most, the newest first
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) limit: usize,

    #[command(flatten)]
    pub(crate) within: WithinArgs,
}

/// Which observations.
#[derive(Debug, Clone, Args)]
pub(crate) struct WithinArgs {
    /// Of this node [default: of all]
    #[arg(long, value_name = "NODE")]
    pub(crate) node: Option<NodeId>,

    /// How far back, such as 30m or 7d
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = parse_since)]
    pub(crate) since: Duration,

    /// How many files are read at most; each node writes one a minute
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = parse_files)]
    pub(crate) files: usize,

    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
}

fn parse_since(text: &str) -> Result<Duration, String> {
    let since = parse_duration(text).filter(|since| !since.is_zero() && *since <= SINCE_MAX);
    since.ok_or_else(|| "write a duration like 30m, 12h or 7d".to_owned())
}

fn parse_files(text: &str) -> Result<usize, String> {
    let files = text.parse().ok().filter(|files| (1..=50_000).contains(files));
    files.ok_or_else(|| "write a number from 1 to 50000".to_owned())
}

fn parse_trace(text: &str) -> Result<String, String> {
    let digits = (4..=32).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if digits { Ok(text.to_ascii_lowercase()) } else { Err("write 4 to 32 hexadecimal digits".to_owned()) }
}

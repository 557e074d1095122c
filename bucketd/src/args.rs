//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::Parser;

/// Serve a directory as an S3 bucket
///
/// Without --dir the settings come on standard input and the socket from scafo-supervisor. With it, the store runs by itself: it
/// takes its credentials from `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY` and prints one line, `listening on http://…`, when
/// it is ready. Clients address it path-style.
#[derive(Debug, Parser)]
#[command(name = "scafo-bucketd", version)]
pub(crate) struct Args {
    /// Keep the objects in this directory, created when it is missing
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,

    /// Listen here; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0", requires = "dir")]
    pub(crate) listen: SocketAddr,

    /// Create this bucket if it is not there
    #[arg(long, value_name = "NAME", default_value = "scafo", requires = "dir")]
    pub(crate) bucket: String,

    #[command(flatten)]
    pub(crate) credentials: KeyPair,
}

/// Credentials from the environment only, since arguments are visible to every user of the machine.
#[derive(clap::Args)]
pub(crate) struct KeyPair {
    /// The access key id that clients sign with
    #[arg(skip = std::env::var("AWS_ACCESS_KEY_ID").ok())]
    pub(crate) access_key_id: Option<String>,

    /// The secret beside it
    #[arg(skip = std::env::var("AWS_SECRET_ACCESS_KEY").ok())]
    pub(crate) secret_access_key: Option<String>,
}

impl std::fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyPair").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

//! The command line, for an ingress that is started by hand or by a service manager of its own.

use std::{
    fs::File,
    io::{self, Read as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Parser;
use scafo_core::settings::{IngressSource, IngressdSettings, Millis, Secret};

/// Largest token file. Tokens have tens of characters; more is another file.
const LARGEST_TOKEN_FILE: u64 = 4096;

/// Route requests to the applications of one or more fleets
///
/// Pulls the routing document of one node per fleet and proxies HTTP/1.1, HTTP/2 without TLS and WebSockets to the
/// processes that it names. Without arguments it expects to be started by scafo-supervisor, with its socket inherited and
/// its settings on standard input.
#[derive(Debug, Parser)]
#[command(name = "scafo-ingressd", version)]
pub struct Args {
    /// Base URL of a node, http://HOST:PORT; once for each fleet
    ///
    /// A host is looked up exactly in each fleet in this order, and then as a wildcard.
    #[arg(long = "node", value_name = "URL", required = true)]
    pub nodes: Vec<String>,

    /// File with the ingress token of the node at the same place
    #[arg(long = "token-file", value_name = "PATH", required = true)]
    pub token_files: Vec<PathBuf>,

    /// Address to serve on; port 0 takes a free one. The address is printed on standard output
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,

    /// Directory of its own in which the last document of each fleet is kept
    ///
    /// It belongs to the user of the ingress, and nobody else may write to it. An ingress that is started again within an hour then
    /// routes at once by what its nodes said last, until they answer. Not over a reboot. Without a directory nothing is kept, and requests wait for the first document.
    #[arg(long, value_name = "PATH")]
    pub keep_in: Option<PathBuf>,

    /// Pause between two polls, in milliseconds, from 50 to 30000
    ///
    /// A node keeps a process for 35 s after it has left the routes. With a pause of more than 10 s a single poll that is lost can outlast
    /// that, and requests then go to processes that are gone.
    #[arg(long, value_name = "MS", default_value_t = 5000)]
    pub poll_interval_ms: u64,

    /// How long requests may go on after the daemon was asked to end, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    pub grace_ms: u64,
}

/// Arguments that do not fit together, or a token file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ArgsError {
    /// Not as many token files as nodes.
    #[error("{nodes} --node and {files} --token-file: give one token file for each node, in the same order")]
    Pairs {
        /// How many `--node`.
        nodes: usize,
        /// How many `--token-file`.
        files: usize,
    },
    /// A token file cannot be read.
    #[error("cannot read the token file {}", path.display())]
    TokenFile {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        cause: io::Error,
    },
}

impl Args {
    /// How long requests may go on after the daemon was asked to end.
    pub fn grace(&self) -> Duration {
        Duration::from_millis(self.grace_ms)
    }

    /// The same settings that a supervisor would hand over.
    ///
    /// # Errors
    ///
    /// [`ArgsError`].
    pub fn settings(&self) -> Result<IngressdSettings, ArgsError> {
        if self.nodes.len() != self.token_files.len() {
            return Err(ArgsError::Pairs { nodes: self.nodes.len(), files: self.token_files.len() });
        }
        let pairs = self.nodes.iter().zip(&self.token_files);
        let nodes = pairs.map(|(url, path)| Ok(IngressSource { url: url.clone(), token: token(path)?, fleet: None }));
        Ok(IngressdSettings {
            nodes: nodes.collect::<Result<_, _>>()?,
            poll_interval: Millis(self.poll_interval_ms),
            dir: self.keep_in.clone(),
        })
    }
}

fn token(path: &Path) -> Result<Secret, ArgsError> {
    let read = || {
        let mut text = String::new();
        File::open(path)?.take(LARGEST_TOKEN_FILE).read_to_string(&mut text)?;
        Ok(Secret::new(text.trim()))
    };
    read().map_err(|cause| ArgsError::TokenFile { path: path.to_owned(), cause })
}

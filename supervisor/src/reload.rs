//! SIGHUP: settings that a running node takes. Those daemons that would be told something else are started again, in order; the sockets
//! stay ours meanwhile, so nothing is refused, and what they were answering they finish.

use std::path::PathBuf;
use std::sync::Arc;

use scafo_core::NodeId;
use scafo_core::config::Config;
use scafo_core::settings::{BucketAccess, Secret};
use scafo_core::token::PublicKey;
use tokio::sync::Notify;

use crate::api::{Error, Reload};
use crate::daemon::{Daemon, Handles, Plan};
use crate::sockets::Sockets;
use crate::state::{self, Dirs, EmbeddedBucket, Users};

/// Everything that the daemons of this node are planned from and that stays the same while it runs.
pub(crate) struct Planner {
    pub(crate) dirs: Dirs,
    pub(crate) sockets: Sockets,
    pub(crate) executables: PathBuf,
    pub(crate) environment: std::collections::BTreeMap<String, String>,
    pub(crate) node: NodeId,
    pub(crate) public_key: PublicKey,
    pub(crate) bucket: BucketAccess,
    pub(crate) embedded: Option<EmbeddedBucket>,
    pub(crate) celld_version: Option<String>,
    pub(crate) dev: bool,
    pub(crate) users: Option<Arc<Users>>,
}

impl Planner {
    /// The plan for these settings.
    pub(crate) fn plan<'a>(&'a self, config: &'a Config, ingress_tokens: &'a [Secret]) -> Plan<'a> {
        Plan {
            config,
            dirs: &self.dirs,
            sockets: &self.sockets,
            executables: &self.executables,
            environment: &self.environment,
            node: &self.node,
            public_key: self.public_key.clone(),
            bucket: &self.bucket,
            embedded: self.embedded.as_ref(),
            ingress_tokens,
            celld_version: self.celld_version.clone(),
            dev: self.dev,
            users: self.users.as_deref(),
        }
    }
}

/// Takes other settings whenever it is told. Ends only when it is dropped.
pub(crate) async fn follow(told: Arc<Notify>, read: Reload, planner: Planner, mut config: Config, handles: Handles) {
    loop {
        told.notified().await;
        match again(&read, &planner, &mut config) {
            Ok(daemons) => {
                let renewed = handles.renew(daemons).await;
                tracing::info!(
                    ?renewed,
                    "SIGHUP: ingress tokens, labels and the log's filter were read again; other settings wait for a restart"
                );
            }
            Err(error) => tracing::error!(%error, hint = error.hint, "SIGHUP: the settings stay as they are"),
        }
    }
}

/// The daemons by the settings as they are now.
fn again(read: &Reload, planner: &Planner, config: &mut Config) -> Result<Vec<Daemon>, Error> {
    let fresh = read()?;
    let mut next = config.clone();
    (next.ingress.tokens, next.node.labels, next.log) = (fresh.ingress.tokens, fresh.node.labels, fresh.log);
    filter_log(&next)?;
    let (tokens, _) = state::ingress_token(&planner.dirs, &next.ingress.tokens)?;
    let daemons = planner.plan(&next, &tokens).daemons()?;
    *config = next;
    Ok(daemons)
}

/// Has this process log as the settings say.
pub(crate) fn filter_log(config: &Config) -> Result<(), Error> {
    use scafo_telemetry::log::{FilterError, set_filter};
    match set_filter(config.log.as_deref().unwrap_or_default()) {
        Err(error @ FilterError::Malformed(_)) => Err(Error::refused(error.to_string(), "correct `log` (SCAFO_LOG)")),
        // Whoever brought a subscriber of its own filters by itself.
        Ok(()) | Err(FilterError::NotOurs) => Ok(()),
    }
}

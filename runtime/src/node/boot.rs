//! Everything between the start of the process and its first accepted connection, in celld's order: listeners, bucket,
//! secret, deployment, lease.

use std::{path::PathBuf, sync::Arc};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::{
    engine::{Door, Engine},
    gate::Gate,
    internal::Internal,
    public::Public,
    sample::Sampler,
    server::{Servers, bind},
    state::State,
    status::Status,
};
use crate::{
    bucket::Fleet,
    failure::{Context, Outcome},
    lease::Held,
    output,
    settings::NodeSettings,
};

/// A node that may begin to serve.
pub(super) struct Booted {
    pub lease: Option<Held>,
    /// The conductor's one task; its end is the node's end.
    pub conductor: JoinSet<Outcome<()>>,
    /// `None` without a bucket.
    pub gate: Option<Arc<Gate>>,
    /// Ends the conductor.
    pub stops: CancellationToken,
    /// `POST /shutdown` came.
    pub shutdown: CancellationToken,
    pub listeners: Listeners,
}

/// Both listeners, bound, with what will answer on them.
pub(super) struct Listeners {
    public: (TcpListener, Public),
    internal: (TcpListener, Vec<TcpStream>, Internal),
    banner: [String; 3],
}

impl Listeners {
    /// Prints the two lines from which a supervisor learns the ports, and the one for people.
    pub(super) fn announce(&self) {
        self.banner.iter().for_each(|line| output::line(line));
    }

    /// Begins to accept.
    pub(super) fn serve(self) -> Servers {
        let mut servers = Servers::default();
        let (public, answers) = self.public;
        servers.serve(public, Vec::new(), Arc::new(answers));
        let (internal, early, answers) = self.internal;
        servers.serve(internal, early, Arc::new(answers));
        servers
    }
}

/// Boots.
///
/// # Errors
/// Whatever makes a start impossible; the process ends with 1.
pub(super) async fn boot(
    settings: &Arc<NodeSettings>,
    fleet: Option<Fleet>,
    workerd: PathBuf,
    status: &Arc<Status>,
) -> Outcome<Booted> {
    raise_descriptor_limit();
    let public = bind("--listen", settings.listen)?;
    let internal = bind("--internal-listen", settings.internal_listen)?;
    let public_address = public.local_addr().context(|| "read the public address".into())?;
    let internal_address = internal.local_addr().context(|| "read the internal address".into())?;
    let advertise = settings.advertise.clone().unwrap_or_else(|| internal_address.to_string());
    let ownership = if fleet.is_some() { "s3" } else { "memory" };
    let (stops, shutdown) = (CancellationToken::new(), CancellationToken::new());

    let mut early = Vec::new();
    let engine = match fleet {
        None => Engine::idle(stops.clone()),
        Some(fleet) => {
            let door = Door { listener: &internal, early: &mut early };
            let started = Engine::start(settings, fleet, workerd, door).await?;
            started.take_lease(settings, advertise.clone(), status, stops.clone()).await?
        }
    };
    let Engine { lease, conductor, gate, orders, view } = engine;
    let banner = [
        format!("celld listening on {public_address} (ownership={ownership})"),
        format!("celld internal listening on {internal_address} (advertise={advertise})"),
        "celld-workerd is a development stand-in for celld: it keeps data on this one disk and replicates nothing"
            .into(),
    ];
    let state = State {
        surface: settings.surface,
        ownership,
        status: Arc::clone(status),
        gate: gate.clone(),
        view,
        sampler: Sampler::new(gate.clone()),
    };
    let answers = Public {
        status: Arc::clone(status),
        gate: gate.clone(),
        health_path: settings.surface.health_path(),
        trust_forwarded_headers: settings.trust_forwarded_headers,
        max_request_body: settings.max_request_body,
    };
    let internal_answers =
        Internal { surface: settings.surface, status: Arc::clone(status), state, orders, shutdown: shutdown.clone() };
    let listeners = Listeners { public: (public, answers), internal: (internal, early, internal_answers), banner };
    Ok(Booted { lease, conductor, gate, stops, shutdown, listeners })
}

/// A proxy needs descriptors; the soft limit of most shells is made for people.
fn raise_descriptor_limit() {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((soft, hard)) if soft < hard => {
            if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
                tracing::warn!(%error, soft, "the limit of descriptors stays as it is");
            }
        }
        Ok(_) => {}
        Err(error) => tracing::warn!(%error, "the limit of descriptors is unknown"),
    }
}

//! Following the registry daemon: one stream of snapshots, opened again whenever it breaks.
//!
//! A broken stream changes nothing of what is served. A snapshot that arrived in part is dropped.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::settings::RouterdSettings;
use scafo_proto::chunk::Assembly;
use scafo_proto::registry::registry_client::RegistryClient;
use scafo_proto::registry::{SnapshotChunk, WatchSnapshotRequest};
use scafo_proto::{status, transport};
use tokio::sync::watch;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::documents::Documents;
use crate::figures::Figures;
use crate::fleet::Fleet;
use crate::render::{Attributes, Invalid};
use crate::routes::Catalogue;

/// Pause before the stream is opened again: short enough that a restarted registry daemon is followed at once.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The pause doubles up to this while the registry daemon stays away.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two chunks of one snapshot. A peer that hangs for longer is given up.
const BETWEEN_CHUNKS: Duration = Duration::from_secs(10);

/// The documents in force; `None` before the first snapshot.
pub(crate) type Current = Option<Arc<Documents>>;

/// The task that follows.
pub(crate) struct Follower {
    registry: RegistryClient<Channel>,
    attributes: Arc<Attributes>,
    /// What was rendered last. Taken away while the next state is rendered, and begun anew if that should fail.
    catalogue: Option<Catalogue>,
    publish: watch::Sender<Current>,
    figures: Figures,
}

impl Follower {
    pub(crate) fn new(settings: &RouterdSettings, publish: watch::Sender<Current>, figures: Figures) -> Self {
        let socket: PathBuf = settings.registry_socket.clone();
        Self {
            registry: RegistryClient::new(transport::channel(&socket)),
            attributes: Arc::new(Attributes::new(&settings.entry_points, settings.tls.as_ref())),
            catalogue: None,
            publish,
            figures,
        }
    }

    /// Follows for ever. May be dropped at any point: documents are published whole.
    pub(crate) async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        let mut reported = false;
        loop {
            let received = match self.open().await {
                Ok(stream) => self.follow(stream).await,
                Err(problem) => Received { snapshots: 0, problem },
            };
            if received.snapshots > 0 {
                (pause, reported) = (FIRST_PAUSE, false);
            }
            if !reported {
                let serving = self.publish.borrow().is_some();
                tracing::warn!(problem = ?received.problem, serving, "the registry is away; what was rendered last stays");
                reported = true;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn open(&mut self) -> Result<Streaming<SnapshotChunk>, Problem> {
        let opening = self.registry.watch_snapshot(WatchSnapshotRequest {});
        match tokio::time::timeout(transport::STORE, opening).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            Ok(Err(refused)) => Err(status::to_problem(&refused)),
            Err(_) => Err(silent("the registry does not open its stream")),
        }
    }

    /// Takes snapshots until the stream breaks.
    async fn follow(&mut self, mut stream: Streaming<SnapshotChunk>) -> Received {
        let mut snapshots = 0;
        let problem = loop {
            match next_snapshot(&mut stream).await {
                Ok(snapshot) => {
                    // The same snapshot would give the same again; the next one may not.
                    if let Err(problem) = self.render(snapshot).await {
                        self.figures.failed();
                        tracing::error!(?problem, "routing is not published");
                    }
                }
                Err(problem) => break problem,
            }
            snapshots += 1;
        };
        Received { snapshots, problem }
    }

    async fn render(&mut self, snapshot: Bytes) -> Result<(), Problem> {
        let (last, attributes) = (self.publish.borrow().clone(), Arc::clone(&self.attributes));
        let catalogue = self.catalogue.take();
        let started = Instant::now();
        // A hundred thousand hosts take tens of milliseconds: not on a thread that answers calls.
        let rendered = tokio::task::spawn_blocking(move || render(&snapshot, catalogue, attributes, last.as_deref()));
        let failed = |error: &dyn std::fmt::Display| {
            Problem::new(ProblemCode::Internal, "a snapshot was not rendered; the last documents stay").because(error)
        };
        let rendered = rendered.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
        self.catalogue = Some(rendered.catalogue);
        let generation = rendered.generation;
        self.figures.followed(rendered.documents.as_ref().map(Documents::routes), started.elapsed());
        match rendered.documents {
            None => tracing::debug!(generation, "the routing did not change"),
            Some(documents) => {
                tracing::info!(generation, routes = documents.routes(), etag = documents.etag(), "routing rendered");
                self.publish.send_replace(Some(Arc::new(documents)));
            }
        }
        Ok(())
    }
}

/// What came of a snapshot.
struct Rendered {
    generation: u64,
    catalogue: Catalogue,
    /// Nothing when all stays as it is.
    documents: Option<Documents>,
}

/// Why a snapshot gave no documents.
#[derive(Debug, thiserror::Error)]
enum Unrendered {
    #[error("it cannot be read: {0}")]
    Snapshot(#[from] serde_json::Error),
    #[error(transparent)]
    Document(#[from] Invalid),
}

/// Takes a snapshot from its bytes to documents, over what there was before it.
fn render(
    snapshot: &[u8],
    catalogue: Option<Catalogue>,
    attributes: Arc<Attributes>,
    last: Option<&Documents>,
) -> Result<Rendered, Unrendered> {
    let fleet = Fleet::parse(snapshot)?;
    let generation = fleet.generation;
    let (catalogue, moved) = match catalogue {
        Some(mut catalogue) => {
            let moved = catalogue.follow(fleet);
            (catalogue, moved)
        }
        None => (Catalogue::new(fleet), true),
    };
    let documents = if moved || last.is_none() {
        Some(Documents::write(Arc::clone(catalogue.routing()), attributes, last)?)
    } else {
        None
    };
    Ok(Rendered { generation, catalogue, documents })
}

/// What one stream brought before it broke.
struct Received {
    snapshots: u64,
    problem: Problem,
}

/// Waits for the next snapshot for as long as it takes to begin, then for the rest of it with a limit.
async fn next_snapshot(stream: &mut Streaming<SnapshotChunk>) -> Result<Bytes, Problem> {
    let mut assembly = Assembly::default();
    let mut chunk = stream.message().await;
    loop {
        match chunk {
            Ok(Some(SnapshotChunk { data, last })) => {
                assembly.push(&data)?;
                if last {
                    return Ok(assembly.take());
                }
            }
            Ok(None) => return Err(silent("the registry ended its stream")),
            Err(broken) => return Err(status::to_problem(&broken)),
        }
        chunk = tokio::time::timeout(BETWEEN_CHUNKS, stream.message())
            .await
            .map_err(|_| silent("the registry stopped in the middle of a snapshot"))?;
    }
}

fn silent(what: &str) -> Problem {
    Problem::new(ProblemCode::Draining, what)
}

//! Serves a routing document of a test's choice, generic and as the node renders it for Traefik.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use scafo_core::id::NodeId;
use scafo_core::routing::FleetRouting;
use scafo_core::settings::TraefikTls;
use scafo_routerd::render::{Attributes, Format, View};
use scafo_routerd::routes::Routing;

use super::Source;
use super::http::{Received, Reply, Server};
use crate::wait;

/// The node that it says it is, and that `prefer=self` puts first.
pub const NODE: &str = "n1";
const TOKEN: &str = "token-of-the-tests";

/// What is answered to polls.
#[derive(Debug)]
pub enum Says {
    /// `draining`: there is no document yet.
    Draining,
    /// This.
    Document(FleetRouting),
    /// The first half of this, and then the connection ends.
    Half(FleetRouting),
}

/// A pretended node.
#[derive(Debug)]
pub struct FakeNode {
    server: Server,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    says: Mutex<Says>,
    tls: Option<TraefikTls>,
    /// Answers so far.
    polls: AtomicUsize,
}

impl FakeNode {
    /// A node that has no document yet.
    pub async fn start() -> Self {
        Self::with_tls(None).await
    }

    /// The same, with what its routers say of TLS.
    pub async fn with_tls(tls: Option<TraefikTls>) -> Self {
        let shared = Arc::new(Shared { says: Mutex::new(Says::Draining), tls, polls: AtomicUsize::new(0) });
        let answering = Arc::clone(&shared);
        let server = Server::start(move |_, received| answering.answer(&received)).await;
        Self { server, shared }
    }

    /// What an ingress has to know of it.
    pub fn source(&self) -> Source {
        Source { url: format!("http://{}", self.server.address), token: TOKEN.to_owned() }
    }

    /// Answers this from now on.
    pub fn say(&self, says: Says) {
        *self.shared.says.lock().unwrap_or_else(PoisonError::into_inner) = says;
    }

    /// Waits until several polls have been answered since now: then one at least was asked after what was set before.
    pub async fn polled(&self) {
        let before = self.shared.polls.load(Ordering::Relaxed);
        wait::until("polls", Duration::from_secs(60), || async {
            (self.shared.polls.load(Ordering::Relaxed) >= before + 3).then_some(())
        })
        .await;
    }
}

impl Shared {
    fn answer(&self, received: &Received) -> Reply {
        if received.authorization != format!("Bearer {TOKEN}") {
            return reply(401, b"no".to_vec());
        }
        self.polls.fetch_add(1, Ordering::Relaxed);
        let (path, query) = received.target.split_once('?').unwrap_or((&received.target, ""));
        let says = self.says.lock().unwrap_or_else(PoisonError::into_inner);
        let (document, cut) = match &*says {
            Says::Draining => {
                return Reply { media_type: "application/problem+json", ..reply(503, DRAINING.into()) };
            }
            Says::Document(document) => (document, false),
            Says::Half(document) => (document, true),
        };
        let own: NodeId = NODE.parse().expect("a node id");
        let format = match path {
            "/v1/ingress/routes" => Format::Generic,
            "/v1/ingress/routes/traefik" => Format::Traefik,
            _ => return reply(404, Vec::new()),
        };
        let entry_point = if self.tls.is_some() { super::SECURE } else { "web" };
        let attributes = Attributes::new(&[entry_point.to_owned()], self.tls.as_ref());
        let view = View { format, prefer: (query == "prefer=self").then_some(&own), attributes: &attributes };
        let body = view.write(&Routing::of(document).expect("addresses of the test"));
        Reply { media_type: "application/json", cut, ..reply(200, body) }
    }
}

const fn reply(status: u16, body: Vec<u8>) -> Reply {
    Reply { status, media_type: "text/plain", body, cut: false }
}

const DRAINING: &str =
    r#"{"type":"urn:scafo:draining","title":"The fleet's routing is not known yet","status":503,"detail":"a test"}"#;

//! Serves a routing document of a test's choice, generic and as the node renders it for Traefik.

use std::collections::BTreeMap;
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
/// How each of its tokens begins.
const TOKEN: &str = "token-of-the-tests-";

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
    /// Tokens so far.
    tokens: AtomicUsize,
}

#[derive(Debug)]
struct Shared {
    says: Mutex<Says>,
    tls: Option<TraefikTls>,
    /// Answers so far, by token.
    polls: Mutex<BTreeMap<String, usize>>,
}

impl FakeNode {
    /// A node that has no document yet.
    pub async fn start() -> Self {
        Self::with_tls(None).await
    }

    /// The same, with what its routers say of TLS.
    pub async fn with_tls(tls: Option<TraefikTls>) -> Self {
        let shared = Arc::new(Shared { says: Mutex::new(Says::Draining), tls, polls: Mutex::default() });
        let answering = Arc::clone(&shared);
        let server = Server::start(move |_, received| answering.answer(&received)).await;
        Self { server, shared, tokens: AtomicUsize::new(0) }
    }

    /// What an ingress has to know of it. The token is another one each time, so that polls are told apart by it.
    pub fn source(&self) -> Source {
        let token = format!("{TOKEN}{}", self.tokens.fetch_add(1, Ordering::Relaxed));
        Source { url: format!("http://{}", self.server.address), token }
    }

    /// Answers this from now on.
    pub fn say(&self, says: Says) {
        *self.shared.says.lock().unwrap_or_else(PoisonError::into_inner) = says;
    }

    /// Waits until several polls with this source's token have been answered since now: then the answer to one at least was what was
    /// set before, and has been dealt with, because nobody asks again before that.
    pub async fn polled(&self, source: &Source) {
        let before = self.shared.polls_of(&source.token);
        wait::until("polls", Duration::from_secs(60), || async {
            (self.shared.polls_of(&source.token) >= before + 3).then_some(())
        })
        .await;
    }
}

impl Shared {
    fn polls_of(&self, token: &str) -> usize {
        self.polls.lock().unwrap_or_else(PoisonError::into_inner).get(token).copied().unwrap_or_default()
    }

    fn answer(&self, received: &Received) -> Reply {
        let token = received.authorization.strip_prefix("Bearer ").filter(|token| token.starts_with(TOKEN));
        let Some(token) = token else { return reply(401, b"no".to_vec()) };
        *self.polls.lock().unwrap_or_else(PoisonError::into_inner).entry(token.to_owned()).or_default() += 1;
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

//! `GET /metrics` on a listener of its own: the figures of this node's processes as OpenMetrics text.
//!
//! Nobody is asked for a token there, so the listener has to be on loopback: [`is_local`]. One scrape sees the node: this process
//! asks the others what they count. One that does not answer in time is left out, and `scafo_up` says so.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use scafo_proto::figures::{ASK, ask, say};
use scafo_telemetry::metrics::{self, finished, merge, up};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;

use crate::app::App;

/// Scrapes that are answered at once. A node has one Prometheus, or two.
const AT_ONCE: usize = 2;
/// How long a scrape waits for its turn.
const TURN: Duration = Duration::from_secs(5);

/// Whether only programs of this machine reach what listens there.
pub fn is_local(listener: &TcpListener) -> bool {
    listener.local_addr().is_ok_and(|address| address.ip().to_canonical().is_loopback())
}

/// Says on a socket of its own that this process lives, until it is dropped: the connections of the API may all be taken.
pub async fn tell(app: &Arc<App>, socket: Option<UnixListener>) {
    let Some(socket) = socket else { return std::future::pending().await };
    let app = Arc::clone(app);
    say(socket, move || std::future::ready(app.metrics.text())).await;
}

/// The one route.
pub fn router(app: &Arc<App>) -> Router {
    let state = Scraped { app: app.clone(), turns: Arc::new(Semaphore::new(AT_ONCE)) };
    Router::new().route("/metrics", get(show)).with_state(state)
}

#[derive(Clone)]
struct Scraped {
    app: Arc<App>,
    turns: Arc<Semaphore>,
}

async fn show(State(Scraped { app, turns }): State<Scraped>) -> Response {
    let Ok(Ok(_turn)) = tokio::time::timeout(TURN, turns.acquire()).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many scrapes at once\n").into_response();
    };
    let (registry, router) = tokio::join!(ask(app.registry.channel(), ASK), ask(app.documents.channel(), ASK));
    let up = up(&[("apiserver", true), ("registryd", registry.is_some()), ("routerd", router.is_some())]);
    let own = app.metrics.text();
    let others = [registry, router].into_iter().flatten().collect::<Vec<_>>();
    let text = finished(merge([up.as_str(), own.as_str()].into_iter().chain(others.iter().map(String::as_str))));
    let mut response = text.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(metrics::CONTENT_TYPE));
    response
}

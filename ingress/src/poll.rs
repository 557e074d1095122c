//! Pulling the document of one fleet, again and again.
//!
//! A poll that brings no whole document of version 1 changes nothing but the log, which hears of it once per kind of
//! failure and once when it is over.

use std::{
    mem::{Discriminant, discriminant},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Request, Response, StatusCode,
    header::{ACCEPT, AUTHORIZATION, ETAG, HOST, IF_NONE_MATCH},
};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use scafo_proto::boot::Boot;
use scafo_proxy::{Forwarder, Limits, Outbound, Tunnels};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use crate::{
    config::Source,
    decide::Routing,
    document::{LARGEST_DOCUMENT, Refused, Table},
    figures::{Figures, Poll},
    keeper::Desk,
};

/// One poll, from connecting to the last byte. The ingress protocol says 10 s.
pub(crate) const POLL_LIMIT: Duration = Duration::from_secs(10);

/// Largest problem document that is read for its text.
const LARGEST_PROBLEM: usize = 64 * 1024;

/// Longest pause while no document has come. Nothing, or nothing new, can be served until one does, and a node that starts has one
/// within seconds, so asking twice a second is worth it.
const LONGEST_FIRST_PAUSE: Duration = Duration::from_millis(500);

/// How often the clock of the boot is looked at: unlike a timer it goes on while the machine sleeps.
const LOOK_AT_CLOCK: Duration = Duration::from_secs(10);

/// What keeps a poll from bringing a document.
#[derive(Debug, thiserror::Error)]
enum PollError {
    #[error("the node does not answer")]
    Unreachable(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the node did not answer whole within {} s", POLL_LIMIT.as_secs())]
    Late,
    #[error("the document was cut, or is larger than {} MiB", LARGEST_DOCUMENT >> 20)]
    Cut(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("the node answered {status}{said}")]
    Status { status: StatusCode, said: String },
    #[error("the document is refused as a whole")]
    Refused(#[from] Refused),
    #[error("the document could not be read")]
    Reading(#[from] tokio::task::JoinError),
}

/// By what failures are told apart. Their texts are no help: that of a defect names the request, another one each time.
type Kind = (Discriminant<PollError>, Option<StatusCode>);

impl PollError {
    fn kind(&self) -> Kind {
        let status = match self {
            Self::Status { status, .. } => Some(*status),
            Self::Unreachable(_) | Self::Late | Self::Cut(_) | Self::Refused(_) | Self::Reading(_) => None,
        };
        (discriminant(self), status)
    }
}

/// What a good poll brings.
enum Polled {
    Unchanged,
    Fresh { table: Arc<Table>, tag: Option<HeaderValue>, bytes: Bytes },
}

/// Pulls the document of one fleet.
pub(crate) struct Poller {
    fleet: usize,
    source: Source,
    interval: Duration,
    forwarder: Forwarder<Empty<Bytes>>,
    tunnels: Tunnels,
    routing: watch::Sender<Arc<Routing>>,
    tag: Option<HeaderValue>,
    /// Where what comes is kept, if it is.
    desk: Option<Arc<Desk>>,
    figures: Figures,
    /// The failure that was logged last, while it lasts.
    complaint: Option<Kind>,
}

impl Poller {
    /// A poller that writes the document of `source` to place `fleet` of `routing`.
    pub(crate) fn new(fleet: usize, source: Source, interval: Duration, routing: watch::Sender<Arc<Routing>>) -> Self {
        Self {
            fleet,
            source,
            interval,
            forwarder: Forwarder::new(Limits::default()),
            tunnels: Tunnels::new(0),
            routing,
            tag: None,
            desk: None,
            figures: Figures::default(),
            complaint: None,
        }
    }

    /// The same, which tells this keeper's desk what comes.
    pub(crate) fn telling(self, desk: Option<Arc<Desk>>) -> Self {
        Self { desk, ..self }
    }

    /// The same, which counts its polls there.
    pub(crate) fn counting(self, figures: Figures) -> Self {
        Self { figures, ..self }
    }

    /// Polls for ever, and lets go of what was kept when its time is over. May be dropped at any time: a document takes over in
    /// one step.
    pub(crate) async fn run(self) {
        let (fleet, node, routing) = (self.fleet, self.source.to_string(), self.routing.clone());
        tokio::join!(let_go(fleet, &node, &routing), self.poll_on());
    }

    async fn poll_on(mut self) {
        loop {
            if self.desk.as_ref().is_some_and(|desk| desk.wants_document()) {
                self.tag = None;
            }
            let asked = Boot::uptime();
            let outcome = self.poll().await;
            self.take_over(outcome, asked);
            let first = !self.routing.borrow().has_heard_from(self.fleet);
            // The pause is between polls and not a schedule, so that a slow node is not asked without end.
            sleep(if first { self.interval.min(LONGEST_FIRST_PAUSE) } else { self.interval }).await;
        }
    }

    async fn poll(&self) -> Result<Polled, PollError> {
        timeout(POLL_LIMIT, self.fetch()).await.unwrap_or(Err(PollError::Late))
    }

    fn take_over(&mut self, outcome: Result<Polled, PollError>, asked: Duration) {
        self.figures.polled(
            self.fleet,
            match &outcome {
                Ok(Polled::Unchanged) => Poll::Unchanged,
                Ok(Polled::Fresh { .. }) => Poll::Fresh,
                Err(_) => Poll::Failed,
            },
        );
        match outcome {
            Ok(Polled::Unchanged) => {
                if let Some(desk) = &self.desk {
                    desk.confirmed(asked);
                }
            }
            Ok(Polled::Fresh { table, tag, bytes }) => {
                let (hosts, skipped) = (table.len(), table.skipped);
                self.tag = tag;
                if let Some(desk) = &self.desk {
                    desk.fresh(bytes, asked);
                }
                self.routing.send_modify(|routing| *routing = Arc::new(routing.with(self.fleet, table)));
                tracing::info!(node = %self.source, hosts, "new routing document");
                if skipped > 0 {
                    tracing::warn!(node = %self.source, skipped, "addresses in the document cannot be dialled");
                }
            }
            Err(error) => return self.complain(&error),
        }
        if self.complaint.take().is_some() {
            tracing::info!(node = %self.source, "routing documents come again");
        }
    }

    fn complain(&mut self, error: &PollError) {
        if self.complaint.replace(error.kind()) == Some(error.kind()) {
            return;
        }
        let cause = std::error::Error::source(error).map(ToString::to_string);
        tracing::warn!(node = %self.source, %error, cause, "no routing document, the last one stays in force");
    }

    async fn fetch(&self) -> Result<Polled, PollError> {
        let response = self.forwarder.forward(&self.source.upstream, self.request()?, &self.tunnels).await;
        let response = response.map_err(|failure| PollError::Unreachable(Box::new(failure)))?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::NOT_MODIFIED if self.tag.is_some() => return Ok(Polled::Unchanged),
            status => return Err(PollError::Status { status, said: explanation(response).await }),
        }
        let tag = response.headers().get(ETAG).cloned();
        // hyper reports a body that ends before its length; one without a length has to end as JSON does.
        let body = Limited::new(response.into_body(), LARGEST_DOCUMENT).collect().await.map_err(PollError::Cut)?;
        let bytes = body.to_bytes();
        // 100,000 hosts take a good part of a second to read; requests go on meanwhile.
        let parsed = bytes.clone();
        let table = tokio::task::spawn_blocking(move || Table::parse(&parsed)).await??;
        Ok(Polled::Fresh { table: Arc::new(table), tag, bytes })
    }

    fn request(&self) -> Result<Outbound<Empty<Bytes>>, PollError> {
        let mut request = Request::new(Empty::new());
        *request.uri_mut() = self.source.target.clone();
        let headers: &mut HeaderMap = request.headers_mut();
        headers.insert(HOST, self.source.host.clone());
        headers.insert(AUTHORIZATION, self.source.authorization.clone());
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(tag) = &self.tag {
            headers.insert(IF_NONE_MATCH, tag.clone());
        }
        Outbound::new(request).map_err(|error| PollError::Unreachable(Box::new(error)))
    }
}

/// Empties the place of a fleet when what was kept of it is no longer good. Ends when nothing kept is there any more.
async fn let_go(fleet: usize, node: &str, routing: &watch::Sender<Arc<Routing>>) {
    loop {
        let Some(until) = routing.borrow().kept_until(fleet) else { return };
        let now = Boot::uptime();
        // A document that came this very moment stays.
        let over = routing.send_if_modified(|routing| {
            let next = routing.without_old(fleet, now).map(Arc::new);
            next.map(|next| *routing = next).is_some()
        });
        if over {
            tracing::warn!(
                node,
                "no node confirmed the kept routing document for too long, it is not routed by any more"
            );
            return;
        }
        sleep(until.saturating_sub(now).min(LOOK_AT_CLOCK)).await;
    }
}

/// What the node says about its refusal; empty if it says nothing readable.
async fn explanation(response: Response<Incoming>) -> String {
    let Ok(body) = Limited::new(response.into_body(), LARGEST_PROBLEM).collect().await else { return String::new() };
    said(&body.to_bytes())
}

/// The title and the detail of a refusal, as far as it has them, to stand behind its status.
fn said(body: &[u8]) -> String {
    let Ok(problem) = serde_json::from_slice::<serde_json::Value>(body) else { return String::new() };
    let parts = ["title", "detail"].into_iter().filter_map(|member| problem.get(member)?.as_str());
    parts.map(|part| format!(": {part}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_shown_by_its_status_and_whatever_it_says() {
        for (body, shown) in [
            (r#"{"type": "x", "title": "Not now", "status": 503, "detail": "wait"}"#, ": Not now: wait"),
            (r#"{"title": "Not now"}"#, ": Not now"),
            (r#"{"detail": "wait", "title": null}"#, ": wait"),
            (r#"{"title": 1, "detail": "wait"}"#, ": wait"),
            ("[]", ""),
            ("{}", ""),
            ("<html>", ""),
            ("", ""),
        ] {
            let error = PollError::Status { status: StatusCode::SERVICE_UNAVAILABLE, said: said(body.as_bytes()) };
            assert_eq!(error.to_string(), format!("the node answered 503 Service Unavailable{shown}"), "{body}");
        }
    }

    #[test]
    fn failures_are_told_apart_by_kind_and_status_and_not_by_what_they_say() {
        let answered = |status, said: &str| PollError::Status { status, said: said.to_owned() }.kind();
        let (defect, draining) = (StatusCode::INTERNAL_SERVER_ERROR, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(answered(defect, ": request 1"), answered(defect, ": request 2"));
        assert_ne!(answered(defect, ""), answered(draining, ""));
        assert_ne!(answered(defect, ""), PollError::Late.kind());
        assert_ne!(PollError::Late.kind(), PollError::Cut("broken".into()).kind());
    }
}

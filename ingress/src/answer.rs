//! What this process answers itself, and the body of every response.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{
    HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, RETRY_AFTER},
};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use scafo_core::problem::{Problem, ProblemCode, ProblemDocument};
use scafo_proto::open::{Open, Piece};
use tokio::sync::OwnedSemaphorePermit;

/// An [`Answer`] that keeps its request open on the client's connection until it has ended, and shows what the client takes of it.
pub(crate) struct Counted {
    pub(crate) answer: Answer,
    pub(crate) _open: Open,
}

impl Body for Counted {
    type Data = Piece;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, hyper::Error>>> {
        Pin::new(&mut self.get_mut().answer).poll_frame(cx).map_ok(|frame| frame.map_data(Piece::from))
    }

    fn is_end_stream(&self) -> bool {
        self.answer.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.answer.size_hint()
    }
}

/// A response body: our own, or an upstream's with the place that its request takes until the body ends.
pub(crate) enum Answer {
    Own(Full<Bytes>),
    Upstream { body: Incoming, _place: OwnedSemaphorePermit },
}

impl Body for Answer {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Own(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            Self::Upstream { body, .. } => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(body) => body.is_end_stream(),
            Self::Upstream { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(body) => body.size_hint(),
            Self::Upstream { body, .. } => body.size_hint(),
        }
    }
}

/// A refusal of this process. The texts name no upstream address: clients are strangers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The request cannot be understood.
    BadRequest(&'static str),
    /// `CONNECT`.
    Method,
    /// A path that is never proxied.
    Denied,
    /// A host that nobody serves.
    UnknownHost,
    /// No document yet.
    NoDocument,
    /// This process is full.
    Full,
    /// No upstream could be reached, or the one reached broke off.
    NoUpstream,
    /// The upstream took too long.
    UpstreamTime,
}

impl Refusal {
    /// A stable name for figures.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::BadRequest(_) => "bad_request",
            Self::Method => "method",
            Self::Denied => "denied",
            Self::UnknownHost => "unknown_host",
            Self::NoDocument => "no_document",
            Self::Full => "full",
            Self::NoUpstream => "no_upstream",
            Self::UpstreamTime => "upstream_time",
        }
    }

    pub(crate) fn response(self) -> Response<Answer> {
        let document = self.document();
        let status = StatusCode::from_u16(document.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = json(status, ProblemDocument::CONTENT_TYPE, &serde_json::json!(document));
        if status == StatusCode::SERVICE_UNAVAILABLE {
            // Polls come at most a few seconds apart, and a full house empties request by request.
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }

    fn document(self) -> ProblemDocument {
        let coded = |code, detail: &str| Problem::new(code, detail).document();
        match self {
            Self::BadRequest(detail) => coded(ProblemCode::InvalidInput, detail),
            Self::Method => {
                coded(ProblemCode::MethodNotAllowed, "this ingress opens no tunnels: send the request itself")
            }
            Self::Denied => coded(ProblemCode::NotFound, "this path is not served to the outside"),
            Self::UnknownHost => coded(
                ProblemCode::NotFound,
                "no application answers on this host: check its name, and that it is deployed and running",
            ),
            Self::NoDocument => {
                coded(ProblemCode::Draining, "the routing of this fleet is not known here yet: try again in a moment")
            }
            Self::Full => {
                plain(503, "Service Unavailable", "this ingress serves as much as it can: try again in a moment")
            }
            Self::NoUpstream => {
                plain(502, "Bad Gateway", "no process of the application answered: try again in a moment")
            }
            Self::UpstreamTime => plain(504, "Gateway Timeout", "the application did not answer in time"),
        }
    }
}

/// A problem that says no more than its status does (RFC 9457 §4.2.1): what befalls a proxy has no code of scafo's.
fn plain(status: u16, title: &str, detail: &str) -> ProblemDocument {
    ProblemDocument { r#type: "about:blank".to_owned(), title: title.to_owned(), status, detail: detail.to_owned() }
}

/// The health answer: this process serves; how many of its fleets a node has given a document of, and how many hosts the
/// documents name, kept ones included.
pub(crate) fn health(fleets: usize, heard: usize, hosts: usize) -> Response<Answer> {
    let body = serde_json::json!({"status": "ok", "fleets": fleets, "documents": heard, "hosts": hosts});
    json(StatusCode::OK, "application/json", &body)
}

fn json(status: StatusCode, media_type: &'static str, body: &serde_json::Value) -> Response<Answer> {
    let mut response = Response::new(Answer::Own(Full::from(body.to_string())));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

//! A request that has been made ready for the next hop.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Uri, Version,
    header::{CONTENT_LENGTH, COOKIE, EXPECT, HOST, TRANSFER_ENCODING},
    request::Parts,
    uri::PathAndQuery,
};
use http_body::{Body, Frame, SizeHint};
use hyper::upgrade::OnUpgrade;

use crate::{BoxError, headers};

/// What a request body has to be: bytes, sendable, and free to move.
pub trait ProxyBody: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static {}

impl<B: Body<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static> ProxyBody for B {}

/// The request cannot be forwarded by anybody; nothing was sent.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unforwardable {
    /// `CONNECT` asks for a tunnel to a host of the client's choice.
    #[error("CONNECT is not served here: send the request itself")]
    Connect,
    /// Neither the request target nor a `Host` field names a host (RFC 9112 §3.2).
    #[error("the request names no host: send exactly one Host field")]
    NoHost,
    /// More than one `Host` field: the upstream might believe another one than we did (RFC 9112 §3.2).
    #[error("the request names several hosts: send exactly one Host field")]
    SeveralHosts,
}

/// A request for the next hop: in origin form, hop-by-hop fields removed, `Host` settled.
pub struct Outbound<B> {
    head: Parts,
    body: B,
    has_body: bool,
    upgrade: Option<OnUpgrade>,
}

impl<B: ProxyBody> Outbound<B> {
    /// Cleans a request as it came from a server connection.
    ///
    /// `Expect` is removed too: the server that we got it from answers `100 Continue` itself as soon as the body is
    /// read (RFC 9110 §10.1.1).
    ///
    /// # Errors
    ///
    /// [`Unforwardable`] says what the client has to change; it is a 400 or, for `CONNECT`, a 405.
    pub fn new(mut request: Request<B>) -> Result<Self, Unforwardable> {
        if request.method() == Method::CONNECT {
            return Err(Unforwardable::Connect);
        }
        let wants_websocket = request.version() == Version::HTTP_11
            && request.method() == Method::GET
            && headers::is_websocket_upgrade(request.headers());
        let upgrade = wants_websocket.then(|| hyper::upgrade::on(&mut request));
        let (mut head, body) = request.into_parts();
        let host = settled_host(&head)?;
        if head.version == Version::HTTP_2 {
            join_cookies(&mut head.headers);
        }
        headers::strip_hop_by_hop(&mut head.headers);
        head.headers.remove(EXPECT);
        head.headers.insert(HOST, host);
        head.uri = origin_form(&head.uri);
        head.version = Version::HTTP_11;
        // Nothing that the caller's framework keeps here is meant for the wire.
        head.extensions.clear();
        let has_body = !body.is_end_stream();
        if has_body && !head.headers.contains_key(CONTENT_LENGTH) {
            // Said outright, because hyper takes a GET without a length for one without a body.
            head.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        if upgrade.is_some() {
            headers::set_websocket_upgrade(&mut head.headers);
        }
        Ok(Self { head, body, has_body, upgrade })
    }

    /// The method.
    pub fn method(&self) -> &Method {
        &self.head.method
    }

    /// The target in origin form (`/path?query`, or `*`).
    pub fn uri(&self) -> &Uri {
        &self.head.uri
    }

    /// The fields that will be sent.
    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// The fields that will be sent, to change them. What is set here reaches the upstream as it is.
    pub fn headers_mut(&mut self) -> &mut HeaderMap {
        &mut self.head.headers
    }

    /// Is this the handshake of a WebSocket?
    pub fn is_upgrade(&self) -> bool {
        self.upgrade.is_some()
    }

    /// May it be sent again although an upstream may have seen it? Only if that is harmless (RFC 9110 §9.2.2) and
    /// there is no body, which would be gone.
    pub fn is_replayable(&self) -> bool {
        !self.has_body && self.head.method.is_idempotent()
    }

    pub(crate) fn has_body(&self) -> bool {
        self.has_body
    }

    pub(crate) fn into_upgrade(self) -> Option<OnUpgrade> {
        self.upgrade
    }

    /// The message to put on the wire, and what is kept back to build it again.
    pub(crate) fn split(self, progress: &Arc<Progress>) -> (Request<Wire<B>>, Kept<B>) {
        if self.has_body {
            let body = Wire::Streamed { body: self.body, progress: Arc::clone(progress) };
            return (Request::from_parts(self.head, body), Kept::OnTheWire(self.upgrade));
        }
        let message = Request::from_parts(self.head.clone(), Wire::Empty);
        (message, Kept::Whole(Box::new(self)))
    }
}

/// What of an [`Outbound`] stays behind while its message is sent.
pub(crate) enum Kept<B> {
    /// All of it: there was no body to send.
    Whole(Box<Outbound<B>>),
    /// Only the client's side of a possible upgrade; head and body went with the message.
    OnTheWire(Option<OnUpgrade>),
}

impl<B: ProxyBody> Kept<B> {
    /// The request again, given the message if hyper could return it unsent.
    pub(crate) fn restore(self, unsent: Option<Request<Wire<B>>>) -> Option<Outbound<B>> {
        match self {
            Self::Whole(outbound) if unsent.is_some() || outbound.is_replayable() => Some(*outbound),
            Self::Whole(_) => None,
            Self::OnTheWire(upgrade) => {
                let (head, body) = unsent?.into_parts();
                let Wire::Streamed { body, .. } = body else { return None };
                Some(Outbound { head, body, has_body: true, upgrade })
            }
        }
    }

    pub(crate) fn into_upgrade(self) -> Option<OnUpgrade> {
        match self {
            Self::Whole(outbound) => outbound.into_upgrade(),
            Self::OnTheWire(upgrade) => upgrade,
        }
    }
}

/// The one host of a request: the authority of the target if it has one (RFC 9112 §3.2.2, RFC 9113 §8.3.1), else
/// `Host`.
fn settled_host(head: &Parts) -> Result<HeaderValue, Unforwardable> {
    if let Some(authority) = head.uri.authority() {
        let host = authority.as_str().rsplit_once('@').map_or(authority.as_str(), |(_, host)| host);
        return HeaderValue::from_str(host).map_err(|_| Unforwardable::NoHost);
    }
    let mut hosts = head.headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => Err(Unforwardable::SeveralHosts),
        (Some(host), None) => Ok(host.clone()),
        (None, _) => Err(Unforwardable::NoHost),
    }
}

/// HTTP/2 may split a cookie over several fields; HTTP/1.1 may not (RFC 9113 §8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let parts: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if parts.len() < 2 {
        return;
    }
    if let Ok(joined) = HeaderValue::from_bytes(&parts.join(&b"; "[..])) {
        headers.insert(COOKIE, joined);
    }
}

fn origin_form(uri: &Uri) -> Uri {
    let target = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    Uri::from(target)
}

/// How much of a request body has gone out, so that a deadline for the answer starts after the upload.
#[derive(Default)]
pub(crate) struct Progress(AtomicU64);

impl Progress {
    /// A number that is another one after each piece of the body.
    pub(crate) fn mark(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn moved(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The body that hyper sends.
pub(crate) enum Wire<B> {
    Empty,
    Streamed { body: B, progress: Arc<Progress> },
}

impl<B: ProxyBody> Body for Wire<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match self.get_mut() {
            Self::Empty => Poll::Ready(None),
            Self::Streamed { body, progress } => {
                let polled = Pin::new(body).poll_frame(cx).map_err(Into::into);
                if polled.is_ready() {
                    progress.moved();
                }
                polled
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Streamed { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Streamed { body, .. } => body.size_hint(),
        }
    }
}

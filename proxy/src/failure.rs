//! Why an attempt brought no response head, and whether the request may be sent again.

use std::{error::Error, fmt};

use crate::{BoxError, outbound::Outbound};

/// How far an attempt came. The names are what a caller has to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// No connection came about in time, or it was gone before a byte of the request was written.
    Connect,
    /// The connection broke after (a part of) the request was sent and before a response head was there.
    Broken,
    /// The upstream took the request and gave no response head within the limit.
    HeadDeadline,
    /// The upstream answered something that is not the HTTP which was asked for.
    BadResponse,
    /// The request's own body failed; the upstream is not to blame.
    RequestBody,
    /// As many upgraded connections are open as [`crate::Tunnels`] allows; nothing was sent.
    TunnelLimit,
}

impl FailureKind {
    /// A stable name for log fields.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Broken => "broken",
            Self::HeadDeadline => "head-deadline",
            Self::BadResponse => "bad-response",
            Self::RequestBody => "request-body",
            Self::TunnelLimit => "tunnel-limit",
        }
    }

    /// Did the connection fail, so that the upstream may be gone? Else it still serves others.
    pub const fn is_upstream_gone(self) -> bool {
        match self {
            Self::Connect | Self::Broken => true,
            Self::HeadDeadline | Self::BadResponse | Self::RequestBody | Self::TunnelLimit => false,
        }
    }

    const fn sentence(self) -> &'static str {
        match self {
            Self::Connect => "no connection to the upstream",
            Self::Broken => "the upstream closed the connection before it answered",
            Self::HeadDeadline => "the upstream did not answer in time",
            Self::BadResponse => "the upstream's answer is not the HTTP that was asked for",
            Self::RequestBody => "the request body ended early",
            Self::TunnelLimit => "too many upgraded connections are open",
        }
    }
}

/// An attempt that brought no response head.
pub struct Failure<B> {
    kind: FailureKind,
    outbound: Option<Box<Outbound<B>>>,
    source: Option<BoxError>,
}

impl<B> Failure<B> {
    pub(crate) fn new(kind: FailureKind, outbound: Option<Outbound<B>>) -> Self {
        Self { kind, outbound: outbound.map(Box::new), source: None }
    }

    pub(crate) fn because(mut self, source: impl Into<BoxError>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// How far the attempt came.
    pub fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The request, if it may be sent again: nothing of it was sent, or it is idempotent (RFC 9110 §9.2.2) and has no
    /// body.
    pub fn outbound(&self) -> Option<&Outbound<B>> {
        self.outbound.as_deref()
    }

    /// Takes the request out, to send it again.
    ///
    /// # Errors
    ///
    /// The failure itself, where sending it again is not allowed.
    pub fn try_into_outbound(mut self) -> Result<Outbound<B>, Self> {
        self.outbound.take().map(|outbound| *outbound).ok_or(self)
    }
}

impl<B> fmt::Display for Failure<B> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.kind.sentence())
    }
}

impl<B> fmt::Debug for Failure<B> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = out.debug_struct("Failure");
        fields.field("kind", &self.kind).field("may_be_sent_again", &self.outbound.is_some());
        fields.field("source", &self.source).finish()
    }
}

impl<B> Error for Failure<B> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

//! One request to one upstream.

use std::{future::Future, io, sync::Arc, time::Duration};

use http::{Response, StatusCode, Version};
use hyper::{body::Incoming, client::conn::TrySendError};
use tokio::time::timeout;

use crate::{
    dialling::{Dialling, Noticing},
    failure::{Failure, FailureKind},
    headers,
    outbound::{Kept, Outbound, Progress, ProxyBody, Wire},
    pool::{Link, Pool},
    tunnel::{Place, Tunnels},
    upstream::Upstream,
};

/// The bounds of a [`Forwarder`].
///
/// The number of open connections has no bound here: it is the number of requests under way, which the caller bounds,
/// plus the idle ones.
#[derive(Clone, Debug)]
pub struct Limits {
    /// How long a connection may take to come about. 3 s: one lost SYN is sent again after 1 s, and so is the next
    /// after 2 s more; who needs longer is as good as gone, and there may be another upstream to ask.
    pub connect: Duration,
    /// How long the response head may take once the last piece of the request has been sent; `None` waits for as
    /// long as the connection lives. Which is right depends on the application, so it is the caller's to say.
    pub response_head: Option<Duration>,
    /// How long an unused connection is kept. 4 s: workerd and Node close theirs after 5 s, and who closes second may
    /// lose a request.
    pub idle: Duration,
    /// For how long an unused connection serves for requests that may not be sent twice. Such a request is lost if the
    /// upstream closes the connection in the same moment. 1 s: upstreams close unused connections after several
    /// seconds, so a connection in lively use is safe, and a quiet one is worth less than the request.
    pub idle_unrepeatable: Duration,
    /// How many unused connections are kept for one upstream. 64: about what 200 requests per second of 300 ms need.
    pub idle_per_upstream: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let second = Duration::from_secs(1);
        Self {
            connect: 3 * second,
            response_head: None,
            idle: 4 * second,
            idle_unrepeatable: second,
            idle_per_upstream: 64,
        }
    }
}

/// Sends requests to upstreams and keeps connections to them. Cheap to clone; clones share the connections.
pub struct Forwarder<B> {
    pool: Arc<Pool<B>>,
    limits: Arc<Limits>,
    noticing: Option<Noticing>,
}

impl<B> Clone for Forwarder<B> {
    fn clone(&self) -> Self {
        Self { pool: Arc::clone(&self.pool), limits: Arc::clone(&self.limits), noticing: self.noticing.clone() }
    }
}

impl<B: ProxyBody> Forwarder<B> {
    /// A forwarder without connections. When the last clone is dropped, idle connections close, and the others when
    /// their response has been read.
    pub fn new(limits: Limits) -> Self {
        let pool = Pool::new(limits.idle_per_upstream, limits.idle);
        Self { pool, limits: Arc::new(limits), noticing: None }
    }

    /// The same, which tells `noticing` of each upstream at which an attempt to connect was slow when its caller dropped it: a
    /// caller who is more impatient than [`Limits::connect`] hears of no failure.
    #[must_use]
    pub fn noticing(self, noticing: impl Fn(&Upstream) + Send + Sync + 'static) -> Self {
        Self { noticing: Some(Arc::new(noticing)), ..self }
    }

    /// Sends the request to `upstream` and answers with the response: its head cleaned of hop-by-hop fields, its body
    /// still streaming. A kept connection that turns out to be closed is replaced by a new one, once, where that
    /// cannot make anything happen twice.
    ///
    /// A 101 to a WebSocket handshake comes back ready to be given to the client's server connection (which must be
    /// served with upgrades); the tunnel runs in `tunnels`.
    ///
    /// Dropping the future cancels: the connection in use is closed.
    ///
    /// # Errors
    ///
    /// [`Failure`]; see [`FailureKind`] for what a caller must tell apart.
    pub async fn forward(
        &self,
        upstream: &Upstream,
        outbound: Outbound<B>,
        tunnels: &Tunnels,
    ) -> Result<Response<Incoming>, Failure<B>> {
        let place = match (outbound.is_upgrade(), tunnels.reserve()) {
            (true, None) => return Err(Failure::new(FailureKind::TunnelLimit, Some(outbound))),
            (true, place) => place,
            (false, _) => None,
        };
        let max_idle = if outbound.is_replayable() { self.limits.idle } else { self.limits.idle_unrepeatable };
        let outbound = match self.pool.take(upstream, max_idle) {
            None => outbound,
            Some(link) => match self.attempt(link, outbound).await {
                Ok((response, kept)) => return finish(response, kept, place),
                Err(failure) => {
                    if failure.kind().is_upstream_gone() {
                        self.pool.forget(upstream);
                    }
                    failure.try_into_outbound()?
                }
            },
        };
        let link = match self.connect(upstream).await {
            Ok(link) => link,
            Err(error) => return Err(Failure::new(FailureKind::Connect, Some(outbound)).because(error)),
        };
        let (response, kept) = self.attempt(link, outbound).await?;
        finish(response, kept, place)
    }

    #[cfg(test)]
    pub(crate) fn open_connections(&self) -> usize {
        self.pool.open_connections()
    }

    #[cfg(test)]
    pub(crate) fn is_patient(&self, upstream: &Upstream) -> bool {
        self.pool.is_patient(upstream)
    }

    #[cfg(test)]
    pub(crate) fn idle_connections(&self, upstream: &Upstream) -> usize {
        self.pool.idle_connections(upstream)
    }

    #[cfg(test)]
    pub(crate) async fn until_idle(&self, upstream: &Upstream) {
        crate::testing::eventually("a connection is idle", || self.idle_connections(upstream) > 0).await;
    }

    async fn connect(&self, upstream: &Upstream) -> io::Result<Link<B>> {
        let dialling = Dialling::begin(upstream, self.noticing.as_ref());
        let dialled = timeout(self.limits.connect, upstream.dial()).await;
        dialling.ended();
        let dialled = dialled??;
        self.pool.adopt(upstream, dialled).await.map_err(io::Error::other)
    }

    /// Sends the request on one connection and waits for the response head.
    async fn attempt(
        &self,
        mut link: Link<B>,
        outbound: Outbound<B>,
    ) -> Result<(Response<Incoming>, Kept<B>), Failure<B>> {
        let progress = Arc::new(Progress::default());
        let has_body = outbound.has_body();
        link.patience.set(has_body || outbound.is_upgrade());
        let (message, kept) = outbound.split(&progress);
        let head = link.sender.try_send_request(message);
        let answer = match self.limits.response_head {
            None => Ok(head.await),
            Some(limit) if has_body => within_from_last_move(limit, &progress, head).await,
            Some(limit) => timeout(limit, head).await,
        };
        match answer {
            Ok(Ok(response)) => {
                link.give_back();
                Ok((response, kept))
            }
            Ok(Err(error)) => Err(classify(error, kept)),
            Err(elapsed) => Err(Failure::new(FailureKind::HeadDeadline, None).because(elapsed)),
        }
    }
}

/// Waits for `head` until nothing of the request body has moved for `limit`.
async fn within_from_last_move<F: Future>(
    limit: Duration,
    progress: &Progress,
    head: F,
) -> Result<F::Output, tokio::time::error::Elapsed> {
    let mut head = std::pin::pin!(head);
    loop {
        let seen = progress.mark();
        match timeout(limit, &mut head).await {
            Err(_) if progress.mark() != seen => {}
            outcome => return outcome,
        }
    }
}

fn classify<B: ProxyBody>(mut error: TrySendError<http::Request<Wire<B>>>, kept: Kept<B>) -> Failure<B> {
    let unsent = error.take_message();
    let sent = unsent.is_none();
    let error = error.into_error();
    let kind = match () {
        () if !sent => FailureKind::Connect,
        // hyper calls everything about the body that we hand it "user".
        () if error.is_user() => FailureKind::RequestBody,
        () if error.is_parse() => FailureKind::BadResponse,
        () => FailureKind::Broken,
    };
    let outbound = match kind {
        FailureKind::Connect | FailureKind::Broken => kept.restore(unsent),
        FailureKind::HeadDeadline | FailureKind::BadResponse | FailureKind::RequestBody | FailureKind::TunnelLimit => {
            None
        }
    };
    Failure::new(kind, outbound).because(error)
}

/// Makes the response ready for the client, and starts the tunnel if the upstream granted one.
fn finish<B: ProxyBody>(
    mut response: Response<Incoming>,
    kept: Kept<B>,
    place: Option<Place>,
) -> Result<Response<Incoming>, Failure<B>> {
    let switches = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    let websocket = headers::has_token(response.headers(), &http::header::UPGRADE, "websocket");
    headers::strip_hop_by_hop(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    if !switches {
        return Ok(response);
    }
    match (kept.into_upgrade(), place) {
        (Some(client), Some(place)) if websocket => {
            place.tunnel(client, hyper::upgrade::on(&mut response));
            headers::set_websocket_upgrade(response.headers_mut());
            Ok(response)
        }
        _ => Err(Failure::new(FailureKind::BadResponse, None).because("it switched protocols unasked")),
    }
}

//! HTTP/1.1 in front of the operations: connections, their bounds, the health route, and the orderly end.

mod leftover;
mod stall;

use std::{convert::Infallible, fmt, io, pin::pin, sync::Arc, time::Duration};

use http::{Method, Request, Response, StatusCode, header};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use s3s::{
    Body, HttpResponse, S3Result,
    auth::{S3Auth, SecretKey},
    s3_error,
    service::{S3Service, S3ServiceBuilder},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_util::{
    io::{InspectReader, InspectWriter},
    sync::CancellationToken,
};

use self::{leftover::share, stall::StallGuard};
use crate::{figures::Figures, s3::Operations, store::Store};

/// Answers 200 without a signature while the store can write, else 503.
pub const HEALTH_PATH: &str = "/.well-known/scafo/health";

/// How long a connection may take to send the head of a request, its idle time before included. Longer than the 90 s after which
/// the usual clients drop an idle connection, so that the client drops it first and no request meets a closing connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);

/// Connections at a time; more wait in the backlog. Hundreds of applications with a few connections each fit, and each holds
/// at most about 0.6 MiB in buffers.
const MAX_CONNECTIONS: u64 = 1024;

/// Descriptors that are not for connections: the database's, the log's, the listener's.
const OTHER_DESCRIPTORS: u64 = 64;

/// How long requests under way may take after the end was asked for. Clients give up after 15 s in any case; the supervisor kills
/// after more than that.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// How long a client may take nothing of its answer. As patient as with a body that comes in.
const STALL_LIMIT: Duration = Duration::from_secs(30);

/// How long to wait after a failed accept: long enough not to spin without descriptors, short enough not to be noticed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// What requests must be signed with.
pub struct Credentials {
    access_key_id: String,
    secret_access_key: SecretKey,
}

impl Credentials {
    /// The one pair.
    #[must_use]
    pub fn new(access_key_id: impl Into<String>, secret_access_key: &str) -> Self {
        Self { access_key_id: access_key_id.into(), secret_access_key: SecretKey::from(secret_access_key) }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("access_key_id", &self.access_key_id).finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl S3Auth for Credentials {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        if access_key == self.access_key_id {
            Ok(self.secret_access_key.clone())
        } else {
            Err(s3_error!(InvalidAccessKeyId, "The access key id is not the one of this store."))
        }
    }
}

/// Why [`serve`] ended although nobody asked for it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The thread that writes has ended. Only a new process can write again.
    #[error("the thread that writes to the store has ended")]
    WriterEnded,
}

/// Serves the store until `shutdown` is cancelled, then lets the requests under way end within a limit. The caller keeps a clone of
/// the store when it wants to [`Store::close`] it afterwards.
///
/// # Errors
/// [`ServeError`] when it cannot go on.
pub async fn serve(
    listener: TcpListener,
    store: Store,
    credentials: Credentials,
    figures: Figures,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let service = build(&store, credentials, &figures);
    let permits = Arc::new(Semaphore::new(connection_limit()));
    figures.places(&permits);
    let served = Served { service, store, figures };
    let drain = CancellationToken::new();
    let mut connections = JoinSet::new();
    let outcome = loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break Ok(()),
            () = served.store.ended() => break Err(ServeError::WriterEnded),
            Some(_) = connections.join_next() => {}
            accepted = accept(&listener, &permits) => match accepted {
                Ok((stream, permit)) => {
                    connections.spawn(connection(stream, permit, served.clone(), drain.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    };
    drop(listener);
    drain.cancel();
    let drained = timeout(DRAIN_LIMIT, async { while connections.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        tracing::warn!(left = connections.len(), "requests did not end in time and are cut");
        connections.shutdown().await;
    }
    outcome
}

/// What a connection needs.
#[derive(Clone)]
struct Served {
    service: S3Service,
    store: Store,
    figures: Figures,
}

fn build(store: &Store, credentials: Credentials, figures: &Figures) -> S3Service {
    let mut builder = S3ServiceBuilder::new(Operations::new(store.clone(), figures.clone()));
    builder.set_auth(credentials);
    builder.build()
}

/// A connection needs a descriptor for itself and one for the body file that it reads or writes.
fn connection_limit() -> usize {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let soft = if setrlimit(Resource::Nofile, raised).is_ok() { limit.maximum } else { limit.current };
    connections_for(soft.unwrap_or(u64::MAX))
}

fn connections_for(descriptors: u64) -> usize {
    let connections = (descriptors.saturating_sub(OTHER_DESCRIPTORS) / 2).clamp(1, MAX_CONNECTIONS);
    usize::try_from(connections).unwrap_or(1)
}

async fn accept(listener: &TcpListener, permits: &Arc<Semaphore>) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

async fn connection(stream: TcpStream, _permit: OwnedSemaphorePermit, served: Served, drain: CancellationToken) {
    // Answers are small and awaited; delaying them to fill packets helps nobody.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let (received, sent) = (served.figures.clone(), served.figures.clone());
    let stream = InspectReader::new(stream, move |bytes| received.received(bytes.len()));
    let stream = InspectWriter::new(stream, move |bytes| sent.sent(bytes.len()));
    let answer = service_fn(move |req| {
        let served = served.clone();
        async move { Ok::<_, Infallible>(respond(req, &served).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(100)
        .serve_connection(TokioIo::new(StallGuard::new(stream, STALL_LIMIT)), answer);
    let mut serving = pin!(serving);
    let ended = tokio::select! {
        biased;
        ended = serving.as_mut() => ended,
        () = drain.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended with an error");
    }
}

async fn respond(req: Request<Incoming>, served: &Served) -> HttpResponse {
    if req.uri().path() == HEALTH_PATH {
        return health(req.method(), served.store.is_alive());
    }
    let waits =
        req.headers().get(header::EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    let (parts, body) = req.into_parts();
    let (body, leftover) = share(body, waits);
    let answered = served.service.call(Request::from_parts(parts, Body::http_body(body))).await;
    leftover.discard().await;
    let answer = answered.unwrap_or_else(|error| {
        tracing::error!(?error, "a request could not be answered");
        plain(StatusCode::INTERNAL_SERVER_ERROR, "")
    });
    served.figures.answered(answer.status());
    answer
}

fn health(method: &Method, alive: bool) -> HttpResponse {
    match (method, alive) {
        (&(Method::GET | Method::HEAD), true) => plain(StatusCode::OK, "{\"status\":\"ok\"}\n"),
        (&(Method::GET | Method::HEAD), false) => plain(StatusCode::SERVICE_UNAVAILABLE, "{\"status\":\"failed\"}\n"),
        _ => plain(StatusCode::METHOD_NOT_ALLOWED, ""),
    }
}

fn plain(status: StatusCode, body: &'static str) -> HttpResponse {
    let mut response = Response::new(Body::from(bytes::Bytes::from_static(body.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response.headers_mut().insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_fit_the_descriptors() {
        assert_eq!(connections_for(0), 1);
        assert_eq!(connections_for(1024), 480);
        assert_eq!(connections_for(u64::MAX), 1024);
    }

    #[test]
    fn credentials_do_not_print_their_secret() {
        let text = format!("{:?}", Credentials::new("id", "very-secret"));
        assert!(!text.contains("very-secret"), "{text}");
    }
}

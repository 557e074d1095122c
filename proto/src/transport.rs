//! gRPC over Unix sockets: serving from an inherited listener with a check of who calls, and channels that come back by
//! themselves.
//!
//! The supervisor owns every socket, so a connection made while the server restarts waits in the backlog and is not
//! refused. What a killed server had in flight fails as [`crate::status::is_transport`], and [`read_again`] makes such a call
//! again. Every call carries an operation id, the same over all its tries, by which a server that was killed in the middle of
//! a change recognises that it comes again.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use hyper_util::rt::TokioIo;
use scafo_core::problem::ProblemCode;
use scafo_telemetry::trace;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::status::{is_transport, to_problem};

/// How long a call may take that does nothing but ask a neighbour for what it has in memory.
pub const QUICK: Duration = Duration::from_secs(5);
/// How long a call may take behind which there are requests to the bucket: the write engine's own deadline and some.
pub const STORE: Duration = Duration::from_secs(40);
/// How long deleting an application may take: the 150 s that a node gives the coordinator, and the way there.
pub const DELETE: Duration = Duration::from_secs(155);
/// How long finishing open calls may take when a server ends.
const DRAIN: Duration = Duration::from_secs(5);
/// Calls that a client may have given up before the server took them. While a server is started again they collect on the connection that
/// waits for it; the usual 20 would end that connection, and with it the calls that somebody still waits for.
const GIVEN_UP: usize = 4096;
/// How often both ends look whether the other one still answers, so that a stopped process is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Variable of a daemon's environment: who may call each of its sockets, beside root. `grpc=501,502;admin=` are two users for one
/// and nobody for the other.
pub const CALLERS: &str = "SCAFO_CALLERS";

/// The user ids for one socket. What cannot be read admits nobody.
fn named<'a>(text: &'a str, socket: &'a str) -> impl Iterator<Item = u32> + 'a {
    let of = move |entry: &'a str| entry.split_once('=').filter(|(name, _)| *name == socket).map(|(_, users)| users);
    text.split(';').filter_map(of).flat_map(|users| users.split(',').filter_map(|uid| uid.parse().ok()))
}

/// Which user ids may call a server. The kernel says who a caller is (`SO_PEERCRED`).
#[derive(Clone)]
pub struct Peers {
    users: Vec<u32>,
    refused: Option<Arc<dyn Fn(i32) -> bool + Send + Sync>>,
}

impl Peers {
    /// Root, and whoever this process runs as.
    pub fn same_user() -> Self {
        Self::users([rustix::process::geteuid().as_raw()])
    }

    /// Root, and these.
    pub fn users(uids: impl IntoIterator<Item = u32>) -> Self {
        Self { users: std::iter::once(0).chain(uids).collect(), refused: None }
    }

    /// Those that the supervisor named for the socket that it passed under this name ([`CALLERS`]); where it named none for any
    /// socket, all processes of the node are one user.
    pub fn of_socket(name: &str) -> Self {
        match std::env::var(CALLERS) {
            Ok(text) => Self::users(named(&text, name)),
            Err(_) => Self::same_user(),
        }
    }

    /// Of those, not the processes whose ids satisfy this: for processes that share a user and are not to call each other.
    #[must_use]
    pub fn but_not(self, refused: impl Fn(i32) -> bool + Send + Sync + 'static) -> Self {
        Self { refused: Some(Arc::new(refused)), ..self }
    }

    fn is_admitted(&self, uid: u32, pid: Option<i32>) -> bool {
        let refused = |refused: &Arc<dyn Fn(i32) -> bool + Send + Sync>| pid.is_none_or(|pid| refused(pid));
        self.users.contains(&uid) && !self.refused.as_ref().is_some_and(refused)
    }

    fn admit(&self, stream: &UnixStream) -> bool {
        match stream.peer_cred() {
            Ok(peer) if self.is_admitted(peer.uid(), peer.pid()) => true,
            Ok(peer) => {
                tracing::warn!(uid = peer.uid(), pid = peer.pid(), "refused a caller on a local socket");
                false
            }
            Err(error) => {
                tracing::warn!(%error, "refused a caller on a local socket: the kernel does not say who it is");
                false
            }
        }
    }
}

/// A server to add services to, with the settings that every server of a node has.
pub fn server() -> tonic::transport::Server {
    tonic::transport::Server::builder()
        .http2_keepalive_interval(Some(KEEP_ALIVE))
        .http2_max_pending_accept_reset_streams(Some(GIVEN_UP))
        .trace_fn(span)
}

/// The span of a call that is part of a trace. Calls that are not, such as the parts' own watching of each other, have none.
fn span(request: &http::Request<()>) -> tracing::Span {
    if !trace::is_on() || !request.headers().contains_key(trace::TRACEPARENT) {
        return tracing::Span::none();
    }
    let call = request.uri().path().trim_start_matches('/');
    let span = tracing::info_span!(target: trace::SPANS, parent: None, "call", otel.name = call, otel.kind = "server",
        rpc.system = "grpc");
    trace::join(&span, request.headers());
    span
}

/// Serves until `shutdown`, then finishes what is open for at most 5 s.
///
/// # Errors
/// When the listener breaks.
pub async fn serve(
    listener: UnixListener,
    peers: Peers,
    router: Router,
    shutdown: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error> {
    let (stopping, stopped) = tokio::sync::oneshot::channel();
    let incoming = admitted(listener, peers);
    let serving = router.serve_with_incoming_shutdown(incoming, async {
        shutdown.await;
        // The receiver waits below for as long as this future is polled.
        let _ = stopping.send(());
    });
    let overdue = async {
        if stopped.await.is_ok() {
            tokio::time::sleep(DRAIN).await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        served = serving => served,
        () = overdue => Ok(()),
    }
}

fn admitted(listener: UnixListener, peers: Peers) -> impl Stream<Item = io::Result<UnixStream>> {
    UnixListenerStream::new(listener).filter(move |connection| {
        let admit = connection.as_ref().map_or(true, |stream| peers.admit(stream));
        std::future::ready(admit)
    })
}

/// A channel to the server behind `socket`. It connects at the first call and again whenever it has to.
pub fn channel(socket: &Path) -> Channel {
    let socket: PathBuf = socket.to_owned();
    Endpoint::from_static("http://local.invalid")
        .connect_timeout(QUICK)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_while_idle(true)
        .connect_with_connector_lazy(tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        }))
}

/// Metadata of a request that names its operation.
const OPERATION: &str = "scafo-operation";

/// Names one logical call over all its tries: 128 random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operation(u128);

impl Operation {
    /// A new one.
    #[must_use]
    pub fn fresh() -> Self {
        Self(rand::random())
    }

    /// The one that a request carries; a new one for a caller that names none.
    pub fn of<T>(request: &Request<T>) -> Self {
        let named = request.metadata().get(OPERATION).and_then(|value| value.to_str().ok());
        named.and_then(Self::parse).unwrap_or_else(Self::fresh)
    }

    /// Reads what [`fmt::Display`] writes: 32 hexadecimal digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        digits.then(|| u128::from_str_radix(text, 16).ok().map(Self)).flatten()
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// One try of a call: how long it may take, and of which operation it is.
#[derive(Debug, Clone, Copy)]
pub struct Try {
    left: Duration,
    operation: Operation,
}

impl From<Duration> for Try {
    /// The only try of an operation of its own.
    fn from(left: Duration) -> Self {
        Self { left, operation: Operation::fresh() }
    }
}

/// A request with a deadline and an operation, both of which the server learns.
pub fn within<T>(attempt: impl Into<Try>, message: T) -> Request<T> {
    let Try { left, operation } = attempt.into();
    let mut request = Request::new(message);
    request.set_timeout(left);
    // Digits are always a value.
    if let Ok(value) = operation.to_string().parse::<MetadataValue<Ascii>>() {
        request.metadata_mut().insert(OPERATION, value);
    }
    if let Some(value) = trace::traceparent().and_then(|parent| parent.parse::<MetadataValue<Ascii>>().ok()) {
        request.metadata_mut().insert(trace::TRACEPARENT, value);
    }
    request
}

/// Makes a call, and makes it again while the server is away, until `deadline` is over. For calls that only read, and for those
/// that may be repeated under their operation.
///
/// # Errors
/// The first failure that the server itself answered, or the last of the transport.
pub async fn read_again<T, F>(deadline: Duration, call: impl FnMut(Try) -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    again_as(Operation::fresh(), deadline, call).await
}

/// As [`read_again`], for an operation that has its name already.
///
/// # Errors
/// As [`read_again`].
pub async fn again_as<T, F>(
    operation: Operation,
    deadline: Duration,
    mut call: impl FnMut(Try) -> F,
) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let until = Instant::now() + deadline;
    let mut pause = Duration::from_millis(10);
    // Once a try has been cut off the caller is owed its outcome: a server that says that it is only starting again, or still
    // at work on the earlier try, is asked again too.
    let mut cut_off = false;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let outcome = match tokio::time::timeout(left, call(Try { left, operation })).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Status::deadline_exceeded("no answer within the deadline")),
        };
        if let Err(status) = &outcome {
            cut_off |= is_transport(status);
        }
        match outcome {
            Err(status) if cut_off && is_passing(&status) && Instant::now() + pause < until => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(250));
            }
            outcome => return outcome,
        }
    }
}

/// Whether a later try may end otherwise: nobody answered, or whoever did asks for patience.
fn is_passing(status: &Status) -> bool {
    is_transport(status) || to_problem(status).code == ProblemCode::Draining
}

#[cfg(test)]
mod tests {
    use scafo_core::Problem;

    use super::*;
    use crate::status::to_status;

    #[test]
    fn a_caller_is_admitted_by_its_user_unless_its_process_is_refused() {
        let peers = Peers::users([7]);
        assert!(peers.is_admitted(7, Some(1)) && peers.is_admitted(0, None) && !peers.is_admitted(8, Some(1)));
        let peers = peers.but_not(|pid| pid == 13);
        assert!(peers.is_admitted(7, Some(12)) && !peers.is_admitted(7, Some(13)) && !peers.is_admitted(7, None));
    }

    #[test]
    fn a_socket_has_the_callers_that_are_named_for_it_and_no_others() {
        let of = |socket| named("grpc=501,502,x;admin=;other", socket).collect::<Vec<_>>();
        assert_eq!((of("grpc"), of("admin"), of("other"), of("")), (vec![501, 502], vec![], vec![], vec![]));
    }

    #[tokio::test]
    async fn every_try_of_a_call_names_the_same_operation() {
        let mut seen = Vec::new();
        let answer: Result<(), Status> = read_again(Duration::from_secs(60), |attempt| {
            seen.push(Operation::of(&within(attempt, ())));
            let gone = seen.len() < 3;
            async move { if gone { Err(Status::unavailable("gone")) } else { Ok(()) } }
        })
        .await;
        answer.unwrap();
        assert_eq!(seen, [seen[0]; 3]);
        assert_ne!(seen[0], Operation::of(&within(Duration::from_secs(1), ())), "another call is another operation");
    }

    #[tokio::test(start_paused = true)]
    async fn patience_is_for_calls_that_were_cut_off() {
        let starting = || to_status(&Problem::new(ProblemCode::Draining, "starting"));
        let refused = || to_status(&Problem::new(ProblemCode::NotFound, "no such thing"));
        for (answers, tries, code) in [
            (vec![starting()], 1, ProblemCode::Draining),
            (vec![Status::unavailable("killed"), starting(), starting(), refused()], 4, ProblemCode::NotFound),
        ] {
            let mut answers = answers.into_iter();
            let mut seen = 0;
            let outcome: Result<(), Status> = read_again(Duration::from_secs(60), |_| {
                seen += 1;
                let answer = answers.next().expect("one more try than expected");
                async move { Err(answer) }
            })
            .await;
            assert_eq!((seen, to_problem(&outcome.unwrap_err()).code), (tries, code));
        }
    }

    #[test]
    fn an_operation_is_read_as_it_is_written_and_nothing_else_is_one() {
        let operation = Operation::fresh();
        assert_eq!(Operation::parse(&operation.to_string()), Some(operation));
        for other in ["", "1", "+0000000000000000000000000000001", "zz000000000000000000000000000000"] {
            assert_eq!(Operation::parse(other), None, "{other:?}");
        }
    }
}

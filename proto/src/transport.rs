//! gRPC over Unix sockets: serving from an inherited listener with a check of who calls, and channels that come back by
//! themselves.
//!
//! The supervisor owns every socket, so a connection made while the server restarts waits in the backlog and is not
//! refused. What a killed server had in flight fails as [`crate::status::is_transport`]; a call that only reads may simply be
//! made again, which is what [`read_again`] does.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Instant;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::server::Router;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::status::is_transport;

/// How long a call may take that does nothing but ask a neighbour for what it has in memory.
pub const QUICK: Duration = Duration::from_secs(5);
/// How long a call may take behind which there are requests to the bucket: the write engine's own deadline and some.
pub const STORE: Duration = Duration::from_secs(40);
/// How long deleting an application may take: the 150 s that a node gives the coordinator, and the way there.
pub const DELETE: Duration = Duration::from_secs(155);
/// How long finishing open calls may take when a server ends.
const DRAIN: Duration = Duration::from_secs(5);
/// How often both ends look whether the other one still answers, so that a stopped process is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Which user ids may call a server. The kernel says who a caller is (`SO_PEERCRED`).
#[derive(Debug, Clone)]
pub struct Peers(Vec<u32>);

impl Peers {
    /// Root, and whoever this process runs as.
    pub fn same_user() -> Self {
        Self(vec![0, rustix::process::geteuid().as_raw()])
    }

    /// Root, and these.
    pub fn users(uids: impl IntoIterator<Item = u32>) -> Self {
        Self(std::iter::once(0).chain(uids).collect())
    }

    fn admit(&self, stream: &UnixStream) -> bool {
        match stream.peer_cred() {
            Ok(peer) if self.0.contains(&peer.uid()) => true,
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
    tonic::transport::Server::builder().http2_keepalive_interval(Some(KEEP_ALIVE))
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

/// A request with a deadline, which the server learns too.
pub fn within<T>(deadline: Duration, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline);
    request
}

/// Makes a call that only reads, and makes it again while the server is away, until `deadline` is over.
///
/// # Errors
/// The first failure that the server itself answered, or the last of the transport.
pub async fn read_again<T, F>(deadline: Duration, mut call: impl FnMut(Duration) -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let until = Instant::now() + deadline;
    let mut pause = Duration::from_millis(10);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let outcome = match tokio::time::timeout(left, call(left)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Status::deadline_exceeded("no answer within the deadline")),
        };
        match outcome {
            Err(status) if is_transport(&status) && Instant::now() + pause < until => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_millis(250));
            }
            outcome => return outcome,
        }
    }
}

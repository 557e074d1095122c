//! Connections that have become something else than HTTP.

use std::{future::Future, io, pin::pin, sync::Arc, time::Duration};

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, split},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// How long both ends may take to become tunnel ends after the 101. The client's side needs the 101 to be written to
/// it, which a client that does not read can hold up.
const BOTH_ENDS_LIMIT: Duration = Duration::from_secs(10);

/// How long one direction may outlive the other. A WebSocket ends both at once (RFC 6455 §7.1.1); what still flows
/// after that is the rest of what was under way.
const HALF_CLOSED_LIMIT: Duration = Duration::from_secs(30);

/// The owner of upgraded connections: counts them, bounds them, and ends them. Clones are the same owner.
#[derive(Clone)]
pub struct Tunnels {
    tasks: TaskTracker,
    stop: CancellationToken,
    places: Arc<Semaphore>,
}

impl Tunnels {
    /// An owner for at most `limit` tunnels at a time. Each takes two file descriptors and two tasks' worth of buffers
    /// (about 16 KiB).
    pub fn new(limit: usize) -> Self {
        let places = Arc::new(Semaphore::new(limit.min(Semaphore::MAX_PERMITS)));
        Self { tasks: TaskTracker::new(), stop: CancellationToken::new(), places }
    }

    /// How many tunnels are open.
    pub fn open(&self) -> usize {
        self.tasks.len()
    }

    /// Takes no new tunnel, lets the open ones go on for `grace`, then cuts them. Answers how many were cut.
    pub async fn close(&self, grace: Duration) -> usize {
        self.places.close();
        self.tasks.close();
        let in_time = timeout(grace, self.tasks.wait()).await.is_ok();
        let cut = if in_time { 0 } else { self.tasks.len() };
        // Also ends a tunnel that got its place before and starts only now.
        self.stop.cancel();
        // Each task sees the token at its next await, so this cannot hang.
        self.tasks.wait().await;
        cut
    }

    pub(crate) fn reserve(&self) -> Option<Place> {
        let permit = Arc::clone(&self.places).try_acquire_owned().ok()?;
        Some(Place { tunnels: self.clone(), permit })
    }
}

/// The right to open one tunnel.
pub(crate) struct Place {
    tunnels: Tunnels,
    permit: OwnedSemaphorePermit,
}

impl Place {
    /// Joins the two ends as soon as both are there, until both have closed.
    pub(crate) fn tunnel(self, client: OnUpgrade, upstream: OnUpgrade) {
        let Self { tunnels, permit } = self;
        let stop = tunnels.stop.clone();
        tunnels.tasks.spawn(async move {
            let ended = stop.run_until_cancelled(join(client, upstream)).await;
            if let Some(Err(error)) = ended {
                tracing::debug!(%error, "tunnel ended");
            }
            drop(permit);
        });
    }
}

async fn join(client: OnUpgrade, upstream: OnUpgrade) -> io::Result<()> {
    let both = async { tokio::try_join!(client, upstream) };
    let (client, upstream) = timeout(BOTH_ENDS_LIMIT, both).await?.map_err(io::Error::other)?;
    copy_until_both_end(TokioIo::new(client), TokioIo::new(upstream)).await
}

/// Copies both ways. The end of one direction is passed on, and the other has [`HALF_CLOSED_LIMIT`] to end too.
pub(crate) async fn copy_until_both_end<A, B>(a: A, b: B) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite + Unpin,
    B: AsyncRead + AsyncWrite + Unpin,
{
    let (mut a_read, mut a_write) = split(a);
    let (mut b_read, mut b_write) = split(b);
    let mut forth = pin!(copy_and_close(&mut a_read, &mut b_write));
    let mut back = pin!(copy_and_close(&mut b_read, &mut a_write));
    tokio::select! {
        ended = &mut forth => { ended?; finish_within_limit(back).await }
        ended = &mut back => { ended?; finish_within_limit(forth).await }
    }
}

async fn copy_and_close<R, W>(from: &mut R, to: &mut W) -> io::Result<()>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    tokio::io::copy(from, to).await?;
    to.shutdown().await
}

async fn finish_within_limit(rest: impl Future<Output = io::Result<()>>) -> io::Result<()> {
    timeout(HALF_CLOSED_LIMIT, rest).await?
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, DuplexStream, duplex},
        task::JoinSet,
        time::{Instant, sleep},
    };

    use super::*;

    /// The outer ends of a tunnel, the one that ends first in front, and its task.
    fn tunnel(client_ends_first: bool) -> (DuplexStream, DuplexStream, JoinSet<io::Result<()>>) {
        let ((client, near), (upstream, far)) = (duplex(1024), duplex(1024));
        let mut copying = JoinSet::new();
        copying.spawn(copy_until_both_end(near, far));
        if client_ends_first { (client, upstream, copying) } else { (upstream, client, copying) }
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_one_side_is_passed_on_and_the_other_goes_on_until_it_ends_too() {
        for client_ends_first in [true, false] {
            let (mut ending, mut other, mut copying) = tunnel(client_ends_first);
            let mut got = String::new();
            ending.write_all(b"last").await.unwrap();
            ending.shutdown().await.unwrap();
            other.read_to_string(&mut got).await.unwrap();
            for word in ["still", "there"] {
                sleep(HALF_CLOSED_LIMIT / 3).await;
                other.write_all(word.as_bytes()).await.unwrap();
            }
            other.shutdown().await.unwrap();
            ending.read_to_string(&mut got).await.unwrap();
            assert_eq!(got, "laststillthere");
            assert!(copying.join_next().await.unwrap().unwrap().is_ok(), "{client_ends_first}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_side_that_does_not_end_is_cut_a_while_after_the_other_even_if_it_is_busy() {
        for client_ends_first in [true, false] {
            let (mut ending, mut other, mut copying) = tunnel(client_ends_first);
            sleep(HALF_CLOSED_LIMIT * 10).await;
            let ended = Instant::now();
            ending.shutdown().await.unwrap();
            let mut words = 0;
            while other.write_all(b"word").await.is_ok() {
                drop(ending.read_exact(&mut [0; 4]).await);
                words += 1;
                assert!(words < 100, "it is never cut");
                sleep(HALF_CLOSED_LIMIT / 10).await;
            }
            let error = copying.join_next().await.unwrap().unwrap().unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{client_ends_first}");
            assert!(words >= 10 && ended.elapsed() <= HALF_CLOSED_LIMIT * 6 / 5, "{words}: {:?}", ended.elapsed());
            assert_eq!(ending.read(&mut [0; 4]).await.unwrap(), 0);
        }
    }
}

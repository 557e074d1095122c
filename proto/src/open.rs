//! What is open on a connection of a node's HTTP servers. The library closes one over HTTP/1.1 that is not used, or whose peer takes
//! nothing; over HTTP/2 it keeps connection and request for as long as the peer answers pings. So here is counted how many requests are
//! open ([`Streams`]), and watched whether what they were answered is taken ([`taken_within`]).

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, ready};
use std::time::Duration;

use bytes::{Buf, Bytes};
use http::Version;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// The requests of one connection. Nothing is counted before the first one over HTTP/2.
#[derive(Debug, Clone)]
pub struct Streams(Arc<watch::Sender<Option<usize>>>);

impl Default for Streams {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Streams {
    /// A request has come; it is open until the answer is dropped.
    pub fn open(&self, version: Version) -> Open {
        let counted = version == Version::HTTP_2;
        if counted {
            self.0.send_modify(|open| *open = Some(open.unwrap_or_default() + 1));
        }
        Open(counted.then(|| self.clone()))
    }

    /// Resolves once no request has been open for `limit`, after a first one. May be dropped at any time.
    pub async fn unused(&self, limit: Duration) {
        let mut open = self.0.subscribe();
        loop {
            // The sender is ours, so neither wait fails.
            let _ = open.wait_for(|open| *open == Some(0)).await;
            if tokio::time::timeout(limit, open.changed()).await.is_err() {
                return;
            }
        }
    }
}

/// One request that is open.
#[derive(Debug)]
pub struct Open(Option<Streams>);

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(Streams(open)) = &self.0 {
            open.send_modify(|open| *open = open.map(|count| count.saturating_sub(1)));
        }
    }
}

tokio::task_local! {
    /// What the peer owes to the stream that this task serves.
    static OWED: Owed;
}

/// Runs `task`, which serves one stream over HTTP/2, to its end. `None`, and the task is dropped, once the peer has taken nothing for
/// `limit` of what it was given in [`Piece`]s. The library waits without a limit for a peer that grants no window, and the kernel sees
/// nothing of that: such a peer acknowledges every byte that it is sent.
///
/// Only this stream is ended. Behind a proxy, others on the same connection are other people's. A stream that has nothing to give,
/// such as an idle one of events, is owed nothing.
pub async fn taken_within<F: Future>(limit: Duration, task: F) -> Option<F::Output> {
    let owed = Owed::default();
    let mut task = pin!(OWED.scope(owed.clone(), task));
    let mut timer = pin!(sleep(limit));
    let mut armed = false;
    poll_fn(|cx| {
        if let Poll::Ready(output) = task.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        // Pieces are made while the task is polled, so nothing is owed that is not seen here. What was taken since the timer was set
        // is seen when it ends: so a stream costs one timer in a whole limit, however much it sends.
        while let Some(since) = owed.since() {
            if !armed {
                timer.as_mut().reset(since + limit);
                armed = true;
            }
            ready!(timer.as_mut().poll(cx));
            armed = false;
            if owed.since().is_some_and(|since| since.elapsed() >= limit) {
                return Poll::Ready(None);
            }
        }
        Poll::Pending
    })
    .await
}

/// What a peer was given on one stream and has not taken yet.
#[derive(Debug, Clone, Default)]
struct Owed(Arc<Mutex<Debt>>);

#[derive(Debug, Default)]
struct Debt {
    bytes: usize,
    /// When the peer last took something, or was given something while it owed nothing.
    moved: Option<Instant>,
}

impl Owed {
    fn give(&self, bytes: usize) {
        let mut debt = self.debt();
        if debt.bytes == 0 {
            debt.moved = Some(Instant::now());
        }
        debt.bytes += bytes;
    }

    fn take(&self, bytes: usize) {
        let mut debt = self.debt();
        debt.bytes = debt.bytes.saturating_sub(bytes);
        debt.moved = Some(Instant::now());
    }

    /// Since when nothing was taken; `None` when nothing is owed.
    fn since(&self) -> Option<Instant> {
        let debt = self.debt();
        debt.moved.filter(|_| debt.bytes > 0)
    }

    fn debt(&self) -> MutexGuard<'_, Debt> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of an answer. They are taken when the library writes them to the connection, which it does as far as the peer's window goes:
/// so a peer that takes a byte now and then is told from one that takes nothing, however long the piece is.
#[derive(Debug)]
pub struct Piece {
    bytes: Bytes,
    /// `None` outside of [`taken_within`]: over HTTP/1.1.
    owed: Option<Owed>,
}

impl From<Bytes> for Piece {
    fn from(bytes: Bytes) -> Self {
        let owed = OWED.try_with(Owed::clone).ok();
        if let Some(owed) = &owed {
            owed.give(bytes.len());
        }
        Self { bytes, owed }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if let Some(owed) = &self.owed {
            owed.take(count);
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some(owed) = &self.owed {
            owed.take(self.bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn a_connection_over_http_2_is_unused_once_nothing_was_open_for_the_whole_time() {
        let streams = Streams::default();
        assert!(timeout(LIMIT * 10, streams.unused(LIMIT)).await.is_err(), "nothing has come over HTTP/2 yet");
        drop(streams.open(Version::HTTP_11));
        assert!(timeout(LIMIT * 10, streams.unused(LIMIT)).await.is_err());
        let began = Instant::now();
        let (one, two) = (streams.open(Version::HTTP_2), streams.open(Version::HTTP_2));
        let requests = async {
            sleep(LIMIT * 3).await;
            drop(one);
            sleep(LIMIT * 3).await;
            drop(two);
            sleep(LIMIT / 2).await;
            drop(streams.open(Version::HTTP_2));
        };
        tokio::join!(streams.unused(LIMIT), requests);
        assert_eq!(began.elapsed(), LIMIT * 6 + LIMIT / 2 + LIMIT);
    }

    /// What becomes of a stream whose peer takes `pauses.len()` bytes of a piece, each after its pause, and of the next piece nothing.
    async fn stream(pauses: &[Duration], bytes: usize) -> Option<()> {
        taken_within(LIMIT, async {
            let mut piece = Piece::from(Bytes::from(vec![0; bytes]));
            for pause in pauses {
                sleep(*pause).await;
                piece.advance(1);
            }
            std::future::pending::<()>().await;
        })
        .await
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_once_its_peer_has_taken_nothing_for_the_whole_time() {
        let second = Duration::from_secs(1);
        for (pauses, bytes, lives) in [
            (vec![], 1, Some(LIMIT)),
            (vec![LIMIT - second; 9], 10, Some((LIMIT - second) * 9 + LIMIT)),
            (vec![LIMIT - second; 9], 9, None),
            (vec![], 0, None),
        ] {
            let began = Instant::now();
            let ended = timeout(LIMIT * 100, stream(&pauses, bytes)).await.ok().map(|end| {
                assert_eq!(end, None);
                began.elapsed()
            });
            assert_eq!(ended.map(|ended| ended.as_secs()), lives.map(|lives| lives.as_secs()), "{pauses:?} of {bytes}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_dropped_unsent_is_not_owed_and_a_task_that_ends_says_so() {
        let ended = taken_within(LIMIT, async {
            let (first, second) = (Piece::from(Bytes::from_static(b"one")), Piece::from(Bytes::from_static(b"two")));
            sleep(LIMIT / 2).await;
            drop(first);
            sleep(LIMIT / 2).await;
            drop(second);
            sleep(LIMIT * 3).await;
            let _third = Piece::from(Bytes::from_static(b"three"));
            sleep(LIMIT / 2).await;
            7
        });
        assert_eq!(ended.await, Some(7));
        assert!(Piece::from(Bytes::from_static(b"one")).owed.is_none(), "outside of a stream nobody watches");
    }
}

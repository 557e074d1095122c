//! What a request was still sending when its answer was ready.
//!
//! A server that answers and closes while bytes are on their way makes the kernel reset the connection, and the client may lose
//! the answer with it: a clear refusal (a full disk, a wrong signature) would reach it as a broken connection, which for a write
//! means "unknown". So the rest of the body is read and dropped first, within bounds.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::timeout;

/// How much is dropped at most: above the 25 MiB of the largest single request that scafo makes.
const MAX_BYTES: usize = 32 * 1024 * 1024;

/// For how long at most. 32 MiB on loopback take a fraction of a second.
const MAX_TIME: Duration = Duration::from_secs(10);

struct State<B> {
    body: B,
    begun: bool,
}

/// The body of a request, whose rest stays reachable through [`Leftover`].
pub(super) struct SharedBody<B>(Arc<Mutex<State<B>>>);

/// The rest of a [`SharedBody`].
pub(super) struct Leftover<B> {
    state: Arc<Mutex<State<B>>>,
    waits_for_continue: bool,
}

/// Splits a body. `waits_for_continue`: the client sends nothing before it is told to (`Expect: 100-continue`, RFC 9110 section
/// 10.1.1), which the first read does.
pub(super) fn share<B>(body: B, waits_for_continue: bool) -> (SharedBody<B>, Leftover<B>) {
    let state = Arc::new(Mutex::new(State { body, begun: false }));
    (SharedBody(Arc::clone(&state)), Leftover { state, waits_for_continue })
}

fn lock<B>(state: &Mutex<State<B>>) -> MutexGuard<'_, State<B>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B> Body for SharedBody<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let mut state = lock(&self.0);
        state.begun = true;
        Pin::new(&mut state.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        lock(&self.0).body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        lock(&self.0).body.size_hint()
    }
}

impl<B> Leftover<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    /// Reads and drops what the client is still sending, within the bounds. To be called when the answer does not depend on the body
    /// any more.
    pub(super) async fn discard(self) {
        if self.waits_for_continue && !lock(&self.state).begun {
            return;
        }
        let rest = async {
            let mut left = MAX_BYTES;
            while let Some(Ok(frame)) = self.next().await {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                let Some(still_left) = left.checked_sub(bytes) else { return };
                left = still_left;
            }
        };
        // What is beyond the bounds is cut, with the connection.
        drop(timeout(MAX_TIME, rest).await);
    }

    async fn next(&self) -> Option<Result<Frame<Bytes>, B::Error>> {
        std::future::poll_fn(|cx| {
            let mut state = lock(&self.state);
            if state.body.is_end_stream() {
                return Poll::Ready(None);
            }
            Pin::new(&mut state.body).poll_frame(cx)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, convert::Infallible};

    use super::*;

    /// So many frames of 1 MiB, then nothing for ever if it does not end.
    struct Sending {
        frames: VecDeque<Bytes>,
        ends: bool,
    }

    impl Body for Sending {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            match self.frames.pop_front() {
                Some(frame) => Poll::Ready(Some(Ok(Frame::data(frame)))),
                None if self.ends => Poll::Ready(None),
                None => Poll::Pending,
            }
        }
    }

    fn sending(mebibytes: usize, ends: bool) -> Sending {
        Sending { frames: (0..mebibytes).map(|_| Bytes::from(vec![0; 1024 * 1024])).collect(), ends }
    }

    async fn left_after_discard(body: Sending, waits_for_continue: bool) -> usize {
        let (shared, leftover) = share(body, waits_for_continue);
        leftover.discard().await;
        lock(&shared.0).body.frames.len()
    }

    #[tokio::test(start_paused = true)]
    async fn rest_of_a_body_is_dropped_within_its_bounds() {
        assert_eq!(left_after_discard(sending(25, true), false).await, 0);
        assert_eq!(left_after_discard(sending(40, true), false).await, 40 - 33);
        // A client that falls silent is not waited for beyond the limit.
        assert_eq!(left_after_discard(sending(3, false), false).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_waits_for_continue_is_not_told_to_send() {
        assert_eq!(left_after_discard(sending(3, true), true).await, 3);
        let (mut shared, leftover) = share(sending(3, true), true);
        std::future::poll_fn(|cx| Pin::new(&mut shared).poll_frame(cx)).await.unwrap().unwrap();
        leftover.discard().await;
        assert_eq!(lock(&shared.0).body.frames.len(), 0);
    }
}

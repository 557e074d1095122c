//! Attempts to connect that their callers gave up.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::upstream::Upstream;

/// How long an attempt to connect lasts before it says something about the upstream. 1 s: its first packet was lost by then.
const SLOW: Duration = Duration::from_secs(1);

/// Who wants to hear of an upstream at which a slow attempt was given up.
pub(crate) type Noticing = Arc<dyn Fn(&Upstream) + Send + Sync>;

/// One attempt. Dropped before its end, it is told of if it was slow.
pub(crate) struct Dialling<'a> {
    upstream: &'a Upstream,
    began: Instant,
    noticing: Option<&'a Noticing>,
}

impl<'a> Dialling<'a> {
    pub(crate) fn begin(upstream: &'a Upstream, noticing: Option<&'a Noticing>) -> Self {
        Self { upstream, began: Instant::now(), noticing }
    }

    /// It came to something, and the caller hears of that.
    pub(crate) fn ended(mut self) {
        self.noticing = None;
    }
}

impl Drop for Dialling<'_> {
    fn drop(&mut self) {
        if let Some(noticing) = self.noticing.filter(|_| self.began.elapsed() >= SLOW) {
            noticing(self.upstream);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::{
        net::{TcpListener, TcpSocket, TcpStream},
        time::timeout,
    };

    use super::*;
    use crate::{
        FailureKind, Forwarder, Limits, Tunnels,
        testing::{full, request},
    };

    /// A listener with no room for another connection: packets that ask for one are lost, as at a machine that is gone.
    async fn full_up() -> (TcpListener, [TcpStream; 2], Upstream) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let connected = [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
        (listener, connected, address.into())
    }

    #[tokio::test]
    async fn an_attempt_to_connect_that_was_slow_when_its_caller_left_is_told_of() {
        let (_listener, _connected, upstream) = full_up().await;
        let noticed = Arc::new(Mutex::new(Vec::new()));
        let noticing = Arc::clone(&noticed);
        let forwarder =
            Forwarder::new(Limits::default()).noticing(move |upstream| noticing.lock().unwrap().push(upstream.clone()));
        let tunnels = Tunnels::new(0);
        tokio::time::pause();
        for (patience, told) in [(900, false), (1100, true), (10_000, false)] {
            let asking = forwarder.forward(&upstream, request("GET", full("")), &tunnels);
            match timeout(Duration::from_millis(patience), asking).await {
                Err(_) => {}
                Ok(outcome) => assert_eq!((outcome.unwrap_err().kind(), patience), (FailureKind::Connect, 10_000)),
            }
            let expected = if told { vec![upstream.clone()] } else { vec![] };
            assert_eq!(std::mem::take(&mut *noticed.lock().unwrap()), expected, "{patience}");
        }
    }
}

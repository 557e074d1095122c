//! How many requests are open on a connection of a node's HTTP servers: the library closes one over HTTP/1.1 that is not used, and
//! keeps one over HTTP/2 for as long as its peer answers pings.

use std::sync::Arc;
use std::time::Duration;

use http::Version;
use tokio::sync::watch;

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

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep, timeout};

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
}

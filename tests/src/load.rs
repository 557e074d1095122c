//! Clients that put load on a node and never try anything again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::Client;
use tokio::task::JoinSet;

/// How long one request may take: longer than any pause that a node is allowed, and than the API waits for a part that starts
/// again (45 s).
const PATIENCE: Duration = Duration::from_secs(60);

/// A client with a connection for each request and no second try of any kind.
///
/// # Panics
/// Never: the settings are constant.
pub fn client() -> Client {
    // The first one wins; all are the same.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder()
        .pool_max_idle_per_host(0)
        .retry(reqwest::retry::never())
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .timeout(PATIENCE)
        .build()
        .expect("constant settings")
}

/// What one request came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// An answer.
    Answered {
        /// Its status.
        status: u16,
        /// Its body.
        body: String,
    },
    /// The connection was refused: nothing listened.
    Refused,
    /// Sent, and then no whole answer.
    Cut(String),
}

/// Sends one request.
pub async fn send(request: reqwest::RequestBuilder) -> Outcome {
    let answered = async {
        let answer = request.send().await?;
        let status = answer.status().as_u16();
        Ok::<_, reqwest::Error>(Outcome::Answered { status, body: answer.text().await? })
    };
    match answered.await {
        Ok(outcome) => outcome,
        Err(error) if error.is_connect() => Outcome::Refused,
        Err(error) => Outcome::Cut(chain(&error)),
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text = format!("{text}: {next}");
        cause = next.source();
    }
    text
}

/// Several clients that ask one thing over and over until they are stopped.
pub struct Load {
    stop: Arc<AtomicBool>,
    ended: Arc<AtomicUsize>,
    clients: JoinSet<Vec<Outcome>>,
}

impl Load {
    /// Starts `clients` loops over `request`.
    pub fn start(
        clients: usize,
        request: impl Fn() -> reqwest::RequestBuilder + Clone + Send + Sync + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ended = Arc::new(AtomicUsize::new(0));
        let mut set = JoinSet::new();
        for _ in 0..clients {
            let (stop, ended, request) = (Arc::clone(&stop), Arc::clone(&ended), request.clone());
            set.spawn(async move {
                let mut outcomes = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    outcomes.push(send(request()).await);
                    ended.fetch_add(1, Ordering::Relaxed);
                }
                outcomes
            });
        }
        Self { stop, ended, clients: set }
    }

    /// How many requests have come to an end so far.
    pub fn ended(&self) -> usize {
        self.ended.load(Ordering::Relaxed)
    }

    /// Lets every client finish its request and gives all outcomes.
    ///
    /// # Panics
    /// When a client does not end.
    pub async fn stop(mut self) -> Vec<Outcome> {
        self.stop.store(true, Ordering::Relaxed);
        let mut outcomes = Vec::new();
        while let Some(client) = self.clients.join_next().await {
            outcomes.extend(client.expect("a client ends"));
        }
        outcomes
    }
}

/// The outcomes that are not an answer with one of these statuses.
pub fn not_answered(outcomes: &[Outcome], statuses: &[u16]) -> Vec<Outcome> {
    let fine = |outcome: &&Outcome| !matches!(outcome, Outcome::Answered { status, .. } if statuses.contains(status));
    outcomes.iter().filter(fine).cloned().collect()
}

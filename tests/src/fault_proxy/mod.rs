//! The fault proxy: between an S3 client and a true store, by script and by seed.
//!
//! [Rules](Rule) say what goes wrong with which requests: lost, answered and then lost, late, torn, or answered by the proxy
//! itself. A [`Character`] says what kind of store the client sees: one that limits writes or spells tags in its own way, or
//! one that lies. Both change while the proxy runs, and a log tells what the store did beside what the client was told.
//!
//! Kept true: a request that nothing befalls passes as it came, signature included, and its body is streamed; one that the
//! proxy changes is signed anew; one that was passed on is carried out even if its client leaves. Addressing is path-style
//! and plain HTTP/1.1, on the loopback interface.

mod asked;
mod body;
mod character;
mod exchange;
mod listing;
mod log;
mod reply;
mod rule;
mod sign;
mod tag;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use scafo_core::settings::BucketAccess;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub use self::asked::{Asked, Conditional, Operation};
use self::body::Body;
pub use self::character::{Character, Lie, TagForms, WriteLimit};
pub use self::listing::Cut;
pub use self::log::{Counts, Exchange};
pub use self::reply::Reply;
pub use self::rule::{Fault, Nth, Rule};
pub use self::tag::TagForm;
use self::{character::Played, exchange::Upstream, log::Log, rule::Rules};

/// How long a client may take for the head of a request.
const HEAD_LIMIT: Duration = Duration::from_secs(30);
/// Pause after a failed accept: out of descriptors, mostly.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A running proxy; it ends, and cuts what is under way, when it is dropped.
pub struct FaultProxy {
    shared: Arc<Shared>,
    access: BucketAccess,
    /// Owns the one task that accepts, which owns all others.
    _serving: JoinSet<()>,
}

/// What every request of one proxy sees.
struct Shared {
    started: Instant,
    upstream: Upstream,
    rules: Mutex<Rules>,
    played: Mutex<Played>,
    log: Mutex<Log>,
    /// Requests under way, which outlive their connections.
    exchanges: Mutex<JoinSet<()>>,
}

impl FaultProxy {
    /// A proxy on a free port before the store that `upstream` reaches; it knows the credentials, since it signs what it
    /// changes. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// An endpoint that is missing or not plain HTTP, and no port.
    pub async fn start(upstream: &BucketAccess, seed: u64) -> io::Result<Self> {
        Self::start_on((Ipv4Addr::LOCALHOST, 0).into(), upstream, seed).await
    }

    /// The same on a given address.
    ///
    /// # Errors
    /// As [`FaultProxy::start`].
    pub async fn start_on(address: SocketAddr, upstream: &BucketAccess, seed: u64) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            started: Instant::now(),
            upstream: Upstream::new(upstream)?,
            rules: Mutex::new(Rules::new(seed)),
            played: Mutex::default(),
            log: Mutex::default(),
            exchanges: Mutex::default(),
        });
        let listener = TcpListener::bind(address).await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let access = BucketAccess { endpoint: Some(endpoint), path_style: true, ..upstream.clone() };
        let mut serving = JoinSet::new();
        serving.spawn(accept(listener, Arc::clone(&shared)));
        Ok(Self { shared, access, _serving: serving })
    }

    /// Zero of the times in its [log](FaultProxy::log).
    pub fn started(&self) -> Instant {
        self.shared.started
    }

    /// How to reach the bucket through the proxy.
    pub const fn access(&self) -> &BucketAccess {
        &self.access
    }

    /// Base URL of the proxy.
    pub fn endpoint(&self) -> &str {
        self.access.endpoint.as_deref().unwrap_or_default()
    }

    /// Adds a rule, behind those that are there.
    pub fn push(&self, rule: Rule) {
        lock(&self.shared.rules).push(rule);
    }

    /// Takes all rules away. What was planned already still happens.
    pub fn calm(&self) {
        lock(&self.shared.rules).clear();
    }

    /// Plays another store from now on.
    pub fn play(&self, character: Character) {
        *lock(&self.shared.played) = Played::new(character);
    }

    /// How many requests had which end so far.
    pub fn counts(&self) -> Counts {
        lock(&self.shared.log).counts()
    }

    /// The requests so far, in the order in which they came.
    pub fn log(&self) -> Vec<Exchange> {
        lock(&self.shared.log).all()
    }

    /// The same, and forgets them.
    pub fn take_log(&self) -> Vec<Exchange> {
        lock(&self.shared.log).take()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        // They hold what holds them, so they would not end by themselves before their time.
        lock(&self.shared.exchanges).abort_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Accepts until it is dropped. Connections are not limited: their number is that of the test's own clients.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, Arc::clone(&shared)));
                }
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            },
        }
    }
}

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    // Without it the small answers of a store wait for the acknowledgement of their heads.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| exchange::answer(Arc::clone(&shared), request));
    // Ends with an error whenever an answer is withheld, which is what this is for.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

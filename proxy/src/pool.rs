//! Idle connections, and the task that drives each connection.
//!
//! One task owns one connection from its handshake to its end. A [`Link`] is the right to send on it: it is either with
//! an attempt, or with the connection's task (while a response is still read), or in the pool (idle). It is only handed
//! back once a response head has come, because hyper may report a connection as free while a message is still queued.
//! A link that is dropped anywhere else closes its connection; that is how a cancelled attempt ends.

use std::{
    collections::HashMap,
    future::{Future, poll_fn},
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hyper::client::conn::http1;
use tokio::{sync::mpsc, time::Instant};
use tokio_util::task::TaskTracker;

use crate::{
    headers::MOST_FIELDS,
    outbound::{ProxyBody, Wire},
    socket::Patience,
    upstream::{Io, Upstream},
};

/// The right to send one request at a time on one connection.
pub(crate) struct Link<B> {
    pub(crate) sender: http1::SendRequest<Wire<B>>,
    /// What the kernel is to put up with for the request that is sent.
    pub(crate) patience: Patience,
    id: u64,
    idle_since: Instant,
    task: mpsc::Sender<Link<B>>,
}

impl<B> Link<B> {
    /// Gives the link to the connection's task, which puts it into the pool when the response has been read.
    pub(crate) fn give_back(self) {
        let task = self.task.clone();
        // Full is impossible (there is one link for one place); closed means that the connection has ended.
        drop(task.try_send(self));
    }
}

/// The idle connections to all upstreams.
pub(crate) struct Pool<B> {
    idle: Mutex<HashMap<Upstream, Vec<Link<B>>>>,
    tasks: TaskTracker,
    ids: AtomicU64,
    idle_limit: usize,
    idle_timeout: Duration,
}

impl<B: ProxyBody> Pool<B> {
    pub(crate) fn new(idle_limit: usize, idle_timeout: Duration) -> Arc<Self> {
        let idle = Mutex::new(HashMap::new());
        Arc::new(Self { idle, tasks: TaskTracker::new(), ids: AtomicU64::new(0), idle_limit, idle_timeout })
    }

    /// The connection that was used last, if it has been idle for at most `max_idle`.
    pub(crate) fn take(&self, upstream: &Upstream, max_idle: Duration) -> Option<Link<B>> {
        let mut idle = self.idle();
        let links = idle.get_mut(upstream)?;
        loop {
            let link = links.pop_if(|link| link.sender.is_closed() || link.idle_since.elapsed() <= max_idle)?;
            if !link.sender.is_closed() {
                return Some(link);
            }
        }
    }

    /// Shakes hands on a new connection and starts its task.
    ///
    /// The task ends with its connection: when the upstream closes it, when its link is dropped, or when it has been
    /// idle for too long. It holds no reference to the pool that would keep the pool alive.
    pub(crate) async fn adopt(
        self: &Arc<Self>,
        upstream: &Upstream,
        (io, patience): (Io, Patience),
    ) -> hyper::Result<Link<B>> {
        let (sender, connection) = http1::Builder::new().max_headers(MOST_FIELDS).handshake(io).await?;
        let (task, returned) = mpsc::channel(1);
        let id = self.ids.fetch_add(1, Ordering::Relaxed);
        let home = Home { pool: Arc::downgrade(self), upstream: upstream.clone(), id, idle_timeout: self.idle_timeout };
        self.tasks.spawn(home.drive(connection.with_upgrades(), returned));
        Ok(Link { sender, patience, id, idle_since: Instant::now(), task })
    }

    /// Closes every idle connection to `upstream`: one of them turned out to be dead, so the others probably are.
    pub(crate) fn forget(&self, upstream: &Upstream) {
        let links = self.idle().remove(upstream);
        drop(links);
    }

    fn put(&self, upstream: &Upstream, mut link: Link<B>) {
        link.idle_since = Instant::now();
        let mut idle = self.idle();
        let links = idle.entry(upstream.clone()).or_default();
        if links.len() < self.idle_limit {
            links.push(link);
        }
    }

    /// Takes out the link of one connection, if it is idle. Every connection asks at its end, so no empty list stays.
    fn remove(&self, upstream: &Upstream, id: u64) -> Option<Link<B>> {
        let mut idle = self.idle();
        let links = idle.get_mut(upstream)?;
        let link = links.iter().position(|link| link.id == id).map(|at| links.remove(at));
        if links.is_empty() {
            idle.remove(upstream);
        }
        link
    }

    fn idle(&self) -> MutexGuard<'_, HashMap<Upstream, Vec<Link<B>>>> {
        // Nothing in these sections can leave the map half changed.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(crate) fn idle_connections(&self, upstream: &Upstream) -> usize {
        self.idle().get(upstream).map_or(0, Vec::len)
    }

    #[cfg(test)]
    pub(crate) fn is_patient(&self, upstream: &Upstream) -> bool {
        self.idle()[upstream].iter().any(|link| link.patience.is_needed())
    }

    #[cfg(test)]
    pub(crate) fn open_connections(&self) -> usize {
        self.tasks.len()
    }
}

/// What a connection's task knows of the pool that it belongs to.
struct Home<B> {
    pool: Weak<Pool<B>>,
    upstream: Upstream,
    id: u64,
    idle_timeout: Duration,
}

impl<B: ProxyBody> Home<B> {
    async fn drive(self, connection: impl Future<Output = hyper::Result<()>>, returned: mpsc::Receiver<Link<B>>) {
        let mut connection = pin!(connection);
        tokio::select! {
            biased;
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(upstream = %self.upstream, %error, "connection to an upstream ended");
                }
            }
            () = self.keep(returned) => {
                // No link is left: what is still to be read or written goes on, nothing new can come.
                drop(connection.await);
            }
        }
        if let Some(pool) = self.pool.upgrade() {
            drop(pool.remove(&self.upstream, self.id));
        }
    }

    /// Moves the link between the attempts and the pool until there is none any more.
    async fn keep(&self, mut returned: mpsc::Receiver<Link<B>>) {
        let mut next = returned.recv().await;
        while let Some(mut link) = next {
            if poll_fn(|cx| link.sender.poll_ready(cx)).await.is_err() {
                return;
            }
            let Some(pool) = self.pool.upgrade() else { return };
            pool.put(&self.upstream, link);
            drop(pool);
            next = match tokio::time::timeout(self.idle_timeout, returned.recv()).await {
                Ok(link) => link,
                Err(_) => {
                    self.expire();
                    returned.recv().await
                }
            };
        }
    }

    /// Closes the connection if it is idle at this moment.
    fn expire(&self) {
        if let Some(pool) = self.pool.upgrade() {
            let link = pool.remove(&self.upstream, self.id);
            drop(link);
        }
    }
}

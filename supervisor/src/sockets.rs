//! Every listening socket of the node. They are bound here and handed down, so that a connection made while a daemon restarts
//! waits in the backlog and is not refused.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rand::RngExt as _;
use scafo_core::config::Config;
use tokio::net::TcpSocket;

use crate::api::Error;
use crate::manager::{Kept, keep};
use crate::state::{Dirs, EmbeddedBucket, cannot_write};

/// How many connections wait for a daemon that restarts: four seconds of a thousand new ones a second. The kernel cuts it to
/// `net.core.somaxconn`, 4096 by default.
const BACKLOG: i32 = 4096;
/// Where the embedded bucket's port is looked for: below the ports for outgoing connections (32768 on, ip(7)), which could
/// have it in use at the next start, and below those of applications.
const BUCKET_PORTS: std::ops::RangeInclusive<u16> = 20_000..=23_999;
const BUCKET_PORT_TRIES: usize = 100;

/// How long the daemons of a supervisor that was killed may still hold its ports. They are killed with it, and on a busy machine that
/// takes a moment; half the life of a celld lease, so that what outlived it still finds its bucket where it was.
const LET_GO: Duration = Duration::from_secs(5);
/// Pause between two looks at them.
const LOOK: Duration = Duration::from_millis(20);

/// The sockets of one node.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) api: Vec<TcpListener>,
    pub(crate) ingress: Option<TcpListener>,
    pub(crate) bucket: Option<TcpListener>,
    /// On loopback.
    pub(crate) metrics: Option<TcpListener>,
    pub(crate) registry: UnixListener,
    pub(crate) admin: UnixListener,
    pub(crate) router: UnixListener,
    pub(crate) supervisor: UnixListener,
    /// Where the daemons without a service for others say that they live and what they count, as far as the node has them.
    pub(crate) bucketd: Option<UnixListener>,
    pub(crate) ingressd: Option<UnixListener>,
    pub(crate) apiserver: UnixListener,
}

/// Names of the sockets in the runtime directory. Each has a directory of its own, which its callers alone may enter.
pub(crate) const REGISTRY: &str = "registry/sock";
pub(crate) const ADMIN: &str = "admin/sock";
pub(crate) const ROUTER: &str = "router/sock";
pub(crate) const SUPERVISOR: &str = "supervisor/sock";
pub(crate) const BUCKETD: &str = "bucketd/sock";
pub(crate) const INGRESSD: &str = "ingressd/sock";
pub(crate) const APISERVER: &str = "apiserver/sock";
/// All of them.
pub(crate) const SERVERS: [&str; 7] = [REGISTRY, ADMIN, ROUTER, SUPERVISOR, BUCKETD, INGRESSD, APISERVER];

impl Sockets {
    /// Takes back those that the service manager kept and binds the others: all of them, or none. Those that were bound are
    /// closed again when one cannot be.
    pub(crate) fn bind(
        config: &Config,
        dirs: &Dirs,
        embedded: Option<&mut EmbeddedBucket>,
        mut kept: Kept,
    ) -> Result<Self, Error> {
        let mut tcp = |kind: &str, wanted: SocketAddr, key: &'static str| match kept.tcp(kind, wanted) {
            Some(listener) => Ok(listener),
            None => tcp(wanted, key).inspect(|listener| keep_tcp(kind, listener)),
        };
        let api =
            config.api.listen.iter().map(|address| tcp("api", *address, "api.listen")).collect::<Result<_, _>>()?;
        let ingress = config.ingressd_listen.map(|address| tcp("ingress", address, "ingressd.listen")).transpose()?;
        let metrics = config
            .observe
            .metrics_listen
            .map(|address| tcp("metrics", address, "observe.metricsListen"))
            .transpose()?;
        let bucket = embedded.map(|bucket| bind_bucket(dirs, bucket, &mut kept)).transpose()?;
        let mut unix = |name: &str| {
            let path = dirs.socket(name);
            if let Some(listener) = kept.unix(&path) {
                return Ok(listener);
            }
            let bound = unix(&path).map_err(|error| cannot_write(&path, &error));
            bound.inspect(|listener| keep("unix", listener, name))
        };
        Ok(Self {
            registry: unix(REGISTRY)?,
            admin: unix(ADMIN)?,
            router: unix(ROUTER)?,
            supervisor: unix(SUPERVISOR)?,
            bucketd: bucket.is_some().then(|| unix(BUCKETD)).transpose()?,
            ingressd: ingress.is_some().then(|| unix(INGRESSD)).transpose()?,
            apiserver: unix(APISERVER)?,
            api,
            ingress,
            bucket,
            metrics,
        })
    }

    /// Removes what the sockets left in the file system.
    pub(crate) fn remove_files(dirs: &Dirs) {
        for name in SERVERS {
            let _ = std::fs::remove_file(dirs.socket(name));
        }
    }
}

/// Waits, after a supervisor that was killed, until its daemons have let go of the ports that this one is about to bind. Somebody else
/// who has one of them is met by [`Sockets::bind`]. Only for whoever has the lock. May be dropped.
pub(crate) async fn until_let_go(config: &Config, dirs: &Dirs, embedded: Option<&EmbeddedBucket>) {
    // One that ended in order has removed it.
    if !dirs.socket(SUPERVISOR).exists() {
        return;
    }
    let bucket = embedded.and_then(|bucket| bucket.port).map(bucket_address);
    let fixed = config.api.listen.iter().copied().chain(config.ingressd_listen).chain(config.observe.metrics_listen);
    let wanted: Vec<SocketAddr> = fixed.filter(|address| address.port() != 0).chain(bucket).collect();
    let free = async {
        while wanted.iter().any(|address| is_held(*address)) {
            tokio::time::sleep(LOOK).await;
        }
    };
    if tokio::time::timeout(LET_GO, free).await.is_err() {
        tracing::warn!(?wanted, "a port of this node is in use, though the supervisor that had it is gone");
    }
}

/// Whether somebody listens on this address. Does not listen there itself, which a client could meet.
fn is_held(address: SocketAddr) -> bool {
    let bound = || {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // As for the listeners themselves: connections that have ended hold nothing.
        socket.set_reuseaddr(true)?;
        socket.bind(address)
    };
    bound().is_err_and(|error: io::Error| error.kind() == io::ErrorKind::AddrInUse)
}

fn bucket_address(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// A descriptor for a child. The socket itself stays ours.
pub(crate) fn share(socket: &impl std::os::fd::AsFd) -> io::Result<OwnedFd> {
    socket.as_fd().try_clone_to_owned()
}

/// Where a listener listens.
pub(crate) fn address(listener: &TcpListener) -> Result<SocketAddr, Error> {
    listener.local_addr().map_err(|error| Error::new(format!("a socket has no address: {error}"), "start again"))
}

fn keep_tcp(kind: &str, listener: &TcpListener) {
    if let Ok(address) = listener.local_addr() {
        keep(kind, listener, &address.to_string());
    }
}

fn tcp(address: SocketAddr, key: &'static str) -> Result<TcpListener, Error> {
    listen(address).map_err(|error| {
        let message = format!("cannot listen on {address} ({key}): {error}");
        match error.kind() {
            io::ErrorKind::AddrInUse => Error::new(
                message,
                format!("stop the program that has it (`ss -ltnp` shows which), or set {key} to another port; 0 takes a free one"),
            ),
            io::ErrorKind::AddrNotAvailable => {
                Error::new(message, format!("no interface of this machine has that address: correct {key}"))
            }
            io::ErrorKind::PermissionDenied => {
                Error::new(message, format!("set {key} to a port from 1024 on, or run with CAP_NET_BIND_SERVICE"))
            }
            _ => Error::new(message, format!("correct {key}")),
        }
    })
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(address)?;
    // The standard library's backlog is far shorter; listen(2) may be called again to change it.
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Binds the port that was chosen before. When somebody else has it by now another one is chosen, which only fails those celld
/// processes that outlived an earlier supervisor: they fence themselves and start anew with the new one.
fn bind_bucket(dirs: &Dirs, bucket: &mut EmbeddedBucket, kept: &mut Kept) -> Result<TcpListener, Error> {
    let on = |port: u16| listen(bucket_address(port)).inspect(|listener| keep_tcp("bucket", listener));
    if let Some(port) = bucket.port {
        if let Some(listener) = kept.tcp("bucket", bucket_address(port)) {
            return Ok(listener);
        }
        match on(port) {
            Ok(listener) => return Ok(listener),
            Err(error) => {
                tracing::warn!(port, %error, "the embedded bucket's port is taken; choosing another one");
            }
        }
    }
    let mut random = rand::rng();
    let tried = (0..BUCKET_PORT_TRIES).find_map(|_| on(random.random_range(BUCKET_PORTS)).ok());
    let listener = tried.map_or_else(|| on(0), Ok).map_err(|error| {
        Error::new(format!("no port on loopback is free for the embedded bucket: {error}"), "free some ports")
    })?;
    bucket.port = Some(address(&listener)?.port());
    bucket.save(dirs)?;
    Ok(listener)
}

fn unix(path: &Path) -> io::Result<UnixListener> {
    // Left over from a supervisor that was killed; the lock says that none runs.
    crate::state::remove(path)?;
    let listener = UnixListener::bind(path)?;
    // Its directory says who comes as far as here, and its server looks at who calls.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The path of one of our executables.
pub(crate) fn executable(directory: &Path, name: &str) -> Result<PathBuf, Error> {
    let path = directory.join(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(Error::new(
        format!("{} is not there", path.display()),
        "install all of scafo's executables in one directory (`cargo build --workspace` in a checkout), or set SCAFO_LIBEXEC",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_named_with_its_setting_and_the_next_step() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let error = tcp(address, "api.listen").unwrap_err();
        assert!(error.message.contains(&address.to_string()) && error.message.contains("api.listen"), "{error:?}");
        assert!(error.hint.contains("another port"));
    }

    #[test]
    fn the_buckets_port_is_kept_while_it_is_free() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs::create(dir.path(), &dir.path().join("run")).unwrap();
        let mut bucket = EmbeddedBucket::load_or_create(&dirs).unwrap();
        let first = bind_bucket(&dirs, &mut bucket, &mut Kept::default()).unwrap();
        let port = bucket.port.unwrap();
        let mut again = EmbeddedBucket::load_or_create(&dirs).unwrap();
        let other = bind_bucket(&dirs, &mut again, &mut Kept::default()).unwrap();
        assert_ne!(again.port.unwrap(), port, "it was in use");
        drop((first, other));
        bind_bucket(&dirs, &mut again, &mut Kept::default()).unwrap();
        assert_eq!(EmbeddedBucket::load_or_create(&dirs).unwrap().port, again.port);
    }

    #[test]
    fn a_port_is_held_while_somebody_listens_and_looking_at_it_holds_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert!(is_held(address));
        drop(listener);
        assert!(!is_held(address) && !is_held(address));
        assert!(TcpListener::bind(address).is_ok());
    }

    #[test]
    fn a_socket_file_of_a_killed_supervisor_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        drop(unix(&path).unwrap());
        assert!(path.exists());
        let listener = unix(&path).unwrap();
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        drop(listener);
    }
}

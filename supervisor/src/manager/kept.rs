//! Listening sockets that systemd keeps while no supervisor runs (`FDSTORE=1` of `sd_notify(3)`): connections wait in their
//! backlogs until the next supervisor takes them back (`sd_listen_fds(3)`).

use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use listenfd::ListenFd;
use sd_notify::NotifyState;

use super::is_there;

/// Sockets that were taken back are moved to numbers from here on: those below are what a child's sockets are moved to.
const FIRST_NUMBER: i32 = 64;

/// What came back. Dropping it forgets those that nobody has taken: their settings have changed.
#[derive(Debug, Default)]
pub(crate) struct Kept(Vec<(String, Socket)>);

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Kept {
    /// Takes what was passed to this very process. To be called once.
    pub(crate) fn take() -> Self {
        let passed_to_us = std::env::var("LISTEN_PID").is_ok_and(|pid| pid == std::process::id().to_string());
        if !passed_to_us {
            return Self::default();
        }
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut passed = ListenFd::from_env();
        let names = names.split(':').take(passed.len()).enumerate();
        Self(names.filter_map(|(number, name)| Some((name.to_owned(), socket(&mut passed, number)?))).collect())
    }

    /// Whether nothing came back.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A TCP listener of this kind on this address; port 0 takes any port.
    pub(crate) fn tcp(&mut self, kind: &str, address: SocketAddr) -> Option<TcpListener> {
        let fits = |listener: &TcpListener| {
            let own = listener.local_addr();
            own.is_ok_and(|own| own.ip() == address.ip() && (own.port() == address.port() || address.port() == 0))
        };
        let of_kind = |name: &str| name.strip_prefix(kind).is_some_and(|rest| rest.starts_with('-'));
        let found = self
            .0
            .iter()
            .position(|(name, socket)| matches!(socket, Socket::Tcp(listener) if fits(listener)) && of_kind(name))?;
        match self.0.swap_remove(found).1 {
            Socket::Tcp(listener) => Some(listener),
            Socket::Unix(_) => None,
        }
    }

    /// The Unix listener on this path, if the path is still there.
    pub(crate) fn unix(&mut self, path: &Path) -> Option<UnixListener> {
        let leads_to = |listener: &UnixListener| {
            listener.local_addr().is_ok_and(|own| own.as_pathname() == Some(path)) && path.exists()
        };
        let found =
            self.0.iter().position(|(_, socket)| matches!(socket, Socket::Unix(listener) if leads_to(listener)))?;
        match self.0.swap_remove(found).1 {
            Socket::Unix(listener) => Some(listener),
            Socket::Tcp(_) => None,
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (name, _) in &self.0 {
            super::tell(&[NotifyState::FdStoreRemove, NotifyState::FdName(name)]);
        }
    }
}

fn socket(passed: &mut ListenFd, number: usize) -> Option<Socket> {
    if let Ok(Some(listener)) = passed.take_tcp_listener(number) {
        return moved(&listener).map(TcpListener::from).map(Socket::Tcp);
    }
    let listener = passed.take_unix_listener(number).ok()??;
    moved(&listener).map(UnixListener::from).map(Socket::Unix)
}

/// The same socket under a number that is out of the way, closed when a program is executed.
fn moved(socket: &impl AsFd) -> Option<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(socket, FIRST_NUMBER).ok()
}

/// Gives a TCP listener to the service manager to keep.
pub(crate) fn keep(kind: &str, listener: &impl AsFd, detail: &str) {
    if !is_there() {
        return;
    }
    // Colons separate names; without FDPOLL=0 a socket with an error on it would be dropped.
    let name = format!("{kind}-{detail}").replace(':', "_");
    let state = [NotifyState::FdStore, NotifyState::FdName(&name), NotifyState::Custom("FDPOLL=0")];
    if let Err(error) = sd_notify::notify_with_fds(&state, &[listener.as_fd()]) {
        tracing::warn!(name, %error, "the service manager does not keep a socket; a restart will refuse connections");
    }
}

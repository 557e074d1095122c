//! A TCP connection to an upstream. It breaks within seconds when the machine at the other end vanishes without a word.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use rustix::net::sockopt;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};

/// How long the other kernel may leave what was sent without a sign that it came. 10 s: a packet that is lost is sent again five times
/// by then, and a kernel answers at once however slow its application is.
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// When the kernel starts to ask a silent upstream for a sign of life, also in the middle of a stream that has nothing to say.
const PROBE_AFTER: Duration = Duration::from_secs(4);

/// How often it asks again without an answer.
const PROBE_EVERY: Duration = Duration::from_secs(2);

/// How many probes in all may stay without an answer: 30 s, where [`UNACKNOWLEDGED`] is not in force. A tunnel is to outlive a switch
/// that finds its way anew.
const PROBES: u32 = 13;

/// Whether what is sent may stay unread at the other end for as long as its application likes.
///
/// A request without a body fits any kernel's receive window. A body, and what a tunnel carries, may fill it when the application
/// does not read, and the kernel takes a window that stays closed for one that nobody answers, although it is answered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Patience(Arc<AtomicBool>);

impl Patience {
    /// For the request that is sent next.
    pub(crate) fn set(&self, needed: bool) {
        self.0.store(needed, Ordering::Relaxed);
    }

    pub(crate) fn is_needed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The connection.
pub(crate) struct Socket {
    stream: TcpStream,
    patience: Patience,
    /// What the kernel was told last.
    patient: bool,
}

impl Socket {
    /// Prepares a new connection. A proxy writes whole messages, so waiting for more (Nagle) would only add latency.
    pub(crate) fn new(stream: TcpStream, patience: Patience) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, PROBE_AFTER)?;
        sockopt::set_tcp_keepintvl(&stream, PROBE_EVERY)?;
        sockopt::set_tcp_keepcnt(&stream, PROBES)?;
        limit(&stream, false)?;
        Ok(Self { stream, patience, patient: false })
    }

    /// Before a write: tells the kernel what the request needs, if that has changed.
    fn settle(&mut self) -> io::Result<()> {
        let needed = self.patience.is_needed();
        if needed != self.patient {
            limit(&self.stream, needed)?;
            self.patient = needed;
        }
        Ok(())
    }
}

/// Zero is the kernel's own limit, a quarter of an hour, and leaves a closed window alone.
fn limit(stream: &TcpStream, patient: bool) -> io::Result<()> {
    let limit = if patient { 0 } else { u32::try_from(UNACKNOWLEDGED.as_millis()).unwrap_or(u32::MAX) };
    Ok(sockopt::set_tcp_user_timeout(stream, limit)?)
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, into)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.settle()?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.settle()?;
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    use super::*;

    async fn connected() -> (Socket, Patience, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let patience = Patience::default();
        (Socket::new(stream, patience.clone()).unwrap(), patience, listener)
    }

    #[tokio::test]
    async fn a_machine_that_vanished_is_noticed_within_ten_seconds_with_and_without_something_on_its_way() {
        let (socket, _, _listener) = connected().await;
        let stream = &socket.stream;
        assert!(sockopt::socket_keepalive(stream).unwrap());
        let (idle, every) = (sockopt::tcp_keepidle(stream).unwrap(), sockopt::tcp_keepintvl(stream).unwrap());
        let probes = sockopt::tcp_keepcnt(stream).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(stream).unwrap(), 10_000);
        // The kernel counts one probe as enough once that time is over.
        assert!(idle + every * 2 < Duration::from_secs(10));
        assert_eq!(idle + every * probes, Duration::from_secs(30), "without that time");
    }

    #[tokio::test]
    async fn what_an_application_may_leave_unread_has_no_limit_until_the_next_request() {
        let (mut socket, patience, _listener) = connected().await;
        for (needed, limit) in [(true, 0), (false, 10_000)] {
            patience.set(needed);
            socket.write_all(b"x").await.unwrap();
            assert_eq!(sockopt::tcp_user_timeout(&socket.stream).unwrap(), limit);
        }
    }
}

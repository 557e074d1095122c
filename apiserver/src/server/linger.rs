//! Closing without losing the answer, and without waiting for whoever does not read it.
//!
//! A refusal goes out while the caller may still be sending its artifact. Closing a socket with unread bytes resets the
//! connection, and the reset can overtake the answer (RFC 9112 §9.6). So the end of our side is announced first, and what
//! still comes in is read and dropped for a moment.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tokio_io_timeout::TimeoutStream;

/// How long a peer has to notice that it was answered.
const MOMENT: Duration = Duration::from_secs(2);
/// Bytes that are dropped at most: what a fast local peer sends before it looks up.
const DROPPED: usize = 16 * 1024 * 1024;

/// How long a peer may take nothing of what is sent to it.
const STALLED: Duration = Duration::from_secs(30);

pub(super) struct Lingering<S> {
    stream: Pin<Box<TimeoutStream<S>>>,
    /// Set once our side is closed.
    lingering: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S: AsyncRead + AsyncWrite> Lingering<S> {
    pub(super) fn new(stream: S) -> Self {
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(STALLED));
        Self { stream: Box::pin(stream), lingering: None }
    }
}

impl<S: AsyncRead + AsyncWrite> AsyncRead for Lingering<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite> AsyncWrite for Lingering<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.lingering.is_none() {
            ready!(this.stream.as_mut().poll_shutdown(cx))?;
            this.lingering = Some((Box::pin(sleep(MOMENT)), 0));
        }
        let Some((moment, dropped)) = &mut this.lingering else { return Poll::Ready(Ok(())) };
        let mut buffer = [0; 16 * 1024];
        while *dropped < DROPPED {
            let mut read = ReadBuf::new(&mut buffer);
            match this.stream.as_mut().poll_read(cx, &mut read) {
                Poll::Ready(Ok(())) if !read.filled().is_empty() => *dropped += read.filled().len(),
                // The peer closed its side, or is gone.
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    ready!(moment.as_mut().poll(cx));
                    return Poll::Ready(Ok(()));
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.stream.as_mut().poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_takes_nothing_is_not_waited_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _peer = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut stream = Lingering::new(listener.accept().await.unwrap().0);
        let error = loop {
            if let Err(error) = stream.write_all(&[0; 64 * 1024]).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}

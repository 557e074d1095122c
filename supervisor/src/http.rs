//! Bounded questions over HTTP/1.1 to processes on this machine: one connection, one answer, a limit on its size and its time.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustix::io::Errno;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// A question.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) address: SocketAddr,
    pub(crate) method: Method,
    pub(crate) host: String,
    pub(crate) path: &'static str,
    /// Longest body that is read, in bytes.
    pub(crate) limit: usize,
    pub(crate) deadline: Duration,
}

/// The answer came, whatever it says.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    /// `None`: longer than the limit, or cut off.
    pub(crate) body: Option<Bytes>,
}

/// No answer came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unanswered {
    /// Refused, cut off, or nothing within the deadline.
    Silent,
    /// Nobody was asked, for want of something here: that says nothing about the other side.
    NotAsked,
}

/// Whether what went wrong is that this process, or this machine, has too little of something to ask anybody: descriptors, memory or
/// ports.
pub(crate) fn is_a_lack(error: &(dyn Error + 'static)) -> bool {
    const LACKS: [Errno; 5] = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL];
    let mut below = Some(error);
    while let Some(error) = below {
        let errno = error.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
        if errno.is_some_and(|errno| LACKS.contains(&errno)) {
            return true;
        }
        below = error.source();
    }
    false
}

impl Question {
    pub(crate) fn get(address: SocketAddr, path: &'static str, limit: usize, deadline: Duration) -> Self {
        Self { address, method: Method::GET, host: address.to_string(), path, limit, deadline }
    }

    /// Asks, for as long as the deadline says.
    pub(crate) async fn ask(self) -> Result<Answer, Unanswered> {
        let asked = async {
            let stream = TcpStream::connect(self.address).await.map_err(|error| {
                if is_a_lack(&error) {
                    tracing::debug!(%error, address = %self.address, "cannot ask");
                    return Unanswered::NotAsked;
                }
                Unanswered::Silent
            })?;
            self.exchange(stream).await.ok_or(Unanswered::Silent)
        };
        tokio::time::timeout(self.deadline, asked).await.unwrap_or(Err(Unanswered::Silent))
    }

    async fn exchange(&self, stream: TcpStream) -> Option<Answer> {
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.ok()?;
        // Ends with this scope, and the connection with it.
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let request = Request::builder()
            .method(&self.method)
            .uri(self.path)
            .header(header::HOST, &self.host)
            .header(header::CONNECTION, "close")
            .body(Empty::<Bytes>::new())
            .ok()?;
        let response = sender.send_request(request).await.ok()?;
        let status = response.status();
        let body = Limited::new(response.into_body(), self.limit).collect().await;
        Some(Answer { status, body: body.ok().map(http_body_util::Collected::to_bytes) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    async fn answering(answer: &'static [u8]) -> (SocketAddr, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut server = JoinSet::new();
        server.spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).await.unwrap();
            stream.write_all(answer).await.unwrap();
            if answer.is_empty() {
                std::future::pending::<()>().await;
            }
        });
        (address, server)
    }

    #[tokio::test]
    async fn status_and_body_come_back() {
        let (address, _server) = answering(b"HTTP/1.1 503 x\r\ncontent-length: 2\r\n\r\nno").await;
        let answer = Question::get(address, "/", 10, Duration::from_secs(30)).ask().await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.body.unwrap().as_ref()), (503, b"no".as_slice()));
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_not_read() {
        let (address, _server) = answering(b"HTTP/1.1 200 x\r\ncontent-length: 11\r\n\r\n01234567890").await;
        let answer = Question::get(address, "/", 10, Duration::from_secs(30)).ask().await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.body), (200, None));
    }

    #[tokio::test]
    async fn silence_ends_at_the_deadline() {
        let (address, _server) = answering(b"").await;
        let asked = Question::get(address, "/", 10, Duration::from_millis(50)).ask().await;
        assert_eq!(asked.unwrap_err(), Unanswered::Silent);
    }

    #[test]
    fn what_we_lack_ourselves_is_nobodys_silence() {
        // As a call over a channel fails that cannot connect.
        let status =
            |errno: Errno| tonic::Status::from_error(Box::new(tonic::ConnectError(Box::new(io::Error::from(errno)))));
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::ADDRNOTAVAIL] {
            assert!(is_a_lack(&io::Error::from(errno)) && is_a_lack(&status(errno)), "{errno:?}");
        }
        for errno in [Errno::CONNREFUSED, Errno::CONNRESET, Errno::TIMEDOUT, Errno::AGAIN, Errno::NOENT] {
            assert!(!is_a_lack(&io::Error::from(errno)) && !is_a_lack(&status(errno)), "{errno:?}");
        }
    }
}

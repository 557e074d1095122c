//! HTTP/1.1 to the byte: a client that sends targets as they are written, and a server that shows what arrived.
//!
//! Libraries tidy requests up, and how a request is spelled is what the tests are about.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// How long one exchange may take. An ingress may try three upstreams of 3 s each, on a machine that is busy.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest head that is read: targets of the tests are short, and Go's own limit is 1 MiB.
const LONGEST_HEAD: usize = 64 * 1024;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its fields, as they came.
    pub head: String,
    /// Its body; whatever framing it had is left in.
    pub body: String,
}

/// Sends one GET with this target and this Host field, on a connection of its own, once.
///
/// # Errors
/// When there is no whole answer.
pub async fn ask(address: SocketAddr, host: &str, target: &str) -> io::Result<Answer> {
    let request = format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).await?;
        Ok::<_, io::Error>(String::from_utf8_lossy(&answer).into_owned())
    };
    let text = tokio::time::timeout(PATIENCE, exchange).await.map_err(|_| io::ErrorKind::TimedOut)??;
    parsed(&text).ok_or_else(|| io::Error::other(format!("no answer: {text:?}")))
}

fn parsed(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some(Answer { status, head: head.to_owned(), body: body.to_owned() })
}

/// A request as it arrived, without a body.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) target: String,
    pub(crate) authorization: String,
}

/// What is answered.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) media_type: &'static str,
    pub(crate) body: Vec<u8>,
    /// Whether the connection ends in the middle of it.
    pub(crate) cut: bool,
}

/// A server of requests without bodies, until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    _serving: JoinSet<()>,
}

impl Server {
    /// Serves on a free port of the loopback; `answer` is given the port too.
    pub(crate) async fn start(answer: impl Fn(u16, Received) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let answer = Arc::new(answer);
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let answer = Arc::clone(&answer);
                connections.spawn(connection(stream, move |received| answer(address.port(), received)));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { address, _serving: serving }
    }
}

/// Answers one request after the other. Whatever goes wrong ends the connection, and the client sees it.
async fn connection(mut stream: TcpStream, answer: impl Fn(Received) -> Reply) {
    let mut held = Vec::new();
    loop {
        let end = loop {
            if let Some(end) = held.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            match stream.read_buf(&mut held).await {
                Ok(read) if read > 0 && held.len() <= LONGEST_HEAD => {}
                _ => return,
            }
        };
        let head = String::from_utf8_lossy(&held[..end]).into_owned();
        held.drain(..end + 4);
        let reply = answer(received(&head));
        let head = format!(
            "HTTP/1.1 {} -\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n",
            reply.status,
            reply.media_type,
            reply.body.len()
        );
        let sent = if reply.cut { reply.body.len() / 2 } else { reply.body.len() };
        let text = [head.as_bytes(), &reply.body[..sent]].concat();
        if stream.write_all(&text).await.is_err() || reply.cut {
            return;
        }
    }
}

fn received(head: &str) -> Received {
    let field = |name: &str| {
        let of = |line: &str| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
        };
        head.lines().skip(1).find_map(of).unwrap_or_default()
    };
    let target = head.split(' ').nth(1).unwrap_or_default().to_owned();
    Received { target, authorization: field("authorization") }
}

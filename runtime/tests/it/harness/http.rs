//! A client that sends one request on one connection and never tries again.

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
};

use tokio_tungstenite::tungstenite::{WebSocket, client};

use super::{LIMIT, Node};

#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub status: u16,
    head: String,
    pub body: String,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{self:?} is no JSON: {error}"))
    }
}

#[track_caller]
pub(crate) fn get(to: SocketAddr, path: &str) -> Answer {
    request(to, "GET", path, "", "").unwrap()
}

#[track_caller]
pub(crate) fn post(to: SocketAddr, path: &str) -> Answer {
    request(to, "POST", path, "", "").unwrap()
}

/// `headers` are whole lines, each with its line break.
pub(crate) fn request(to: SocketAddr, method: &str, path: &str, headers: &str, body: &str) -> io::Result<Answer> {
    request_of("shop.test", to, method, path, headers, body)
}

/// The same with another Host field.
pub(crate) fn request_of(
    host: &str,
    to: SocketAddr,
    method: &str,
    path: &str,
    headers: &str,
    body: &str,
) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(to)?;
    stream.set_read_timeout(Some(LIMIT))?;
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    parse(&bytes).ok_or_else(|| io::Error::other(format!("no answer: {:?}", String::from_utf8_lossy(&bytes))))
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let text = String::from_utf8_lossy(bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    let body = if chunked { unchunked(body)? } else { body.to_owned() };
    Some(Answer { status, head: head.to_owned(), body })
}

/// Chunks of ASCII text, which is all that the tests send.
fn unchunked(mut rest: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (size, after) = rest.split_once("\r\n")?;
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.push_str(after.get(..size)?);
        rest = after.get(size..)?.strip_prefix("\r\n")?;
    }
}

/// A member of a chat room: the WebSocket is open.
#[track_caller]
pub(crate) fn join(node: &Node, room: &str) -> WebSocket<TcpStream> {
    let stream = TcpStream::connect(node.public()).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    client(format!("ws://shop.test{room}"), stream).unwrap().0
}

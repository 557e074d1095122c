//! What is refused before it is a request: a head that is too long, malformed, or too slow.
//!
//! The HTTP library answers such heads by itself, with a status and nothing else. Its words are exchanged on their way out for a
//! problem document of type `about:blank` (RFC 9457 §4.2.1), since a caller reads one form of refusal. Nothing else may ever be
//! taken for such words, bytes of an answer of ours above all, so they are exchanged only while no answer is open and everything
//! that was answered before is on the wire; on HTTP/2, where the library's words are frames, never.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::Body;
use bytes::{Buf as _, Bytes};
use http::StatusCode;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use scafo_proto::open::{Open, Piece};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{HEAD, HEAD_BYTES};
use crate::answer::{ACCESS, request_id};
use crate::figures::Figures;

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const ANSWERED: u8 = 2;
const NEVER: u8 = 3;

/// Whose turn it is to speak on one connection.
#[derive(Default)]
pub(super) struct Turn {
    state: AtomicU8,
    /// Something has come in.
    heard: AtomicBool,
    /// The time for the first head is over.
    overdue: AtomicBool,
}

impl Turn {
    /// A request is there: what goes out next is its answer.
    pub(super) fn begin(&self, version: http::Version) {
        self.state.store(if version == http::Version::HTTP_2 { NEVER } else { ANSWERING }, Ordering::Relaxed);
    }

    /// The first head did not come in time.
    pub(super) fn expire(&self) {
        self.overdue.store(true, Ordering::Relaxed);
    }

    fn move_on(&self, from: u8, to: u8) {
        let _ = self.state.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn is_idle(&self) -> bool {
        self.state.load(Ordering::Relaxed) == IDLE
    }
}

/// The body of an answer, which tells when it is over, and shows what the peer takes of it.
pub(super) struct Answer {
    body: Body,
    turn: Arc<Turn>,
    _open: Open,
}

impl Answer {
    pub(super) fn new(body: Body, turn: Arc<Turn>, open: Open) -> Self {
        Self { body, turn, _open: open }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.turn.move_on(ANSWERING, ANSWERED);
    }
}

impl HttpBody for Answer {
    type Data = Piece;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Piece>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx).map_ok(|frame| frame.map_data(Piece::from))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A connection on which the library's own refusals become documents.
pub(super) struct Documented<S> {
    stream: S,
    turn: Arc<Turn>,
    figures: Figures,
    /// A document that is on its way out.
    pending: Bytes,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Documented<S> {
    pub(super) fn new(stream: S, turn: Arc<Turn>, figures: Figures) -> Self {
        Self { stream, turn, figures, pending: Bytes::new() }
    }

    fn poll_pending(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.pending.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.pending))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.pending.advance(written);
        }
        Poll::Ready(Ok(()))
    }

    /// Takes the library's refusal, which `words` begin with, and sends a document for it.
    fn exchange(&mut self, words: &[u8], cx: &mut Context<'_>) -> bool {
        let Some(status) = refusal(words).filter(|_| self.turn.is_idle()) else { return false };
        self.refuse(status, cx);
        true
    }

    fn refuse(&mut self, status: StatusCode, cx: &mut Context<'_>) {
        self.turn.move_on(IDLE, NEVER);
        let id = request_id();
        tracing::info!(target: ACCESS, id, status = status.as_u16(), "refused before it was a request");
        self.figures.unread(status);
        self.pending = document(status, &id);
        // What does not go out now goes out with the next flush.
        let _ = self.poll_pending(cx);
    }
}

/// The status, when these are the first words of a refusal.
fn refusal(words: &[u8]) -> Option<StatusCode> {
    let status = words.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    StatusCode::from_bytes(status).ok().filter(StatusCode::is_client_error)
}

fn document(status: StatusCode, id: &str) -> Bytes {
    let detail = match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => {
            format!("the head of the request is longer than the {HEAD_BYTES} bytes that this node reads")
        }
        StatusCode::URI_TOO_LONG => "the address in the request is longer than this node reads".to_owned(),
        StatusCode::REQUEST_TIMEOUT => {
            format!("the head of the request did not arrive within {} s", HEAD.as_secs())
        }
        _ => "this is no HTTP request that this node understands".to_owned(),
    };
    let title = status.canonical_reason().unwrap_or("Refused");
    let body = json!({ "type": "about:blank", "title": title, "status": status.as_u16(), "detail": detail });
    let body = body.to_string();
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {} {title}\r\ncontent-type: application/problem+json\r\ncontent-length: {length}\r\n\
         x-request-id: {id}\r\nconnection: close\r\n\r\n",
        status.as_u16()
    );
    Bytes::from(head + &body)
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Documented<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.turn.overdue.load(Ordering::Relaxed) && this.turn.is_idle() {
            // A peer that never said anything asked for nothing.
            if this.turn.heard.load(Ordering::Relaxed) {
                this.refuse(StatusCode::REQUEST_TIMEOUT, cx);
            }
            // As if the peer had closed: the library ends the connection.
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        if buf.filled().len() > before {
            this.turn.heard.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Documented<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_pending(cx))?;
        if self.exchange(buf, cx) {
            return Poll::Ready(Ok(buf.len()));
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_pending(cx))?;
        let first = bufs.iter().find(|buf| !buf.is_empty());
        if first.is_some_and(|first| self.exchange(first, cx)) {
            return Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// The library flushes when it has nothing left to write.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_pending(cx))?;
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.turn.move_on(ANSWERED, IDLE);
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_pending(cx))?;
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use scafo_proto::open::Streams;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[test]
    fn only_a_refusal_of_the_caller_is_taken_for_one() {
        for (words, status) in [
            ("HTTP/1.1 431 Request Header Fields Too Large\r\n", Some(431)),
            ("HTTP/1.1 400 Bad Request\r\n", Some(400)),
            ("HTTP/1.1 200 OK\r\n", None),
            ("HTTP/1.1 100 Continue\r\n", None),
            ("HTTP/1.1 4", None),
            ("{\"type\":\"HTTP/1.1 400 Bad Request\"}", None),
            ("", None),
        ] {
            assert_eq!(refusal(words.as_bytes()).map(|status| status.as_u16()), status, "{words}");
        }
    }

    #[test]
    fn an_answer_is_over_once_it_is_dropped_and_flushed() {
        let turn = Arc::new(Turn::default());
        assert!(turn.is_idle());
        turn.begin(http::Version::HTTP_11);
        let answer = Answer::new(Body::empty(), Arc::clone(&turn), Streams::default().open(http::Version::HTTP_11));
        turn.move_on(ANSWERED, IDLE);
        assert!(!turn.is_idle(), "a flush in the middle of an answer");
        drop(answer);
        assert!(!turn.is_idle());
        turn.move_on(ANSWERED, IDLE);
        assert!(turn.is_idle());
        turn.begin(http::Version::HTTP_2);
        drop(Answer::new(Body::empty(), Arc::clone(&turn), Streams::default().open(http::Version::HTTP_11)));
        turn.move_on(ANSWERED, IDLE);
        assert!(!turn.is_idle(), "frames are never taken for words");
    }

    #[tokio::test]
    async fn a_head_that_began_and_does_not_end_is_answered_408_and_silence_is_not() {
        for (sent, answered) in [("GET / HTT", true), ("", false)] {
            let (mut peer, ours) = tokio::io::duplex(64 * 1024);
            let turn = Arc::new(Turn::default());
            let mut documented = Documented::new(ours, Arc::clone(&turn), Figures::default());
            peer.write_all(sent.as_bytes()).await.unwrap();
            let mut read = vec![0; sent.len()];
            documented.read_exact(&mut read).await.unwrap();
            turn.expire();
            assert_eq!(documented.read(&mut [0; 16]).await.unwrap(), 0, "as if the peer had closed");
            documented.shutdown().await.unwrap();
            let mut answer = String::new();
            peer.read_to_string(&mut answer).await.unwrap();
            assert_eq!(answer.starts_with("HTTP/1.1 408 Request Timeout\r\n"), answered, "{answer}");
            assert_eq!(answer.contains("about:blank"), answered);
        }
    }
}

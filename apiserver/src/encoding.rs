//! Compression of large documents (RFC 9110 §8.4), where the caller accepts gzip.

use std::io::{Read as _, Write as _};

use axum::response::Response;
use bytes::Bytes;
use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, VARY};
use http::{HeaderMap, HeaderValue, StatusCode};
use scafo_core::problem::{Problem, ProblemCode};

use crate::answer::json;

/// Documents up to this length go out as they are: they fit one packet, near enough.
const PLAIN_UP_TO: usize = 1024;
/// Documents beyond this are compressed off the threads that serve: it is a millisecond's work.
const AT_ONCE_UP_TO: usize = 64 * 1024;

/// A JSON document of any length, compressed when that pays and the caller accepts it.
///
/// # Errors
/// `internal` when compressing fails.
pub(crate) async fn document(headers: &HeaderMap, body: Bytes) -> Result<Response, Problem> {
    if !wanted(headers, body.len()) {
        return Ok(plain(body));
    }
    gzip(body).await.map(compressed)
}

/// Whether a document of this length is to be compressed for the sender of `headers`.
pub(crate) fn wanted(headers: &HeaderMap, length: usize) -> bool {
    length > PLAIN_UP_TO && accepts_gzip(headers)
}

/// A JSON document as it is.
pub(crate) fn plain(body: Bytes) -> Response {
    let mut response = json(StatusCode::OK, body);
    response.headers_mut().insert(VARY, HeaderValue::from_static("accept-encoding"));
    response
}

/// A JSON document that is compressed already.
pub(crate) fn compressed(body: Bytes) -> Response {
    let mut response = plain(body);
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response
}

/// Compresses. The level is the fastest: JSON that repeats itself shrinks to a tenth with any.
///
/// # Errors
/// `internal`.
async fn gzip(body: Bytes) -> Result<Bytes, Problem> {
    if body.len() <= AT_ONCE_UP_TO {
        return squeeze(&body);
    }
    tokio::task::spawn_blocking(move || squeeze(&body)).await.map_err(failed)?
}

fn squeeze(body: &[u8]) -> Result<Bytes, Problem> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 8), Compression::fast());
    encoder.write_all(body).and_then(|()| encoder.finish()).map(Bytes::from).map_err(failed)
}

/// Decompresses what has this length then.
///
/// # Errors
/// `internal`, also for another length.
pub(crate) async fn gunzip(compressed: Bytes, length: usize) -> Result<Bytes, Problem> {
    if length <= AT_ONCE_UP_TO {
        return expand(&compressed, length);
    }
    tokio::task::spawn_blocking(move || expand(&compressed, length)).await.map_err(failed)?
}

fn expand(compressed: &[u8], length: usize) -> Result<Bytes, Problem> {
    let mut text = Vec::with_capacity(length + 1);
    // One more than there may be, so that a longer one shows and still takes no more memory.
    let bound = u64::try_from(length).unwrap_or(u64::MAX).saturating_add(1);
    GzDecoder::new(compressed).take(bound).read_to_end(&mut text).map_err(failed)?;
    if text.len() != length {
        return Err(failed("a compressed document has another length than was said"));
    }
    Ok(text.into())
}

fn failed(error: impl std::fmt::Display) -> Problem {
    Problem::new(ProblemCode::Internal, "").because(error)
}

/// `Accept-Encoding` (RFC 9110 §12.5.3): whether `gzip`, or everything, is named with a weight above zero.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let mut any = false;
    for item in values.flat_map(|value| value.split(',')) {
        let (coding, weight) = item.split_once(';').unwrap_or((item, ""));
        let weight = weight.trim().strip_prefix("q=").map_or(1.0, |q| q.trim().parse().unwrap_or(0.0));
        match coding.trim() {
            coding if coding.eq_ignore_ascii_case("gzip") => return weight > 0.0,
            "*" => any = weight > 0.0,
            _ => {}
        }
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_compressed_comes_back_and_nothing_longer_or_broken_does() {
        for length in [0, 1, 2000, AT_ONCE_UP_TO, AT_ONCE_UP_TO + 1] {
            let text = Bytes::from(vec![b'x'; length]);
            let compressed = gzip(text.clone()).await.unwrap();
            assert_eq!(gunzip(compressed.clone(), length).await.unwrap(), text);
            assert!(gunzip(compressed.clone(), length + 1).await.is_err());
            assert!(gunzip(compressed.slice(..compressed.len() - 1), length).await.is_err());
            assert!(length == 0 || gunzip(compressed, length - 1).await.is_err());
        }
    }

    #[test]
    fn gzip_is_accepted_when_it_is_named_with_some_weight() {
        for (given, expected) in [
            ("gzip", true),
            ("GZIP", true),
            ("deflate, gzip;q=0.5", true),
            ("*", true),
            ("br, *;q=0.1", true),
            ("gzip;q=0, *", false),
            ("gzip; q=0", false),
            ("identity", false),
            ("", false),
            ("gzip;q=x", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT_ENCODING, given.parse().unwrap())]);
            assert_eq!(accepts_gzip(&headers), expected, "{given}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }
}

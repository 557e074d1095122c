//! `/v1/storage/**`: what TLS terminators keep in the bucket.
//!
//! A key is taken from the path as it was sent, component by component, so that no decoding can make another hierarchy of it.
//! Which keys are good is decided where they are stored.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri};
use percent_encoding::percent_decode_str;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_proto::storage::KeysPiece;
use tonic::{Status, Streaming};

use super::first;
use crate::answer::{Refusal, json, no_content};
use crate::app::App;
use crate::body;
use crate::storage::Value;

const OBJECTS: &str = "/v1/storage/objects/";
const LOCKS: &str = "/v1/storage/locks/";
const VERSION: HeaderName = HeaderName::from_static("x-scafo-storage-version");
/// Random for each process that takes locks, so that it can keep its own.
const OWNER: HeaderName = HeaderName::from_static("x-scafo-lock-owner");
/// Longest owner: a UUID has 36 characters, a digest 64.
const OWNER_MAX: usize = 128;

pub(crate) async fn put(
    State(app): State<Arc<App>>,
    uri: Uri,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    speaks_version_1(&headers)?;
    let key = tail(&uri, OBJECTS)?;
    let announced = body::announced(&headers);
    let limit = app.storage.value_bytes;
    // What is refused for its length does not wait for room.
    let room =
        if announced.is_some_and(|bytes| bytes > limit) { None } else { Some(app.storage.room(announced).await?) };
    let value = body::whole(&headers, body, limit, "storage.valueBytes").await?;
    app.storage.put(&key, value).await?;
    drop(room);
    Ok(no_content())
}

pub(crate) async fn get(State(app): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Result<Response, Refusal> {
    speaks_version_1(&headers)?;
    let Value { size, first, rest } = app.storage.get(&tail(&uri, OBJECTS)?).await?;
    let rest =
        stream::try_unfold(rest, |mut rest| async move { Ok(rest.message().await?.map(|piece| (piece.data, rest))) });
    // A stream that breaks is shorter than its length says, and the caller sees that.
    let body = stream::once(std::future::ready(Ok::<_, Status>(first))).chain(rest);
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
    Ok(response)
}

pub(crate) async fn delete(State(app): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Result<Response, Refusal> {
    speaks_version_1(&headers)?;
    app.storage.delete(&tail(&uri, OBJECTS)?).await?;
    Ok(no_content())
}

pub(crate) async fn list(State(app): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Result<Response, Refusal> {
    speaks_version_1(&headers)?;
    let recursive = ["true", "1"].contains(&first(&uri, "recursive").as_str());
    let (keys, rest) = app.storage.list(&first(&uri, "prefix"), recursive).await?;
    if keys.is_empty() {
        return Err(Problem::new(ProblemCode::NotFound, "nothing is stored at or under this prefix").into());
    }
    Ok(json(StatusCode::OK, array(&keys, rest)))
}

pub(crate) async fn stat(State(app): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Result<Response, Refusal> {
    speaks_version_1(&headers)?;
    Ok(json(StatusCode::OK, app.storage.stat(&first(&uri, "key")).await?))
}

pub(crate) async fn lock(State(app): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Result<Response, Refusal> {
    speaks_version_1(&headers)?;
    app.storage.lock(&tail(&uri, LOCKS)?, owner(&headers)?).await?;
    Ok(no_content())
}

pub(crate) async fn unlock(State(app): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Result<Response, Refusal> {
    speaks_version_1(&headers)?;
    app.storage.unlock(&tail(&uri, LOCKS)?, owner(&headers)?).await?;
    Ok(no_content())
}

/// No header and an empty one mean version 1.
fn speaks_version_1(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.get_all(VERSION).iter().all(|value| value.is_empty() || value == "1") {
        return Ok(());
    }
    Err(Problem::new(
        ProblemCode::InvalidInput,
        "this node speaks version 1 of the storage protocol (`x-scafo-storage-version`)",
    ))
}

fn owner(headers: &HeaderMap) -> Result<&str, Problem> {
    let mut values = headers.get_all(OWNER).iter();
    let Some(value) = values.next() else { return Ok("") };
    let text = value.to_str().ok().filter(|text| text.len() <= OWNER_MAX && values.next().is_none());
    text.ok_or_else(|| {
        let detail = format!("`x-scafo-lock-owner` is one value of at most {OWNER_MAX} printable ASCII characters");
        Problem::new(ProblemCode::InvalidInput, detail)
    })
}

/// The key or name after `prefix`. A component that holds the separator once it is decoded is refused: it would be two.
fn tail(uri: &Uri, prefix: &str) -> Result<String, Problem> {
    let refuse = |detail| Problem::new(ProblemCode::InvalidInput, detail).titled("Invalid storage key");
    let raw = uri.path().strip_prefix(prefix).unwrap_or_default();
    let mut key = String::with_capacity(raw.len());
    for (index, component) in raw.split('/').enumerate() {
        let decoded = percent_decode_str(component).decode_utf8();
        let decoded = decoded.map_err(|_| refuse("a key is made of printable ASCII, and this one is not even text"))?;
        if decoded.contains('/') {
            return Err(refuse("a component of a key holds no `/`, not even an encoded one"));
        }
        if index > 0 {
            key.push('/');
        }
        key.push_str(&decoded);
    }
    Ok(key)
}

/// A JSON array of keys that is written while they come in.
fn array(first: &[String], rest: Streaming<KeysPiece>) -> Body {
    let head = stream::once(std::future::ready(Ok::<_, Status>(strings(first, b"["))));
    let middle = stream::try_unfold(rest, |mut rest| async move {
        Ok(rest.message().await?.map(|piece| (strings(&piece.keys, b","), rest)))
    });
    let end = stream::once(std::future::ready(Ok(Bytes::from_static(b"]"))));
    Body::from_stream(
        head.chain(middle.filter(|piece| std::future::ready(!matches!(piece, Ok(text) if text.is_empty())))).chain(end),
    )
}

/// JSON strings with commas between and `before` them; empty for none.
fn strings(keys: &[String], before: &[u8]) -> Bytes {
    let mut text = BytesMut::new();
    for (index, key) in keys.iter().enumerate() {
        text.put_slice(if index == 0 { before } else { b"," });
        text.put_slice(&serde_json::to_vec(key).expect("a string always serialises"));
    }
    text.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_taken_component_by_component() {
        for (path, expected) in [
            ("a/b.crt", Some("a/b.crt")),
            ("acme%2Dv02/*.example/x%20y", Some("acme-v02/*.example/x y")),
            ("", Some("")),
            ("a//b/", Some("a//b/")),
            ("a/%2e%2e/b", Some("a/../b")),
            ("a%2Fb", None),
            ("a/%2fb", None),
            ("%ff", None),
        ] {
            let uri = format!("{OBJECTS}{path}").parse().unwrap();
            assert_eq!(tail(&uri, OBJECTS).ok().as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn only_version_1_is_spoken() {
        for (values, spoken) in [
            (&[][..], true),
            (&["1"], true),
            (&[""], true),
            (&["1", "1"], true),
            (&["2"], false),
            (&["1", "2"], false),
            (&["01"], false),
        ] {
            let headers = values.iter().map(|value| (VERSION, value.parse().unwrap())).collect::<Vec<_>>();
            let mut all = HeaderMap::new();
            for (name, value) in headers {
                all.append(name, value);
            }
            assert_eq!(speaks_version_1(&all).is_ok(), spoken, "{values:?}");
        }
    }

    #[test]
    fn an_owner_is_one_bounded_value() {
        let long = "x".repeat(OWNER_MAX + 1);
        assert_eq!(owner(&HeaderMap::new()).unwrap(), "");
        for (values, read) in [(vec!["abc"], Some("abc")), (vec!["a", "b"], None), (vec![long.as_str()], None)] {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(OWNER, value.parse().unwrap());
            }
            assert_eq!(owner(&headers).ok(), read);
        }
    }
}

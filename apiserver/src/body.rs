//! Bodies that are read whole: JSON control documents and stored values. Bounded in bytes and time, never half read.

use std::fmt;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt as _;
use scafo_core::problem::{Problem, ProblemCode};
use serde::de::{DeserializeOwned, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Number, Value};
use tokio::time::Instant;

/// How long a whole body may take. The largest, a value of 16 MiB, needs 4.5 Mbit/s for it.
const WITHIN: Duration = Duration::from_secs(30);

/// Beyond it a double skips integers.
const EXACT_UP_TO: f64 = 9_007_199_254_740_992.0;

/// The length that the request announces, if it does.
pub(crate) fn announced(headers: &HeaderMap) -> Option<u64> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Reads a body of at most `limit` bytes. One that announces more is not read at all.
///
/// # Errors
/// `resource-limit` naming `setting`; `invalid-input` when it does not arrive whole and in time.
pub(crate) async fn whole(headers: &HeaderMap, body: Body, limit: u64, setting: &str) -> Result<Bytes, Problem> {
    let too_large = || {
        Problem::new(
            ProblemCode::ResourceLimit,
            format!("the body is larger than the {limit} bytes that this node takes (`{setting}`)"),
        )
    };
    if announced(headers).is_some_and(|bytes| bytes > limit) {
        return Err(too_large());
    }
    let until = Instant::now() + WITHIN;
    let mut body = body;
    let mut read = BytesMut::new();
    loop {
        let frame = tokio::time::timeout_at(until, body.frame()).await.map_err(|_| cut("did not arrive in time"))?;
        let Some(frame) = frame else { return Ok(read.freeze()) };
        let frame = frame.map_err(|error| cut("ended before it was whole").because(error))?;
        let Ok(data) = frame.into_data() else { continue };
        if (read.len() + data.len()) as u64 > limit {
            return Err(too_large());
        }
        read.extend_from_slice(&data);
    }
}

fn cut(how: &str) -> Problem {
    Problem::new(ProblemCode::InvalidInput, format!("the body {how}; nothing was changed, send it again"))
}

/// Reads a JSON object as `T`. A name that stands twice in an object is refused: two readers of it would not agree.
///
/// # Errors
/// `invalid-input`.
pub(crate) fn object<T: DeserializeOwned>(json: &[u8]) -> Result<T, Problem> {
    let malformed = |detail: String| Problem::new(ProblemCode::InvalidInput, detail);
    if json.is_empty() {
        return Err(malformed("the request needs a JSON object as its body".to_owned()));
    }
    let Unambiguous(value) =
        serde_json::from_slice(json).map_err(|error| malformed(format!("the body is not JSON: {error}")))?;
    if !value.is_object() {
        return Err(malformed("the body must be a JSON object".to_owned()));
    }
    serde_json::from_value(value).map_err(|error| malformed(format!("the body is not as it must be: {error}")))
}

/// A member that has to be given and is not.
pub(crate) fn missing(name: &str, what: &str) -> Problem {
    Problem::new(ProblemCode::InvalidInput, format!("the body needs the member `{name}`: {what}"))
}

/// For `deserialize_with` beside `default`: a member may be left out, but `null` is not how.
pub(crate) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// JSON in which no object has a name twice.
struct Unambiguous(Value);

impl<'de> Deserialize<'de> for Unambiguous {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Building).map(Self)
    }
}

struct Building;

impl<'de> Visitor<'de> for Building {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    /// JSON knows one kind of number: `3.0` is a whole one (RFC 8259 §6), where every integer is exact.
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        if value.fract() == 0.0 && value.abs() <= EXACT_UP_TO {
            return Ok(Value::from(value as i64));
        }
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut array = Vec::new();
        while let Some(Unambiguous(item)) = items.next_element()? {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some((name, Unambiguous(value))) = members.next_entry::<String, _>()? {
            if object.contains_key(&name) {
                return Err(A::Error::custom(format!("the name {name:?} stands twice in one object")));
            }
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Debug, Deserialize)]
    struct Labels {
        labels: BTreeMap<String, String>,
    }

    #[test]
    fn only_an_unambiguous_object_of_the_right_shape_is_read() {
        let read = |json: &str| object::<Labels>(json.as_bytes()).map(|body| body.labels.len()).map_err(|p| p.code);
        assert_eq!(read(r#"{"labels":{"a":"1","b":"2"},"more":[1,-1,0.5,null,true]}"#), Ok(2));
        for bad in [
            "",
            "null",
            "[]",
            "\"labels\"",
            "{}",
            r#"{"labels":null}"#,
            r#"{"labels":[]}"#,
            r#"{"labels":{"a":1}}"#,
            r#"{"labels":{"a":null}}"#,
            r#"{"labels":{},"labels":{}}"#,
            r#"{"labels":{"a":"1","a":"1"}}"#,
            r#"{"labels":{}} {}"#,
            r#"{"labels":{}"#,
            "\u{feff}{\"labels\":{}}",
        ] {
            assert_eq!(read(bad), Err(ProblemCode::InvalidInput), "{bad}");
        }
        let deep = format!("{{\"labels\":{{}},\"x\":{}{}}}", "[".repeat(30_000), "]".repeat(30_000));
        assert_eq!(read(&deep), Err(ProblemCode::InvalidInput));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_has_half_a_minute_whatever_comes_of_it() {
        let began = Instant::now();
        // A byte every ten seconds, for ever: it never stands still for long.
        let slow = futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            Some((Ok::<_, std::io::Error>("x"), ()))
        });
        let problem = whole(&HeaderMap::new(), Body::from_stream(slow), 100, "api.jsonBytes").await.unwrap_err();
        assert_eq!((problem.code, began.elapsed()), (ProblemCode::InvalidInput, Duration::from_secs(30)));
        assert!(problem.detail.contains("did not arrive in time"), "{}", problem.detail);
    }

    #[tokio::test]
    async fn a_body_may_have_its_limit_and_not_a_byte_more() {
        let read = async |announced: Option<&str>, body: &'static str| {
            let mut headers = HeaderMap::new();
            if let Some(length) = announced {
                headers.insert(CONTENT_LENGTH, length.parse().unwrap());
            }
            whole(&headers, Body::from(body), 4, "api.jsonBytes").await.map_err(|problem| problem.code)
        };
        assert_eq!(read(None, "1234").await.unwrap(), "1234");
        assert_eq!(read(Some("4"), "1234").await.unwrap(), "1234");
        assert_eq!(read(None, "").await.unwrap(), "");
        assert_eq!(read(None, "12345").await, Err(ProblemCode::ResourceLimit));
        assert_eq!(read(Some("5"), "1").await, Err(ProblemCode::ResourceLimit));
    }
}

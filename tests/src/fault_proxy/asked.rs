//! What a request asks of the store, read from its method, path, query and headers. Path-style addressing only.

use http::Method;
use http::request::Parts;
use serde::Deserialize;

/// What a request wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Operation {
    /// A read of an object, whole or in part.
    Get,
    /// A read of everything but the body.
    Head,
    /// A write in one piece.
    Put,
    /// A delete of one object.
    Delete,
    /// A delete of several.
    DeleteMany,
    /// A page of a listing; its key is the prefix.
    List,
    /// Anything else: multipart uploads, whole buckets.
    #[default]
    Other,
}

/// Under which condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Conditional {
    /// `If-None-Match`.
    Create,
    /// `If-Match`.
    Update,
}

/// One request as rules look at it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Asked {
    /// What it wants.
    pub operation: Operation,
    /// Of which key of the bucket, decoded; of a listing, the prefix.
    pub key: String,
    /// Under which condition.
    pub conditional: Option<Conditional>,
    /// A page of a listing that is not its first.
    pub later_page: bool,
    /// The user metadata `scafo-write`: who wrote, over all tries.
    pub write_id: Option<String>,
}

impl Asked {
    pub(super) fn of(parts: &Parts) -> Self {
        let path = parts.uri.path().trim_start_matches('/');
        let (_bucket, key) = path.split_once('/').unwrap_or((path, ""));
        let query = Query(parts.uri.query().unwrap_or_default());
        let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let operation = operation(&parts.method, key, query);
        let key = match operation {
            Operation::List => query.get("prefix").map(|prefix| decode(prefix, Plus::IsSpace)).unwrap_or_default(),
            Operation::Get
            | Operation::Head
            | Operation::Put
            | Operation::Delete
            | Operation::DeleteMany
            | Operation::Other => decode(key, Plus::IsPlus),
        };
        let conditional = match (header("if-none-match"), header("if-match")) {
            (Some(_), _) => Some(Conditional::Create),
            (None, Some(_)) => Some(Conditional::Update),
            (None, None) => None,
        };
        Self {
            operation,
            key,
            conditional,
            later_page: operation == Operation::List
                && (query.has("continuation-token") || query.get("start-after").is_some_and(|key| !key.is_empty())),
            write_id: header("x-amz-meta-scafo-write").map(str::to_owned),
        }
    }

    pub(super) const fn writes(&self) -> bool {
        match self.operation {
            Operation::Put | Operation::Delete => true,
            Operation::Get | Operation::Head | Operation::DeleteMany | Operation::List | Operation::Other => false,
        }
    }
}

fn operation(method: &Method, key: &str, query: Query<'_>) -> Operation {
    let multipart = query.has("uploadId") || query.has("uploads");
    match (method, key.is_empty()) {
        (&Method::GET, true) if query.get("list-type") == Some("2") => Operation::List,
        (&Method::POST, true) if query.has("delete") => Operation::DeleteMany,
        _ if multipart => Operation::Other,
        (&Method::GET, false) => Operation::Get,
        (&Method::HEAD, false) => Operation::Head,
        (&Method::PUT, false) => Operation::Put,
        (&Method::DELETE, false) => Operation::Delete,
        _ => Operation::Other,
    }
}

#[derive(Clone, Copy)]
struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    fn get(self, name: &str) -> Option<&'a str> {
        let pairs = self.0.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        pairs.into_iter().find(|(given, _)| *given == name).map(|(_, value)| value)
    }

    fn has(self, name: &str) -> bool {
        self.get(name).is_some()
    }
}

/// What a `+` stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Plus {
    IsPlus,
    IsSpace,
}

/// Percent-decoding (RFC 3986, section 2.1). What is no UTF-8 becomes replacement characters: it only has to be told apart.
pub(super) fn decode(text: &str, plus: Plus) -> String {
    let mut bytes = text.as_bytes().iter();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let pair = bytes.as_slice().get(..2).filter(|pair| pair.iter().all(u8::is_ascii_hexdigit));
        let value = pair.and_then(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        match (byte, value) {
            (b'%', Some(value)) => {
                decoded.push(value);
                bytes.nth(1);
            }
            (b'+', _) if plus == Plus::IsSpace => decoded.push(b' '),
            (byte, _) => decoded.push(*byte),
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, uri: &str, headers: &[(&str, &str)]) -> Asked {
        let mut request = http::Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Asked::of(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn requests_are_told_apart() {
        for (method, uri, operation, key) in [
            ("GET", "/b/a/b%20c%2B+?x-id=GetObject", Operation::Get, "a/b c++"),
            ("HEAD", "/b/k", Operation::Head, "k"),
            ("PUT", "/b/%C3%BC?x-id=PutObject", Operation::Put, "ü"),
            ("DELETE", "/b/k?x-id=DeleteObject", Operation::Delete, "k"),
            ("POST", "/b/?delete", Operation::DeleteMany, ""),
            ("GET", "/b/?list-type=2&prefix=_scafo%2Fa+b", Operation::List, "_scafo/a b"),
            ("GET", "/b?list-type=2", Operation::List, ""),
            ("PUT", "/b", Operation::Other, ""),
            ("POST", "/b/k?uploads", Operation::Other, "k"),
            ("PUT", "/b/k?partNumber=1&uploadId=u", Operation::Other, "k"),
        ] {
            let asked = asked(method, uri, &[]);
            assert_eq!((asked.operation, asked.key.as_str()), (operation, key), "{method} {uri}");
        }
    }

    #[test]
    fn conditions_pages_and_write_ids_are_seen() {
        assert_eq!(asked("PUT", "/b/k", &[("if-none-match", "*")]).conditional, Some(Conditional::Create));
        let update = asked("PUT", "/b/k", &[("if-match", "\"t\""), ("x-amz-meta-scafo-write", "w1")]);
        assert_eq!(update.conditional, Some(Conditional::Update));
        assert_eq!(update.write_id.as_deref(), Some("w1"));
        assert!(asked("GET", "/b/?list-type=2&continuation-token=x", &[]).later_page);
        assert!(!asked("GET", "/b/?list-type=2&prefix=x", &[]).later_page);
    }
}

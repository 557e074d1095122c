//! Which header fields belong to one connection only, and must not travel on.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{CONNECTION, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE, TE, TRANSFER_ENCODING, UPGRADE},
};

/// Most fields of one HTTP/1 head. What bounds heads is their bytes; this bounds the list that each of them is read into, and is far
/// above the hundred or so cookies and links that honest applications send.
pub const MOST_FIELDS: usize = 512;

/// Fields that end at the next hop whatever `Connection` says (RFC 9110 §7.6.1, and §11.7 for the two of a proxy).
const HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Removes every hop-by-hop field, also those that `Connection` names.
///
/// `Host` and `Set-Cookie` stay even where `Connection` names them: no sender has a reason to name them, and a
/// request without its host would be somebody else's.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    for name in named_by_connection(headers) {
        headers.remove(name);
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    tokens(headers, &CONNECTION)
        .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
        .filter(|name| *name != HOST && *name != SET_COOKIE)
        .collect()
}

/// Does the list in the fields called `name` hold `token`, in whatever case (RFC 9110 §5.6.1)?
pub fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    tokens(headers, name).any(|found| found.eq_ignore_ascii_case(token))
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim).filter(|token| !token.is_empty())
}

/// Does this head ask for, or grant, the change to a WebSocket (RFC 6455 §4)?
pub fn is_websocket_upgrade(headers: &HeaderMap) -> bool {
    has_token(headers, &CONNECTION, "upgrade") && has_token(headers, &UPGRADE, "websocket")
}

/// Asks for, or grants, the change to a WebSocket on the next hop.
pub(crate) fn set_websocket_upgrade(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::{is_websocket_upgrade, strip_hop_by_hop};

    fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn hop_by_hop_fields_and_those_named_by_connection_are_stripped() {
        let mut headers = map(&[
            ("connection", "close, X-Trace"),
            ("connection", " ,x-other"),
            ("x-trace", "1"),
            ("x-other", "2"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("accept", "*/*"),
        ]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers, map(&[("accept", "*/*")]));
    }

    #[test]
    fn connection_cannot_take_the_host_away() {
        let mut headers = map(&[("connection", "host, cookie"), ("host", "shop.example"), ("cookie", "a=b")]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers, map(&[("host", "shop.example")]));
    }

    #[test]
    fn only_websocket_counts_as_an_upgrade() {
        assert!(is_websocket_upgrade(&map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "WebSocket")])));
        assert!(!is_websocket_upgrade(&map(&[("connection", "upgrade, http2-settings"), ("upgrade", "h2c")])));
        assert!(!is_websocket_upgrade(&map(&[("upgrade", "websocket")])));
    }
}

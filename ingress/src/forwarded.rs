//! The fields that tell an upstream where a request came from.

use std::net::IpAddr;

use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{FORWARDED, HOST, VIA},
};

const FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const ORIGINAL_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// Drops every forwarding field that came with the request (whoever sent it could write anything) and says what this
/// process saw itself. Adds its name to `Via`, as a gateway has to (RFC 9110 §7.6.3).
pub(crate) fn set(headers: &mut HeaderMap, peer: IpAddr, version: Version) {
    let spoofed: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("x-forwarded-")).cloned().collect();
    for name in spoofed {
        headers.remove(name);
    }
    headers.remove(FORWARDED);
    headers.remove(REAL_IP);
    if let Ok(address) = HeaderValue::from_str(&peer.to_canonical().to_string()) {
        headers.insert(FOR, address);
    }
    headers.insert(PROTO, HeaderValue::from_static("http"));
    if let Some(host) = headers.get(HOST).cloned() {
        headers.insert(ORIGINAL_HOST, host);
    }
    headers.append(VIA, HeaderValue::from_static(via(version)));
}

fn via(version: Version) -> &'static str {
    match version {
        Version::HTTP_2 => "2 scafo-ingressd",
        Version::HTTP_10 => "1.0 scafo-ingressd",
        _ => "1.1 scafo-ingressd",
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue, Version};

    #[test]
    fn spoofed_fields_are_dropped_and_own_ones_set() {
        let mut headers = HeaderMap::new();
        let names =
            ["x-forwarded-for", "x-forwarded-for", "x-forwarded-port", "x-forwarded-prefix", "forwarded", "x-real-ip"];
        for name in names {
            headers.append(name, HeaderValue::from_static("1.2.3.4"));
        }
        headers.insert("host", HeaderValue::from_static("Shop.Example:80"));
        super::set(&mut headers, "::ffff:10.0.0.9".parse().unwrap(), Version::HTTP_2);
        let mut seen: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        seen.sort();
        assert_eq!(
            seen,
            [
                "host: Shop.Example:80",
                "via: 2 scafo-ingressd",
                "x-forwarded-for: 10.0.0.9",
                "x-forwarded-host: Shop.Example:80",
                "x-forwarded-proto: http",
            ]
        );
    }
}

//! The routing document that every ingress pulls, and how a consumer reads it.

use serde::{Deserialize, Serialize};

use crate::id::{ApplicationName, NodeId};
use crate::record::V1;

/// Path prefixes that an ingress answers itself on an API host and never proxies.
pub const DENIED: [&str; 2] = ["/v1/storage", "/v1/ingress/routes"];

/// Everything that the fleet answers on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FleetRouting {
    /// Document version; another one refuses the document as a whole.
    pub v: V1,
    /// One for each host, sorted by host.
    pub routes: Vec<Route>,
    /// The fleet's API; absent when the rendering node does not publish it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api: Option<ApiRoute>,
}

/// One host, or one wildcard key `*.<base>`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Lower case, or `*.` and a base.
    pub host: String,
    /// Who answers.
    pub application: ApplicationName,
    /// Where, in priority order; never empty.
    pub upstreams: Vec<Upstream>,
}

/// One place that answers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Upstream {
    /// The node.
    pub node: NodeId,
    /// `host:port`.
    pub address: String,
}

/// The API of the fleet on its bare platform domains.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiRoute {
    /// Bare platform domains, sorted.
    pub hosts: Vec<String>,
    /// The nodes' own API addresses.
    pub upstreams: Vec<Upstream>,
    /// [`DENIED`].
    pub denied: Vec<String>,
}

/// Puts the upstreams of `node` first and keeps the order of the rest. A node that has none changes nothing.
pub fn prefer(upstreams: &[Upstream], node: &str) -> Vec<Upstream> {
    let (mut first, rest): (Vec<_>, Vec<_>) =
        upstreams.iter().cloned().partition(|upstream| upstream.node.as_str() == node);
    first.extend(rest);
    first
}

/// The wildcard key that covers `host`: its first label replaced by `*`. `None` for a host of one label and for a literal
/// wildcard, which is no host.
pub fn wildcard_key(host: &str) -> Option<String> {
    let (first, base) = host.split_once('.')?;
    let matches = !first.is_empty() && first != "*" && !base.is_empty();
    matches.then(|| format!("*.{base}"))
}

/// Whether `path` is under one of `prefixes` at a segment boundary. `path` has to be normalised already.
pub fn is_denied<S: AsRef<str>>(path: &str, prefixes: &[S]) -> bool {
    prefixes
        .iter()
        .any(|prefix| path.strip_prefix(prefix.as_ref()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefer_moves_one_node_to_the_front_and_keeps_the_rest() {
        let node = |id: &str| Upstream { node: id.parse().unwrap(), address: format!("{id}:1") };
        let fleet = [node("a"), node("b"), node("c")];
        assert_eq!(prefer(&fleet, "c"), [node("c"), node("a"), node("b")]);
        assert_eq!(prefer(&fleet, "nobody"), fleet);
    }

    #[test]
    fn a_wildcard_stands_for_exactly_one_label() {
        assert_eq!(wildcard_key("a.shop.example").as_deref(), Some("*.shop.example"));
        assert_eq!(wildcard_key("a.b.shop.example").as_deref(), Some("*.b.shop.example"));
        for none in ["localhost", ".shop.example", "*.shop.example", "a."] {
            assert_eq!(wildcard_key(none), None, "{none}");
        }
    }

    #[test]
    fn a_denied_prefix_ends_at_a_segment() {
        for (path, denied) in [
            ("/v1/storage", true),
            ("/v1/storage/", true),
            ("/v1/storage/objects/x", true),
            ("/v1/storagex", false),
            ("/v1/ingress/routes/traefik", true),
            ("/v1/ingress", false),
            ("/", false),
        ] {
            assert_eq!(is_denied(path, &DENIED), denied, "{path}");
        }
    }
}

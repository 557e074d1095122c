//! The lookup that the protocol asks of every consumer of the document, written down plainly over its lists.

use scafo_core::routing::{FleetRouting, Upstream, is_denied, prefer, wildcard_key};

/// By what a request was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// A route of its very host.
    Exact,
    /// The key that covers its host.
    Wildcard,
    /// A host of the API.
    Api,
}

/// What a request comes to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It goes to the first of these that works.
    Forward(By, Vec<Upstream>),
    /// The ingress answers it itself.
    Denied,
    /// Nobody serves the host.
    Unknown,
}

/// Looks a request up. `preferred` is the node whose upstreams come first.
pub(crate) fn decide(document: &FleetRouting, host_field: &str, target: &str, preferred: &str) -> Decision {
    let host = plain(host_field);
    let forward = |by, upstreams: &[Upstream]| Decision::Forward(by, prefer(upstreams, preferred));
    let route = |by, key: &str| {
        document.routes.iter().find(|route| route.host == key).map(|route| forward(by, &route.upstreams))
    };
    // A literal wildcard is a key and no host.
    if host.starts_with("*.") {
        return Decision::Unknown;
    }
    if let Some(found) = route(By::Exact, &host) {
        return found;
    }
    if let Some(api) = document.api.as_ref().filter(|api| api.hosts.contains(&host)) {
        let path = target.split('?').next().unwrap_or_default();
        return if is_denied(path, &api.denied) { Decision::Denied } else { forward(By::Api, &api.upstreams) };
    }
    wildcard_key(&host).and_then(|key| route(By::Wildcard, &key)).unwrap_or(Decision::Unknown)
}

/// The host without case, port and one trailing dot.
fn plain(host_field: &str) -> String {
    let host = host_field.split(':').next().unwrap_or_default();
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

//! From the bytes of a routing document to a table that requests can be looked up in.

use std::{collections::HashMap, sync::Arc, time::Duration};

use scafo_core::routing::{self, FleetRouting};
use scafo_proto::chunk::MAX_DOCUMENT_BYTES;
use scafo_proxy::Upstream;

/// Largest document: what a node serves, so that none is served and not taken. 100,000 hosts with three upstreams each take about 25 MiB.
pub(crate) const LARGEST_DOCUMENT: usize = MAX_DOCUMENT_BYTES;

/// Where requests for a host go.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// The application, or `api`; for the log and for what a client reads.
    pub(crate) name: String,
    /// In priority order. Empty only where the document gave no address that can be dialled: the host is known, and must
    /// not fall to a wildcard.
    pub(crate) upstreams: Vec<Upstream>,
}

/// One document, ready for lookups.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    /// By host or wildcard key.
    routes: HashMap<String, Arc<Target>>,
    api: HashMap<String, Arc<Target>>,
    denied: Vec<String>,
    /// Addresses that cannot be dialled, left out one by one.
    pub(crate) skipped: usize,
    /// It was on disk, and no node has said since this process started that it is in force: until then, on the clock of the boot, it
    /// may be routed by.
    pub(crate) kept_until: Option<Duration>,
}

/// The bytes are no document that this build may route by.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refused {
    /// Cut, not JSON, another version, or another shape.
    #[error("it is not a routing document of version 1")]
    Malformed(#[from] serde_json::Error),
}

impl Table {
    /// Reads a whole document.
    ///
    /// # Errors
    ///
    /// [`Refused`], also for a document that ends early or goes on after its end.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Refused> {
        Ok(Self::from(serde_json::from_slice::<FleetRouting>(bytes)?))
    }

    /// The same as one that was on disk, good until then on the clock of the boot.
    pub(crate) fn into_kept(self, until: Duration) -> Self {
        Self { kept_until: Some(until), ..self }
    }

    /// The host as it is written.
    pub(crate) fn route(&self, key: &str) -> Option<&Arc<Target>> {
        self.routes.get(key)
    }

    /// The API, if `host` is one of its hosts.
    pub(crate) fn api(&self, host: &str) -> Option<&Arc<Target>> {
        self.api.get(host)
    }

    /// Prefixes that are never proxied on an API host.
    pub(crate) fn denied(&self) -> &[String] {
        &self.denied
    }

    /// Hosts and wildcard keys, the API's included.
    pub(crate) fn len(&self) -> usize {
        self.routes.len() + self.api.len()
    }
}

impl From<FleetRouting> for Table {
    fn from(document: FleetRouting) -> Self {
        let mut table = Self { routes: HashMap::with_capacity(document.routes.len()), ..Self::default() };
        for route in document.routes {
            let upstreams = table.dialled(&route.upstreams);
            let target = Target { name: route.application.to_string(), upstreams };
            // Hosts are unique; were one there twice, the renderer's rule is that the first wins.
            table.routes.entry(route.host.to_ascii_lowercase()).or_insert(Arc::new(target));
        }
        if let Some(api) = document.api {
            let target = Arc::new(Target { name: "api".to_owned(), upstreams: table.dialled(&api.upstreams) });
            table.api = api.hosts.iter().map(|host| (host.to_ascii_lowercase(), Arc::clone(&target))).collect();
            table.denied = api.denied;
        }
        table
    }
}

impl Table {
    fn dialled(&mut self, upstreams: &[routing::Upstream]) -> Vec<Upstream> {
        let parsed: Vec<Upstream> = upstreams.iter().filter_map(|upstream| upstream.address.parse().ok()).collect();
        self.skipped += upstreams.len() - parsed.len();
        parsed
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    const GOOD: &str = r#"{"v":1,"routes":[{"host":"a.x","application":"a","upstreams":[{"node":"n","address":"::::"},{"node":"m","address":"10.0.0.1:80"}]}],"later":true}"#;

    #[test]
    fn a_bad_address_costs_only_itself() {
        let table = Table::parse(GOOD.as_bytes()).unwrap();
        assert_eq!(table.route("a.x").unwrap().upstreams, ["10.0.0.1:80".parse().unwrap()]);
        assert_eq!(table.skipped, 1);
    }

    #[test]
    fn a_document_that_is_cut_anywhere_is_refused() {
        for end in 0..GOOD.len() {
            assert!(Table::parse(&GOOD.as_bytes()[..end]).is_err(), "{end}");
        }
        assert!(Table::parse(format!("{GOOD}{{").as_bytes()).is_err());
    }

    #[test]
    fn another_version_is_refused_whole() {
        for version in ["2", "0", "1.5", "\"1\"", "null", "-1"] {
            let text = GOOD.replacen("\"v\":1", &format!("\"v\":{version}"), 1);
            assert!(Table::parse(text.as_bytes()).is_err(), "{version}");
        }
        assert!(Table::parse(br#"{"routes":[]}"#).is_err());
    }
}

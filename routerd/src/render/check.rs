//! What was written is read back before anybody gets it: a document that does not say what the routing says is never published.
//!
//! An ingress takes a document as a whole. One that it cannot read would leave every host where it was; one that it reads
//! otherwise than it was meant would send requests to the wrong place. So each part is parsed by what its readers take, strictly,
//! and compared with the block that it is of. Parts that are kept were checked when they were written.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Deserialize;

use super::traefik::{self, LOCAL, PEERS};
use super::{Format, List, View, What, ordered};
use crate::fleet::Place;
use crate::routes::{Block, Entry, Routing};

/// Version of the generic document.
const V: u8 = 1;

/// A document, or a part of one, that is not what it has to be: a defect of this program.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{part} cannot be published: {why}")]
pub struct Invalid {
    part: String,
    why: String,
}

impl View<'_> {
    /// Checks the part of a block.
    ///
    /// # Errors
    /// When it is not read as what the block says.
    pub(crate) fn check_part(&self, what: What, block: &Block, text: &[u8]) -> Result<(), Invalid> {
        let entries = block.entries.as_slice();
        let invalid = |why: String| {
            let hosts = entries.first().zip(entries.last());
            let hosts = hosts.map(|(first, last)| format!(" of {:?} to {:?}", first.host, last.host));
            Invalid { part: format!("{:?}{}", what.list, hosts.unwrap_or_default()), why }
        };
        if !entries.is_sorted_by(|a, b| a.host < b.host) {
            return Err(invalid("the hosts are not in order".to_owned()));
        }
        let text = if what.first { Some(text) } else { text.strip_prefix(b",") };
        let text = text.ok_or_else(|| invalid("no comma stands before it".to_owned()))?;
        let (open, close) = if what.list == List::Routes { (b'[', b']') } else { (b'{', b'}') };
        let text = [&[open], text, &[close]].concat();
        let (said, differs) = match what.list {
            List::Routes => read(&text).map(|routes: Vec<_>| (routes.len(), self.routes_differ(&routes, entries))),
            List::Routers => {
                read(&text).map(|routers: BTreeMap<_, _>| (routers.len(), routers_differ(&routers, entries)))
            }
            List::Services => read(&text).map(|services| self.services_differ(&services, entries)),
        }
        .map_err(invalid)?;
        match differs {
            Some(host) => Err(invalid(format!("{host:?} reads otherwise"))),
            None if said != entries.len() => Err(invalid(format!("{said} things are read of {} hosts", entries.len()))),
            None => Ok(()),
        }
    }

    /// Checks what stands around the blocks: `text` is the document as if its first block were the only one.
    ///
    /// # Errors
    /// When it is no document.
    pub(crate) fn check_frame(&self, routing: &Routing, text: &[u8]) -> Result<(), Invalid> {
        let invalid = |why: &str| Invalid { part: "the document".to_owned(), why: why.to_owned() };
        let ends = routing.blocks.iter().filter_map(|block| block.entries.first().zip(block.entries.last()));
        if !ends.is_sorted_by(|(_, last), (first, _)| last.host < first.host) {
            return Err(invalid("its blocks are not in order"));
        }
        let hosts = routing.blocks.first().map_or(0, |block| block.entries.len());
        let api = routing.api.as_ref().map_or(0, |api| api.hosts.len());
        let complete = match self.format {
            Format::Generic => read(text).map(|document: Generic<'_>| {
                let published = document.api.map_or(0, |api| api.hosts.len());
                document.v == V && document.routes.len() == hosts && published == api
            }),
            Format::Traefik if hosts == 0 && api == 0 => Ok(text == traefik::NOTHING.as_bytes()),
            // A host of the API has a router that denies beside its own.
            Format::Traefik => read(text).map(|Traefik { http }: Traefik<'_>| {
                http.routers.len() == hosts + 2 * api
                    && http.services.len() >= hosts + api
                    && http.middlewares.len() == 1
            }),
        };
        match complete {
            Ok(true) => Ok(()),
            Ok(false) => Err(invalid("something of it is missing")),
            Err(why) => Err(invalid(&why)),
        }
    }

    /// The first host that reads otherwise.
    fn routes_differ<'a>(&self, routes: &[Route<'_>], entries: &'a [Entry]) -> Option<&'a str> {
        let same = |(route, entry): (&Route<'_>, &Entry)| {
            let said = route.upstreams.iter().map(|upstream| (Some(upstream.node), upstream.address));
            route.host == &*entry.host && route.application == &*entry.served.name && self.same_places(said, entry)
        };
        routes.iter().zip(entries).find(|pair| !same(*pair)).map(|(_, entry)| &*entry.host)
    }

    /// For how many hosts there are services, and the first host that reads otherwise.
    fn services_differ<'a>(&self, services: &Services<'_>, entries: &'a [Entry]) -> (usize, Option<&'a str>) {
        let servers = |name: &str| match services.get(name) {
            Some(Service::LoadBalancer(balancer)) => Some(balancer.servers.as_slice()),
            _ => None,
        };
        let mut halves = 0;
        let mut same = |entry: &Entry| {
            let called = |half| traefik::called(&entry.host, half);
            let (first, second) = match services.get(&*called("")) {
                Some(Service::Failover(Failover { service, fallback }))
                    if *service == called(LOCAL) && *fallback == called(PEERS) =>
                {
                    halves += 2;
                    (servers(service), servers(fallback).filter(|peers| !peers.is_empty()))
                }
                Some(Service::LoadBalancer(balancer)) => (Some(balancer.servers.as_slice()), Some(&[][..])),
                _ => (None, None),
            };
            let Some((first, second)) = first.filter(|servers| !servers.is_empty()).zip(second) else { return false };
            let servers = first.iter().chain(second);
            let said = servers.map(|server| (None, server.url.strip_prefix("http://").unwrap_or_default()));
            self.same_places(said, entry)
        };
        let differs = entries.iter().find(|entry| !same(entry)).map(|entry| &*entry.host);
        (services.len().saturating_sub(halves), differs)
    }

    /// Whether exactly the places of the entry are named, in the order of this view.
    fn same_places<'a>(&self, mut said: impl Iterator<Item = (Option<&'a str>, &'a str)>, entry: &Entry) -> bool {
        let mut places = ordered(&entry.served.upstreams, self.prefer);
        let is = |(node, address): (Option<&str>, &str), place: &Place| {
            let port = address.strip_prefix(place.machine.host.as_str()).and_then(|rest| rest.strip_prefix(':'));
            port.and_then(|port| port.parse().ok()) == Some(place.port)
                && node.is_none_or(|node| node == place.machine.id.as_str())
        };
        !entry.served.upstreams.is_empty()
            && said.all(|said| places.next().is_some_and(|place| is(said, place)))
            && places.next().is_none()
    }
}

fn read<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(text).map_err(|error| error.to_string())
}

fn routers_differ<'a>(routers: &BTreeMap<&str, Router<'_>>, entries: &'a [Entry]) -> Option<&'a str> {
    let same = |entry: &Entry| {
        let name = traefik::called(&entry.host, "");
        routers.get(&*name).is_some_and(|router| router.service == name && !router.rule.is_empty())
    };
    entries.iter().find(|entry| !same(entry)).map(|entry| &*entry.host)
}

// What readers take. Names and addresses are borrowed, which no escaped one could be: none needs an escape.

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Generic<'a> {
    v: u8,
    #[serde(borrow)]
    routes: Vec<Route<'a>>,
    #[serde(borrow)]
    api: Option<Api<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Route<'a> {
    host: &'a str,
    application: &'a str,
    #[serde(borrow)]
    upstreams: Vec<Upstream<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Upstream<'a> {
    node: &'a str,
    address: &'a str,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Api<'a> {
    #[serde(borrow)]
    hosts: Vec<&'a str>,
    #[serde(borrow, rename = "upstreams")]
    _upstreams: Vec<Upstream<'a>>,
    #[serde(borrow, rename = "denied")]
    _denied: Vec<&'a str>,
}

// The members of Traefik v3.0: it refuses a whole document for one that it does not know.

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Traefik<'a> {
    #[serde(borrow)]
    http: Http<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Http<'a> {
    #[serde(borrow)]
    routers: BTreeMap<&'a str, Router<'a>>,
    #[serde(borrow)]
    services: Services<'a>,
    #[serde(borrow)]
    middlewares: BTreeMap<&'a str, Middleware>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Router<'a> {
    #[serde(borrow)]
    rule: Cow<'a, str>,
    service: &'a str,
    #[serde(borrow, rename = "entryPoints")]
    _entry_points: Vec<Cow<'a, str>>,
    #[serde(default, borrow, rename = "middlewares")]
    _middlewares: Vec<&'a str>,
    #[serde(default, rename = "priority")]
    _priority: Option<u32>,
    #[serde(default, borrow, rename = "tls")]
    _tls: Option<Tls<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tls<'a> {
    #[serde(default, borrow, rename = "certResolver")]
    _resolver: Option<Cow<'a, str>>,
    #[serde(default, borrow, rename = "domains")]
    _domains: Vec<Domain<'a>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Domain<'a> {
    #[serde(rename = "main")]
    _main: &'a str,
}

type Services<'a> = BTreeMap<&'a str, Service<'a>>;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Service<'a> {
    LoadBalancer(#[serde(borrow)] Balancer<'a>),
    Failover(#[serde(borrow)] Failover<'a>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Balancer<'a> {
    #[serde(borrow)]
    servers: Vec<Server<'a>>,
    #[serde(borrow, rename = "healthCheck")]
    _health_check: HealthCheck<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Server<'a> {
    url: &'a str,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HealthCheck<'a> {
    #[serde(rename = "path")]
    _path: &'a str,
    #[serde(rename = "interval")]
    _interval: &'a str,
    #[serde(rename = "timeout")]
    _timeout: &'a str,
    #[serde(default, rename = "hostname")]
    _hostname: Option<&'a str>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Failover<'a> {
    service: &'a str,
    fallback: &'a str,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Middleware {
    #[serde(rename = "retry")]
    _retry: Retry,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Retry {
    #[serde(rename = "attempts")]
    _attempts: u32,
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::document::Document;
    use crate::render::testing::{Claim as _, attributes, fleet, node, parsed};
    use crate::render::{Attributes, Part};
    use crate::routes::{Catalogue, Served};

    const FORMATS: [Format; 2] = [Format::Generic, Format::Traefik];

    /// Exact hosts and a wildcard, on one node and on two, and the API.
    fn routing() -> Arc<Routing> {
        let nodes = [node("a").serves("shop", 10_001), node("b").at("fd00::1").serves("shop", 2).serves("blog", 3)];
        let mut fleet = fleet(&nodes, &["shop", "blog"]);
        fleet.claim("shop", "shop.example", true);
        Arc::clone(Catalogue::new(parsed(&fleet)).routing())
    }

    fn view(format: Format, attributes: &Attributes) -> View<'_> {
        View { format, prefer: None, attributes }
    }

    /// The only block, as each of the parts that it has in this format.
    fn parts<'r>(view: &View<'_>, routing: &'r Routing) -> Vec<(What, &'r Block, String)> {
        let written = |part: Part<'r>| match part {
            Part::Text(_) => None,
            Part::Of(what, block) => {
                let mut text = Vec::new();
                view.write_part(&mut text, what, block);
                view.check_part(what, block, &text).unwrap();
                Some((what, &**block, String::from_utf8(text).unwrap()))
            }
        };
        view.parts(routing).into_iter().filter_map(written).collect()
    }

    #[test]
    fn generic_routes_with_any_byte_changed_left_out_or_doubled_are_refused() {
        let (routing, attributes) = (routing(), attributes());
        let view = view(Format::Generic, &attributes);
        for (what, block, text) in parts(&view, &routing) {
            let text = text.as_bytes();
            for at in 0..text.len() {
                for with in [&b""[..], b"x", b"\"", &[text[at], text[at]]] {
                    let changed = [&text[..at], with, &text[at + 1..]].concat();
                    let refused = changed == text || view.check_part(what, block, &changed).is_err();
                    assert!(refused, "{}", String::from_utf8_lossy(&changed));
                }
            }
        }
    }

    #[test]
    fn a_router_or_service_of_traefik_that_is_not_the_hosts_own_is_refused() {
        let (routing, attributes) = (routing(), attributes());
        let preferred = "a".parse().unwrap();
        let view = View { prefer: Some(&preferred), ..view(Format::Traefik, &attributes) };
        let parts = parts(&view, &routing);
        for (from, to) in [
            (r#""service":"scafo_shop.example""#, r#""service":"scafo_blog.apps.test""#),
            (r#""scafo_shop.example":"#, r#""scafo_shop2.example":"#),
            (r#""rule":"Host(`shop.example`)""#, r#""rule":"""#),
            (r#""rule":"#, r#""observability":{},"rule":"#),
            (r#""entryPoints":["web"],"#, ""),
            ("scafo_wild_", "scafo_"),
            ("10.0.0.1:10001", "10.0.0.1:10002"),
            ("10.0.0.1:10001", "10.0.0.10:10001"),
            ("[fd00::1]:2", "10.0.0.1:2"),
            ("http://", "https://"),
            (r#""servers":[{"#, r#""servers":[],"was":[{"#),
            (r#""service":"scafo_shop.example_local""#, r#""service":"scafo_shop.example_peers""#),
            (r#""fallback":"#, r#""fallbacks":"#),
            (r#""healthCheck":{"#, r#""sticky":{},"healthCheck":{"#),
            ("}", ""),
        ] {
            let mut found = 0;
            for (what, block, text) in parts.iter().filter(|(_, _, text)| text.contains(from)) {
                found += 1;
                assert!(view.check_part(*what, block, text.replace(from, to).as_bytes()).is_err(), "{from} as {to}");
            }
            assert!(found > 0, "{from} is in no part");
        }
    }

    #[test]
    fn a_document_that_is_cut_anywhere_or_lacks_its_api_is_refused() {
        let (routing, attributes) = (routing(), attributes());
        for format in FORMATS {
            let view = view(format, &attributes);
            let text = view.write(&routing);
            view.check_frame(&routing, &text).unwrap();
            assert!((0..text.len()).all(|end| view.check_frame(&routing, &text[..end]).is_err()));
            let without = view.write(&Routing { api: None, ..(*routing).clone() });
            assert!(view.check_frame(&routing, &without).is_err());
        }
    }

    #[test]
    fn what_does_not_read_back_is_never_a_document() {
        let (routing, attributes) = (routing(), attributes());
        let block = &routing.blocks[0];
        let with = |change: &dyn Fn(&mut Vec<Entry>)| {
            let mut entries = block.entries.clone();
            change(&mut entries);
            Routing { blocks: vec![Arc::new(Block { entries })], ..(*routing).clone() }
        };
        let rename = |entries: &mut Vec<Entry>, host: &str| entries[0].host = host.into();
        for (what, routing) in [
            ("a quote in a host", with(&|entries| rename(entries, "a\"b.example"))),
            ("an escape in a host", with(&|entries| rename(entries, "a\\nb.example"))),
            ("hosts out of order", with(&|entries| entries.reverse())),
            ("a host twice", with(&|entries| entries.insert(1, entries[0].clone()))),
            (
                "nobody serves it",
                with(&|entries| entries[0].served = Arc::new(Served { name: "shop".into(), upstreams: vec![] })),
            ),
            ("blocks out of order", Routing { blocks: vec![Arc::clone(block); 2], ..(*routing).clone() }),
        ] {
            for format in FORMATS {
                let refused = Document::write(&view(format, &attributes), &routing, None);
                assert!(refused.is_err(), "{what}, {format:?}");
            }
        }
    }
}

//! Where a request goes. Pure: documents, host and path in, a decision out.

use std::{sync::Arc, time::Duration};

use scafo_core::routing::wildcard_key;

use crate::{
    document::{Table, Target},
    host::Host,
    path::is_denied_in_any_spelling,
};

/// The documents held, one place for each fleet in configured order; `None` until there is one.
#[derive(Clone, Debug)]
pub(crate) struct Routing {
    pub(crate) fleets: Vec<Option<Arc<Table>>>,
}

/// What to do with a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Send it to this application, or to the API, because the document at this place says so.
    Forward { fleet: usize, target: Arc<Target> },
    /// A path that is never proxied, on an API host.
    Denied,
    /// No fleet serves that host.
    Unknown,
    /// No fleet that we have heard from serves that host, and not all have been heard from. Or it is an API's, and its fleet has
    /// not been heard from.
    Unavailable,
}

impl Routing {
    /// Nothing heard yet from that many fleets.
    pub(crate) fn silent(fleets: usize) -> Self {
        Self { fleets: vec![None; fleets] }
    }

    /// Whether a node of that fleet has said what is in force. There is no other fleet to wait for than those configured.
    pub(crate) fn has_heard_from(&self, fleet: usize) -> bool {
        self.fleets.get(fleet).is_none_or(|held| held.as_ref().is_some_and(|table| table.kept_until.is_none()))
    }

    /// Whether every fleet has been heard from.
    pub(crate) fn is_complete(&self) -> bool {
        (0..self.fleets.len()).all(|fleet| self.has_heard_from(fleet))
    }

    /// How many hosts the documents name, kept ones included.
    pub(crate) fn hosts(&self) -> usize {
        self.fleets.iter().flatten().map(|table| table.len()).sum()
    }

    /// The same with a new document for one fleet.
    pub(crate) fn with(&self, fleet: usize, table: Arc<Table>) -> Self {
        let mut next = self.clone();
        if let Some(place) = next.fleets.get_mut(fleet) {
            *place = Some(table);
        }
        next
    }

    /// Until when the place of that fleet holds a kept document, on the clock of the boot; `None` if it does not.
    pub(crate) fn kept_until(&self, fleet: usize) -> Option<Duration> {
        self.fleets.get(fleet)?.as_ref()?.kept_until
    }

    /// The same without what was kept of that fleet, if its time is over at `now`; else `None`.
    pub(crate) fn without_old(&self, fleet: usize, now: Duration) -> Option<Self> {
        self.kept_until(fleet).filter(|until| *until <= now)?;
        let mut next = self.clone();
        *next.fleets.get_mut(fleet)? = None;
        Some(next)
    }

    /// Whether what is still to come may decide about a host otherwise than [`Routing::decide`] does now: a fleet has no document yet,
    /// and none that is held names the host exactly, which is what wins.
    pub(crate) fn may_be_named_yet(&self, host: Option<&Host>) -> bool {
        let Some(host) = host.map(Host::as_str) else { return false };
        let names = |table: &Arc<Table>| table.route(host).is_some() || table.api(host).is_some();
        self.fleets.iter().any(Option::is_none) && !self.fleets.iter().flatten().any(names)
    }

    /// Looks a request up: the host exactly in each fleet, in order, then once with its first label as the wildcard.
    /// Within a fleet an application's route wins over an API host of the same name. `host` is `None` if it is nothing
    /// that a document can name.
    pub(crate) fn decide(&self, host: Option<&Host>, path: &str) -> Decision {
        let Some(host) = host else { return Decision::Unknown };
        let held = || self.fleets.iter().enumerate().filter_map(|(fleet, table)| Some((fleet, table.as_deref()?)));
        if let Some(decision) = held().find_map(|(fleet, table)| exactly(fleet, table, host, path)) {
            return decision;
        }
        let covered = wildcard_key(host.as_str())
            .and_then(|key| held().find_map(|(fleet, table)| Some((fleet, table.route(&key)?))));
        match covered {
            Some((fleet, target)) => Decision::Forward { fleet, target: Arc::clone(target) },
            None if self.is_complete() => Decision::Unknown,
            None => Decision::Unavailable,
        }
    }
}

fn exactly(fleet: usize, table: &Table, host: &Host, path: &str) -> Option<Decision> {
    if let Some(target) = table.route(host.as_str()) {
        return Some(Decision::Forward { fleet, target: Arc::clone(target) });
    }
    let api = table.api(host.as_str())?;
    if table.kept_until.is_some() {
        // What goes to an API carries tokens. Unlike the ports of applications, nobody promises whose its port is now.
        return Some(Decision::Unavailable);
    }
    let denied = is_denied_in_any_spelling(path, table.denied());
    Some(if denied { Decision::Denied } else { Decision::Forward { fleet, target: Arc::clone(api) } })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// One route per `host=application`; the API on `dev.example` and `apex.example` if asked for.
    fn table(routes: &[(&str, &str)], api: bool) -> Option<Arc<Table>> {
        let routes: Vec<_> = routes
            .iter()
            .map(|(host, application)| {
                serde_json::json!({"host": host, "application": application, "upstreams": [{"node": "n", "address": "127.0.0.1:1"}]})
            })
            .collect();
        let mut document = serde_json::json!({"v": 1, "routes": routes});
        if api {
            document["api"] = serde_json::json!({"hosts": ["apex.example", "dev.example"],
                "upstreams": [{"node": "n", "address": "127.0.0.1:2"}], "denied": scafo_core::routing::DENIED});
        }
        Some(Arc::new(Table::parse(document.to_string().as_bytes()).unwrap()))
    }

    fn check(routing: &Routing, rows: &[(&str, &str, &str)]) {
        for (host, path, expected) in rows {
            let got = match routing.decide(Host::parse(host).as_ref(), path) {
                Decision::Forward { target, .. } => target.name.clone(),
                other => format!("{other:?}"),
            };
            assert_eq!(got, *expected, "{host} {path}");
        }
    }

    #[test]
    fn a_host_that_nobody_serves_reaches_nobody() {
        let fleet = Routing { fleets: vec![table(&[("shop.dev.example", "shop")], true)] };
        let rows =
            ["blog.dev.example", "localhost", "127.0.0.1", "[::1]", "", "example", "shop.dev.example.evil.example"];
        check(&fleet, &rows.map(|host| (host, "/", "Unknown")));
    }

    #[test]
    fn a_wildcard_covers_one_label_and_never_an_exact_host() {
        let base = format!("{}.example", "b".repeat(52));
        let (wild, exact) = (format!("*.{base}"), format!("a.{base}"));
        let routes = [("*.shop.example", "wild"), ("a.shop.example", "exact"), (&wild, "wild"), (&exact, "exact")];
        check(
            &Routing { fleets: vec![table(&routes, false)] },
            &[
                ("a.shop.example", "/", "exact"),
                ("A.SHOP.EXAMPLE", "/", "exact"),
                ("a.shop.example:8443", "/", "exact"),
                ("a.shop.example.", "/", "exact"),
                ("b.shop.example", "/", "wild"),
                ("a.b.shop.example", "/", "Unknown"),
                (".shop.example", "/", "Unknown"),
                ("shop.example", "/", "Unknown"),
                ("*.shop.example", "/", "Unknown"),
                (&exact, "/", "exact"),
                (&wild.replace('*', "c"), "/", "wild"),
            ],
        );
    }

    #[test]
    fn a_denied_path_is_denied_on_the_api_host_only() {
        let fleet = Routing { fleets: vec![table(&[("apex.example", "site"), ("*.example", "wild")], true)] };
        check(
            &fleet,
            &[
                ("dev.example", "/v1/applications", "api"),
                ("dev.example", "/v1/storage", "Denied"),
                ("DEV.example.:80", "/v1//ingress/%72outes/x", "Denied"),
                ("apex.example", "/v1/storage", "site"),
                ("other.example", "/v1/storage", "wild"),
            ],
        );
    }

    #[test]
    fn an_exact_host_of_a_later_fleet_wins_over_a_wildcard_of_an_earlier_one() {
        let fleets = vec![
            table(&[("*.x.example", "first")], false),
            table(&[("a.x.example", "second"), ("*.x.example", "third")], false),
        ];
        let routing = Routing { fleets };
        check(&routing, &[("a.x.example", "/", "second"), ("b.x.example", "/", "first")]);
        for (host, expected) in [("a.x.example", 1), ("b.x.example", 0)] {
            let decision = routing.decide(Host::parse(host).as_ref(), "/");
            assert!(matches!(decision, Decision::Forward { fleet, .. } if fleet == expected), "{host}: {decision:?}");
        }
    }

    proptest! {
        /// The two steps of the protocol, written down plainly over a list, agree with the table.
        #[test]
        fn lookups_follow_the_protocol(
            keys in prop::collection::btree_set("(\\*\\.)?[ab](\\.[ab]){0,2}", 1..12),
            asked in "[abAB](\\.[ab]){0,3}\\.?(:80)?",
        ) {
            let routes: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "app")).collect();
            let fleet = Routing { fleets: vec![table(&routes, false)] };
            let plain = asked.trim_end_matches(":80").trim_end_matches('.').to_lowercase();
            let wildcard = plain.split_once('.').map(|(_, base)| format!("*.{base}"));
            let known = keys.contains(&plain) || wildcard.is_some_and(|key| keys.contains(&key));
            let decision = fleet.decide(Host::parse(&asked).as_ref(), "/");
            prop_assert_eq!(matches!(decision, Decision::Forward { .. }), known);
        }
    }

    #[test]
    fn a_fleet_not_heard_from_makes_an_unknown_host_unavailable() {
        let half = Routing::silent(2).with(1, table(&[("a.example", "a")], false).unwrap());
        check(&half, &[("a.example", "/", "a"), ("b.example", "/", "Unavailable"), ("*.example", "/", "Unknown")]);
    }

    #[test]
    fn a_wildcard_is_not_the_last_word_while_a_fleet_has_no_document() {
        let first = table(&[("*.x.example", "wild"), ("b.x.example", "b")], true).unwrap();
        let half = Routing::silent(2).with(0, Arc::clone(&first));
        check(&half, &[("a.x.example", "/", "wild")]);
        let exact = table(&[("a.x.example", "a")], false).unwrap();
        let kept = Arc::new(Table::clone(&exact).into_kept(HOUR));
        let whole = [half.with(1, exact), half.with(1, kept)];
        for (host, open) in [("a.x.example", true), ("b.x.example", false), ("dev.example", false), ("*.x", false)] {
            let host = Host::parse(host);
            assert_eq!(half.may_be_named_yet(host.as_ref()), open, "{host:?}");
            assert!(whole.iter().all(|routing| !routing.may_be_named_yet(host.as_ref())), "{host:?}");
        }
        whole.iter().for_each(|routing| check(routing, &[("a.x.example", "/", "a"), ("c.x.example", "/", "wild")]));
    }

    #[test]
    fn a_kept_document_routes_to_what_it_names_and_settles_nothing_else() {
        let mut kept =
            Table::clone(&table(&[("a.example", "a"), ("*.example", "wild")], true).unwrap()).into_kept(HOUR);
        let routing = Routing::silent(1).with(0, Arc::new(kept.clone()));
        check(
            &routing,
            &[
                ("a.example", "/", "a"),
                ("b.example", "/", "wild"),
                ("dev.example", "/v1/applications", "Unavailable"),
                ("other.test", "/", "Unavailable"),
                ("*.example", "/", "Unknown"),
            ],
        );
        assert!(!routing.has_heard_from(0) && !routing.is_complete());
        kept.kept_until = None;
        let heard = routing.with(0, Arc::new(kept));
        check(&heard, &[("dev.example", "/v1/applications", "api"), ("other.test", "/", "Unknown")]);
        assert!(heard.is_complete());
    }

    #[test]
    fn a_kept_document_has_an_end_and_one_that_a_node_gave_has_none() {
        let given = table(&[("a.example", "a")], false).unwrap();
        let kept = Arc::new(Table::clone(&given).into_kept(HOUR));
        let routing = Routing::silent(2).with(0, Arc::clone(&kept)).with(1, given);
        assert!(routing.without_old(0, HOUR - Duration::from_millis(1)).is_none());
        let over = routing.without_old(0, HOUR).unwrap();
        assert!(over.fleets[0].is_none() && over.fleets[1].is_some());
        assert!(routing.without_old(1, 2 * HOUR).is_none() && routing.without_old(2, 2 * HOUR).is_none());
        assert!(over.without_old(0, 2 * HOUR).is_none());
    }
}

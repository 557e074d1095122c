//! Who answers on a host, and on which hosts an application may answer.

use std::collections::HashMap;
use std::sync::Arc;

use scafo_core::domain::Host;
use scafo_core::id::is_label;

use super::Served;
use crate::fleet::{Claims, Fleet, Place};

/// A fleet, arranged for both questions.
#[derive(Default)]
pub(super) struct Index {
    /// Applications that may answer and have an upstream, by name.
    pub(super) served: Vec<Arc<Served>>,
    /// By claimed host, everybody who claims it, by name; whether they are served or not.
    pub(super) claims: HashMap<Box<str>, Vec<Box<str>>>,
    /// Bases claimed with their subdomains, by who claims them.
    bases: HashMap<Box<str>, Vec<Host>>,
    /// The same by base: holders by name.
    holders: HashMap<Box<str>, Vec<Box<str>>>,
}

impl Index {
    /// Arranges the whole fleet.
    pub(super) fn of(fleet: &Fleet) -> Self {
        let mut index = Self { served: served(fleet), ..Self::default() };
        index.claims.reserve(fleet.claims.len());
        fleet.claims.iter().for_each(|claims| index.claim(fleet, claims));
        index
    }

    /// Enters what an application claims.
    pub(super) fn claim(&mut self, fleet: &Fleet, claims: &Claims) {
        for host in &claims.domains {
            insert(self.claims.entry(host.as_str().into()).or_default(), &claims.application);
        }
        // Every host under a platform domain comes from an application's name.
        let ours = |base: &&Host| fleet.domains.iter().any(|domain| base.is_under(domain.as_str()));
        let bases: Vec<Host> = claims.wildcard_domains.iter().filter(|base| !ours(base)).cloned().collect();
        for base in &bases {
            insert(self.holders.entry(base.as_str().into()).or_default(), &claims.application);
        }
        if !bases.is_empty() {
            self.bases.insert(claims.application.clone(), bases);
        }
    }

    /// Takes out what an application claimed.
    pub(super) fn unclaim(&mut self, claims: &Claims) {
        for host in &claims.domains {
            remove(&mut self.claims, host, &claims.application);
        }
        for base in self.bases.remove(&claims.application).unwrap_or_default() {
            remove(&mut self.holders, &base, &claims.application);
        }
    }

    /// Looks an application's upstreams up anew.
    pub(super) fn serve(&mut self, fleet: &Fleet, name: &str) {
        let place = |node: &crate::fleet::Node| {
            Some(Place { machine: Arc::clone(node.machine.as_ref()?), port: node.serving.get(name)? })
        };
        let routable = fleet.applications.get(name) == Some(true);
        let upstreams: Vec<Place> = if routable { fleet.nodes.iter().filter_map(place).collect() } else { Vec::new() };
        let now = (!upstreams.is_empty()).then(|| Arc::new(Served { name: name.into(), upstreams }));
        match (self.served.binary_search_by(|served| (*served.name).cmp(name)), now) {
            (Ok(at), Some(now)) => self.served[at] = now,
            (Ok(at), None) => drop(self.served.remove(at)),
            (Err(at), Some(now)) => self.served.insert(at, now),
            (Err(_), None) => {}
        }
    }

    fn served(&self, name: &str) -> Option<&Arc<Served>> {
        self.served.get(self.served.binary_search_by(|served| (*served.name).cmp(name)).ok()?)
    }

    /// Who answers on a host or wildcard key. The first of these that is served: the application of a platform host, those
    /// that claim the host, the environment of those that cover it, and for a key those that hold its base; by name each.
    /// `likely` is a served application that may answer on it, which saves looking for it.
    pub(super) fn answering<'a>(
        &'a self,
        fleet: &Fleet,
        host: &str,
        likely: Option<&'a Arc<Served>>,
    ) -> Option<&'a Arc<Served>> {
        let (first, base) = host.split_once('.')?;
        let served = |name: &str| likely.filter(|likely| *likely.name == *name).or_else(|| self.served(name));
        let first_served = |names: &[Box<str>]| names.iter().find_map(|name| served(name));
        let platform = fleet.domains.iter().any(|domain| domain.as_str() == base);
        if let Some(served) = platform.then(|| served(first)).flatten() {
            return Some(served);
        }
        if let Some(served) = self.claims.get(host).and_then(|claimants| first_served(claimants)) {
            return Some(served);
        }
        // A platform domain may lie right below a covered base, and whoever deploys an environment there must not get the API's
        // callers with their tokens.
        if fleet.domains.iter().any(|domain| domain.as_str() == host) {
            return None;
        }
        let holders = self.holders.get(base)?;
        if first == "*" {
            return first_served(holders);
        }
        // `a--b` is no environment of `a`: `-b` is no label of a host.
        let mut environments = holders.iter().map(|holder| format!("{holder}-{first}"));
        is_label(first).then(|| environments.find_map(|name| served(&name))).flatten()
    }

    /// Visits the hosts that an application may answer on as an environment of another one, or as the holder of a base.
    pub(super) fn covered(&self, name: &str, visit: &mut dyn FnMut(&str)) {
        if self.bases.is_empty() {
            return;
        }
        for (hyphen, _) in name.match_indices('-') {
            let (holder, environment) = (&name[..hyphen], &name[hyphen + 1..]);
            if is_label(environment) {
                self.bases_of(holder).iter().for_each(|base| visit(&format!("{environment}.{base}")));
            }
        }
        self.bases_of(name).iter().for_each(|base| visit(&format!("*.{base}")));
    }

    /// Visits every host that an environment may answer on because of what `holder` covers.
    pub(super) fn below(&self, fleet: &Fleet, holder: &str, visit: &mut dyn FnMut(&str)) {
        let bases = self.bases_of(holder);
        if bases.is_empty() {
            return;
        }
        let prefix = format!("{holder}-");
        for environment in fleet.applications.starting_with(&prefix) {
            let label = &environment[prefix.len()..];
            bases.iter().for_each(|base| visit(&format!("{label}.{base}")));
        }
    }

    fn bases_of(&self, holder: &str) -> &[Host] {
        self.bases.get(holder).map_or(&[], Vec::as_slice)
    }
}

/// Every application that may answer and has an upstream.
fn served(fleet: &Fleet) -> Vec<Arc<Served>> {
    // Both lists are sorted, so that each node's is walked through once; and nodes come in their order, so that every list of
    // upstreams comes out sorted.
    let mut upstreams: Vec<Vec<Place>> = vec![Vec::new(); fleet.applications.len()];
    for node in &fleet.nodes {
        let Some(machine) = &node.machine else { continue };
        let mut at = 0;
        for (name, port) in node.serving.iter() {
            at = fleet.applications.first_from(name, at);
            if let Some(places) = upstreams.get_mut(at).filter(|_| fleet.applications.name(at) == name) {
                if places.capacity() == 0 {
                    places.reserve_exact(2);
                }
                places.push(Place { machine: Arc::clone(machine), port });
            }
        }
    }
    let named = fleet.applications.iter().zip(upstreams);
    let served = named.filter(|((_, routable), upstreams)| *routable && !upstreams.is_empty());
    served.map(|((name, _), upstreams)| Arc::new(Served { name: name.into(), upstreams })).collect()
}

fn insert(sorted: &mut Vec<Box<str>>, name: &str) {
    if let Err(place) = sorted.binary_search_by(|other| (**other).cmp(name)) {
        sorted.insert(place, name.into());
    }
}

fn remove(lists: &mut HashMap<Box<str>, Vec<Box<str>>>, host: &Host, name: &str) {
    if let Some(list) = lists.get_mut(host.as_str()) {
        list.retain(|other| **other != *name);
        if list.is_empty() {
            lists.remove(host.as_str());
        }
    }
}

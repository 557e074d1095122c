//! Who answers on a host, and on which hosts an application may answer.

use std::collections::HashMap;
use std::sync::Arc;

use scafo_core::domain::Host;
use scafo_core::id::{ApplicationName, is_label};
use scafo_core::snapshot::SnapshotApplication;

use super::Served;
use crate::fleet::{Fleet, Place};

/// A fleet, arranged for both questions.
#[derive(Default)]
pub(super) struct Index {
    /// Applications that may answer and have an upstream.
    pub(super) served: HashMap<ApplicationName, Arc<Served>>,
    /// By claimed host, everybody who claims it, by name; whether they are served or not.
    pub(super) claims: HashMap<Box<str>, Vec<ApplicationName>>,
    /// Bases claimed with their subdomains, by who claims them.
    bases: HashMap<ApplicationName, Vec<Host>>,
    /// The same by base: holders by name.
    holders: HashMap<Box<str>, Vec<ApplicationName>>,
}

impl Index {
    /// Arranges the whole fleet.
    pub(super) fn of(fleet: &Fleet) -> Self {
        let mut index = Self::default();
        for application in &fleet.applications {
            index.claim(fleet, application);
        }
        // Node by node, in their order, so that every list of upstreams comes out sorted.
        let mut upstreams: HashMap<&str, Vec<Place>> = HashMap::with_capacity(fleet.applications.len());
        for node in &fleet.nodes {
            let Some(machine) = &node.machine else { continue };
            for (name, port) in &node.serving {
                let place = Place { machine: Arc::clone(machine), port: *port };
                upstreams.entry(name.as_str()).or_insert_with(|| Vec::with_capacity(2)).push(place);
            }
        }
        index.served.reserve(upstreams.len());
        for application in fleet.applications.iter().filter(|application| application.routable) {
            if let Some(upstreams) = upstreams.remove(application.name.as_str()) {
                let name = application.name.clone();
                index.served.insert(name.clone(), Arc::new(Served { name, upstreams }));
            }
        }
        index
    }

    /// Enters what an application claims.
    pub(super) fn claim(&mut self, fleet: &Fleet, application: &SnapshotApplication) {
        for host in &application.domains {
            insert(self.claims.entry(host.as_str().into()).or_default(), &application.name);
        }
        // Every host under a platform domain comes from an application's name.
        let ours = |base: &&Host| fleet.domains.iter().any(|domain| base.is_under(domain.as_str()));
        let bases: Vec<Host> = application.wildcard_domains.iter().filter(|base| !ours(base)).cloned().collect();
        for base in &bases {
            insert(self.holders.entry(base.as_str().into()).or_default(), &application.name);
        }
        if !bases.is_empty() {
            self.bases.insert(application.name.clone(), bases);
        }
    }

    /// Takes out what an application claimed.
    pub(super) fn unclaim(&mut self, application: &SnapshotApplication) {
        for host in &application.domains {
            remove(&mut self.claims, host, &application.name);
        }
        for base in self.bases.remove(&application.name).unwrap_or_default() {
            remove(&mut self.holders, &base, &application.name);
        }
    }

    /// Looks an application's upstreams up anew.
    pub(super) fn serve(&mut self, fleet: &Fleet, name: &ApplicationName) {
        let place = |node: &crate::fleet::Node| {
            let found = node.serving.binary_search_by(|(serving, _)| serving.cmp(name)).ok()?;
            Some(Place { machine: Arc::clone(node.machine.as_ref()?), port: node.serving.get(found)?.1 })
        };
        let routable = fleet.application(name.as_str()).is_some_and(|application| application.routable);
        let upstreams: Vec<Place> = if routable { fleet.nodes.iter().filter_map(place).collect() } else { Vec::new() };
        if upstreams.is_empty() {
            self.served.remove(name);
        } else {
            self.served.insert(name.clone(), Arc::new(Served { name: name.clone(), upstreams }));
        }
    }

    /// Who answers on a host or wildcard key. The first of these that is served: the application of a platform host, those
    /// that claim the host, the environment of those that cover it, and for a key those that hold its base; by name each.
    pub(super) fn answering(&self, fleet: &Fleet, host: &str) -> Option<&Arc<Served>> {
        let (first, base) = host.split_once('.')?;
        let first_served = |names: &[ApplicationName]| names.iter().find_map(|name| self.served.get(name));
        let platform = fleet.domains.iter().any(|domain| domain.as_str() == base);
        if let Some(served) = platform.then(|| self.served.get(first)).flatten() {
            return Some(served);
        }
        if let Some(served) = self.claims.get(host).and_then(|claimants| first_served(claimants)) {
            return Some(served);
        }
        let holders = self.holders.get(base)?;
        if first == "*" {
            return first_served(holders);
        }
        // `a--b` is no environment of `a`: `-b` is no label of a host.
        let environment = |holder: &ApplicationName| self.served.get(format!("{holder}-{first}").as_str());
        is_label(first).then(|| holders.iter().find_map(environment)).flatten()
    }

    /// Visits every host that an application may answer on by its name and its claims.
    pub(super) fn hosts_of(&self, fleet: &Fleet, application: &SnapshotApplication, visit: &mut dyn FnMut(&str)) {
        let name = application.name.as_str();
        let mut host = String::new();
        let mut under = |label: &str, base: &Host, visit: &mut dyn FnMut(&str)| {
            host.clear();
            host.extend([label, ".", base.as_str()]);
            visit(&host);
        };
        fleet.domains.iter().for_each(|domain| under(name, domain, visit));
        application.domains.iter().for_each(|claimed| visit(claimed.as_str()));
        if self.bases.is_empty() {
            return;
        }
        for (hyphen, _) in name.match_indices('-') {
            let (holder, environment) = (&name[..hyphen], &name[hyphen + 1..]);
            if is_label(environment) {
                self.bases_of(holder).iter().for_each(|base| under(environment, base, visit));
            }
        }
        self.bases_of(name).iter().for_each(|base| under("*", base, visit));
    }

    /// Visits every host that an environment may answer on because of what `holder` covers.
    pub(super) fn hosts_below(&self, fleet: &Fleet, holder: &str, visit: &mut dyn FnMut(&str)) {
        let bases = self.bases_of(holder);
        if bases.is_empty() {
            return;
        }
        let prefix = format!("{holder}-");
        for environment in fleet.starting_with(&prefix) {
            let label = &environment.name.as_str()[prefix.len()..];
            bases.iter().for_each(|base| visit(&format!("{label}.{base}")));
        }
    }

    fn bases_of(&self, holder: &str) -> &[Host] {
        self.bases.get(holder).map_or(&[], Vec::as_slice)
    }
}

fn insert(sorted: &mut Vec<ApplicationName>, name: &ApplicationName) {
    if let Err(place) = sorted.binary_search(name) {
        sorted.insert(place, name.clone());
    }
}

fn remove(lists: &mut HashMap<Box<str>, Vec<ApplicationName>>, host: &Host, name: &ApplicationName) {
    if let Some(list) = lists.get_mut(host.as_str()) {
        list.retain(|other| other != name);
        if list.is_empty() {
            lists.remove(host.as_str());
        }
    }
}

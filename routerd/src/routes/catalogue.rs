//! Following a fleet from one state to the next.
//!
//! The definition is [`Catalogue::new`]: from a fleet, whole, to its routing. [`Catalogue::follow`] gives the same for less
//! where little moved: it looks only at the hosts that the applications which differ may answer on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use scafo_core::domain::Host;

use super::index::Index;
use super::{Api, Cutter, Entry, Routing, Served, changed};
use crate::fleet::{Claims, Fleet};

/// When more applications differ than this, and than this share of all, beginning anew is cheaper than looking at each.
const FOLLOWED: usize = 64;
const FOLLOWED_SHARE: usize = 8;

/// A fleet with its routing.
pub struct Catalogue {
    fleet: Fleet,
    index: Index,
    routing: Arc<Routing>,
}

/// A host, with somebody served who may answer on it.
type Candidate<'a> = (Arc<str>, &'a Arc<Served>);

impl Catalogue {
    /// The routing of a fleet.
    pub fn new(fleet: Fleet) -> Self {
        let index = Index::of(&fleet);
        let mut candidates = candidates(&fleet, &index);
        candidates.sort_by(|(a, _), (b, _)| a.cmp(b));
        candidates.dedup_by(|(later, _), (earlier, _)| later == earlier);
        let mut cutter = Cutter::default();
        for (host, likely) in candidates {
            if let Some(served) = index.answering(&fleet, &host, Some(likely)).cloned() {
                cutter.push(Entry { host, served });
            }
        }
        let mut routing = Routing { blocks: cutter.finish(), ..Routing::default() };
        finish(&mut routing, &fleet, &index);
        Self { fleet, index, routing: Arc::new(routing) }
    }

    /// What the fleet answers on.
    pub fn routing(&self) -> &Arc<Routing> {
        &self.routing
    }

    /// Takes the next state of the fleet. Says whether anything moved that shows.
    pub fn follow(&mut self, fleet: Fleet) -> bool {
        let Some(differing) = differing(&self.fleet, &fleet) else {
            let before = Arc::clone(&self.routing);
            *self = Self::new(fleet);
            return self.routing != before;
        };
        let hosts = self.take(fleet, &differing);
        let mut moved = BTreeMap::new();
        for host in &hosts {
            let served = self.index.answering(&self.fleet, host, None);
            if self.routing.find(host) != served {
                moved.insert(host.as_str(), served.cloned());
            }
        }
        let blocks = if moved.is_empty() { self.routing.blocks.clone() } else { changed(&self.routing.blocks, moved) };
        let mut next = Routing { blocks, ..Routing::default() };
        finish(&mut next, &self.fleet, &self.index);
        // Blocks in which nothing moved are the very same ones.
        let same = |(a, b): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(a, b);
        let as_before = next.api == self.routing.api
            && next.blocks.len() == self.routing.blocks.len()
            && next.blocks.iter().zip(&self.routing.blocks).all(same);
        self.routing = Arc::new(next);
        !as_before
    }

    /// Moves on to `fleet` and gives every host on which somebody else may answer now.
    fn take(&mut self, fleet: Fleet, differing: &BTreeSet<String>) -> BTreeSet<String> {
        let mut hosts = BTreeSet::new();
        let before = std::mem::replace(&mut self.fleet, fleet);
        let look = |index: &Index, fleet: &Fleet, hosts: &mut BTreeSet<String>| {
            for name in differing {
                let mut visit = |host: &str| {
                    hosts.insert(host.to_owned());
                };
                fleet.domains.iter().for_each(|domain| visit(&format!("{name}.{domain}")));
                let claimed = fleet.claims(name).map_or(&[][..], |claims| &claims.domains);
                claimed.iter().for_each(|host| visit(host.as_str()));
                index.covered(name, &mut visit);
                // Both lists of environments are looked through: one that went has no place in the new one.
                index.below(&before, name, &mut visit);
                index.below(&self.fleet, name, &mut visit);
            }
        };
        look(&self.index, &before, &mut hosts);
        for name in differing {
            let (was, is) = (before.claims(name), self.fleet.claims(name));
            if was != is {
                was.iter().for_each(|claims| self.index.unclaim(claims));
                is.iter().for_each(|claims| self.index.claim(&self.fleet, claims));
            }
            self.index.serve(&self.fleet, name);
        }
        look(&self.index, &self.fleet, &mut hosts);
        hosts
    }
}

/// Every host on which somebody who is served may answer. Kind by kind, since hosts of a kind come nearly sorted.
fn candidates<'a>(fleet: &Fleet, index: &'a Index) -> Vec<Candidate<'a>> {
    let mut candidates: Vec<Candidate<'_>> =
        Vec::with_capacity(index.served.len() * fleet.domains.len() + fleet.claims.len());
    let mut host = String::new();
    for domain in &fleet.domains {
        for served in &index.served {
            host.clear();
            host.extend([&*served.name, ".", domain.as_str()]);
            candidates.push((host.as_str().into(), served));
        }
    }
    let mut claiming = fleet.claims.iter().peekable();
    for served in &index.served {
        while claiming.next_if(|claims| claims.application < served.name).is_some() {}
        if let Some(claims) = claiming.next_if(|claims| claims.application == served.name) {
            candidates.extend(claims.domains.iter().map(|host| (host.as_str().into(), served)));
        }
        index.covered(&served.name, &mut |host| candidates.push((host.into(), served)));
    }
    candidates
}

/// The parts of a routing that are not blocks.
fn finish(routing: &mut Routing, fleet: &Fleet, index: &Index) {
    routing.nodes = fleet.nodes.iter().map(|node| node.id.clone()).collect();
    if !fleet.api_public {
        return;
    }
    let free = |apex: &&str| !index.claims.contains_key(*apex) && routing.find(apex).is_none();
    let hosts: Vec<String> = fleet.domains.iter().map(Host::as_str).filter(free).map(str::to_owned).collect();
    let upstreams: Vec<_> = fleet.nodes.iter().filter_map(|node| node.api.clone()).collect();
    // With no apex, or nobody behind it, nothing is published.
    if !hosts.is_empty() && !upstreams.is_empty() {
        routing.api = Some(Api { hosts, upstreams });
    }
}

/// The applications that differ in what they claim, in whether they may answer, or in who serves them. `None` for a fleet
/// that is better begun anew.
fn differing(old: &Fleet, new: &Fleet) -> Option<BTreeSet<String>> {
    if old.domains != new.domains {
        return None;
    }
    let mut found = BTreeSet::new();
    let mut add = |name: &str| {
        found.insert(name.to_owned());
    };
    old.applications.differing(&new.applications, &mut add);
    differing_claims(&old.claims, &new.claims, &mut add);
    for node in &old.nodes {
        match new.node(&node.id) {
            Some(now) if now.machine == node.machine => node.serving.differing(&now.serving, &mut add),
            Some(now) => node.serving.iter().chain(now.serving.iter()).for_each(|(name, _)| add(name)),
            None => node.serving.iter().for_each(|(name, _)| add(name)),
        }
    }
    let joined = new.nodes.iter().filter(|node| old.node(&node.id).is_none());
    joined.for_each(|node| node.serving.iter().for_each(|(name, _)| add(name)));
    (found.len() <= FOLLOWED.max(new.applications.len() / FOLLOWED_SHARE)).then_some(found)
}

fn differing_claims(old: &[Claims], new: &[Claims], add: &mut dyn FnMut(&str)) {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    while old.peek().is_some() || new.peek().is_some() {
        let (a, b) = (old.peek(), new.peek());
        if a == b {
            old.next();
            new.next();
            continue;
        }
        // The one that is missing in the other list, or both.
        let from_old = a.is_some_and(|a| b.is_none_or(|b| a.application <= b.application));
        let from_new = b.is_some_and(|b| a.is_none_or(|a| b.application <= a.application));
        for claims in from_old.then(|| old.next()).into_iter().chain(from_new.then(|| new.next())).flatten() {
            add(&claims.application);
        }
    }
}

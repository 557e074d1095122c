//! Following a fleet from one state to the next.
//!
//! The definition is [`Catalogue::new`]: from a fleet, whole, to its routing. [`Catalogue::follow`] gives the same for less
//! where little moved: it looks only at the hosts that the applications which differ may answer on.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use scafo_core::id::ApplicationName;

use super::index::Index;
use super::{Api, Cutter, Entry, Routing, changed};
use crate::fleet::Fleet;

/// When more applications differ than this, and than this share of all, beginning anew is cheaper than looking at each.
const FOLLOWED: usize = 64;
const FOLLOWED_SHARE: usize = 8;

/// A fleet with its routing.
pub struct Catalogue {
    fleet: Fleet,
    index: Index,
    routing: Arc<Routing>,
}

impl Catalogue {
    /// The routing of a fleet.
    pub fn new(fleet: Fleet) -> Self {
        let index = Index::of(&fleet);
        let mut hosts: Vec<Arc<str>> = Vec::with_capacity(index.served.len());
        for application in fleet.applications.iter().filter(|application| index.served.contains_key(&application.name))
        {
            index.hosts_of(&fleet, application, &mut |host| hosts.push(host.into()));
        }
        hosts.sort();
        hosts.dedup();
        let mut cutter = Cutter::default();
        for host in hosts {
            if let Some(served) = index.answering(&fleet, &host).cloned() {
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
            let served = self.index.answering(&self.fleet, host);
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
    fn take(&mut self, fleet: Fleet, differing: &BTreeSet<ApplicationName>) -> BTreeSet<String> {
        let mut hosts = BTreeSet::new();
        let before = std::mem::replace(&mut self.fleet, fleet);
        let look = |index: &Index, fleet: &Fleet, hosts: &mut BTreeSet<String>| {
            for name in differing {
                let mut visit = |host: &str| {
                    hosts.insert(host.to_owned());
                };
                if let Some(application) = fleet.application(name.as_str()) {
                    index.hosts_of(fleet, application, &mut visit);
                }
                // Both lists of environments are looked through: one that went has no place in the new one.
                index.hosts_below(&before, name.as_str(), &mut visit);
                index.hosts_below(&self.fleet, name.as_str(), &mut visit);
            }
        };
        look(&self.index, &before, &mut hosts);
        for name in differing {
            let (was, is) = (before.application(name.as_str()), self.fleet.application(name.as_str()));
            if was != is {
                was.iter().for_each(|application| self.index.unclaim(application));
                is.iter().for_each(|application| self.index.claim(&self.fleet, application));
            }
            self.index.serve(&self.fleet, name);
        }
        look(&self.index, &self.fleet, &mut hosts);
        hosts
    }
}

/// The parts of a routing that are not blocks.
fn finish(routing: &mut Routing, fleet: &Fleet, index: &Index) {
    routing.nodes = fleet.nodes.iter().map(|node| node.id.clone()).collect();
    if !fleet.api_public {
        return;
    }
    let free = |apex: &&str| !index.claims.contains_key(*apex) && routing.find(apex).is_none();
    let hosts: Vec<String> =
        fleet.domains.iter().map(|domain| domain.as_str()).filter(free).map(str::to_owned).collect();
    let upstreams: Vec<_> = fleet.nodes.iter().filter_map(|node| node.api.clone()).collect();
    // With no apex, or nobody behind it, nothing is published.
    if !hosts.is_empty() && !upstreams.is_empty() {
        routing.api = Some(Api { hosts, upstreams });
    }
}

/// The applications that differ in what they claim, in whether they may answer, or in who serves them. `None` for a fleet
/// that is better begun anew.
fn differing(old: &Fleet, new: &Fleet) -> Option<BTreeSet<ApplicationName>> {
    if old.domains != new.domains {
        return None;
    }
    let mut found = BTreeSet::new();
    unequal(
        &old.applications,
        &new.applications,
        |application| &application.name,
        |application| {
            found.insert(application.name.clone());
        },
    );
    let mut nodes = Vec::new();
    unequal(&old.nodes, &new.nodes, |node| &node.id, |node| nodes.push(&node.id));
    for id in nodes {
        let (was, is) = (old.node(id), new.node(id));
        let mut add = |(name, _): &(ApplicationName, u16)| {
            found.insert(name.clone());
        };
        match (was, is) {
            (Some(was), Some(is)) if was.machine == is.machine => {
                unequal(&was.serving, &is.serving, |(name, _)| name, add);
            }
            (was, is) => was.into_iter().chain(is).flat_map(|node| &node.serving).for_each(&mut add),
        }
    }
    (found.len() <= FOLLOWED.max(new.applications.len() / FOLLOWED_SHARE)).then_some(found)
}

/// Visits what is in one of two sorted lists and not, or not so, in the other.
fn unequal<'a, T: PartialEq, K: Ord>(old: &'a [T], new: &'a [T], key: impl Fn(&T) -> &K, mut visit: impl FnMut(&'a T)) {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) if a == b => {
                (old.next(), new.next());
                continue;
            }
            (Some(a), Some(b)) => key(a).cmp(key(b)),
        };
        if order.is_le() {
            old.next().into_iter().for_each(&mut visit);
        }
        if order.is_ge() {
            new.next().into_iter().for_each(&mut visit);
        }
    }
}

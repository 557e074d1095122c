//! Every host of the fleet with who answers on it, sorted, in blocks.
//!
//! A block is what is rendered and compressed at a time and kept as long as nothing in it moves. Where one ends depends on the
//! hosts alone and not on what they were before: so every node that knows the same fleet cuts it alike, whatever it went
//! through, and a host that comes or goes moves the ends of its own block and, seldom, of those right behind it.

mod catalogue;
mod index;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use scafo_core::id::NodeId;
use scafo_core::routing::FleetRouting;

pub use self::catalogue::Catalogue;
use crate::fleet::Place;

/// One host in so many ends a block: 50 KB of the generic document.
const ONE_IN: u32 = 256;
/// Most hosts of a block, for names that somebody chose so that none ends one.
const MOST: usize = 1024;

/// What the fleet answers on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routing {
    pub(crate) blocks: Vec<Arc<Block>>,
    pub(crate) api: Option<Api>,
    /// Nodes whose upstreams may be in it.
    pub(crate) nodes: BTreeSet<NodeId>,
}

/// Neighbouring hosts, at least one.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) entries: Vec<Entry>,
}

/// A host, or a wildcard key: letters, digits and `-.*_`, so that it can stand in JSON as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) host: Arc<str>,
    pub(crate) served: Arc<Served>,
}

/// An application that somebody serves.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) name: Box<str>,
    /// By node; never empty.
    pub(crate) upstreams: Vec<Place>,
}

/// The API, which is there only with a host and an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Api {
    /// Bare platform domains, sorted.
    pub(crate) hosts: Vec<String>,
    /// By node.
    pub(crate) upstreams: Vec<Place>,
}

impl Routing {
    /// What a generic document says: for tools that have one and want another format of it. `None` when a host or an address in
    /// it is none. The denied prefixes are always ours.
    pub fn of(document: &FleetRouting) -> Option<Self> {
        let places = |upstreams: &[scafo_core::routing::Upstream]| {
            upstreams.iter().map(|upstream| Place::parse(&upstream.node, &upstream.address)).collect::<Option<Vec<_>>>()
        };
        // Whoever writes a document relies on it.
        let plain = |host: &String| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.*_".contains(&byte));
        if !document
            .routes
            .iter()
            .map(|route| &route.host)
            .chain(document.api.iter().flat_map(|api| &api.hosts))
            .all(plain)
        {
            return None;
        }
        let mut cutter = Cutter::default();
        for route in &document.routes {
            let served = Served { name: route.application.as_str().into(), upstreams: places(&route.upstreams)? };
            cutter.push(Entry { host: route.host.as_str().into(), served: Arc::new(served) });
        }
        let api = match &document.api {
            Some(api) => Some(Api { hosts: api.hosts.clone(), upstreams: places(&api.upstreams)? }),
            None => None,
        };
        Some(Self { blocks: cutter.finish(), api, nodes: BTreeSet::new() })
    }

    /// How many hosts there are, the API's not counted.
    pub fn len(&self) -> usize {
        self.blocks.iter().map(|block| block.entries.len()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    fn find(&self, host: &str) -> Option<&Arc<Served>> {
        let block = self.blocks.get(self.blocks.partition_point(|block| block.first() <= host).checked_sub(1)?)?;
        let index = block.entries.binary_search_by(|entry| (*entry.host).cmp(host)).ok()?;
        block.entries.get(index).map(|entry| &entry.served)
    }
}

impl Block {
    fn first(&self) -> &str {
        self.entries.first().map_or("", |entry| &entry.host)
    }
}

/// Cuts a sorted list into blocks.
#[derive(Default)]
struct Cutter {
    done: Vec<Arc<Block>>,
    open: Vec<Entry>,
}

impl Cutter {
    fn push(&mut self, entry: Entry) {
        let last = crc32fast::hash(entry.host.as_bytes()).is_multiple_of(ONE_IN);
        self.open.push(entry);
        if last || self.open.len() == MOST {
            self.cut();
        }
    }

    fn cut(&mut self) {
        if !self.open.is_empty() {
            self.done.push(Arc::new(Block { entries: std::mem::take(&mut self.open) }));
        }
    }

    fn finish(mut self) -> Vec<Arc<Block>> {
        self.cut();
        self.done
    }
}

/// The same blocks as a cut of the whole list after the changes: `Some` puts a host in place, `None` takes it out.
fn changed(blocks: &[Arc<Block>], changes: BTreeMap<&str, Option<Arc<Served>>>) -> Vec<Arc<Block>> {
    let mut cutter = Cutter { done: Vec::with_capacity(blocks.len() + 1), open: Vec::new() };
    let mut changes = changes.into_iter().peekable();
    for (index, block) in blocks.iter().enumerate() {
        let next = blocks.get(index + 1).map(|next| next.first());
        let mut of_this = Vec::new();
        while let Some(change) = changes.next_if(|(host, _)| next.is_none_or(|next| *host < next)) {
            of_this.push(change);
        }
        // Nothing is left over from the block before, so this one begins where it began.
        if cutter.open.is_empty() && of_this.is_empty() {
            cutter.done.push(Arc::clone(block));
        } else {
            merge(&block.entries, of_this, &mut cutter);
        }
    }
    merge(&[], changes.collect(), &mut cutter);
    cutter.finish()
}

fn merge(entries: &[Entry], changes: Vec<(&str, Option<Arc<Served>>)>, into: &mut Cutter) {
    let mut entries = entries.iter().peekable();
    for (host, served) in changes {
        while let Some(before) = entries.next_if(|entry| &*entry.host < host) {
            into.push(before.clone());
        }
        entries.next_if(|entry| &*entry.host == host);
        if let Some(served) = served {
            into.push(Entry { host: host.into(), served });
        }
    }
    entries.for_each(|entry| into.push(entry.clone()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing::{fleet, node, parsed};

    fn entry(host: &str) -> Entry {
        let served = Served { name: "a".into(), upstreams: vec![] };
        Entry { host: host.into(), served: Arc::new(served) }
    }

    #[test]
    fn blocks_are_bounded_whatever_the_hosts_are_called() {
        let never_last = |host: &String| !crc32fast::hash(host.as_bytes()).is_multiple_of(ONE_IN);
        let mut cutter = Cutter::default();
        (0..5000).map(|i| format!("h{i:05}.example")).filter(never_last).for_each(|host| cutter.push(entry(&host)));
        let blocks = cutter.finish();
        assert!(blocks.len() >= 4 && blocks.iter().all(|block| block.entries.len() <= MOST));
    }

    #[test]
    fn one_change_moves_the_blocks_around_it_only() {
        let names: Vec<String> = (0..5000).map(|i| format!("app-{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut state = fleet(&[names.iter().fold(node("a"), |node, name| node.serves(name, 7))], &names);
        let mut catalogue = Catalogue::new(parsed(&state));
        assert!(!catalogue.follow(parsed(&state)));
        let before = Arc::clone(catalogue.routing());
        assert!(before.blocks.len() > 10);
        state.applications.remove(2500);
        assert!(catalogue.follow(parsed(&state)));
        let moved = |block: &&Arc<Block>| !before.blocks.iter().any(|other| Arc::ptr_eq(block, other));
        assert!(catalogue.routing().blocks.iter().filter(moved).count() <= 2);
        assert_eq!(catalogue.routing(), Catalogue::new(parsed(&state)).routing());
        assert!(catalogue.routing().find("app-4999.apps.test").is_some());
        assert!(catalogue.routing().find("zzz").is_none() && catalogue.routing().find("").is_none());
    }
}

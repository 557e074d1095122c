//! What was rendered from one snapshot: the fleet's own order at once, other orders when somebody asks.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;
use scafo_core::id::NodeId;
use scafo_core::routing::FleetRouting;
use scafo_core::snapshot::Snapshot;
use sha2::{Digest as _, Sha256};

use crate::render::{Format, generic, traefik};

/// How many documents beside the fleet's own order are kept for one snapshot. Each ingress asks for one, and a node has one
/// ingress beside it, sometimes another for a while; what does not fit is rendered again when it is asked for.
const KEPT_VARIANTS: usize = 16;
/// Hexadecimal digits of the digest in an entity tag: 128 bits tell any two documents apart.
const ETAG_DIGITS: usize = 32;

/// One document, ready to be sent.
#[derive(Debug)]
pub struct Document {
    /// Strong entity tag (RFC 9110 §8.8.3), quotes included: equal bytes have equal tags on every node.
    pub etag: String,
    /// JSON.
    pub body: Bytes,
}

impl Document {
    pub(crate) fn new(body: Vec<u8>) -> Self {
        let digest = hex::encode(Sha256::digest(&body));
        Self { etag: format!("\"{}\"", &digest[..ETAG_DIGITS]), body: body.into() }
    }
}

/// Whose upstreams stand first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prefer {
    /// Nobody's: the fleet's own order.
    Fleet,
    /// Those of a node that stands in the document.
    Node(NodeId),
}

type Slot = Arc<OnceLock<Arc<Document>>>;

/// Every document of one snapshot.
pub struct Documents {
    routing: FleetRouting,
    nodes: BTreeSet<NodeId>,
    entry_points: Vec<String>,
    plain: Arc<Document>,
    /// Most recently asked last.
    variants: Mutex<Vec<(Format, Prefer, Slot)>>,
}

impl Documents {
    /// Renders the generic document in the fleet's own order.
    pub fn render(snapshot: &Snapshot, entry_points: Vec<String>) -> Self {
        let routing = generic::render(snapshot);
        let upstreams = routing.routes.iter().flat_map(|route| &route.upstreams);
        let api = routing.api.iter().flat_map(|api| &api.upstreams);
        let nodes = upstreams.chain(api).map(|upstream| upstream.node.clone()).collect();
        let plain = Arc::new(Document::new(generic::to_json(&routing)));
        Self { routing, nodes, entry_points, plain, variants: Mutex::default() }
    }

    /// Whether both say the same, so that the older one with all that was rendered from it can stay.
    pub fn is_same(&self, other: &Self) -> bool {
        self.plain.etag == other.plain.etag && self.entry_points == other.entry_points
    }

    /// How many hosts the fleet answers on.
    pub fn routes(&self) -> usize {
        self.routing.routes.len()
    }

    /// Entity tag of the generic document in the fleet's own order.
    pub fn etag(&self) -> &str {
        &self.plain.etag
    }

    /// What preferring `node` means here: nothing, when no upstream is its.
    pub fn prefer(&self, node: &str) -> Prefer {
        self.nodes.get(node).map_or(Prefer::Fleet, |node| Prefer::Node(node.clone()))
    }

    /// The document, if it need not be rendered first.
    pub fn ready(&self, format: Format, prefer: &Prefer) -> Option<Arc<Document>> {
        if format == Format::Generic && *prefer == Prefer::Fleet {
            return Some(self.plain.clone());
        }
        self.slot(format, prefer).get().cloned()
    }

    /// The document, rendered if need be. Takes CPU time. Callers who ask for the same one at once share the work.
    pub fn get(&self, format: Format, prefer: &Prefer) -> Arc<Document> {
        if let Some(ready) = self.ready(format, prefer) {
            return ready;
        }
        let slot = self.slot(format, prefer);
        slot.get_or_init(|| Arc::new(Document::new(self.variant(format, prefer)))).clone()
    }

    fn slot(&self, format: Format, prefer: &Prefer) -> Slot {
        // Nothing that panics runs under this lock, and a list of slots is never half changed.
        let mut variants = self.variants.lock().unwrap_or_else(PoisonError::into_inner);
        let found = variants.iter().position(|(f, p, _)| *f == format && p == prefer);
        let entry = match found {
            Some(index) => variants.remove(index),
            None => {
                if variants.len() >= KEPT_VARIANTS {
                    variants.remove(0);
                }
                (format, prefer.clone(), Slot::default())
            }
        };
        let slot = entry.2.clone();
        variants.push(entry);
        slot
    }

    fn variant(&self, format: Format, prefer: &Prefer) -> Vec<u8> {
        let (ordered, preferred) = match prefer {
            Prefer::Fleet => (None, None),
            Prefer::Node(node) => (Some(generic::preferring(&self.routing, node)), Some(node)),
        };
        let routing = ordered.as_ref().unwrap_or(&self.routing);
        match format {
            Format::Generic => generic::to_json(routing),
            Format::Traefik => traefik::to_json(&traefik::render(routing, &self.entry_points, preferred)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing::{fleet, node};

    fn documents() -> Documents {
        let fleet = fleet(&[node("a").serves("shop", 1), node("b").serves("shop", 2)], &["shop"]);
        Documents::render(&fleet, vec!["web".to_owned()])
    }

    #[test]
    fn a_document_is_rendered_once() {
        let documents = documents();
        let prefer = documents.prefer("b");
        assert!(documents.ready(Format::Traefik, &prefer).is_none());
        let first = documents.get(Format::Traefik, &prefer);
        assert!(Arc::ptr_eq(&first, &documents.get(Format::Traefik, &prefer)));
        assert!(Arc::ptr_eq(&first, &documents.ready(Format::Traefik, &prefer).unwrap()));
    }

    #[test]
    fn preferring_a_node_without_upstreams_gives_the_plain_document() {
        let documents = documents();
        assert_eq!(documents.prefer("nobody"), Prefer::Fleet);
        assert_eq!(documents.prefer(&"x".repeat(10_000)), Prefer::Fleet);
    }

    #[test]
    fn kept_variants_are_bounded() {
        let nodes: Vec<_> = (0..40u16).map(|i| node(&format!("n{i}")).serves("shop", 1000 + i)).collect();
        let documents = Documents::render(&fleet(&nodes, &["shop"]), vec![]);
        for i in 0..40 {
            let preferred = documents.get(Format::Generic, &documents.prefer(&format!("n{i}")));
            assert!(String::from_utf8_lossy(&preferred.body).contains(&format!("\"upstreams\":[{{\"node\":\"n{i}\"")));
        }
        assert_eq!(documents.variants.lock().unwrap().len(), KEPT_VARIANTS);
    }

    #[test]
    fn equal_fleets_have_equal_tags() {
        assert!(documents().is_same(&documents()));
    }
}

//! Every document of one state of the fleet: its own order at once, other orders when somebody asks.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use scafo_core::id::NodeId;

use crate::document::Document;
use crate::render::{Attributes, Format, Invalid, View};
use crate::routes::Routing;

/// How many documents beside the fleet's own order are kept. Each ingress asks for one, and a node has one ingress beside it,
/// sometimes another for a while; what does not fit is written again when it is asked for.
const KEPT_VARIANTS: usize = 16;

/// Whose upstreams stand first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prefer {
    /// Nobody's: the fleet's own order.
    Fleet,
    /// Those of a node that stands in the document.
    Node(NodeId),
}

#[derive(Clone)]
struct Variant {
    format: Format,
    prefer: Prefer,
    slot: Arc<OnceLock<Result<Arc<Document>, Invalid>>>,
    /// The last one that was written of an earlier state, for the pieces that have not changed.
    before: Option<Arc<Document>>,
}

/// Every document of one routing.
pub struct Documents {
    routing: Arc<Routing>,
    attributes: Arc<Attributes>,
    plain: Arc<Document>,
    /// Most recently asked last.
    variants: Mutex<Vec<Variant>>,
}

impl Documents {
    /// Writes the generic document in the fleet's own order. `before` are the documents of an earlier state.
    ///
    /// # Errors
    /// When that document cannot be published.
    pub fn write(routing: Arc<Routing>, attributes: Arc<Attributes>, before: Option<&Self>) -> Result<Self, Invalid> {
        let view = View { format: Format::Generic, prefer: None, attributes: &attributes };
        let plain = Arc::new(Document::write(&view, &routing, before.map(|before| &*before.plain))?);
        let variants = before.map(Self::handed_on).unwrap_or_default();
        Ok(Self { routing, attributes, plain, variants: Mutex::new(variants) })
    }

    fn handed_on(&self) -> Vec<Variant> {
        let variants = self.variants.lock().unwrap_or_else(PoisonError::into_inner);
        let empty = |variant: &Variant| {
            let before =
                variant.slot.get().and_then(|written| written.as_ref().ok()).or(variant.before.as_ref()).cloned();
            Variant { slot: Arc::default(), before, ..variant.clone() }
        };
        variants.iter().map(empty).collect()
    }

    /// How many hosts the fleet answers on.
    pub fn routes(&self) -> usize {
        self.routing.len()
    }

    /// Entity tag of the generic document in the fleet's own order.
    pub fn etag(&self) -> &str {
        &self.plain.etag
    }

    /// What preferring `node` means here: nothing, when it is none of the fleet.
    pub fn prefer(&self, node: &str) -> Prefer {
        self.routing.nodes.get(node).map_or(Prefer::Fleet, |node| Prefer::Node(node.clone()))
    }

    /// The document, if it need not be written first.
    pub fn ready(&self, format: Format, prefer: &Prefer) -> Option<Arc<Document>> {
        if format == Format::Generic && *prefer == Prefer::Fleet {
            return Some(self.plain.clone());
        }
        self.variant(format, prefer).slot.get()?.clone().ok()
    }

    /// The document, written if need be. Takes CPU time. Callers who ask for the same one at once share the work.
    ///
    /// # Errors
    /// When the document cannot be published.
    pub fn get(&self, format: Format, prefer: &Prefer) -> Result<Arc<Document>, Invalid> {
        if let Some(ready) = self.ready(format, prefer) {
            return Ok(ready);
        }
        let variant = self.variant(format, prefer);
        variant.slot.get_or_init(|| self.written(&variant)).clone()
    }

    fn written(&self, variant: &Variant) -> Result<Arc<Document>, Invalid> {
        let prefer = match &variant.prefer {
            Prefer::Fleet => None,
            Prefer::Node(node) => Some(node),
        };
        let view = View { format: variant.format, prefer, attributes: &self.attributes };
        let document = match (Document::write(&view, &self.routing, variant.before.as_deref()), &variant.before) {
            (Ok(document), _) => document,
            (Err(invalid), Some(before)) => {
                tracing::error!(%invalid, ?view.format, "a document is not published; the one before it stays");
                return Ok(Arc::clone(before));
            }
            (Err(invalid), None) => return Err(invalid),
        };
        // A node that is nowhere, or everywhere first, changes nothing: the same bytes are held once.
        Ok(if document.etag == self.plain.etag { self.plain.clone() } else { Arc::new(document) })
    }

    fn variant(&self, format: Format, prefer: &Prefer) -> Variant {
        // Nothing that panics runs under this lock, and a list of slots is never half changed.
        let mut variants = self.variants.lock().unwrap_or_else(PoisonError::into_inner);
        let found = variants.iter().position(|variant| variant.format == format && variant.prefer == *prefer);
        let variant = match found {
            Some(index) => variants.remove(index),
            None => {
                if variants.len() >= KEPT_VARIANTS {
                    variants.remove(0);
                }
                Variant { format, prefer: prefer.clone(), slot: Arc::default(), before: None }
            }
        };
        variants.push(variant.clone());
        variant
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::testing::{Claim as _, attributes, decoded, documents_of, fleet, node, parsed};
    use crate::routes::Catalogue;

    fn documents() -> Documents {
        documents_of(&fleet(&[node("a").serves("shop", 1), node("b").serves("shop", 2)], &["shop"]))
    }

    #[test]
    fn a_document_is_written_once() {
        let documents = documents();
        let prefer = documents.prefer("b");
        assert!(documents.ready(Format::Traefik, &prefer).is_none());
        let first = documents.get(Format::Traefik, &prefer).unwrap();
        assert!(Arc::ptr_eq(&first, &documents.get(Format::Traefik, &prefer).unwrap()));
        assert!(Arc::ptr_eq(&first, &documents.ready(Format::Traefik, &prefer).unwrap()));
    }

    #[test]
    fn preferring_a_node_without_upstreams_gives_the_plain_document() {
        let documents = documents();
        assert_eq!(documents.prefer("nobody"), Prefer::Fleet);
        assert_eq!(documents.prefer(&"x".repeat(10_000)), Prefer::Fleet);
        // The first one is first anyway.
        let first = documents.get(Format::Generic, &documents.prefer("a")).unwrap();
        assert!(Arc::ptr_eq(&first, &documents.plain));
    }

    #[test]
    fn kept_variants_are_bounded() {
        let nodes: Vec<_> = (0..40u16).map(|i| node(&format!("n{i}")).serves("shop", 1000 + i)).collect();
        let documents = documents_of(&fleet(&nodes, &["shop"]));
        for i in 0..40 {
            let preferred = documents.get(Format::Generic, &documents.prefer(&format!("n{i}"))).unwrap();
            let text = decoded(&preferred);
            assert!(text.contains(&format!("\"upstreams\":[{{\"node\":\"n{i}\"")));
        }
        assert_eq!(documents.variants.lock().unwrap().len(), KEPT_VARIANTS);
    }

    #[test]
    fn what_one_state_kept_the_next_one_takes_over() {
        let names: Vec<String> = (0..5000).map(|i| format!("app-{i}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let both = || ["a", "b"].map(|id| names.iter().fold(node(id), |node, name| node.serves(name, 7)));
        let mut state = fleet(&both(), &names);
        let mut catalogue = Catalogue::new(parsed(&state));
        let first = Documents::write(catalogue.routing().clone(), attributes(), None).unwrap();
        let prefer = first.prefer("b");
        let before = first.get(Format::Traefik, &prefer).unwrap();
        state.claim("app-7", "seven.example", false);
        assert!(catalogue.follow(parsed(&state)));
        let next = Documents::write(catalogue.routing().clone(), attributes(), Some(&first)).unwrap();
        drop(first);
        let after = next.get(Format::Traefik, &prefer).unwrap();
        let shared = after.shared_with(&before);
        assert!(shared > 10 && shared + 6 >= after.pieces(), "{shared} of {}", after.pieces());
        assert_eq!(after.etag, documents_of(&state).get(Format::Traefik, &prefer).unwrap().etag);
    }
}

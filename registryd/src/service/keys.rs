//! Whose key a token's `kid` is.
//!
//! A key that was found is not remembered here: the API keeps it for the minute that a revocation may take, and a second
//! memory would make that two. What is remembered, for a moment, is that there is none, so that made-up ids do not turn into
//! two requests to the bucket each.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use scafo_core::record::{NodeRecord, OperatorRecord};
use scafo_core::{NodeId, OperatorId, Problem, ProblemCode};

use crate::daemon::Core;
use crate::registry::Mono;

/// How long an unknown id stays unknown without a look: a key that was just registered works after this at the latest.
const UNKNOWN: Duration = Duration::from_secs(2);
/// Unknown ids that are remembered, some 150 bytes each.
const REMEMBERED: usize = 1024;

/// Whose it is.
#[derive(Debug)]
pub(crate) enum KeyHolder {
    Operator(Box<OperatorRecord>),
    Node(Box<NodeRecord>),
}

/// The memory of unknown ids.
#[derive(Debug, Default)]
pub(crate) struct Unknown(Mutex<HashMap<String, Mono>>);

impl Unknown {
    fn has(&self, kid: &str, now: Mono) -> bool {
        let unknown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        unknown.get(kid).is_some_and(|until| now < *until)
    }

    fn note(&self, kid: &str, now: Mono) {
        let mut unknown = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if unknown.len() >= REMEMBERED {
            unknown.retain(|_, until| now < *until);
        }
        if unknown.len() < REMEMBERED {
            unknown.insert(kid.to_owned(), now.after(UNKNOWN));
        }
    }
}

/// Looks an id up: operators first, then nodes. `fresh` looks even for what was unknown a moment ago.
///
/// # Errors
/// `not-found`; store errors.
pub(crate) async fn resolve(core: &Core, unknown: &Unknown, kid: &str, fresh: bool) -> Result<KeyHolder, Problem> {
    let nobody = || Problem::new(ProblemCode::NotFound, "no operator and no node has this id");
    let operator: OperatorId = kid.parse().map_err(|_| nobody())?;
    let node: NodeId = kid.parse().map_err(|_| nobody())?;
    if !fresh && unknown.has(kid, core.mono()) {
        return Err(nobody());
    }
    if let Some(stored) = core.registry.operator(&operator).await? {
        return Ok(KeyHolder::Operator(Box::new(stored.record)));
    }
    if let Some(stored) = core.registry.node(&node).await? {
        return Ok(KeyHolder::Node(Box::new(stored.record)));
    }
    unknown.note(kid, core.mono());
    Err(nobody())
}

#[cfg(test)]
mod tests {
    use scafo_store::MemoryBucket;

    use super::*;
    use crate::daemon::testing::core;
    use crate::registry::testing::put_raw;

    #[tokio::test(start_paused = true)]
    async fn a_key_is_looked_for_among_operators_and_then_among_nodes() {
        let memory = MemoryBucket::new();
        let core = core("a", memory.sibling());
        let unknown = Unknown::default();
        let nobody = resolve(&core, &unknown, "x", true).await.unwrap_err();
        assert_eq!(nobody.code, ProblemCode::NotFound);
        let key = r#"{ "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" }"#;
        let at = "2026-04-01T12:30:00.000Z";
        let node = format!(
            r#"{{ "v": 1, "id": "x", "publicKey": {key}, "address": "127.0.0.1", "api": "127.0.0.1:1", "labels": {{}},
                 "platformDomains": [], "apiPublic": true, "version": "0.1.0", "startedAt": "{at}", "heartbeatAt": "{at}",
                 "leaving": false, "draining": false, "fence": 0, "serving": [] }}"#
        );
        put_raw(&memory, "_scafo/nodes/x.json", &node).await;
        assert!(matches!(resolve(&core, &unknown, "x", true).await, Ok(KeyHolder::Node(_))));
        let operator = format!(
            r#"{{ "v": 1, "id": "x", "publicKey": {key}, "role": "operator", "applications": ["*"], "createdAt": "{at}" }}"#
        );
        put_raw(&memory, "_scafo/operators/x.json", &operator).await;
        assert!(matches!(resolve(&core, &unknown, "x", true).await, Ok(KeyHolder::Operator(_))));
    }

    fn s(seconds: u64) -> Mono {
        Mono::at(Duration::from_secs(seconds))
    }

    #[test]
    fn an_unknown_id_is_asked_about_again_after_a_moment() {
        let unknown = Unknown::default();
        unknown.note("x", s(10));
        assert!(unknown.has("x", s(11)) && !unknown.has("x", s(12)) && !unknown.has("y", s(11)));
    }

    #[test]
    fn the_memory_of_unknown_ids_is_bounded() {
        let unknown = Unknown::default();
        for index in 0..3 * REMEMBERED {
            unknown.note(&format!("x{index}"), s(0));
        }
        assert_eq!(unknown.0.lock().unwrap().len(), REMEMBERED);
        unknown.note("later", s(3));
        assert_eq!(unknown.0.lock().unwrap().len(), 1);
    }
}

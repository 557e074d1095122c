//! Keys by id, kept for a minute.
//!
//! The lifetime of an entry is the bound on revocation, so it counts from before the record was read. This is the only memory
//! of keys: the registry daemon reads the record of each key that it finds.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::token::PublicKey;
use tokio::sync::Semaphore;

use super::{Freshness, Key};
use crate::clock::Clock;
use crate::registry::Registry;

/// How long a key is used without looking at its record again.
const LIFETIME: Duration = Duration::from_secs(60);
/// Keys kept at once: more than a fleet has nodes and operators, and about 4 MiB.
const KEPT: usize = 4096;
/// Lookups at once, of keys that were found before and of those that were not, each. Each costs the bucket a read or two, and
/// anybody can cause one by naming a key that does not exist: whoever does waits among his kind.
const LOOKUPS: usize = 64;
/// How long a request waits for its turn to look up a key.
const TURN: Duration = Duration::from_secs(10);

pub(super) struct Keys {
    registry: Registry,
    clock: Arc<dyn Clock>,
    kept: Mutex<HashMap<String, (Instant, Arc<Key>)>>,
    of_known: Semaphore,
    of_strangers: Semaphore,
}

impl Keys {
    pub(super) fn new(registry: Registry, clock: Arc<dyn Clock>) -> Self {
        let lookups = || Semaphore::new(LOOKUPS);
        Self { registry, clock, kept: Mutex::default(), of_known: lookups(), of_strangers: lookups() }
    }

    /// The key of `kid`; `None` when there is none.
    ///
    /// # Errors
    /// When the registry daemon or the bucket does not say.
    pub(super) async fn get(&self, kid: &str, freshness: Freshness) -> Result<Option<Arc<Key>>, Problem> {
        if freshness == Freshness::Cached
            && let Some(key) = self.kept(kid)
        {
            return Ok(Some(key));
        }
        let turns = if self.is_known(kid) { &self.of_known } else { &self.of_strangers };
        let Ok(Ok(_turn)) = tokio::time::timeout(TURN, turns.acquire()).await else {
            let detail = "too many tokens are being looked up; try again in a moment";
            return Err(Problem::new(ProblemCode::Draining, detail));
        };
        let asked = self.clock.mono();
        let key = self.registry.key(kid, freshness).await?.map(Arc::new);
        self.keep(kid, asked, key.clone());
        Ok(key)
    }

    fn kept(&self, kid: &str) -> Option<Arc<Key>> {
        let now = self.clock.mono();
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (asked, key) = kept.get(kid)?;
        (now.saturating_duration_since(*asked) < LIFETIME).then(|| key.clone())
    }

    /// Whether this key was found before, however long ago.
    fn is_known(&self, kid: &str) -> bool {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).contains_key(kid)
    }

    fn keep(&self, kid: &str, asked: Instant, key: Option<Arc<Key>>) {
        let now = self.clock.mono();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(key) = key else {
            kept.remove(kid);
            return;
        };
        if kept.len() >= KEPT {
            kept.retain(|_, (asked, _)| now.saturating_duration_since(*asked) < LIFETIME);
        }
        if kept.len() >= KEPT
            && let Some(oldest) = kept.iter().min_by_key(|(_, (asked, _))| *asked).map(|(kid, _)| kid.clone())
        {
            kept.remove(&oldest);
        }
        kept.insert(kid.to_owned(), (asked, key));
    }
}

/// A key that nobody has the other half of here: the example of RFC 8037, appendix A.
pub(super) fn nobody() -> &'static PublicKey {
    static NOBODY: LazyLock<PublicKey> = LazyLock::new(|| {
        serde_json::from_str(r#"{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}"#)
            .expect("the example of the standard is a key")
    });
    &NOBODY
}

#[cfg(test)]
mod tests {
    use super::super::Caller;
    use super::*;
    use crate::clock::SystemClock;

    #[tokio::test(start_paused = true)]
    async fn lookups_of_known_keys_and_of_those_that_nobody_has_do_not_wait_for_each_other() {
        let nobody_listens = tempfile::tempdir().unwrap();
        let keys = Keys::new(Registry::new(&nobody_listens.path().join("sock")), Arc::new(SystemClock));
        let key = Key { public_key: nobody().clone(), caller: Caller::Node("n1".parse().unwrap()) };
        keys.keep("known", keys.clock.mono(), Some(Arc::new(key)));
        // Whoever has a turn learns that the registry is away.
        let has_no_turn = async |kid| {
            let problem = keys.get(kid, Freshness::Now).await.unwrap_err();
            problem.detail.contains("too many tokens")
        };
        for (full, waits, goes_on) in [(&keys.of_strangers, "unknown", "known"), (&keys.of_known, "known", "unknown")] {
            let all = full.acquire_many(u32::try_from(LOOKUPS).unwrap()).await.unwrap();
            assert!(has_no_turn(waits).await, "{waits}");
            assert!(!has_no_turn(goes_on).await, "{goes_on}");
            drop(all);
            assert!(!has_no_turn(waits).await, "{waits}");
        }
    }
}

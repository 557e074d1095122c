//! Removing a lease of celld that no celld can read: `scafo app lease drop`.
//!
//! Kept true: a lease that can be read is never removed here. A live one is what keeps its node alive, and one with an open log
//! is the only way to writes that were acknowledged and not yet recovered; celld collects those that have expired itself.

use std::time::Duration;

use scafo_core::{ApplicationName, Problem, ProblemCode, key};
use serde::Deserialize;

use super::{Intent, Registry, prune::must_be_known};

/// Largest lease that is read; a real one has about a kilobyte.
const LEASE_BYTES_MAX: u64 = 1 << 20;
/// Longest name of a node of celld.
const NODE_MAX: usize = 128;
/// How long a lease counts as live after it was written, by the store's clock: three lives of one.
const FRESH: Duration = Duration::from_secs(30);

#[derive(Debug, Deserialize)]
struct Lease {
    node: String,
    expires_ms: i64,
    #[serde(default)]
    log: Option<Log>,
}

#[derive(Debug, Deserialize)]
struct Log {
    state: String,
}

impl Registry {
    /// Removes the one lease of `node` among the processes of an application, if nobody can read it.
    ///
    /// # Errors
    /// `invalid-input` for what is no name of a node; `capability-missing` where a node runs a celld that this was not made for; `not-found`; `reference-held` for a lease that can be read, saying what
    /// becomes of it; store errors.
    pub async fn drop_celld_lease(&self, name: &ApplicationName, node: &str) -> Result<(), Problem> {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if node.is_empty() || node.len() > NODE_MAX || !node.bytes().all(legal) || node.starts_with('.') {
            let detail = "a lease is named by a node of celld: letters, digits, `-`, `_` and `.`";
            return Err(Problem::new(ProblemCode::InvalidInput, detail));
        }
        // A later celld may write leases that only look damaged to this build.
        must_be_known(&self.every_node().await?)?;
        let key = format!("{}/nodes/{node}.json", key::fleet(name));
        let lease = match self.engine().try_get(&key, LEASE_BYTES_MAX).await {
            Ok(None) => {
                let detail = format!("there is no lease `{key}`; the bucket shows which there are");
                return Err(Problem::new(ProblemCode::NotFound, detail));
            }
            Ok(Some(object)) => {
                let age = object.head.date.zip(object.head.last_modified).map(|(date, written)| date.since(written));
                let lease: Option<Lease> = serde_json::from_slice(&object.body).ok();
                lease.filter(|lease| lease.node == node).map(|lease| (lease, age))
            }
            // That it cannot be read says something about it only while other objects can be.
            Err(problem) => {
                self.meta().await?;
                tracing::warn!(key, ?problem, "the bucket does not give this lease");
                None
            }
        };
        match lease {
            None => self.engine().delete(&Intent::new(), &key).await,
            Some((lease, age)) => Err(readable(&key, &lease, age)),
        }
    }
}

fn readable(key: &str, lease: &Lease, age: Option<Duration>) -> Problem {
    let open = lease.log.as_ref().is_some_and(|log| matches!(log.state.as_str(), "open" | "recovering"));
    let why = if open {
        "it leads to writes that were acknowledged and are not recovered yet; start the application somewhere, which recovers them"
    } else if lease.expires_ms > 0 && age.is_some_and(|age| age < FRESH) {
        "a process lives by it, which its loss would end; stop the application there instead"
    } else {
        "every celld can read it and collects it once it has expired"
    };
    Problem::new(ProblemCode::ReferenceHeld, format!("`{key}` is a lease as it should be: {why}"))
}

#[cfg(test)]
mod tests {
    use scafo_core::Timestamp;

    use super::*;
    use crate::registry::testing::{World, put_raw};

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_dropped_only_when_nobody_can_read_it() {
        let world = World::new();
        let shop = "shop".parse().unwrap();
        let now = 1_800_000_000_000;
        world.memory.set_now(Timestamp::from_millis(now));
        let key = "fleets/shop/nodes/n.json";
        for (body, said) in [
            (format!(r#"{{ "node": "n", "expires_ms": {} }}"#, now + 5000), "a process lives by it"),
            (r#"{ "node": "n", "expires_ms": 1, "log": { "state": "open", "epoch": 1 } }"#.to_owned(), "not recovered"),
            (r#"{ "node": "n", "expires_ms": 1, "log": { "state": "recovering" } }"#.to_owned(), "not recovered"),
            (r#"{ "node": "n", "expires_ms": 0, "log": { "state": "sealed" } }"#.to_owned(), "collects it"),
        ] {
            put_raw(&world.memory, key, &body).await;
            put_raw(&world.memory, "fleets/shop/nodes/n2.json", "junk").await;
            let refused = world.registry.drop_celld_lease(&shop, "n").await.unwrap_err();
            assert!(refused.code == ProblemCode::ReferenceHeld && refused.detail.contains(said), "{body}: {refused}");
        }
        for body in
            ["", "<html>", "{}", r#"{ "node": "other", "expires_ms": 1 }"#, r#"{ "node": "n", "expires_ms": "x" }"#]
        {
            put_raw(&world.memory, key, body).await;
            world.registry.drop_celld_lease(&shop, "n").await.unwrap();
            assert_eq!(world.memory.keys("fleets/shop/nodes/"), ["fleets/shop/nodes/n2.json"], "{body}");
        }
        let refused = world.registry.drop_celld_lease(&shop, "n").await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::NotFound);
        for bad in ["", "../x", "a/b", ".", "n.json/..", "ä"] {
            let refused = world.registry.drop_celld_lease(&shop, bad).await.unwrap_err();
            assert_eq!(refused.code, ProblemCode::InvalidInput, "{bad}");
        }
    }
}

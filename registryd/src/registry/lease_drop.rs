//! Removing a lease of celld that no celld can read: `scafo app lease drop`.
//!
//! Kept true: a lease that can be read is never removed here. A live one is what keeps its node alive, and one with an open log
//! is the only way to writes that were acknowledged and not yet recovered; celld collects those that have expired itself.

use std::time::Duration;

use scafo_core::{ApplicationName, Problem, ProblemCode, key};
use scafo_store::{Error, Object};
use serde::Deserialize;

use super::{
    Intent, Registry,
    prune::{SERVED, must_be_known},
};

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
        must_be_known(&self.every_node(SERVED).await?)?;
        let key = format!("{}/nodes/{node}.json", key::fleet(name));
        let object = match self.engine().try_get(&key, LEASE_BYTES_MAX).await {
            Ok(object) => Some(object),
            // That it cannot be read says something about it only while other objects can be, and only if it stays so.
            Err(problem) => {
                self.meta().await?;
                tracing::warn!(key, ?problem, "the bucket does not give this lease; it is asked once more");
                self.read_again(&key).await?
            }
        };
        let lease = match object {
            Some(None) => {
                let detail = format!("there is no lease `{key}`; the bucket shows which there are");
                return Err(Problem::new(ProblemCode::NotFound, detail));
            }
            Some(Some(object)) => {
                let age = object.head.date.zip(object.head.last_modified).map(|(date, written)| date.since(written));
                let lease: Option<Lease> = serde_json::from_slice(&object.body).ok();
                lease.filter(|lease| lease.node == node).map(|lease| (lease, age))
            }
            None => None,
        };
        match lease {
            None => self.engine().delete(&Intent::new(), &key).await,
            Some((lease, age)) => Err(readable(&key, &lease, age)),
        }
    }

    /// A second look at what gave no answer; `None` when the store has trouble with this very object.
    ///
    /// # Errors
    /// Store errors that say nothing about the object: it may be read in a moment, or by others.
    async fn read_again(&self, key: &str) -> Result<Option<Option<Object>>, Problem> {
        let first = match self.engine().try_get(key, LEASE_BYTES_MAX).await {
            Ok(object) => return Ok(Some(object)),
            Err(problem) => problem,
        };
        match self.bucket().get_bounded(key, LEASE_BYTES_MAX).await {
            Ok(object) => Ok(Some(object)),
            Err(
                Error::Unavailable { .. }
                | Error::TooLarge { .. }
                | Error::Nonconforming { .. }
                | Error::Rejected { .. },
            ) => {
                tracing::warn!(key, problem = ?first, "the bucket does not give this lease");
                Ok(None)
            }
            Err(
                error @ (Error::Busy { .. }
                | Error::Denied { .. }
                | Error::ClockSkewed { .. }
                | Error::WrongRegion { .. }
                | Error::NoSuchBucket
                | Error::Misconfigured { .. }),
            ) => Err(error.into()),
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
    use scafo_store::{Fault, Operation};

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

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_gives_no_answer_for_a_while_stays_and_one_that_never_does_goes() {
        let shop = "shop".parse().unwrap();
        let key = "fleets/shop/nodes/n.json";
        let ever = Duration::MAX;
        for (fault, lasts, code) in [
            (Fault::LoseRequest, Duration::from_secs(40), Some(ProblemCode::ReferenceHeld)),
            (Fault::Busy, Duration::from_secs(40), Some(ProblemCode::ReferenceHeld)),
            (Fault::Busy, ever, Some(ProblemCode::StoreUnavailable)),
            (Fault::LoseRequest, ever, None),
        ] {
            let world = World::new();
            put_raw(&world.memory, key, r#"{ "node": "n", "expires_ms": 1 }"#).await;
            let began = tokio::time::Instant::now();
            world
                .memory
                .plan(move |operation| (operation == Operation::Get(key) && began.elapsed() < lasts).then_some(fault));
            let dropped = world.registry.drop_celld_lease(&shop, "n").await;
            assert_eq!(dropped.err().map(|problem| problem.code), code, "{fault:?} for {lasts:?}");
            assert_eq!(world.memory.keys(key).len(), usize::from(code.is_some()), "{fault:?} for {lasts:?}");
        }
    }
}

//! What people decide about one application: each a functional update that keeps everything else.
//!
//! All of them refuse an application that does not exist (`not-found`) or is being deleted (`reference-held`), and all may be
//! repeated. One whose answer was lost is recognised and not made again over what others have decided since.

use std::collections::BTreeMap;

use scafo_core::{
    ApplicationName, Problem, Timestamp,
    record::{ApplicationRecord, Replicas},
};

use super::Registry;

impl Registry {
    /// Stops an application on every node, or lets it serve again as before.
    ///
    /// # Errors
    /// `not-found`; `reference-held`; store errors.
    pub async fn set_blocked(&self, name: &ApplicationName, blocked: bool) -> Result<ApplicationRecord, Problem> {
        self.set(name, |record| record.blocked = blocked).await
    }

    /// Replaces all labels; none clears them.
    ///
    /// # Errors
    /// `not-found`; `reference-held`; store errors.
    pub async fn set_labels(
        &self,
        name: &ApplicationName,
        labels: &BTreeMap<String, String>,
    ) -> Result<ApplicationRecord, Problem> {
        self.set(name, |record| record.labels = Some(labels.clone()).filter(|labels| !labels.is_empty())).await
    }

    /// Retires an application or takes that back. Retiring twice keeps the first date, from which the grace counts.
    ///
    /// # Errors
    /// `not-found`; `reference-held`; store errors.
    pub async fn set_retired(&self, name: &ApplicationName, retired: bool) -> Result<ApplicationRecord, Problem> {
        let now: Timestamp = self.clock().wall();
        self.set(name, |record| record.retired_at = retired.then(|| record.retired_at.unwrap_or(now))).await
    }

    /// Limits the application to nodes with these labels; `None` lifts that. One that no node satisfies is for the
    /// coordinator to report, not for this to refuse.
    ///
    /// # Errors
    /// `not-found`; `reference-held`; store errors.
    pub async fn set_selector(
        &self,
        name: &ApplicationName,
        selector: Option<&BTreeMap<String, String>>,
    ) -> Result<ApplicationRecord, Problem> {
        self.set(name, |record| record.node_selector = selector.cloned()).await
    }

    /// How many nodes shall serve it.
    ///
    /// # Errors
    /// `not-found`; `reference-held`; store errors.
    pub async fn set_replicas(&self, name: &ApplicationName, replicas: Replicas) -> Result<ApplicationRecord, Problem> {
        self.set(name, |record| record.replicas = Some(replicas)).await
    }

    async fn set(
        &self,
        name: &ApplicationName,
        mut change: impl FnMut(&mut ApplicationRecord) + Send,
    ) -> Result<ApplicationRecord, Problem> {
        let mutate = |record: &mut ApplicationRecord| {
            change(record);
            Ok(())
        };
        Ok(self.update_application(&self.intent(), name, mutate).await?.stored.record)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::future::BoxFuture;
    use scafo_core::ProblemCode;

    use super::*;
    use crate::registry::testing::{World, put_raw};

    type Setter = for<'a> fn(&'a Registry, &'a ApplicationName) -> BoxFuture<'a, Result<ApplicationRecord, Problem>>;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    const SETTERS: &[(&str, Setter)] = &[
        ("block", |registry, name| Box::pin(registry.set_blocked(name, true))),
        ("unblock", |registry, name| Box::pin(registry.set_blocked(name, false))),
        ("labels", |registry, name| Box::pin(async { registry.set_labels(name, &map(&[("plan", "pro")])).await })),
        ("retire", |registry, name| Box::pin(registry.set_retired(name, true))),
        ("unretire", |registry, name| Box::pin(registry.set_retired(name, false))),
        ("selector", |registry, name| Box::pin(async { registry.set_selector(name, Some(&map(&[("a", "b")]))).await })),
        ("replicas", |registry, name| Box::pin(registry.set_replicas(name, Replicas::All))),
    ];

    #[tokio::test(start_paused = true)]
    async fn every_setter_keeps_what_it_does_not_own_and_refuses_what_is_missing_or_going() {
        for (what, setter) in SETTERS {
            let world = World::new();
            let shop = "shop".parse().unwrap();
            assert_eq!(setter(&world.registry, &shop).await.unwrap_err().code, ProblemCode::NotFound, "{what}");
            let raw = r#"{"v": 1, "name": "shop", "createdAt": "2026-01-01T00:00:00.000Z", "blocked": false,
                "domains": ["a.example"], "wildcardDomains": [], "later": 7}"#;
            put_raw(&world.memory, "_scafo/applications/shop.json", raw).await;
            let record = setter(&world.registry, &shop).await.unwrap();
            assert_eq!((record.domains.len(), &record.rest["later"]), (1, &7.into()), "{what}");
            assert_eq!(setter(&world.registry, &shop).await.unwrap(), record, "{what}: repeated");
            put_raw(
                &world.memory,
                "_scafo/applications/shop.json",
                &raw.replace("\"later\"", "\"deleting\": true, \"later\""),
            )
            .await;
            assert_eq!(setter(&world.registry, &shop).await.unwrap_err().code, ProblemCode::ReferenceHeld, "{what}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn setters_set_and_clear() {
        let world = World::new();
        let registry = &world.registry;
        let shop = "shop".parse().unwrap();
        registry.create_application(&shop).await.unwrap();
        assert!(registry.set_blocked(&shop, true).await.unwrap().blocked);
        assert!(!registry.set_blocked(&shop, false).await.unwrap().blocked);
        assert_eq!(registry.set_labels(&shop, &map(&[("a", "b")])).await.unwrap().labels, Some(map(&[("a", "b")])));
        assert_eq!(registry.set_labels(&shop, &map(&[])).await.unwrap().labels, None);
        let selector = map(&[("region", "eu")]);
        assert_eq!(registry.set_selector(&shop, Some(&selector)).await.unwrap().node_selector, Some(selector));
        assert_eq!(registry.set_selector(&shop, None).await.unwrap().node_selector, None);
        let since = registry.set_retired(&shop, true).await.unwrap().retired_at;
        registry.clock().sleep(Duration::from_secs(60)).await;
        assert_eq!(registry.set_retired(&shop, true).await.unwrap().retired_at, since, "the first date counts");
        assert_eq!(registry.set_retired(&shop, false).await.unwrap().retired_at, None);
    }
}

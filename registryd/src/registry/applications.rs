//! Application records, and what celld serves next.

use async_trait::async_trait;
use scafo_core::{
    ApplicationName, DeployId, DeploymentVersion, Problem, ProblemCode,
    key::{self, prefix},
    record::{ApplicationRecord, Published, Rest, V1},
};
use serde::Deserialize;

use super::{Changed, Guard, Intent, Kind, Registry, Step, Stored};

/// Largest fleet pointer that is read: four short members.
const POINTER_BYTES_MAX: u64 = 64 << 10;

/// What an application's celld processes serve next: celld's own object, which scafo only reads.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Pointer {
    /// The version that is published.
    pub version: DeploymentVersion,
}

impl Registry {
    /// Creates the application, as its first deploy does. An existing record comes back unchanged.
    ///
    /// # Errors
    /// Store errors.
    pub async fn create_application(&self, name: &ApplicationName) -> Result<Changed<ApplicationRecord>, Problem> {
        let record = ApplicationRecord {
            v: V1,
            name: name.clone(),
            created_at: self.clock().wall(),
            replicas: None,
            node_selector: None,
            labels: None,
            blocked: false,
            retired_at: None,
            deleting: None,
            domains: Vec::new(),
            wildcard_domains: Vec::new(),
            deployment: None,
            rest: Rest::new(),
        };
        self.engine().create(&Intent::new(), &record).await
    }

    /// The application, if there is one.
    ///
    /// # Errors
    /// Store errors.
    pub async fn application(&self, name: &ApplicationName) -> Result<Option<Stored<ApplicationRecord>>, Problem> {
        self.engine().try_load(&key::application(name)).await
    }

    /// The application, to be changed.
    ///
    /// # Errors
    /// `not-found`; `reference-held` while it is being deleted; store errors.
    pub(super) async fn present(&self, name: &ApplicationName) -> Result<ApplicationRecord, Problem> {
        let there = self.application(name).await?;
        alive(there.as_ref(), name).cloned()
    }

    /// Names of all applications that have a record, readable or not, sorted.
    ///
    /// # Errors
    /// Store errors.
    pub async fn application_names(&self) -> Result<Vec<ApplicationName>, Problem> {
        let listing = self.engine().list(prefix::APPLICATIONS).await?;
        let keys = listing.entries.iter().filter(|listed| ApplicationRecord::is_key(&listed.key));
        let mut names: Vec<ApplicationName> =
            keys.filter_map(|listed| key::name_of(&listed.key, prefix::APPLICATIONS)?.parse().ok()).collect();
        names.sort();
        Ok(names)
    }

    /// Changes an application, keeping what `mutate` does not touch. Its name never changes.
    ///
    /// # Errors
    /// `not-found`; `reference-held` while it is being deleted; what `mutate` refuses; store errors.
    pub async fn update_application(
        &self,
        intent: &Intent,
        name: &ApplicationName,
        mut mutate: impl FnMut(&mut ApplicationRecord) -> Result<(), Problem> + Send,
    ) -> Result<Changed<ApplicationRecord>, Problem> {
        let changed = self
            .engine()
            .change(intent, &key::application(name), None, |there: Option<&Stored<ApplicationRecord>>| {
                let mut record = alive(there, name)?.clone();
                mutate(&mut record)?;
                Ok(Step::Write(record))
            })
            .await?;
        // Also if nothing was left to write: whoever wrote it may have died before the hint.
        self.mint_hint();
        Ok(changed)
    }

    /// Makes `version` what the application is to serve, in the name of `deploy`: only while celld's pointer, read again
    /// before each try, names that very version.
    ///
    /// # Errors
    /// `not-found`; `reference-held` while it is being deleted; `cas-conflict` if the pointer names another version; store
    /// errors.
    pub async fn publish(
        &self,
        intent: &Intent,
        name: &ApplicationName,
        version: &DeploymentVersion,
        deploy: &DeployId,
    ) -> Result<Changed<ApplicationRecord>, Problem> {
        let guard = PointerNames { registry: self, name, version };
        let published = Published { version: version.clone(), deploy: deploy.clone(), rest: Rest::new() };
        let changed = self
            .engine()
            .change(intent, &key::application(name), Some(&guard), |there: Option<&Stored<ApplicationRecord>>| {
                let mut record = alive(there, name)?.clone();
                let rest = record.deployment.take().map(|before| before.rest).unwrap_or_default();
                record.deployment = Some(Published { rest, ..published.clone() });
                Ok(Step::Write(record))
            })
            .await?;
        self.mint_hint();
        Ok(changed)
    }

    /// celld's pointer of the application, if anything was ever published.
    ///
    /// # Errors
    /// `store-nonconforming` if the object is no pointer; store errors.
    pub async fn pointer(&self, name: &ApplicationName) -> Result<Option<Pointer>, Problem> {
        let key = key::fleet_pointer(name);
        let Some(object) = self.engine().try_get(&key, POINTER_BYTES_MAX).await? else { return Ok(None) };
        serde_json::from_slice(&object.body).map(Some).map_err(|error| {
            let detail = format!("`{key}` is no pointer of celld's: deploy `{name}` again to write it anew");
            Problem::new(ProblemCode::StoreNonconforming, detail).because(error)
        })
    }
}

fn alive<'a>(
    there: Option<&'a Stored<ApplicationRecord>>,
    name: &ApplicationName,
) -> Result<&'a ApplicationRecord, Problem> {
    let Some(stored) = there else {
        let detail = format!("there is no application `{name}`: its first deploy creates it");
        return Err(Problem::new(ProblemCode::NotFound, detail));
    };
    if stored.record.deleting == Some(true) {
        let detail = format!("application `{name}` is being deleted: wait for that to end");
        return Err(Problem::new(ProblemCode::ReferenceHeld, detail));
    }
    Ok(&stored.record)
}

struct PointerNames<'a> {
    registry: &'a Registry,
    name: &'a ApplicationName,
    version: &'a DeploymentVersion,
}

#[async_trait]
impl Guard for PointerNames<'_> {
    async fn check(&self) -> Result<(), Problem> {
        let (name, version) = (self.name, self.version);
        match self.registry.pointer(name).await? {
            Some(pointer) if pointer.version == *version => Ok(()),
            Some(pointer) => {
                let newer = pointer.version;
                let detail = format!("`{name}` has moved on to version `{newer}` since `{version}` was published");
                Err(Problem::new(ProblemCode::CasConflict, detail))
            }
            None => {
                let detail = format!("celld has no published version of `{name}`, so `{version}` cannot be served");
                Err(Problem::new(ProblemCode::CasConflict, detail))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::{World, put_raw};

    fn shop() -> ApplicationName {
        "shop".parse().unwrap()
    }

    async fn point(world: &World, version: &str) {
        put_raw(&world.memory, "fleets/shop/deploy/current.json", &format!(r#"{{"version": "{version}"}}"#)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_repeated_create_returns_the_record_unchanged() {
        let world = World::new();
        let first = world.registry.create_application(&shop()).await.unwrap();
        assert!(first.written);
        let again = world.registry.create_application(&shop()).await.unwrap();
        assert!(!again.written);
        assert_eq!(again.stored.record, first.stored.record);
    }

    #[tokio::test(start_paused = true)]
    async fn an_update_keeps_what_it_does_not_own() {
        let world = World::new();
        let raw = r#"{"v": 1, "name": "shop", "createdAt": "2026-01-01T00:00:00.000Z", "blocked": true,
            "domains": [], "wildcardDomains": [], "added later": {"a": [1]}}"#;
        put_raw(&world.memory, "_scafo/applications/shop.json", raw).await;
        point(&world, "v1").await;
        let (version, deploy) = ("v1".parse().unwrap(), DeployId::new(&shop(), 1));
        world.registry.publish(&Intent::new(), &shop(), &version, &deploy).await.unwrap();
        let record = world.registry.application(&shop()).await.unwrap().unwrap().record;
        assert!(record.blocked);
        assert_eq!(record.rest["added later"]["a"][0], 1);
        assert_eq!(record.deployment.unwrap().deploy, deploy);
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_version_that_the_pointer_names_is_published() {
        let world = World::new();
        let (version, deploy) = ("v1".parse().unwrap(), DeployId::new(&shop(), 1));
        let refused = world.registry.publish(&Intent::new(), &shop(), &version, &deploy).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::NotFound);
        world.registry.create_application(&shop()).await.unwrap();
        point(&world, "v2").await;
        let refused = world.registry.publish(&Intent::new(), &shop(), &version, &deploy).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::CasConflict);
        assert!(refused.detail.contains("`v2`"), "{refused}");
        put_raw(&world.memory, "fleets/shop/deploy/current.json", "<html>").await;
        let refused = world.registry.publish(&Intent::new(), &shop(), &version, &deploy).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::StoreNonconforming);
    }

    #[tokio::test(start_paused = true)]
    async fn setters_refuse_what_is_missing_or_going_and_never_rename() {
        let world = World::new();
        let set = |application: &mut ApplicationRecord| {
            application.blocked = true;
            Ok(())
        };
        let refused = world.registry.update_application(&Intent::new(), &shop(), set).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::NotFound);
        world.registry.create_application(&shop()).await.unwrap();
        let rename = |application: &mut ApplicationRecord| {
            application.name = "other".parse()?;
            Ok(())
        };
        let refused = world.registry.update_application(&Intent::new(), &shop(), rename).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::Immutable);
        let delete = |application: &mut ApplicationRecord| {
            application.deleting = Some(true);
            Ok(())
        };
        world.registry.update_application(&Intent::new(), &shop(), delete).await.unwrap();
        let refused = world.registry.update_application(&Intent::new(), &shop(), set).await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::ReferenceHeld);
    }

    #[tokio::test(start_paused = true)]
    async fn foreign_objects_beside_the_applications_are_skipped() {
        let world = World::new();
        world.registry.create_application(&shop()).await.unwrap();
        for stray in ["", "ü %.json", "\u{1}.json", "Shop.json", "shop/x.json"] {
            put_raw(&world.memory, &format!("_scafo/applications/{stray}"), "{}").await;
        }
        assert_eq!(world.registry.application_names().await.unwrap(), [shop()]);
    }
}

//! Removing what celld keeps of deployments that nobody needs any more: `scafo deployment prune`.
//!
//! Kept true: nothing goes that a kept deployment names, and nothing that is younger than asked for. celld shares the files of
//! assets between deployments and leaves out of an upload what is there already, so nobody may deploy meanwhile: deploys have to
//! be frozen, and the freeze that stood at the beginning is looked for again before each batch that goes. What is read here is celld's
//! own and may change with its releases; where something is not as expected nothing is removed at all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use scafo_core::record::{DeployRecord, DeploymentRecord, FreezeRecord, NodeRecord};
use scafo_core::{ApplicationName, DeploymentVersion, Problem, ProblemCode, Timestamp, key};
use scafo_store::{Listed, Walk};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Cache, Intent, Registry, Stored, objects::BATCH};

/// Releases whose keyspaces this was written against, as `celld --version` spells them; the last one is the stand-in's.
const VERIFIED: [&str; 3] = ["0.4.0", "0.6.0", "celld-workerd 0.6.0"];
/// Largest manifest that is read: a thousand modules have about 200 KiB.
const MANIFEST_BYTES_MAX: u64 = 16 << 20;
/// Largest index of assets that is read: a hundred thousand files.
const INDEX_BYTES_MAX: u64 = 32 << 20;
/// The newest form of a manifest that is known here.
const SCHEMA_MAX: u64 = 2;

/// What is not known of a node whose record cannot be read.
pub(super) const SERVED: &str = "what that node serves is not known";

/// What shall stay.
#[derive(Debug, Clone, Copy)]
pub struct Prune<'a> {
    /// Of which application.
    pub application: &'a ApplicationName,
    /// So many of the newest deployments.
    pub keep: usize,
    /// Whatever was written within this time, by the store's clock.
    pub younger_than: Duration,
    /// Only look.
    pub dry_run: bool,
}

/// What was removed, or would be.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Pruned {
    /// Deployments, by version.
    pub versions: BTreeSet<String>,
    /// How many objects.
    pub objects: usize,
    /// How many bytes they have.
    pub bytes: u64,
    /// Whether they are still there.
    pub dry_run: bool,
}

#[derive(Debug, Deserialize)]
struct Manifest {
    #[serde(default)]
    schema_version: Option<u64>,
    #[serde(default)]
    assets: Option<Value>,
}

#[derive(Debug, Deserialize)]
struct Index {
    entries: BTreeMap<String, Asset>,
}

#[derive(Debug, Deserialize)]
struct Asset {
    sha256: String,
}

#[derive(Debug, Deserialize)]
struct Names {
    version: String,
}

impl Registry {
    /// Removes from the bucket what is left of deployments that are neither served nor among the newest nor young.
    ///
    /// # Errors
    /// `not-found`; `reference-held` while deploys are not frozen or one is under way, and when the freeze is lifted in the middle;
    /// `capability-missing` where a node runs a celld that this was not made for; `store-nonconforming` for anything that is not as
    /// celld is known to write it; store errors. Only after the last and after a freeze that was lifted something may have been
    /// removed, and a repeated call goes on.
    pub async fn prune_deployments(&self, prune: &Prune<'_>) -> Result<Pruned, Problem> {
        let name = prune.application;
        let application = self.present(name).await?;
        let freeze = if prune.dry_run { None } else { Some(self.must_be_quiet(name).await?) };
        let nodes = self.every_node(SERVED).await?;
        must_be_known(&nodes)?;
        let fleet = format!("{}/", key::fleet(name));
        let there = self.deployments_there(&fleet, prune.younger_than).await?;
        let mut kept: BTreeSet<String> = nodes
            .iter()
            .flat_map(|node| &node.serving)
            .filter(|serving| serving.application == *name)
            .filter_map(|serving| serving.deployment.as_ref().map(ToString::to_string))
            .collect();
        kept.extend(application.deployment.map(|published| published.version.to_string()));
        kept.extend(self.newest(name, prune.keep).await?);
        kept.extend(self.named_by_pointers(&there.pointers).await?);
        let young = there.by_prefix.values().filter(|deployment| !deployment.old);
        kept.extend(young.map(|deployment| deployment.version.clone()));
        let (staying, going): (Vec<_>, Vec<_>) =
            there.by_prefix.iter().partition(|(_, deployment)| kept.contains(&deployment.version));
        let staying: Vec<&str> = staying.into_iter().map(|(prefix, _)| prefix.as_str()).collect();
        let named = self.named_by(&staying).await?;
        // From here on nothing is read that could be other than expected.
        let mut pruned = Pruned { dry_run: prune.dry_run, ..Pruned::default() };
        pruned.versions = going.iter().map(|(_, deployment)| deployment.version.clone()).collect();
        let going: BTreeSet<&str> = going.into_iter().map(|(prefix, _)| prefix.as_str()).collect();
        if let Some(freeze) = &freeze {
            self.remove_records(name, &pruned.versions, freeze).await?;
        }
        let spare = |object: &Listed| match of_deployment(&object.key, &fleet) {
            Some((prefix, _)) => going.contains(prefix),
            None => image(&object.key, &fleet)
                .is_some_and(|id| !named.manifests.iter().any(|manifest| manifest.contains(id))),
        };
        let old = |object: &Listed| is_old(object, prune.younger_than);
        let deployments = format!("{fleet}deploy/");
        self.remove_where(&deployments, freeze.as_ref(), &mut pruned, |object| old(object) && spare(object)).await?;
        let spare = |file: &Listed| !named.assets.contains(file.key.rsplit('/').next().unwrap_or_default());
        let files = format!("{fleet}deploy-blobs/assets/sha256/");
        self.remove_where(&files, freeze.as_ref(), &mut pruned, |file| old(file) && spare(file)).await?;
        Ok(pruned)
    }

    /// What a walk over the deployments of a fleet shows, however many objects they have.
    async fn deployments_there(&self, fleet: &str, younger_than: Duration) -> Result<There, Problem> {
        let (mut there, mut walk) = (There::default(), Walk::default());
        loop {
            let page = self.engine().page(&mut walk, &format!("{fleet}deploy/")).await?;
            for object in &page.entries {
                if object.key.ends_with("/current.json") {
                    there.pointers.push(object.key.clone());
                }
                let Some((prefix, version)) = of_deployment(&object.key, fleet) else { continue };
                let old = is_old(object, younger_than);
                match there.by_prefix.get_mut(prefix) {
                    Some(deployment) => deployment.old &= old,
                    None => {
                        let deployment = Written { version: version.to_owned(), old };
                        there.by_prefix.insert(prefix.to_owned(), deployment);
                    }
                }
            }
            if page.next.is_none() {
                return Ok(there);
            }
        }
    }

    /// Removes what is `spare` under a prefix, page by page, or only counts it where there is no freeze to do it under.
    async fn remove_where(
        &self,
        prefix: &str,
        freeze: Option<&Stored<FreezeRecord>>,
        pruned: &mut Pruned,
        spare: impl Fn(&Listed) -> bool + Send + Sync,
    ) -> Result<(), Problem> {
        let mut walk = Walk::default();
        loop {
            let page = self.engine().page(&mut walk, prefix).await?;
            let last = page.next.is_none();
            let spare: Vec<Listed> = page.entries.into_iter().filter(&spare).collect();
            pruned.objects += spare.len();
            pruned.bytes += spare.iter().map(|object| object.size).sum::<u64>();
            if let Some(freeze) = freeze {
                let keys: Vec<String> = spare.into_iter().map(|object| object.key).collect();
                self.remove_under(freeze, &keys).await?;
            }
            if last {
                return Ok(());
            }
        }
    }

    /// The records first: one that is gone is named by nobody, and what it named goes with the next call at the latest.
    async fn remove_records(
        &self,
        name: &ApplicationName,
        versions: &BTreeSet<String>,
        freeze: &Stored<FreezeRecord>,
    ) -> Result<(), Problem> {
        let versions = versions.iter().filter_map(|version| version.parse::<DeploymentVersion>().ok());
        let records: Vec<String> = versions.map(|version| key::deployment(name, &version)).collect();
        self.remove_under(freeze, &records).await
    }

    /// Removes these, batch by batch, while the very freeze stands under which it was found out what may go: under another one there
    /// may have been a deploy in between.
    async fn remove_under(&self, freeze: &Stored<FreezeRecord>, keys: &[String]) -> Result<(), Problem> {
        for batch in keys.chunks(BATCH) {
            let stands = self.frozen().await?;
            // Two freezes of one moment have the same body, and only their write ids tell them apart.
            if !stands.is_some_and(|stands| stands.write_id == freeze.write_id && stands.etag == freeze.etag) {
                let detail = "the freeze was lifted before this was done, and what was not removed until then stays: \
                    freeze deploys with `scafo fleet freeze` and run this again; if the application was deployed meanwhile, \
                    deploy it once more after that";
                return Err(not_frozen(detail));
            }
            self.engine().delete_many(&Intent::new(), batch).await?;
        }
        Ok(())
    }

    /// The freeze under which nothing of the application is deployed.
    async fn must_be_quiet(&self, name: &ApplicationName) -> Result<Stored<FreezeRecord>, Problem> {
        let Some(freeze) = self.frozen().await? else {
            let detail = "a deploy in the middle of this could lose its files: freeze deploys with `scafo fleet freeze` until it is done";
            return Err(not_frozen(detail));
        };
        let mut deploys: Cache<DeployRecord> = Cache::under(key::deploys(name));
        deploys.refresh_whole(self.engine(), "whether that deploy is under way is not known").await?;
        match deploys.iter().find(|stored| !stored.record.state.is_terminal()) {
            None => Ok(freeze),
            Some(stored) => {
                let detail = format!("deploy `{}` is still under way: wait for its end", stored.record.id);
                Err(Problem::new(ProblemCode::ReferenceHeld, detail))
            }
        }
    }

    /// Every node of the fleet. `unknown` says what is not known where one cannot be read.
    ///
    /// # Errors
    /// `store-nonconforming` where one cannot be read; store errors.
    pub(super) async fn every_node(&self, unknown: &str) -> Result<Vec<NodeRecord>, Problem> {
        let mut nodes: Cache<NodeRecord> = Cache::default();
        nodes.refresh_whole(self.engine(), unknown).await?;
        Ok(nodes.iter().map(|stored| stored.record.clone()).collect())
    }

    async fn newest(&self, name: &ApplicationName, keep: usize) -> Result<Vec<String>, Problem> {
        let mut deployments: Cache<DeploymentRecord> = Cache::under(key::deployments(name));
        deployments.refresh_whole(self.engine(), "whether it is among the newest is not known").await?;
        let mut deployments: Vec<_> = deployments.iter().map(|stored| &stored.record).collect();
        deployments.sort_by_key(|deployment| std::cmp::Reverse(deployment.created_at));
        Ok(deployments.into_iter().take(keep).map(|deployment| deployment.version.to_string()).collect())
    }

    /// The versions that celld's pointers name: the one of the fleet, and those of scripts that serve others.
    async fn named_by_pointers(&self, pointers: &[String]) -> Result<Vec<String>, Problem> {
        let mut versions = Vec::new();
        for key in pointers {
            versions.push(self.read::<Names>(key, MANIFEST_BYTES_MAX).await?.0.version);
        }
        Ok(versions)
    }

    /// What the deployments under these prefixes name.
    async fn named_by(&self, prefixes: &[&str]) -> Result<Named, Problem> {
        let mut named = Named::default();
        for prefix in prefixes {
            let (manifest, text) = self.read::<Manifest>(&format!("{prefix}manifest.json"), MANIFEST_BYTES_MAX).await?;
            if manifest.schema_version.is_some_and(|version| version > SCHEMA_MAX) {
                return Err(unknown(&format!("{prefix}manifest.json"), "it is of a later form"));
            }
            named.manifests.push(text);
            if manifest.assets.is_some_and(|assets| !assets.is_null()) {
                let (index, _) = self.read::<Index>(&format!("{prefix}assets.json"), INDEX_BYTES_MAX).await?;
                named.assets.extend(index.entries.into_values().map(|asset| asset.sha256));
            }
        }
        Ok(named)
    }

    async fn read<T: for<'de> Deserialize<'de>>(&self, key: &str, limit: u64) -> Result<(T, String), Problem> {
        let object = self.engine().try_get(key, limit).await?.ok_or_else(|| unknown(key, "it is not there"))?;
        let text = String::from_utf8(object.body.to_vec()).map_err(|_| unknown(key, "it is no text"))?;
        let value = serde_json::from_str(&text).map_err(|error| unknown(key, &error.to_string()))?;
        Ok((value, text))
    }
}

#[derive(Debug, Default)]
struct Named {
    /// Digests of files.
    assets: BTreeSet<String>,
    /// As they stand, for what is named somewhere in them.
    manifests: Vec<String>,
}

/// What there is of an application's deployments.
#[derive(Debug, Default)]
struct There {
    by_prefix: BTreeMap<String, Written>,
    /// Keys of celld's pointers.
    pointers: Vec<String>,
}

#[derive(Debug)]
struct Written {
    version: String,
    /// Whether all of its objects are old enough to go.
    old: bool,
}

fn not_frozen(detail: &str) -> Problem {
    Problem::new(ProblemCode::ReferenceHeld, detail).titled("Deploys are not frozen")
}

/// Refuses a fleet in which a celld runs that was not looked at.
pub(super) fn must_be_known(nodes: &[NodeRecord]) -> Result<(), Problem> {
    let stranger = nodes.iter().find_map(|node| {
        let version = node.celld_version.as_deref()?;
        let bare = version.strip_prefix("celld ").unwrap_or(version);
        (!VERIFIED.contains(&bare)).then(|| (node.id.clone(), version.to_owned()))
    });
    match stranger {
        None => Ok(()),
        Some((node, version)) => {
            let detail = format!(
                "node `{node}` runs {version}, and what that release keeps in the bucket was not looked at yet; known are {}",
                VERIFIED.join(", ")
            );
            Err(Problem::new(ProblemCode::CapabilityMissing, detail))
        }
    }
}

/// The prefix and the version of the deployment that an object belongs to: `deploy/<script>/<version>/…`. What queues read is
/// none of it.
fn of_deployment<'a>(key: &'a str, fleet: &str) -> Option<(&'a str, &'a str)> {
    let below = key.strip_prefix(fleet)?.strip_prefix("deploy/")?;
    let (script, rest) = below.split_once('/')?;
    let (version, object) = rest.split_once('/')?;
    (script != "queues" && script != "images").then(|| (&key[..key.len() - object.len()], version))
}

/// The id of the image that an object is.
fn image<'a>(key: &'a str, fleet: &str) -> Option<&'a str> {
    let id = key.strip_prefix(fleet)?.strip_prefix("deploy/images/")?.strip_suffix(".tar")?;
    (!id.contains('/')).then_some(id)
}

/// Whether an object is older than `age` by the store's own clock; one of unknown age is not.
fn is_old(object: &Listed, age: Duration) -> bool {
    let written: Option<(Timestamp, Timestamp)> = object.date.zip(object.last_modified);
    written.is_some_and(|(date, written)| date.since(written) > age)
}

fn unknown(key: &str, why: &str) -> Problem {
    let detail = format!("`{key}` is not as celld is known to write it ({why}); nothing was removed");
    Problem::new(ProblemCode::StoreNonconforming, detail)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use futures_util::FutureExt as _;
    use scafo_store::{Bucket as _, Fault, LIST_KEYS_MAX, MemoryBucket, Operation};
    use tokio::sync::Notify;

    use super::*;
    use crate::registry::testing::{World, deployment, node, put_raw};

    const DAY: Duration = Duration::from_hours(24);

    fn shop() -> ApplicationName {
        "shop".parse().unwrap()
    }

    async fn published(world: &World, version: &str, asset: &str) {
        let put = |name: &str, body: String| {
            let key = format!("fleets/shop/deploy/shop/{version}/{name}");
            async move { put_raw(&world.memory, &key, &body).await }
        };
        put(
            "manifest.json",
            format!(
                r#"{{ "schema_version": 2, "version": "{version}", "assets": {{}}, "containers": ["img-{version}"] }}"#
            ),
        )
        .await;
        put("assets.json", format!(r#"{{ "schema_version": 1, "entries": {{ "/a": {{ "sha256": "{asset}" }}, "/b": {{ "sha256": "shared" }} }} }}"#)).await;
        put("index.js", "export default {}".to_owned()).await;
        for asset in [asset, "shared"] {
            put_raw(&world.memory, &format!("fleets/shop/deploy-blobs/assets/sha256/aa/{asset}"), "x").await;
        }
        put_raw(&world.memory, &format!("fleets/shop/deploy/images/img-{version}.tar"), "x").await;
        let number = version.trim_start_matches('v').parse().unwrap();
        world.registry.record_deployment(&deployment(world, version, number)).await.unwrap();
    }

    /// Four old deployments, of which `v4` is the one that is pointed to and `v3` the one that a node serves; and what else
    /// celld keeps.
    async fn world() -> World {
        let world = World::new();
        world.memory.set_page_keys(5);
        let at = |days: i64| Timestamp::from_millis(1_800_000_000_000 + days * 86_400_000);
        world.memory.set_now(at(0));
        world.registry.create_application(&shop()).await.unwrap();
        for version in ["v1", "v2", "v3", "v4"] {
            published(&world, version, &format!("only-{version}")).await;
        }
        for key in ["fleets/shop/deploy/current.json", "fleets/shop/deploy/shop/current.json"] {
            put_raw(&world.memory, key, r#"{ "version": "v4", "prefix": "deploy/shop/v4" }"#).await;
        }
        for other in ["deploy/queues/jobs/consumer.json", "nodes/n.json", "cells/a/own.json", "r2/b/k"] {
            put_raw(&world.memory, &format!("fleets/shop/{other}"), "{}").await;
        }
        put_raw(&world.memory, "fleets/shop-2/deploy/shop/v1/manifest.json", "{}").await;
        let mut serving = node("a", 1);
        serving.serving = serde_json::from_str(
            r#"[{ "application": "shop", "port": 1, "deployment": "v3", "state": "ready", "since": "2026-04-01T12:30:00.000Z" }]"#,
        )
        .unwrap();
        put_raw(&world.memory, "_scafo/nodes/a.json", &serde_json::to_string(&serving).unwrap()).await;
        world.memory.set_now(at(40));
        world
    }

    fn prune(shop: &ApplicationName) -> Prune<'_> {
        Prune { application: shop, keep: 0, younger_than: 30 * DAY, dry_run: false }
    }

    #[tokio::test(start_paused = true)]
    async fn a_prune_removes_what_no_kept_deployment_needs_and_nothing_else() {
        let world = world().await;
        let name = shop();
        let before = world.memory.keys("");
        let looked = world.registry.prune_deployments(&Prune { dry_run: true, ..prune(&name) }).await.unwrap();
        assert_eq!(looked.versions, ["v1", "v2"].map(str::to_owned).into());
        assert_eq!(world.memory.keys(""), before, "a look changes nothing");
        let unfrozen = world.registry.prune_deployments(&prune(&name)).await.unwrap_err();
        assert_eq!((unfrozen.code, unfrozen.title()), (ProblemCode::ReferenceHeld, "Deploys are not frozen"));
        world.registry.freeze("op", None).await.unwrap();

        let done = world.registry.prune_deployments(&prune(&name)).await.unwrap();
        assert_eq!((done.objects, &done.versions), (looked.objects, &looked.versions));
        let after = world.memory.keys("");
        let gone: Vec<&String> = before.iter().filter(|key| !after.contains(key)).collect();
        for key in &gone {
            let of_pruned = ["/v1/", "/v2/", "only-v1", "only-v2", "img-v1", "img-v2", "/v1.json", "/v2.json"];
            assert!(of_pruned.iter().any(|part| key.contains(part)) && !key.contains("shop-2"), "{key}");
        }
        // Three objects each, a file, an image, and a record.
        assert_eq!(gone.len(), 12, "{gone:?}");
        assert_eq!(
            world.registry.prune_deployments(&prune(&name)).await.unwrap().objects,
            0,
            "there is nothing left to do"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_prune_goes_through_more_than_a_listing_holds() {
        let world = world().await;
        world.memory.set_page_keys(1000);
        let at = |days: i64| Timestamp::from_millis(1_800_000_000_000 + days * 86_400_000);
        world.memory.set_now(at(0));
        for number in 0..=LIST_KEYS_MAX {
            put_raw(&world.memory, &format!("fleets/shop/deploy-blobs/assets/sha256/bb/{number}"), "x").await;
        }
        world.memory.set_now(at(40));
        world.registry.freeze("op", None).await.unwrap();
        let done = world.registry.prune_deployments(&prune(&shop())).await.unwrap();
        assert!(done.objects > LIST_KEYS_MAX && done.versions.len() == 2, "{done:?}");
        assert_eq!(world.memory.keys("fleets/shop/deploy-blobs/assets/sha256/bb/"), Vec::<String>::new());
        assert_eq!(world.memory.keys("fleets/shop/deploy-blobs/assets/sha256/aa/").len(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_young_or_among_the_newest_stays() {
        let world = world().await;
        let name = shop();
        world.registry.freeze("op", None).await.unwrap();
        let look = |keep, younger_than| Prune { keep, younger_than, dry_run: true, ..prune(&name) };
        assert!(world.registry.prune_deployments(&look(0, 60 * DAY)).await.unwrap().versions.is_empty());
        assert!(world.registry.prune_deployments(&look(9, DAY)).await.unwrap().versions.is_empty());
        put_raw(&world.memory, "fleets/shop/deploy/shop/v1/late.js", "x").await;
        let versions = world.registry.prune_deployments(&look(0, 30 * DAY)).await.unwrap().versions;
        assert_eq!(versions, ["v2".to_owned()].into());
    }

    /// Ends a prune at its request number `at`. Answers whether it came that far.
    async fn cut_off(memory: &MemoryBucket, at: u64, fault: Fault) -> bool {
        let crashed = World::on(memory.sibling());
        let (crash, came) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
        let (trigger, reached) = (Arc::clone(&crash), Arc::clone(&came));
        let mut requests = 0;
        crashed.memory.plan(move |_| {
            requests += 1;
            (requests == at).then(|| {
                reached.store(true, Ordering::Relaxed);
                trigger.notify_one();
                fault
            })
        });
        let name = shop();
        let request = prune(&name);
        tokio::select! {
            biased;
            () = crash.notified() => {}
            pruned = crashed.registry.prune_deployments(&request) => drop(pruned),
        }
        came.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn a_prune_cut_off_at_any_request_is_ended_by_the_next() {
        let whole = world().await;
        whole.registry.freeze("op", None).await.unwrap();
        whole.registry.prune_deployments(&prune(&shop())).await.unwrap();
        let wanted = whole.memory.keys("_scafo/deployments/").into_iter().chain(whole.memory.keys("fleets/"));
        let wanted: Vec<String> = wanted.collect();
        for fault in [Fault::LoseRequest, Fault::LoseAnswer] {
            let mut at = 1;
            loop {
                let world = world().await;
                world.registry.freeze("op", None).await.unwrap();
                let reached = cut_off(&world.memory, at, fault).await;
                world.registry.prune_deployments(&prune(&shop())).await.unwrap();
                let left = world.memory.keys("_scafo/deployments/").into_iter().chain(world.memory.keys("fleets/"));
                assert_eq!(left.collect::<Vec<_>>(), wanted, "{fault:?} at request {at}");
                if !reached {
                    break;
                }
                at += 1;
            }
            assert!(at > 14, "each removal was cut off: {at}");
        }
    }

    /// Lifts the freeze right before a prune's listing number `at`, or puts another in its place. Answers whether it came that far,
    /// and counts what the prune removes before and after it.
    fn lift_at(world: &World, at: usize, another: bool) -> Arc<[AtomicUsize; 3]> {
        let other = world.sibling();
        let mut lift = Some(
            async move {
                other.registry.unfreeze().await.unwrap();
                if another {
                    other.registry.freeze("op", None).await.unwrap();
                }
            }
            .boxed(),
        );
        let counts = Arc::new([const { AtomicUsize::new(0) }; 3]);
        let seen = Arc::clone(&counts);
        let mut listings = 0;
        world.memory.plan(move |operation| {
            listings += usize::from(matches!(operation, Operation::List(_)));
            if listings == at
                && let Some(mut lift) = lift.take()
            {
                // A bucket in memory is done after some polls, and nobody else has a turn meanwhile.
                while lift.as_mut().now_or_never().is_none() {}
                seen[0].store(1, Ordering::Relaxed);
            }
            let after = seen[0].load(Ordering::Relaxed);
            seen[1 + after].fetch_add(usize::from(matches!(operation, Operation::Delete(_))), Ordering::Relaxed);
            None
        });
        counts
    }

    #[tokio::test(start_paused = true)]
    async fn a_prune_ends_where_its_freeze_is_lifted_and_a_repeated_one_goes_on() {
        let whole = world().await;
        whole.registry.freeze("op", None).await.unwrap();
        whole.registry.prune_deployments(&prune(&shop())).await.unwrap();
        let left = |world: &World| [world.memory.keys("_scafo/deployments/"), world.memory.keys("fleets/")];
        let mut begun = 0;
        for another in [false, true] {
            for at in 1.. {
                let world = world().await;
                world.registry.freeze("op", None).await.unwrap();
                let counts = lift_at(&world, at, another);
                let pruned = world.registry.prune_deployments(&prune(&shop())).await;
                let [reached, before, after] = [0, 1, 2].map(|count| counts[count].load(Ordering::Relaxed));
                if reached == 0 {
                    break;
                }
                assert_eq!(after, 0, "at listing {at}");
                if let Err(refused) = pruned {
                    begun += usize::from(before > 0);
                    assert_eq!((refused.code, refused.title()), (ProblemCode::ReferenceHeld, "Deploys are not frozen"));
                    assert!(refused.detail.contains("run this again"), "{refused}");
                } else {
                    assert_eq!(left(&world), left(&whole), "at listing {at} nothing was left to remove");
                }
                world.registry.freeze("op", None).await.unwrap();
                world.registry.prune_deployments(&prune(&shop())).await.unwrap();
                assert_eq!(left(&world), left(&whole), "at listing {at}");
            }
        }
        assert!(begun > 4, "some were in the middle: {begun}");
    }

    #[tokio::test(start_paused = true)]
    async fn where_something_is_not_as_expected_nothing_is_removed() {
        for (key, body) in [
            ("fleets/shop/deploy/current.json", "<html>"),
            ("fleets/shop/deploy/shop/v4/manifest.json", r#"{ "schema_version": 3 }"#),
            ("fleets/shop/deploy/shop/v3/assets.json", "{}"),
            ("_scafo/nodes/b.json", "{}"),
            ("_scafo/deploys/shop/shop.0123456789abcdef.json", r#"{ "v": 2, "state": "uploading" }"#),
            ("_scafo/deployments/shop/v1.json", r#"{ "v": 1 "#),
        ] {
            let world = world().await;
            world.registry.freeze("op", None).await.unwrap();
            put_raw(&world.memory, key, body).await;
            let before = world.memory.keys("");
            let refused = world.registry.prune_deployments(&prune(&shop())).await.unwrap_err();
            assert_eq!(refused.code, ProblemCode::StoreNonconforming, "{key}");
            assert_eq!(world.memory.keys(""), before, "{key}");
        }
        let world = world().await;
        world.registry.freeze("op", None).await.unwrap();
        let mut stranger = node("b", 2);
        stranger.celld_version = Some("celld 0.9.0".to_owned());
        put_raw(&world.memory, "_scafo/nodes/b.json", &serde_json::to_string(&stranger).unwrap()).await;
        let refused = world.registry.prune_deployments(&prune(&shop())).await.unwrap_err();
        assert!(refused.code == ProblemCode::CapabilityMissing && refused.detail.contains("`b`"), "{refused}");
        assert!(world.memory.head("fleets/shop/deploy/shop/v1/manifest.json").await.unwrap().is_some());
    }
}

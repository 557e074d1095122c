//! What has been kept for long enough: deployment records and observations. Decisions here are pure and read nothing but
//! keys and the store's own dates; the sweep beside them asks for the lease before each delete.
//!
//! A deployment record goes when nothing serves its version, fifty newer ones stand, and it is older than thirty days. An
//! observation goes with its whole hour. What does not look like either is left alone: it is not scafo's to delete.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use scafo_core::key::prefix::{DEPLOYMENTS, OBSERVE};
use scafo_core::observation::ObservationKey;
use scafo_core::{ApplicationName, DeploymentVersion, Problem, ProblemCode, Timestamp, key};
use scafo_store::{ListRequest, Listed, Walk};

use super::{Holder, Lead};
use crate::daemon::Core;
use crate::node::world::World;
use crate::registry::{Guard as _, Intent};

/// Deployment records of an application that stay whatever their age.
const NEWEST: usize = 50;
/// Deployment records stay for this long whatever their number.
const AGE: Duration = Duration::from_hours(30 * 24);
/// In how many sweeps the observations of all nodes are looked at: two days of them. Each node costs several listings, and those of
/// one are small beside what one more day of observations is.
const SWEEPS_OF_ALL: usize = 192;
/// Keys deleted with one look at the lease; a batch is as large as one request of the store takes.
const BATCH: usize = 1000;
/// Listings of one sweep for observations: those of a hundred nodes at rest.
const LISTINGS_MAX: usize = 500;
/// Observations that one sweep removes: a quarter of an hour of a thousand nodes, and some.
const KEYS_MAX: usize = 20_000;

/// How far the sweep over the deployment records is.
#[derive(Debug, Default)]
pub(super) struct Pages {
    walk: Walk,
    /// Pages of this round so far.
    taken: u32,
    /// Pages of the last round.
    before: u32,
}

impl Pages {
    /// Pages of the round that has ended last.
    pub(super) const fn ended(&self) -> u32 {
        self.before
    }
}

/// Removes deployment records that have been kept for long enough.
///
/// # Errors
/// `lease-lost`; store errors. The next sweep goes on with the page that is due; what was at hand waits for the next round.
pub(super) async fn deployments(core: &Core, lead: &Lead, world: &World, pages: &mut Pages) -> Result<(), Problem> {
    Sweep::new(core, lead).deployments(world, pages).await
}

/// How far a sweep of observations came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Each of its nodes has had its turn.
    Over,
    /// One of them has more than a sweep removes, and the next sweep begins with it. It should not wait for long: a node that writes
    /// every second has more in a round over all of them than a sweep would take.
    Unfinished,
}

/// Removes observations that have been kept for long enough, of those nodes whose turn it is. `done` is who had it last.
///
/// # Errors
/// `lease-lost`; store errors. The next sweep goes on.
pub(super) async fn observations(core: &Core, lead: &Lead, done: &mut Option<String>) -> Result<Turn, Problem> {
    Sweep::new(core, lead).observations(done).await
}

/// What one sweep may still do about observations.
struct Left {
    listings: usize,
    keys: usize,
}

impl Left {
    /// Takes one listing, if there is one and something may still be removed.
    const fn listing(&mut self) -> bool {
        if self.listings == 0 || self.keys == 0 {
            return false;
        }
        self.listings -= 1;
        true
    }
}

struct Sweep<'a> {
    core: &'a Core,
    intent: Intent,
    holder: Holder<'a>,
}

impl<'a> Sweep<'a> {
    fn new(core: &'a Core, lead: &Lead) -> Self {
        Self { core, intent: Intent::new().under(lead.authority.clone()), holder: Holder::new(core, lead.fence) }
    }

    /// Page by page, one application in memory at a time: there may be many times more records than a whole listing holds. Of an
    /// application in whose middle the last sweep was cut short, this one sees the rest only, and fifty of that stay.
    async fn deployments(&self, world: &World, pages: &mut Pages) -> Result<(), Problem> {
        let served = served(world);
        let mut group: Option<(ApplicationName, Vec<Listed>)> = None;
        loop {
            let page = self.core.registry.engine().page(&mut pages.walk, DEPLOYMENTS).await.inspect_err(|problem| {
                if problem.code != ProblemCode::StoreUnavailable {
                    pages.taken = 0;
                }
            })?;
            pages.taken += 1;
            for listed in page.entries {
                let Some((name, _)) = deployment_of(&listed.key) else { continue };
                match &mut group {
                    Some((current, rows)) if *current == name => rows.push(listed),
                    _ => {
                        if let Some((name, rows)) = group.replace((name, vec![listed])) {
                            self.deployments_of(&name, &rows, served.get(&name)).await?;
                        }
                    }
                }
            }
            if page.next.is_none() {
                pages.before = std::mem::take(&mut pages.taken);
                break;
            }
        }
        match group {
            Some((name, rows)) => self.deployments_of(&name, &rows, served.get(&name)).await,
            None => Ok(()),
        }
    }

    /// `served` is from the beginning of the sweep, which may be minutes ago, and a version that is deployed again keeps the record
    /// that it has, and its date. So the application is asked once more right before each batch; one that cannot be read, or is gone,
    /// keeps what it has.
    async fn deployments_of(
        &self,
        name: &ApplicationName,
        rows: &[Listed],
        served: Option<&BTreeSet<DeploymentVersion>>,
    ) -> Result<(), Problem> {
        for batch in outlived(rows, served).chunks(BATCH) {
            let application = match self.core.registry.application(name).await {
                Ok(Some(stored)) => stored.record,
                Ok(None) => return Ok(()),
                Err(problem) if problem.code == ProblemCode::StoreNonconforming => {
                    tracing::warn!(application = %name, ?problem, "its old deployments stay");
                    return Ok(());
                }
                Err(problem) => return Err(problem),
            };
            let current = application.deployment.map(|published| key::deployment(name, &published.version));
            let keys = batch.iter().filter(|key| Some(*key) != current.as_ref()).cloned().collect();
            self.delete("deployments", keys).await?;
        }
        Ok(())
    }

    async fn observations(&self, done: &mut Option<String>) -> Result<Turn, Problem> {
        let mut nodes = self.core.registry.bucket().list_delimited(OBSERVE).await?.prefixes;
        nodes.sort_unstable();
        if done.is_none() {
            // Coordinators that come and go must not all begin with the same nodes.
            let random = usize::try_from(self.core.registry.clock().random()).unwrap_or_default();
            *done = nodes.get(random % nodes.len().max(1)).cloned();
        }
        let now: Vec<String> = turn(&nodes, done.as_deref()).cloned().collect();
        let mut left = Left { listings: LISTINGS_MAX, keys: KEYS_MAX };
        for node in now {
            // Its turn is over whatever comes of it: one that gives trouble must not keep the others from theirs.
            let before = done.replace(node.clone());
            self.observations_of(node, &mut left).await?;
            // One that took all that may be removed is no trouble: it has fewer now, and none in the end. Listings alone may be spent
            // on what is not scafo's to delete, each time anew.
            if left.keys == 0 {
                *done = before;
                return Ok(Turn::Unfinished);
            }
        }
        Ok(Turn::Over)
    }

    /// Downwards only where a part is old and a part is not, so that a sweep costs a few listings for each node. One after a long
    /// time in which nobody swept leaves something to the next.
    async fn observations_of(&self, node: String, left: &mut Left) -> Result<(), Problem> {
        let mut open = VecDeque::from([node]);
        while let Some(prefix) = open.pop_front() {
            if !left.listing() {
                return Ok(());
            }
            let listing = self.core.registry.bucket().list_delimited(&prefix).await?;
            let now = listing.date.unwrap_or_else(|| self.core.registry.clock().wall());
            let cutoff = before(now, self.core.settings.observe_retention.get());
            for below in listing.prefixes {
                match verdict(&below, cutoff) {
                    Verdict::Keep => {}
                    Verdict::Open => open.push_back(below),
                    Verdict::Old => self.remove_hours(&below, cutoff, left).await?,
                }
            }
        }
        Ok(())
    }

    async fn remove_hours(&self, prefix: &str, cutoff: Timestamp, left: &mut Left) -> Result<(), Problem> {
        let mut token = None;
        while left.listing() {
            let request = ListRequest { token: token.as_ref(), ..ListRequest::of(prefix) };
            let page = self.core.registry.bucket().list_page(request).await?;
            let keys = page.entries.into_iter().map(|listed| listed.key);
            let is_old = |key: &String| key.parse::<ObservationKey>().is_ok_and(|key| key.at() < cutoff);
            let old: Vec<String> = keys.filter(is_old).take(left.keys).collect();
            left.keys -= old.len();
            self.delete("observations", old).await?;
            match page.next {
                Some(next) => token = Some(next),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    async fn delete(&self, what: &'static str, keys: Vec<String>) -> Result<(), Problem> {
        for batch in keys.chunks(BATCH) {
            self.holder.check().await?;
            self.core.registry.engine().delete_many(&self.intent, batch).await?;
            tracing::info!(what, count = batch.len(), "kept for long enough, removed");
        }
        Ok(())
    }
}

/// The nodes that come after `done`, so many that [`SWEEPS_OF_ALL`] sweeps see each of them.
fn turn<'a>(nodes: &'a [String], done: Option<&str>) -> impl Iterator<Item = &'a String> {
    let first = nodes.partition_point(|node| done.is_some_and(|done| node.as_str() <= done));
    nodes.iter().cycle().skip(first).take(nodes.len().div_ceil(SWEEPS_OF_ALL))
}

/// The versions that each known application serves or has published last.
fn served(world: &World) -> BTreeMap<ApplicationName, BTreeSet<DeploymentVersion>> {
    let published = |application: &scafo_core::record::ApplicationRecord| {
        application.deployment.iter().map(|published| published.version.clone()).collect()
    };
    let readable = world.shown.applications.iter().filter(|(name, _)| !world.shown.unreadable.contains(*name));
    let mut served: BTreeMap<ApplicationName, BTreeSet<DeploymentVersion>> =
        readable.map(|(name, application)| (name.clone(), published(application))).collect();
    for serving in world.nodes.values().flat_map(|node| &node.record.serving) {
        if let (Some(versions), Some(version)) = (served.get_mut(&serving.application), &serving.deployment) {
            versions.insert(version.clone());
        }
    }
    served
}

fn deployment_of(key: &str) -> Option<(ApplicationName, DeploymentVersion)> {
    let (name, version) = key.strip_prefix(DEPLOYMENTS)?.split_once('/')?;
    Some((name.parse().ok()?, version.strip_suffix(".json")?.parse().ok()?))
}

/// Which records of one application have outlived their use. An application of which nothing is known keeps all of its own,
/// and so does a store that does not tell when something was written.
fn outlived(rows: &[Listed], served: Option<&BTreeSet<DeploymentVersion>>) -> Vec<String> {
    let Some(served) = served else { return Vec::new() };
    let mut dated: Vec<(Timestamp, &Listed)> = rows.iter().filter_map(|row| Some((row.last_modified?, row))).collect();
    if dated.len() < rows.len() {
        return Vec::new();
    }
    // Newest first; records of one second are in the order of their keys.
    dated.sort_by(|(a, left), (b, right)| (b, &left.key).cmp(&(a, &right.key)));
    let old = |written: Timestamp, row: &Listed| row.date.is_some_and(|date| date.since(written) > AGE);
    let unserved = |row: &Listed| deployment_of(&row.key).is_some_and(|(_, version)| !served.contains(&version));
    dated
        .into_iter()
        .skip(NEWEST)
        .filter(|(written, row)| old(*written, row) && unserved(row))
        .map(|(_, row)| row.key.clone())
        .collect()
}

/// What a listing of observations does about one prefix below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Nothing in it is old, or it is no partition.
    Keep,
    /// A part of it may be.
    Open,
    /// All of it is.
    Old,
}

fn verdict(prefix: &str, cutoff: Timestamp) -> Verdict {
    let Some(parts) = prefix.strip_prefix(OBSERVE).and_then(|rest| rest.strip_suffix('/')) else {
        return Verdict::Keep;
    };
    let parts: Vec<&str> = parts.split('/').skip(1).collect();
    if parts.is_empty() {
        return Verdict::Open;
    }
    match span(&parts) {
        Some((_, end)) if end <= cutoff => Verdict::Old,
        Some((start, _)) if start < cutoff && parts.len() < 4 => Verdict::Open,
        Some(_) | None => Verdict::Keep,
    }
}

/// The time that a partition covers: `yyyy`, `yyyy/mm`, `yyyy/mm/dd` or `yyyy/mm/dd/hh`, in UTC.
fn span(parts: &[&str]) -> Option<(Timestamp, Timestamp)> {
    let widths = [4, 2, 2, 2];
    let digits = |(part, width): (&&str, usize)| part.len() == width && part.bytes().all(|byte| byte.is_ascii_digit());
    if parts.len() > widths.len() || !parts.iter().zip(widths).all(digits) {
        return None;
    }
    let numbers: Vec<u32> = parts.iter().filter_map(|part| part.parse().ok()).collect();
    let start = |year: u32, month: u32, day: &str, hour: &str| -> Option<Timestamp> {
        format!("{year:04}-{month:02}-{day}T{hour}:00:00.000Z").parse().ok()
    };
    match numbers[..] {
        [year] => Some((start(year, 1, "01", "00")?, start(year + 1, 1, "01", "00")?)),
        [year, 12] => Some((start(year, 12, "01", "00")?, start(year + 1, 1, "01", "00")?)),
        [year, month] => Some((start(year, month, "01", "00")?, start(year, month + 1, "01", "00")?)),
        [year, month, _] => start(year, month, parts[2], "00").map(|day| (day, day.after(Duration::from_hours(24)))),
        [year, month, _, _] => {
            start(year, month, parts[2], parts[3]).map(|hour| (hour, hour.after(Duration::from_hours(1))))
        }
        _ => None,
    }
}

fn before(now: Timestamp, duration: Duration) -> Timestamp {
    Timestamp::from_millis(now.as_millis().saturating_sub(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use scafo_core::record::Fence;
    use scafo_store::{Bucket as _, ETag, Fault, MemoryBucket, Operation, PutOptions};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::daemon::testing::{core, show};

    const DAY: i64 = 24 * 3600 * 1000;
    const NOW: i64 = 1_800_000_000_000;

    fn row(version: &str, days_ago: i64) -> Listed {
        Listed {
            key: format!("{DEPLOYMENTS}shop/{version}.json"),
            etag: ETag::parse("x").unwrap(),
            size: 1,
            last_modified: Some(Timestamp::from_millis(NOW - days_ago * DAY)),
            date: Some(Timestamp::from_millis(NOW)),
        }
    }

    #[test]
    fn a_deployment_outlives_its_use_when_it_is_old_and_unserved_and_not_among_the_newest() {
        let rows: Vec<Listed> = (0..60).map(|age| row(&format!("v{age:02}"), age)).collect();
        let keys = |served: &[&str]| -> Option<Vec<String>> {
            let served = served.iter().map(|version| version.parse().unwrap()).collect();
            Some(outlived(&rows, Some(&served)))
        };
        let named = |ages: std::ops::Range<i64>| ages.map(|age| row(&format!("v{age}"), 0).key).collect::<Vec<_>>();
        assert_eq!(keys(&[]), Some(named(50..60)));
        assert_eq!(keys(&["v59", "v00"]), Some(named(50..59)));
        assert!(outlived(&rows, None).is_empty(), "nothing is known of its application");
        let young: Vec<Listed> = (0..60).map(|age| row(&format!("v{age:02}"), age / 3)).collect();
        assert!(outlived(&young, Some(&BTreeSet::new())).is_empty());
        let undated: Vec<Listed> = rows.iter().map(|row| Listed { last_modified: None, ..row.clone() }).collect();
        assert!(outlived(&undated, Some(&BTreeSet::new())).is_empty());
    }

    #[test]
    fn an_hour_goes_as_a_whole_and_what_is_no_partition_stays() {
        let cutoff: Timestamp = "2026-11-23T10:30:00.000Z".parse().unwrap();
        for (below, want) in [
            ("a/", Verdict::Open),
            ("a/2025/", Verdict::Old),
            ("a/2026/", Verdict::Open),
            ("a/2027/", Verdict::Keep),
            ("a/2026/10/", Verdict::Old),
            ("a/2026/11/", Verdict::Open),
            ("a/2026/12/", Verdict::Keep),
            ("a/2026/13/", Verdict::Keep),
            ("a/2026/11/22/", Verdict::Old),
            ("a/2026/11/23/", Verdict::Open),
            ("a/2026/11/31/", Verdict::Keep),
            ("a/2026/11/23/09/", Verdict::Old),
            ("a/2026/11/23/10/", Verdict::Keep),
            ("a/2026/11/23/25/", Verdict::Keep),
            ("a/26/", Verdict::Keep),
            ("a/2026/1/", Verdict::Keep),
            ("a/2026/11/23/09/08/", Verdict::Keep),
        ] {
            assert_eq!(verdict(&format!("{OBSERVE}{below}"), cutoff), want, "{below}");
        }
    }

    #[test]
    fn every_node_has_its_turn_and_a_sweep_of_many_takes_few() {
        for count in [0_usize, 1, 3, 192, 193, 1000] {
            let nodes: Vec<String> = (0..count).map(|number| format!("{OBSERVE}n{number:04}/")).collect();
            let (mut done, mut seen) = (None, BTreeSet::new());
            for _ in 0..SWEEPS_OF_ALL {
                let now: Vec<String> = turn(&nodes, done.as_deref()).cloned().collect();
                assert!(now.len() <= count.div_ceil(SWEEPS_OF_ALL));
                done = now.last().cloned().or(done);
                seen.extend(now);
            }
            assert_eq!(seen.len(), count);
        }
        // Who had its turn last may be gone.
        let nodes = ["a/".to_owned(), "c/".to_owned()];
        assert_eq!(turn(&nodes, Some("b/")).collect::<Vec<_>>(), ["c/"]);
        assert_eq!(turn(&nodes, Some("c/")).collect::<Vec<_>>(), ["a/"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sweep_removes_the_old_and_nothing_under_a_lost_lease() {
        let memory = MemoryBucket::new();
        let core = core("a", memory.sibling());
        let shop = core.registry.create_application(&"shop".parse().unwrap()).await.unwrap().stored.record;
        show(&core, &[shop], &[], &[("a", true)]);
        let put = async |key: String, at: i64| {
            memory.set_now(Timestamp::from_millis(at));
            memory.put(&key, "{}".into(), PutOptions::default()).await.unwrap();
        };
        for age in (0..60).rev() {
            put(row(&format!("v{age:02}"), 0).key, NOW - age * DAY).await;
        }
        // 1,800,000,000 s is 2027-01-15, 08:00.
        let observation = |day: u32, at: i64| format!("{OBSERVE}a/2027/01/{day:02}/08/{at}-1.parquet");
        let (old, new) = (observation(7, NOW - 8 * DAY), observation(14, NOW - DAY));
        let odd = observation(6, NOW);
        for key in [&old, &new, &odd] {
            put(key.clone(), NOW).await;
        }
        let lead = Lead {
            fence: Fence(1),
            lapses: core.mono().after(Duration::from_secs(15)),
            authority: CancellationToken::new(),
        };
        let world = core.worlds.borrow().clone();
        let (mut done, mut pages) = (None, Pages::default());
        assert!(deployments(&core, &lead, &world, &mut pages).await.is_err(), "this node does not lead");
        assert!(observations(&core, &lead, &mut done).await.is_err(), "this node does not lead");
        assert_eq!(memory.keys(DEPLOYMENTS).len(), 60);
        core.lease.send_modify(|view| view.lead = Some(lead.clone()));
        deployments(&core, &lead, &world, &mut pages).await.unwrap();
        assert_eq!(pages.ended(), 1);
        observations(&core, &lead, &mut done).await.unwrap();
        assert_eq!(memory.keys(DEPLOYMENTS).len(), 50);
        assert_eq!(memory.keys(OBSERVE), [odd, new]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sweep_that_was_cut_short_is_gone_on_with_at_the_page_where_it_was() {
        let memory = MemoryBucket::new();
        memory.set_page_keys(20);
        let (handle, listings) = (memory.sibling(), Arc::new(AtomicUsize::new(0)));
        let seen = Arc::clone(&listings);
        // From the fourth listing on there is no answer.
        let away = Arc::new(AtomicUsize::new(3));
        let until = Arc::clone(&away);
        handle.plan(move |operation| {
            let listing = matches!(operation, Operation::List(_));
            let lost = listing && seen.fetch_add(1, Ordering::Relaxed) >= until.load(Ordering::Relaxed);
            lost.then_some(Fault::LoseRequest)
        });
        let core = core("a", handle);
        let shop = core.registry.create_application(&"shop".parse().unwrap()).await.unwrap().stored.record;
        show(&core, &[shop], &[], &[("a", true)]);
        for age in (0..120).rev() {
            memory.set_now(Timestamp::from_millis(NOW - age * DAY));
            memory.put(&row(&format!("v{age:03}"), 0).key, "{}".into(), PutOptions::default()).await.unwrap();
        }
        let lead = Lead {
            fence: Fence(1),
            lapses: core.mono().after(Duration::from_hours(1)),
            authority: CancellationToken::new(),
        };
        core.lease.send_modify(|view| view.lead = Some(lead.clone()));
        let (world, mut pages) = (core.worlds.borrow().clone(), Pages::default());
        deployments(&core, &lead, &world, &mut pages).await.unwrap_err();
        assert_eq!((pages.ended(), memory.keys(DEPLOYMENTS).len()), (0, 120));
        away.store(usize::MAX, Ordering::Relaxed);
        for (requests, left) in [(3, 110), (6, 50), (3, 50)] {
            listings.store(0, Ordering::Relaxed);
            deployments(&core, &lead, &world, &mut pages).await.unwrap();
            assert_eq!((listings.load(Ordering::Relaxed), memory.keys(DEPLOYMENTS).len()), (requests, left));
            assert!(pages.ended() >= requests.try_into().unwrap(), "how long it takes until the next is known");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_an_application_serves_again_stays_although_the_sweep_began_before() {
        let memory = MemoryBucket::new();
        let core = core("a", memory.sibling());
        let shop: ApplicationName = "shop".parse().unwrap();
        let before = core.registry.create_application(&shop).await.unwrap().stored.record;
        show(&core, &[before], &[], &[("a", true)]);
        let world = core.worlds.borrow().clone();
        let put = async |key: &str, at: i64| {
            memory.set_now(Timestamp::from_millis(at));
            memory.put(key, "{}".into(), PutOptions::default()).await.unwrap();
        };
        for age in (0..90).rev() {
            put(&row(&format!("v{age:02}"), 0).key, NOW - age * DAY).await;
        }
        memory.set_now(Timestamp::from_millis(NOW));
        let lead = Lead {
            fence: Fence(1),
            lapses: core.mono().after(Duration::from_hours(1)),
            authority: CancellationToken::new(),
        };
        core.lease.send_modify(|view| view.lead = Some(lead.clone()));
        let application = key::application(&shop);
        let whole = memory.get(&application).await.unwrap().unwrap().body;
        put(&application, NOW).await;
        deployments(&core, &lead, &world, &mut Pages::default()).await.unwrap();
        assert_eq!(memory.keys(DEPLOYMENTS).len(), 90, "what it serves cannot be read");
        memory.delete(&application).await.unwrap();
        deployments(&core, &lead, &world, &mut Pages::default()).await.unwrap();
        assert_eq!(memory.keys(DEPLOYMENTS).len(), 90, "it is gone, and whoever deletes it removes them");
        memory.put(&application, whole, PutOptions::default()).await.unwrap();
        let pointer = r#"{ "version": "v70", "prefix": "deploy/shop/v70" }"#;
        memory.put(&key::fleet_pointer(&shop), pointer.into(), PutOptions::default()).await.unwrap();
        let (version, deploy) = ("v70".parse().unwrap(), scafo_core::DeployId::new(&shop, 1));
        core.registry.publish(&Intent::new(), &shop, &version, &deploy).await.unwrap();
        deployments(&core, &lead, &world, &mut Pages::default()).await.unwrap();
        assert_eq!(memory.keys(DEPLOYMENTS).len(), 51);
        assert!(memory.keys(DEPLOYMENTS).contains(&row("v70", 0).key));
    }

    #[tokio::test(start_paused = true)]
    async fn a_sweep_of_observations_is_bounded_and_leaves_foreign_objects() {
        let memory = MemoryBucket::new();
        let (handle, listings) = (memory.sibling(), Arc::new(AtomicUsize::new(0)));
        let seen = Arc::clone(&listings);
        handle.plan(move |operation| {
            seen.fetch_add(usize::from(matches!(operation, Operation::List(_))), Ordering::Relaxed);
            None
        });
        let core = core("a", handle);
        memory.set_now(Timestamp::from_millis(NOW));
        let put = async |key: &str| {
            memory.put(key, "x".into(), PutOptions::default()).await.unwrap();
        };
        let flush = |node: &str, at: i64| {
            ObservationKey::new(node.parse().unwrap(), Timestamp::from_millis(at), 0).unwrap().to_string()
        };
        // Half a month that nobody swept, and of it more files than a sweep removes.
        for minute in 0..24_000 {
            put(&flush("a", NOW - 30 * DAY + minute * 60_000)).await;
        }
        let young: Vec<String> = (0..60).map(|minute| flush("b", NOW - DAY + minute * 60_000)).collect();
        let old_hour = flush("a", NOW - 30 * DAY).rsplit_once('/').unwrap().0.to_owned();
        let foreign =
            [format!("{old_hour}/notes.txt"), format!("{old_hour}/{NOW}-1.parquet"), format!("{OBSERVE}README")];
        for key in young.iter().chain(&foreign) {
            put(key).await;
        }
        let lead = Lead {
            fence: Fence(1),
            lapses: core.mono().after(Duration::from_hours(1)),
            authority: CancellationToken::new(),
        };
        core.lease.send_modify(|view| view.lead = Some(lead.clone()));
        // The one before the first, so that it begins with `a`.
        let mut done = Some(format!("{OBSERVE}b/"));
        observations(&core, &lead, &mut done).await.unwrap();
        assert_eq!(memory.keys(OBSERVE).len(), 4_000 + young.len() + foreign.len());
        assert!(listings.load(Ordering::Relaxed) <= LISTINGS_MAX + 1, "{listings:?}");
        for _of_each_node in 0..2 {
            observations(&core, &lead, &mut done).await.unwrap();
        }
        listings.store(0, Ordering::Relaxed);
        observations(&core, &lead, &mut done).await.unwrap();
        // The nodes, and of one of them the years, the months, the days, and the hours.
        assert!(listings.load(Ordering::Relaxed) <= 1 + 4 + 1, "at rest a sweep is cheap: {listings:?}");
        let mut left: Vec<String> = young.into_iter().chain(foreign).collect();
        left.sort();
        assert_eq!(memory.keys(OBSERVE), left);
    }
}

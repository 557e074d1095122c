//! The records that every node keeps in memory, and one look at the bucket.
//!
//! A look reads the change hint and goes on only where that moved or somebody asked. It owns the caches while it runs, so
//! that a slow bucket holds up nothing else on this node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use scafo_core::key::{name_of, prefix};
use scafo_core::record::{ApplicationRecord, NodeRecord, PlacementRecord};
use scafo_core::view::RecordFault;
use scafo_core::{ApplicationName, NodeId, Problem, Timestamp};
use scafo_store::ETag;

use super::liveness::{Liveness, Sighting};
use super::wake::Asked;
use super::world::{NodeView, Shown};
use crate::registry::{Cache, Mono, Read, Registry, Stored};

/// Everything is listed this often even if nobody says that anything moved: the hint is never authority.
const FULL: Duration = Duration::from_mins(15);
/// A full look may cost one request in this time on average, so that what a node at rest costs does not grow with the fleet: one
/// that takes more pages comes less often. 10,000 applications are listed in 20 pages, every three quarters of an hour.
const PACE: Duration = Duration::from_mins(2);
/// Node records that a full look reads although nobody hinted at anything and nothing but their tag moved, as each does with
/// every heartbeat. All of a small fleet; of a large one those that were read longest ago.
const QUIET_READS: usize = 3;
/// Bounds of the pause after which a kind is listed again, unasked, of which a record is waited for no longer: it doubles. The
/// record may be readable again in a moment, or never, and then it must not cost a listing a second on every node.
const OVERDUE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_mins(2));

/// The caches.
pub(crate) struct Records {
    applications: Cache<ApplicationRecord>,
    placements: Cache<PlacementRecord>,
    nodes: Cache<NodeRecord>,
    liveness: Liveness,
    hint: Option<ETag>,
    /// What had been asked for when the last look began that went through.
    answered: Asked,
    /// Kinds of which a record moved and gave no answer: they are listed again whatever the hint says.
    again: Plan,
    /// Kinds that hold a record that is waited for no longer: they are listed again when that is due.
    overdue: Plan,
    overdue_at: Option<Mono>,
    overdue_pause: Duration,
    /// When everything is listed next; none before the first time.
    full: Option<Mono>,
    /// When the nodes are listed next to see who lives.
    pulse: Option<Mono>,
    /// How often that happens.
    pulse_every: Duration,
    shown: Shown,
    /// The store's clock in the last look, if that listed the nodes.
    date: Option<Timestamp>,
}

/// What a look is to do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order {
    pub(crate) asked: Asked,
    pub(crate) now: Mono,
    /// Whether the hint is due, or only what was asked for.
    pub(crate) hint: HintDue,
    /// Between 0 and 1, spreads the full looks of a fleet.
    pub(crate) jitter: f64,
}

/// Whether a look reads the hint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HintDue {
    Yes,
    No,
}

/// Which kinds a look lists.
#[derive(Debug, Clone, Copy, Default)]
struct Plan {
    applications: bool,
    placements: bool,
    nodes: bool,
}

impl Plan {
    const ALL: Self = Self { applications: true, placements: true, nodes: true };

    const fn and(self, other: Self) -> Self {
        Self {
            applications: self.applications || other.applications,
            placements: self.placements || other.placements,
            nodes: self.nodes || other.nodes,
        }
    }

    const fn any(self) -> bool {
        self.applications || self.placements || self.nodes
    }
}

impl Records {
    /// Empty caches. Nodes that are silent for `window` are dead; they are looked at every `pulse_every`.
    pub(crate) fn new(window: Duration, pulse_every: Duration) -> Self {
        Self {
            applications: Cache::default(),
            placements: Cache::default(),
            nodes: Cache::default(),
            liveness: Liveness::new(window),
            hint: None,
            answered: Asked::default(),
            again: Plan::default(),
            overdue: Plan::default(),
            overdue_at: None,
            overdue_pause: OVERDUE.0,
            full: None,
            pulse: None,
            pulse_every,
            shown: Shown::default(),
            date: None,
        }
    }

    /// What has been asked for and not answered yet.
    pub(crate) fn pending(&self, asked: Asked) -> bool {
        asked != self.answered || self.is_incomplete()
    }

    /// Whether the last look left an old record standing because the new one gave no answer. The rest of it counts.
    pub(crate) const fn is_incomplete(&self) -> bool {
        self.again.any()
    }

    /// When the next look is due by itself, beside the hint. A full one waits for the hint's turn.
    pub(crate) fn due(&self) -> Option<Mono> {
        // None is at once.
        self.pulse.map(|pulse| self.overdue_at.map_or(pulse, |overdue| overdue.min(pulse)))
    }

    /// How long until everything is listed again, before the jitter.
    fn full_every(&self) -> Duration {
        let pages = self.applications.pages() + self.placements.pages() + self.nodes.pages();
        let requests = u32::try_from(pages + QUIET_READS).unwrap_or(u32::MAX);
        FULL.max(PACE.saturating_mul(requests))
    }

    pub(crate) const fn answered(&self) -> Asked {
        self.answered
    }

    /// What the last look that went through showed.
    pub(crate) const fn shown(&self) -> &Shown {
        &self.shown
    }

    /// What the store's clock said in the last look, if it listed the nodes, as happens with every heartbeat.
    pub(crate) const fn date(&self) -> Option<Timestamp> {
        self.date
    }

    /// One look. After a failure the same is due again.
    ///
    /// # Errors
    /// Store errors; what could be read is kept.
    pub(crate) async fn look(&mut self, registry: &Registry, order: Order) -> Result<(), Problem> {
        let outcome = self.go_through(registry, order).await;
        if outcome.is_err() {
            // Silence counts only while the nodes can be heard, and what failed here, whichever part of it, may fail them too.
            self.liveness.failed();
        }
        outcome
    }

    async fn go_through(&mut self, registry: &Registry, order: Order) -> Result<(), Problem> {
        self.date = None;
        let Order { asked, now, hint, jitter } = order;
        let full = hint == HintDue::Yes && self.full.is_none_or(|due| due <= now);
        let overdue = self.overdue_at.is_some_and(|due| due <= now);
        let mut plan = self.plan(asked);
        // The hint is read before the listings: what moves after it shows in the next one.
        let mut seen = None;
        if hint == HintDue::Yes {
            let tag = registry.hint().await?;
            if tag != self.hint {
                plan = Plan::ALL;
            }
            seen = Some(tag);
        }
        // A node whose record moved while nobody hinted at anything has most likely only shown that it lives. What is overdue was
        // read longest ago, so it is among those few.
        let nodes = match (plan.nodes, full || (overdue && self.overdue.nodes)) {
            (true, _) => Read::Moved,
            (false, true) => Read::Some(QUIET_READS),
            (false, false) => Read::New,
        };
        if overdue {
            plan = plan.and(self.overdue);
        }
        if full {
            plan = Plan::ALL;
        }
        let pulse = self.pulse.is_none_or(|due| due <= now);
        if plan.applications {
            let done = self.applications.refresh(registry.engine(), Read::Moved).await?;
            self.again.applications = !done.stale.is_empty();
        }
        if plan.placements {
            let done = self.placements.refresh(registry.engine(), Read::Moved).await?;
            self.again.placements = !done.stale.is_empty();
        }
        if plan.nodes || pulse {
            let done = self.nodes.refresh(registry.engine(), nodes).await?;
            self.again.nodes = !done.stale.is_empty();
            self.date = self.nodes.date();
            self.liveness.looked(self.sightings(), now);
            self.pulse = Some(now.after(self.pulse_every));
        }
        if seen.is_some() || plan.any() {
            self.liveness.heard(now);
        }
        if let Some(tag) = seen {
            self.hint = tag;
        }
        self.plan_overdue(now, overdue);
        if full {
            self.full = Some(now.after(self.full_every().mul_f64(1.0 - jitter / 4.0)));
        }
        self.answered = asked;
        self.show(plan, pulse);
        Ok(())
    }

    /// What is to be listed because somebody asked for it, or because it could not be read whole.
    fn plan(&self, asked: Asked) -> Plan {
        Plan {
            applications: asked.applications != self.answered.applications || self.again.applications,
            placements: asked.placements != self.answered.placements || self.again.placements,
            nodes: asked.nodes != self.answered.nodes || self.again.nodes,
        }
    }

    /// Says when what is overdue is listed again. `was_due`: this look was the one that did so.
    fn plan_overdue(&mut self, now: Mono, was_due: bool) {
        self.overdue = Plan {
            applications: self.applications.is_any_silent(),
            placements: self.placements.is_any_silent(),
            nodes: self.nodes.is_any_silent(),
        };
        if !self.overdue.any() {
            (self.overdue_at, self.overdue_pause) = (None, OVERDUE.0);
        } else if was_due || self.overdue_at.is_none() {
            self.overdue_at = Some(now.after(self.overdue_pause));
            self.overdue_pause = (self.overdue_pause * 2).min(OVERDUE.1);
        }
    }

    fn sightings(&self) -> Vec<Sighting> {
        let rows = self.nodes.listed().filter_map(|listed| {
            let id: NodeId = name_of(&listed.key, prefix::NODES)?.parse().ok()?;
            let age = listed.date.zip(listed.last_modified).map(|(date, modified)| date.since(modified));
            Some(Sighting { id, etag: listed.etag.clone(), age })
        });
        rows.collect()
    }

    /// Leaves the map as it is where nothing of it moved, as with most looks at who lives.
    fn show_nodes(&mut self) {
        let view = |stored: &Arc<Stored<NodeRecord>>| {
            let record = &stored.record;
            let before = self.shown.nodes.get(&record.id).map(|view| &view.record);
            let view = NodeView { record: shared(record, before), live: self.liveness.lives(&record.id) };
            (record.id.clone(), view)
        };
        let nodes: BTreeMap<NodeId, NodeView> = self.nodes.iter().map(view).collect();
        if !same(&nodes, &self.shown.nodes) {
            self.shown.nodes = Arc::new(nodes);
        }
    }

    /// Makes the maps that others share; those of kinds that were not listed stay the same ones.
    fn show(&mut self, plan: Plan, pulse: bool) {
        if plan.applications {
            let before = &self.shown.applications;
            self.shown.applications = Arc::new(by_name(&self.applications, before, |record| &record.name));
        }
        if plan.placements {
            let before = &self.shown.placements;
            self.shown.placements = Arc::new(by_name(&self.placements, before, |record| &record.application));
        }
        if plan.nodes || pulse {
            self.show_nodes();
        }
        self.shown.incomplete = self.again.any();
        if plan.applications || plan.placements || plan.nodes || pulse {
            // The body that an overdue one had may be long over: like any that cannot be read it changes nothing, and it could
            // not be written over either. What an application said last is the best that there is to go by.
            let unplaceable = self.placements.bad().chain(self.placements.overdue());
            let placements: Vec<ApplicationName> = named(unplaceable, prefix::PLACEMENT).collect();
            let unreadable: BTreeSet<ApplicationName> =
                named(self.applications.bad(), prefix::APPLICATIONS).chain(placements.iter().cloned()).collect();
            self.shown.unreadable = Arc::new(unreadable);
            self.shown.unreadable_placements = Arc::new(placements);
            let bad = self.applications.bad().chain(self.placements.bad()).chain(self.nodes.bad());
            let overdue = self.applications.overdue().chain(self.placements.overdue()).chain(self.nodes.overdue());
            let faults =
                bad.chain(overdue).map(|(key, problem)| RecordFault { key: key.to_owned(), error: problem.detail });
            self.shown.faults = Arc::new(faults.collect());
        }
    }
}

fn same(a: &BTreeMap<NodeId, NodeView>, b: &BTreeMap<NodeId, NodeView>) -> bool {
    let same = |a: &NodeView, b: &NodeView| a.live == b.live && Arc::ptr_eq(&a.record, &b.record);
    a.len() == b.len() && a.iter().zip(b).all(|((ida, a), (idb, b))| ida == idb && same(a, b))
}

fn by_name<T: crate::registry::Kind + PartialEq>(
    cache: &Cache<T>,
    before: &BTreeMap<ApplicationName, Arc<T>>,
    name: impl Fn(&T) -> &ApplicationName,
) -> BTreeMap<ApplicationName, Arc<T>> {
    let row = |stored: &Arc<Stored<T>>| {
        let name = name(&stored.record).clone();
        let record = shared(&stored.record, before.get(&name));
        (name, record)
    };
    cache.iter().map(row).collect()
}

/// The one from before if it says the same: comparing is cheaper than copying, for whoever looks at it next too.
fn shared<T: Clone + PartialEq>(record: &T, before: Option<&Arc<T>>) -> Arc<T> {
    before.filter(|before| ***before == *record).map_or_else(|| Arc::new(record.clone()), Arc::clone)
}

fn named<'a>(
    bad: impl Iterator<Item = (&'a str, Problem)>,
    prefix: &'static str,
) -> impl Iterator<Item = ApplicationName> {
    bad.filter_map(move |(key, _)| name_of(key, prefix)?.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use scafo_store::{Fault, Operation};

    use super::*;
    use crate::registry::Arrival;
    use crate::registry::testing::{World, node};

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_whatever_a_look_asks_for_is_nobodys_silence() {
        let world = World::new();
        let registry = &world.registry;
        registry.register_node(&node("b", 1), Arrival::Joining).await.unwrap();
        for silent in ["_scafo/changes.json", prefix::APPLICATIONS, prefix::PLACEMENT, prefix::NODES] {
            world.memory.plan(|_| None);
            let mut records = Records::new(Duration::from_secs(90), Duration::from_secs(30));
            let mut asked = Asked::default();
            let mut look = async |records: &mut Records| {
                asked.all += 1;
                asked.applications += 1;
                let order = Order { asked, now: registry.clock().mono(), hint: HintDue::Yes, jitter: 0.0 };
                records.look(registry, order).await
            };
            let lives = |records: &Records| records.shown().nodes["b"].live;
            look(&mut records).await.unwrap();
            assert!(lives(&records));
            world.memory.plan(move |operation| {
                let (Operation::Get(key) | Operation::List(key)) = operation else { return None };
                (key == silent).then_some(Fault::LoseRequest)
            });
            for _ in 0..60 {
                // What has to be listed by itself for a kind that was not asked for is asked for with a full look.
                records.full = None;
                records.pulse = None;
                look(&mut records).await.unwrap_err();
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            world.memory.plan(|_| None);
            look(&mut records).await.unwrap();
            assert!(lives(&records), "{silent}");
            for _ in 0..4 {
                tokio::time::sleep(Duration::from_secs(31)).await;
                look(&mut records).await.unwrap();
            }
            assert!(!lives(&records), "the time after it counts");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_dead_node_dies_in_about_its_window_although_one_hint_in_six_fails() {
        let world = World::new();
        let registry = &world.registry;
        registry.register_node(&node("b", 1), Arrival::Joining).await.unwrap();
        let mut records = Records::new(Duration::from_secs(90), Duration::from_secs(30));
        let begin = registry.clock().mono();
        for tick in 0_u32.. {
            let fails = tick % 6 == 3;
            world.memory.plan(move |operation| {
                (fails && operation == Operation::Get("_scafo/changes.json")).then_some(Fault::LoseRequest)
            });
            let now = registry.clock().mono();
            let order = Order { asked: Asked::default(), now, hint: HintDue::Yes, jitter: 0.0 };
            assert_eq!(records.look(registry, order).await.is_err(), fails);
            let passed = now.since(begin);
            if !records.shown().nodes["b"].live {
                assert!(passed > Duration::from_secs(90), "after {passed:?}");
                break;
            }
            assert!(passed < Duration::from_secs(180), "one that fails takes ten seconds of thirty");
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    }
}

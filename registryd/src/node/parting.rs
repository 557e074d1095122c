//! Stopping this node: it leaves every routing document first, and its processes live on until no ingress can name them.
//!
//! Not a drain: nobody waits for replacements, nothing of it outlives this run of the daemon, and what no other node serves is
//! not held, because nobody could be sent elsewhere. The next start takes the node back into the documents.

use std::collections::BTreeSet;
use std::time::Duration;

use scafo_core::record::{NodeRecord, ProcessState};
use scafo_core::{ApplicationName, NodeId, Problem, ProblemCode};
use tokio::sync::watch;

use super::serving::names;
use super::world::World;
use crate::registry::Mono;

/// How long the record may take to say it. A stop has an end: after that the processes go without a hold.
const WRITTEN: Duration = Duration::from_secs(8);

/// What is left of a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) hold: Duration,
    /// Applications that are held.
    pub(crate) applications: usize,
}

impl Left {
    const NOTHING: Self = Self { hold: Duration::ZERO, applications: 0 };
}

/// This node is out of its record's documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Out {
    /// Since the bucket has the record that says so.
    pub(crate) since: Mono,
    pub(crate) held: Left,
}

/// Between whoever stops the node and the reconcile loop, which takes it out.
#[derive(Debug)]
pub(crate) struct Parting {
    asked: watch::Sender<bool>,
    out: watch::Sender<Option<Out>>,
}

impl Parting {
    pub(crate) fn new() -> Self {
        Self { asked: watch::Sender::new(false), out: watch::Sender::new(None) }
    }

    /// Takes the node out of the documents and answers what is left of the hold. A node without living others stays in: its
    /// own ingress goes on until it is ended.
    ///
    /// # Errors
    /// `store-unavailable` when the record is not written in time; it is tried on, and asking again is safe.
    pub(crate) async fn leave(
        &self,
        world: &World,
        me: &NodeId,
        now: impl Fn() -> Mono,
        late: impl Future<Output = ()>,
    ) -> Result<Left, Problem> {
        // Begun, it is carried on: others that look dead for a moment are sent requests here all the same.
        let begun = *self.asked.borrow();
        if !begun && !world.nodes.values().any(|node| node.live && node.record.id != *me) {
            return Ok(Left::NOTHING);
        }
        self.asked.send_if_modified(|asked| !std::mem::replace(asked, true));
        let mut outs = self.out.subscribe();
        let out = tokio::select! {
            biased;
            out = outs.wait_for(Option::is_some) => out.ok().and_then(|out| *out),
            () = late => None,
        };
        let Some(out) = out else {
            return Err(Problem::new(
                ProblemCode::StoreUnavailable,
                "the bucket did not take in time that this node leaves; others may still send requests here",
            ));
        };
        Ok(Left { hold: out.held.hold.saturating_sub(now().since(out.since)), ..out.held })
    }

    /// How long a caller waits for the record.
    pub(crate) const fn patience() -> Duration {
        WRITTEN
    }

    /// For the loop: whether somebody asked.
    pub(crate) fn asked(&self) -> watch::Receiver<bool> {
        self.asked.subscribe()
    }

    /// For the loop: the bucket has the record that says so. The first time counts.
    pub(crate) fn is_out(&self, out: Out) {
        self.out.send_if_modified(|known| known.is_none() && known.replace(out).is_none());
    }
}

/// What the loop knows of a stop that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stopping {
    /// Applications of this node that no other one serves, or that were not in any document.
    pub(crate) unheld: BTreeSet<ApplicationName>,
    pub(crate) held: Left,
}

impl Stopping {
    /// A stop of `me` at this moment, before it has changed anything.
    pub(crate) fn begin(world: &World, me: &NodeId, hold: Duration) -> Self {
        let others = || world.nodes.values().filter(|node| node.live && !node.record.draining && node.record.id != *me);
        let Some(own) = world.nodes.get(me) else { return Self { unheld: BTreeSet::new(), held: Left::NOTHING } };
        let elsewhere = |name: &ApplicationName| others().any(|node| names(&node.record, name));
        let (held, unheld): (Vec<_>, Vec<_>) =
            own.record.serving.iter().partition(|it| it.state == ProcessState::Ready && elsewhere(&it.application));
        // The API of a node stands in the documents too.
        let api = publishes(&own.record) && others().any(|node| publishes(&node.record));
        // What has left the documents before this is still in its own hold.
        let lingers = unheld.iter().any(|it| it.state == ProcessState::Stopping);
        let hold = if held.is_empty() && !api && !lingers { Duration::ZERO } else { hold };
        Self {
            unheld: unheld.into_iter().map(|it| it.application.clone()).collect(),
            held: Left { hold, applications: held.len() },
        }
    }
}

fn publishes(node: &NodeRecord) -> bool {
    node.api_public && !node.platform_domains.is_empty() && !node.draining
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::world::NodeView;
    use crate::registry::testing::{node, serving};

    const HOLD: Duration = Duration::from_secs(35);

    /// A node, whether it is live, and what it serves.
    type Row<'a> = (&'a str, bool, &'a [(&'a str, ProcessState)]);

    fn world(nodes: &[Row<'_>]) -> World {
        let view = |(id, live, serves): &Row<'_>| {
            let serving = serves.iter().map(|(name, state)| serving(name, *state)).collect();
            let record = NodeRecord { serving, ..node(id, 1) };
            (record.id.clone(), NodeView { record: record.into(), live: *live })
        };
        World { nodes: std::sync::Arc::new(nodes.iter().map(view).collect()), ..World::unseen() }
    }

    fn begin(world: &World) -> (Vec<String>, Left) {
        let stopping = Stopping::begin(world, &"a".parse().unwrap(), HOLD);
        (stopping.unheld.iter().map(ToString::to_string).collect(), stopping.held)
    }

    #[test]
    fn only_what_another_living_node_serves_is_held() {
        use ProcessState::{Ready, Starting, Stopping};
        let held = |applications| Left { hold: HOLD, applications };
        let mine: &[(&str, ProcessState)] = &[("shop", Ready), ("blog", Ready), ("news", Starting)];
        let shop: &[(&str, ProcessState)] = &[("shop", Ready), ("blog", Starting), ("news", Ready)];
        assert_eq!(
            begin(&world(&[("a", true, mine), ("b", true, shop)])),
            (vec!["blog".into(), "news".into()], held(1))
        );
        let all = vec!["blog".to_owned(), "news".to_owned(), "shop".to_owned()];
        assert_eq!(begin(&world(&[("a", true, mine), ("b", false, shop)])), (all.clone(), Left::NOTHING));
        assert_eq!(begin(&world(&[("a", true, mine)])), (all, Left::NOTHING));
        // One that left the documents a moment ago keeps what is left of its hold.
        let left: &[(&str, ProcessState)] = &[("shop", Stopping)];
        assert_eq!(begin(&world(&[("a", true, left), ("b", true, shop)])).1, held(0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_alone_does_not_leave_and_one_with_others_waits_for_its_record() {
        let (parting, me) = (Parting::new(), "a".parse().unwrap());
        let at = |seconds| move || Mono::at(Duration::from_secs(seconds));
        let alone = world(&[("a", true, &[]), ("b", false, &[])]);
        assert_eq!(parting.leave(&alone, &me, at(0), std::future::pending()).await.unwrap(), Left::NOTHING);
        assert!(!*parting.asked().borrow());
        let two = world(&[("a", true, &[]), ("b", true, &[])]);
        let late = parting.leave(&two, &me, at(0), std::future::ready(())).await;
        assert_eq!(late.unwrap_err().code, ProblemCode::StoreUnavailable);
        assert!(*parting.asked().borrow(), "it is tried on");
        parting.is_out(Out { since: Mono::at(Duration::from_secs(7)), held: Left { hold: HOLD, applications: 2 } });
        parting.is_out(Out { since: Mono::at(Duration::from_secs(9)), held: Left { hold: HOLD, applications: 2 } });
        let left = parting.leave(&two, &me, at(17), std::future::pending()).await.unwrap();
        assert_eq!(left, Left { hold: Duration::from_secs(25), applications: 2 });
        let left = parting.leave(&alone, &me, at(27), std::future::pending()).await.unwrap();
        assert_eq!(left.hold, Duration::from_secs(15), "whoever seems to be gone by now");
        let left = parting.leave(&two, &me, at(60), std::future::pending()).await.unwrap();
        assert_eq!(left.hold, Duration::ZERO);
    }
}

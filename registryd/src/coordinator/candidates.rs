//! The nodes as one pass over many applications sees them: made once, then only marked with what they run of one application
//! after the other. Making them anew for each would cost applications × nodes.

use std::collections::HashMap;

use scafo_core::ApplicationName;
use scafo_core::record::{Adoption, ApplicationRecord, ProcessState, Serving};

use super::placement::{Candidate, Serves};
use crate::node::world::{NodeView, World};

/// Every node of a world.
#[derive(Debug)]
pub(crate) struct Candidates<'a> {
    nodes: Vec<Candidate>,
    /// Who runs something of each application, by the position in `nodes`.
    runs: HashMap<&'a ApplicationName, Vec<(usize, &'a Serving)>>,
    /// Positions that are marked.
    marked: Vec<usize>,
}

impl<'a> Candidates<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        let mut runs: HashMap<&ApplicationName, Vec<(usize, &Serving)>> = HashMap::new();
        for (position, node) in world.nodes.values().enumerate() {
            for serving in &node.record.serving {
                runs.entry(&serving.application).or_default().push((position, serving));
            }
        }
        Self { nodes: world.nodes.values().map(candidate).collect(), runs, marked: Vec::new() }
    }

    /// All of them; what they serve is that of whichever application was looked at last.
    pub(crate) fn all(&self) -> &[Candidate] {
        &self.nodes
    }

    /// All of them with what they run of this application.
    pub(crate) fn of(&mut self, application: &ApplicationRecord) -> &[Candidate] {
        for position in self.marked.drain(..) {
            self.nodes[position].serves = Serves::Nothing;
        }
        for (position, serving) in self.runs.get(&application.name).into_iter().flatten() {
            self.nodes[*position].serves = serves(serving, application);
            self.marked.push(*position);
        }
        &self.nodes
    }
}

fn candidate(node: &NodeView) -> Candidate {
    Candidate {
        id: node.record.id.clone(),
        labels: node.record.labels.clone(),
        live: node.live,
        leaving: node.record.leaving || node.record.draining,
        out: node.record.draining,
        serves: Serves::Nothing,
    }
}

fn serves(serving: &Serving, application: &ApplicationRecord) -> Serves {
    let published = application.deployment.as_ref().map(|published| &published.deploy);
    let adopted = serving.state == ProcessState::Ready && serving.adoption == Some(Adoption::Adopted);
    if adopted && serving.deploy.as_ref() == published { Serves::Published } else { Serves::Something }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use scafo_store::MemoryBucket;

    use super::*;
    use crate::daemon::testing::{core, show};
    use crate::model::seeds::{Dice, run};

    fn marks(candidates: &mut Candidates<'_>, application: &ApplicationRecord) -> Vec<Serves> {
        candidates.of(application).iter().map(|node| node.serves).collect()
    }

    #[test]
    fn marks_of_one_application_do_not_stay_for_the_next() {
        run(async {
            let core = core("n0", MemoryBucket::new());
            let mut applications = Vec::new();
            for name in ["shop", "blog", "idle"] {
                let created = core.registry.create_application(&name.parse().unwrap()).await.unwrap();
                applications.push(created.stored.record);
            }
            show(&core, &applications, &[], &[("n0", true), ("n1", true), ("n2", false)]);
            let mut world = (**core.worlds.borrow()).clone();
            let runs = [vec!["shop", "blog"], vec!["blog"], vec![]];
            for (view, names) in Arc::make_mut(&mut world.nodes).values_mut().zip(runs) {
                let serving = |name: &&str| {
                    let body = serde_json::json!({
                        "application": name, "port": 24000, "state": "starting", "celldVersion": "0.6.0",
                        "since": core.started,
                    });
                    serde_json::from_value::<Serving>(body).unwrap()
                };
                Arc::make_mut(&mut view.record).serving = names.iter().map(serving).collect();
            }
            let mut all = Candidates::new(&world);
            let mut dice = Dice::new(1);
            for _ in 0..20 {
                let application = dice.pick(&applications);
                let something = marks(&mut all, application).iter().filter(|it| **it == Serves::Something).count();
                let expected = match application.name.as_str() {
                    "shop" => 1,
                    "blog" => 2,
                    _ => 0,
                };
                assert_eq!(something, expected, "{}", application.name);
                assert_eq!(all.of(application), Candidates::new(&world).of(application));
            }
        });
    }
}

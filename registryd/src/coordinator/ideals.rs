//! The ideals of earlier passes. Scoring every node for every application is most of what a pass costs, and nearly always the
//! outcome is that of the pass before: an ideal depends on what the application asks for and on who can be placed on, not on
//! what runs where.
//!
//! Kept true: what is answered here is what [`ideal`] answers.

use std::collections::{BTreeMap, HashMap};

use scafo_core::record::Replicas;
use scafo_core::{ApplicationName, NodeId};

use super::placement::{Candidate, Ideal, Wish, ideal};

/// What an ideal depends on of a node.
#[derive(Debug, PartialEq, Eq)]
struct Trait {
    id: NodeId,
    labels: BTreeMap<String, String>,
    placeable: bool,
}

impl Trait {
    fn of(node: &Candidate) -> Self {
        Self { id: node.id.clone(), labels: node.labels.clone(), placeable: node.placeable() }
    }

    fn fits(&self, node: &Candidate) -> bool {
        self.placeable == node.placeable() && self.id == node.id && self.labels == node.labels
    }
}

#[derive(Debug)]
struct Known {
    replicas: Replicas,
    selector: Option<BTreeMap<String, String>>,
    ideal: Ideal,
    /// The pass that asked last.
    pass: u64,
}

/// Between two passes. Bounded by the applications that the last one asked for.
#[derive(Debug, Default)]
pub(crate) struct Ideals {
    nodes: Vec<Trait>,
    known: HashMap<ApplicationName, Known>,
    pass: u64,
}

impl Ideals {
    /// A pass over these nodes begins.
    pub(crate) fn begin(&mut self, nodes: &[Candidate]) {
        self.pass += 1;
        let same =
            self.nodes.len() == nodes.len() && self.nodes.iter().zip(nodes).all(|(before, now)| before.fits(now));
        if !same {
            self.known.clear();
            self.nodes = nodes.iter().map(Trait::of).collect();
        }
    }

    /// The ideal for a wish; `nodes` are those that the pass began with.
    pub(crate) fn of(&mut self, wish: &Wish<'_>, nodes: &[Candidate]) -> &Ideal {
        let pass = self.pass;
        let make =
            || Known { replicas: wish.replicas, selector: wish.selector.cloned(), ideal: ideal(wish, nodes), pass };
        let known = self.known.entry(wish.application.clone()).or_insert_with(make);
        if known.replicas != wish.replicas || known.selector.as_ref() != wish.selector {
            *known = make();
        }
        known.pass = pass;
        &known.ideal
    }

    /// The pass is over: what it did not ask for is forgotten.
    pub(crate) fn end(&mut self) {
        let pass = self.pass;
        self.known.retain(|_, known| known.pass == pass);
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;
    use crate::coordinator::placement::Serves;

    fn region(index: u8) -> BTreeMap<String, String> {
        [("region".to_owned(), ["eu", "us"][usize::from(index % 2)].to_owned())].into()
    }

    /// Nodes by number, each with a region and whether it lives and wants to leave.
    fn fleet(nodes: &BTreeMap<u8, (u8, bool, bool)>) -> Vec<Candidate> {
        let candidate = |(number, (labels, live, leaving)): (&u8, &(u8, bool, bool))| Candidate {
            id: format!("n{number}").parse().unwrap(),
            labels: region(*labels),
            live: *live,
            leaving: *leaving,
            out: false,
            serves: if number % 3 == 0 { Serves::Something } else { Serves::Nothing },
        };
        nodes.iter().map(candidate).collect()
    }

    proptest! {
        #[test]
        fn an_ideal_of_an_earlier_pass_is_what_it_would_be_made_anew(
            passes in prop::collection::vec(
                (
                    prop::collection::btree_map(0u8..6, (0u8..2, prop::bool::weighted(0.8), prop::bool::weighted(0.2)), 0..6),
                    prop::collection::vec((0u8..4, 0u32..4, 0u8..3), 0..8),
                    1usize..3,
                ),
                1..8,
            )
        ) {
            let mut ideals = Ideals::default();
            for (nodes, wishes, times) in passes {
                let nodes = fleet(&nodes);
                // Most passes find the fleet of the one before.
                for _ in 0..times {
                    ideals.begin(&nodes);
                    for (application, replicas, selector) in &wishes {
                        let application: ApplicationName = format!("app-{application}").parse().unwrap();
                        let selector = (*selector < 2).then(|| region(*selector));
                        let replicas = NonZeroU32::new(*replicas).map_or(Replicas::All, Replicas::Count);
                        let wish =
                            Wish { application: &application, replicas, selector: selector.as_ref(), published: true };
                        prop_assert_eq!(ideals.of(&wish, &nodes), &ideal(&wish, &nodes));
                    }
                    ideals.end();
                    let asked: std::collections::BTreeSet<_> = wishes.iter().map(|(application, ..)| application).collect();
                    prop_assert_eq!(ideals.known.len(), asked.len());
                }
            }
        }
    }
}

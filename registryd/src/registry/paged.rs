//! The records of one kind, one page at a time and none of them kept: for who goes through all of a large fleet.

use std::marker::PhantomData;

use futures_util::{StreamExt, stream};
use scafo_core::{Problem, ProblemCode};
use scafo_store::{ListRequest, Listed, Walk};

use super::{Engine, Kind, Stored};

/// Reads at once, as the cache's.
const READS_AT_ONCE: usize = 16;
/// How often in a row a page may have records that give no answer before those are left out like bad ones.
const SILENCES_MAX: u32 = 3;

/// How far a walk over the records is.
#[derive(Debug)]
pub(crate) struct Paged<T> {
    walk: Walk,
    /// A page of which not everything could be read yet, and what is left of it.
    half: Option<(Leaf<T>, Vec<Listed>)>,
    silences: u32,
    kind: PhantomData<fn() -> T>,
}

/// One page.
#[derive(Debug)]
pub(crate) struct Leaf<T> {
    /// What was not to be read.
    pub(crate) skipped: Vec<Listed>,
    /// The records, each with its row in the listing. What was deleted since then is left out.
    pub(crate) read: Vec<(Listed, Stored<T>)>,
    /// The rows of records that cannot be read, and why.
    pub(crate) bad: Vec<(Listed, Problem)>,
    /// Whether it is the last page. The next one is the first again.
    pub(crate) last: bool,
}

impl<T> Default for Paged<T> {
    fn default() -> Self {
        Self { walk: Walk::default(), half: None, silences: 0, kind: PhantomData }
    }
}

impl<T: Kind> Paged<T> {
    /// The next page, with every record that `skip` does not exclude. After a failure the same page is due again, and what was read
    /// of it is not read a second time.
    ///
    /// # Errors
    /// `store-unavailable` if the listing fails, or a record gives no answer for the first or second time; `store-nonconforming`
    /// for a listing that is cut short or lacks tags.
    pub(crate) async fn next(
        &mut self,
        engine: &Engine,
        skip: impl Fn(&Listed) -> bool + Send,
    ) -> Result<Leaf<T>, Problem> {
        let (mut leaf, wanted) = match self.half.take() {
            Some(half) => half,
            None => {
                let page = self.walk.next(&**engine.bucket(), ListRequest::of(T::PREFIX)).await?;
                let last = page.next.is_none();
                let records = page.entries.into_iter().filter(|listed| T::is_key(&listed.key));
                let (skipped, wanted) = records.partition(skip);
                (Leaf { skipped, read: Vec::new(), bad: Vec::new(), last }, wanted)
            }
        };
        let mut reads = stream::iter(wanted)
            .map(|listed| async move {
                let loaded = engine.load_once::<T>(&listed.key).await;
                (listed, loaded)
            })
            .buffer_unordered(READS_AT_ONCE);
        let mut silent: Vec<(Listed, Problem)> = Vec::new();
        while let Some((listed, loaded)) = reads.next().await {
            match loaded {
                Ok(Some(stored)) => leaf.read.push((listed, stored)),
                Ok(None) => {}
                Err(problem) if problem.code == ProblemCode::StoreUnavailable => silent.push((listed, problem)),
                Err(problem) => leaf.bad.push((listed, problem)),
            }
        }
        if let Some((_, problem)) = silent.first() {
            self.silences += 1;
            if self.silences < SILENCES_MAX {
                let problem = problem.clone();
                self.half = Some((leaf, silent.into_iter().map(|(listed, _)| listed).collect()));
                return Err(problem);
            }
            leaf.bad.append(&mut silent);
        }
        self.silences = 0;
        Ok(leaf)
    }
}

#[cfg(test)]
mod tests {
    use scafo_core::record::ApplicationRecord;
    use scafo_store::{Bucket as _, Fault, Operation};

    use super::*;
    use crate::registry::testing::{World, put_raw};

    #[tokio::test(start_paused = true)]
    async fn every_record_has_its_turn_once_and_a_silent_one_is_left_out_in_the_end() {
        let world = World::new();
        world.memory.set_page_keys(2);
        for name in ["a", "b", "c", "d"] {
            world.registry.create_application(&name.parse().unwrap()).await.unwrap();
        }
        put_raw(&world.memory, "_scafo/applications/e.json", "bad").await;
        world.memory.plan(|operation| {
            (operation == Operation::Get("_scafo/applications/c.json")).then_some(Fault::LoseRequest)
        });
        let mut paged: Paged<ApplicationRecord> = Paged::default();
        let engine = world.registry.engine();
        for _round in 0..2 {
            let (mut read, mut bad, mut failures) = (Vec::new(), Vec::new(), 0);
            loop {
                let before = world.memory.requests();
                let Ok(leaf) = paged.next(engine, |listed| listed.key.ends_with("/b.json")).await else {
                    failures += 1;
                    continue;
                };
                assert!(world.memory.requests() - before <= 3, "a page and what is new of it");
                read.extend(leaf.read.into_iter().map(|(_, stored)| stored.record.name.to_string()));
                bad.extend(leaf.bad.into_iter().map(|(listed, _)| listed.key));
                if leaf.last {
                    break;
                }
            }
            assert_eq!((read, failures), (["a", "d"].map(str::to_owned).into(), 2));
            assert_eq!(bad, ["_scafo/applications/c.json", "_scafo/applications/e.json"]);
        }
    }
}

//! Which deploys this node accepted and has not ended, on its own disk: so that a start reads the records of those and not of every
//! deploy of the fleet.
//!
//! Kept true: as long as there is a file of this node and installation, whatever this node has accepted and not ended is in it.
//! An id is there before its record is in the bucket. What has ended goes with the next write; a start looks at each anyway.
//! Where there is no such file, the start walks over all records, and only then one is made.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::{StreamExt as _, stream};
use scafo_core::record::DeployRecord;
use scafo_core::{DeployId, NodeId, Problem, ProblemCode, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::fs;
use tokio::sync::Mutex as Turn;

use super::turns::OFFERED;
use crate::daemon::Core;
use crate::files;
use crate::registry::Paged;

/// Name of the file, in the settings' `dir`.
const FILE: &str = "deploys.json";
/// Records that are read at once.
const READS_AT_ONCE: usize = 16;

/// The file. One of another bucket, or from before the node had its name, says nothing.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    installation: String,
    node: NodeId,
    /// When each was accepted.
    open: BTreeMap<DeployId, Timestamp>,
}

#[derive(Debug, Default)]
struct Known {
    /// Whether what earlier runs left is in `open`. Before, nothing is written.
    whole: bool,
    open: BTreeMap<DeployId, Timestamp>,
    /// Those of them that this run has accepted: their records may only be on their way.
    ours: BTreeSet<DeployId>,
}

/// The open deploys of this run and of earlier ones.
#[derive(Debug)]
pub(crate) struct Open {
    /// Where they are kept, for which installation and node. None: nothing outlives the daemon.
    place: Option<(PathBuf, String, NodeId)>,
    known: Mutex<Known>,
    /// One writes at a time, and the last one what is true last.
    writing: Turn<()>,
}

impl Open {
    /// Those that an earlier run noted in `dir`, if one did.
    pub(crate) async fn resume(dir: &Path, installation: &str, node: &NodeId) -> Self {
        let path = dir.join(FILE);
        let kept: Option<Kept> = files::read(&path).await.unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "open deploys are looked for in the bucket");
            None
        });
        let ours = kept.filter(|kept| kept.installation == installation && kept.node == *node);
        let known = ours.map_or_else(Known::default, |kept| Known { whole: true, open: kept.open, ..Known::default() });
        let place = Some((path, installation.to_owned(), node.clone()));
        Self { place, known: Mutex::new(known), writing: Turn::default() }
    }

    /// Those of a simulation.
    pub(crate) fn in_memory() -> Self {
        Self { place: None, known: Mutex::default(), writing: Turn::default() }
    }

    /// What earlier runs accepted and did not end, and when each was accepted. Reads the records of what was noted, or else all of
    /// the fleet.
    pub(super) async fn left(&self, core: &Core) -> Vec<(DeployId, Timestamp)> {
        if let Some(noted) = self.noted() {
            let looks = noted.into_iter().map(|(id, accepted)| still_open(core, self, id, accepted));
            return stream::iter(looks).buffer_unordered(READS_AT_ONCE).filter_map(async |open| open).collect().await;
        }
        let open = walk(core).await;
        self.found(&open).await;
        open
    }

    /// What was noted, with what this run has accepted since; none where only the bucket can tell.
    fn noted(&self) -> Option<BTreeMap<DeployId, Timestamp>> {
        let known = self.lock();
        known.whole.then(|| known.open.clone())
    }

    /// Adds what the bucket showed of earlier runs: from now on this is all.
    async fn found(&self, open: &[(DeployId, Timestamp)]) {
        {
            let mut known = self.lock();
            known.open.extend(open.iter().cloned());
            known.whole = true;
        }
        if let Err(problem) = self.keep().await {
            tracing::warn!(?problem, "open deploys are not noted");
        }
    }

    /// Notes a deploy that is accepted now. Returns once it would survive a crash.
    ///
    /// # Errors
    /// `resource-limit` when the file system takes neither a new file nor the old one away: the next run would not know of it.
    pub(super) async fn add(&self, id: &DeployId, accepted: Timestamp) -> Result<(), Problem> {
        {
            let mut known = self.lock();
            known.open.insert(id.clone(), accepted);
            known.ours.insert(id.clone());
            if !known.whole {
                return Ok(());
            }
        }
        self.keep().await
    }

    /// Corrects when a deploy was accepted.
    pub(super) fn accepted_at(&self, id: &DeployId, accepted: Timestamp) {
        if let Some(noted) = self.lock().open.get_mut(id) {
            *noted = accepted;
        }
    }

    /// It has ended, or is not this node's.
    pub(super) fn ended(&self, id: &DeployId) {
        let mut known = self.lock();
        known.open.remove(id);
        known.ours.remove(id);
    }

    /// There is no record of it. An earlier run may have ended before it wrote one; then the call may come again right now.
    fn missing(&self, id: &DeployId) {
        let mut known = self.lock();
        if !known.ours.contains(id) {
            known.open.remove(id);
        }
    }

    async fn keep(&self) -> Result<(), Problem> {
        let Some((path, installation, node)) = &self.place else { return Ok(()) };
        let _turn = self.writing.lock().await;
        let open = self.lock().open.clone();
        let kept = Kept { installation: installation.clone(), node: node.clone(), open };
        let Err(error) = files::write(path, &kept).await else { return Ok(()) };
        tracing::warn!(path = %path.display(), %error, "open deploys are not noted: the next start looks for them in the bucket");
        // An old list would be believed. A disk that is full still lets go of it.
        match fs::remove_file(path).await {
            Err(error) if !is_missing(&error) => {
                let detail = format!("this node cannot note the deploy in {}: {error}", path.display());
                Err(Problem::new(ProblemCode::ResourceLimit, detail))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A deploy that was noted, if it is to be gone on with, and when it was accepted. One whose record gives no answer keeps its place:
/// where nobody offers it, it is looked at again.
async fn still_open(core: &Core, open: &Open, id: DeployId, accepted: Timestamp) -> Option<(DeployId, Timestamp)> {
    match core.registry.deploy(&id).await.map(|stored| stored.record) {
        Ok(record) if record.node == core.settings.node.id && !record.state.is_terminal() => {
            return Some((id, record.accepted_at));
        }
        Ok(_) => open.ended(&id),
        Err(problem) if problem.code == ProblemCode::NotFound => open.missing(&id),
        Err(problem) => {
            tracing::warn!(deploy = %id, ?problem, "the record of a deploy of an earlier run cannot be read");
            if problem.code != ProblemCode::StoreNonconforming {
                return Some((id, accepted));
            }
            open.ended(&id);
        }
    }
    None
}

/// Goes through all deploys of the fleet, however long the bucket takes. They may be many: only the open ones of this node are held.
async fn walk(core: &Core) -> Vec<(DeployId, Timestamp)> {
    let mut deploys: Paged<DeployRecord> = Paged::default();
    let mut open = Vec::new();
    loop {
        match deploys.next(core.registry.engine(), |_| false).await {
            Ok(page) => {
                let records = page.read.into_iter().map(|(_, stored)| stored.record);
                let ours = records.filter(|it| it.node == core.settings.node.id && !it.state.is_terminal());
                open.extend(ours.map(|record| (record.id, record.accepted_at)));
                if page.last {
                    return open;
                }
            }
            Err(problem) => {
                tracing::warn!(?problem, "the deploys of an earlier run are not known yet, trying again");
                core.registry.clock().sleep(OFFERED / 60).await;
            }
        }
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(random: u64) -> DeployId {
        DeployId::new(&"shop".parse().unwrap(), random)
    }

    fn at() -> Timestamp {
        Timestamp::from_millis(7)
    }

    async fn resumed(dir: &Path, installation: &str) -> Option<Vec<DeployId>> {
        let open = Open::resume(dir, installation, &"a".parse().unwrap()).await;
        open.noted().map(|noted| noted.into_keys().collect())
    }

    #[tokio::test]
    async fn a_list_is_believed_only_once_it_is_whole_and_where_it_was_made() {
        let dir = tempfile::tempdir().unwrap();
        let open = Open::resume(dir.path(), "i", &"a".parse().unwrap()).await;
        open.add(&id(1), at()).await.unwrap();
        assert_eq!(resumed(dir.path(), "i").await, None, "what is in the bucket is not known yet");
        open.found(&[(id(2), at())]).await;
        open.ended(&id(1));
        open.add(&id(3), at()).await.unwrap();
        assert_eq!(resumed(dir.path(), "i").await, Some(vec![id(2), id(3)]));
        assert_eq!(resumed(dir.path(), "another").await, None);
        let again = Open::resume(dir.path(), "i", &"a".parse().unwrap()).await;
        again.add(&id(2), at()).await.unwrap();
        for absent in [id(2), id(3)] {
            again.missing(&absent);
        }
        assert_eq!(again.noted().unwrap().into_keys().collect::<Vec<_>>(), [id(2)], "its call has come again");
        let renamed = Open::resume(dir.path(), "i", &"b".parse().unwrap()).await;
        assert_eq!(renamed.noted(), None);
    }

    #[tokio::test]
    async fn a_disk_that_takes_nothing_leaves_no_old_list() {
        let dir = tempfile::tempdir().unwrap();
        let open = Open::resume(dir.path(), "i", &"a".parse().unwrap()).await;
        open.found(&[]).await;
        // The file beside cannot be made.
        std::fs::create_dir(dir.path().join("deploys.new")).unwrap();
        open.add(&id(1), at()).await.unwrap();
        assert_eq!(resumed(dir.path(), "i").await, None);
        std::fs::remove_dir(dir.path().join("deploys.new")).unwrap();
        open.add(&id(2), at()).await.unwrap();
        assert_eq!(resumed(dir.path(), "i").await, Some(vec![id(1), id(2)]));
    }
}

//! Becoming a node of a fleet: the bucket is looked over, then this node registers.

use std::io;
use std::path::Path;

use scafo_core::record::{NodeRecord, Rest, V1};
use scafo_core::settings::RegistrydSettings;
use scafo_core::{Problem, ProblemCode, Timestamp};
use serde::{Deserialize, Serialize};

use crate::files;
use crate::node::in_force::{InForce, Kept};
use crate::registry::{Arrival, Registry};

/// Name of the file with the fence and the placements in force, in the settings' `dir`.
pub(crate) const STATE: &str = "state.json";
/// Name of the file that says that this node has registered once. Without it (`sail --rejoin` removes it) a node whose record
/// is gone joins anew; with it, it was removed and stays away.
const REGISTERED: &str = "registered.json";

/// A node that has registered.
#[derive(Debug)]
pub(crate) struct Registered {
    /// Its record.
    pub(crate) own: NodeRecord,
    pub(crate) in_force: InForce,
}

/// Why it has not.
#[derive(Debug)]
pub(crate) enum NotRegistered {
    /// The bucket does not answer now; trying again may help.
    Away(Problem),
    /// It never will like this.
    Refused(Problem),
    /// This machine's disk.
    Disk(io::Error),
}

impl From<Problem> for NotRegistered {
    fn from(problem: Problem) -> Self {
        match problem.code {
            ProblemCode::StoreUnavailable | ProblemCode::CasConflict | ProblemCode::Draining => Self::Away(problem),
            _ => Self::Refused(problem),
        }
    }
}

impl NotRegistered {
    /// For a node that ran in this fleet before: what the bucket shows now may be set right beside it. Ending for it would end
    /// its applications, which serve whatever a record or the store looks like.
    fn of_a_known_node(self) -> Self {
        match self {
            Self::Refused(problem) if problem.code == ProblemCode::StoreNonconforming => Self::Away(problem),
            other => other,
        }
    }
}

impl From<io::Error> for NotRegistered {
    fn from(error: io::Error) -> Self {
        Self::Disk(error)
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Marker {
    installation: String,
}

/// Registers. Safe to repeat. Where this node ran before, a record or a store that it cannot work with is waited for.
///
/// # Errors
/// See [`NotRegistered`].
pub(crate) async fn register(
    registry: &Registry,
    settings: &RegistrydSettings,
    started: Timestamp,
) -> Result<Registered, NotRegistered> {
    prepare_dir(&settings.dir).await?;
    let marker: Option<Marker> = files::read(&settings.dir.join(REGISTERED)).await?;
    let meta = match registry.bootstrap(&settings.node.id).await {
        Ok(meta) => meta,
        Err(problem) => {
            let known = match &marker {
                Some(marker) => may_be_ours(registry, marker).await,
                None => false,
            };
            let refusal = NotRegistered::from(problem);
            return Err(if known { refusal.of_a_known_node() } else { refusal });
        }
    };
    let ours = Marker { installation: meta.installation };
    if marker.as_ref() == Some(&ours) {
        return join(registry, settings, started, &ours, Arrival::Returning)
            .await
            .map_err(NotRegistered::of_a_known_node);
    }
    let registered = join(registry, settings, started, &ours, Arrival::Joining).await?;
    files::write(&settings.dir.join(REGISTERED), &ours).await?;
    Ok(registered)
}

/// Whether a bucket that fails the first look can be the one of this node's fleet. One whose meta record cannot be read says
/// nothing against it.
async fn may_be_ours(registry: &Registry, marker: &Marker) -> bool {
    match registry.meta().await {
        Ok(Some(meta)) => meta.installation == marker.installation,
        Ok(None) => false,
        Err(_) => true,
    }
}

async fn join(
    registry: &Registry,
    settings: &RegistrydSettings,
    started: Timestamp,
    fleet: &Marker,
    arrival: Arrival,
) -> Result<Registered, NotRegistered> {
    let kept: Option<Kept> = files::read(&settings.dir.join(STATE)).await?;
    let in_force = InForce::resume(kept, &fleet.installation);
    refuse_strangers(registry, settings).await?;
    // What it served a moment ago it still serves: only this daemon started anew, and nobody else is to drop it for that.
    let before = registry.node(&settings.node.id).await?.map(|stored| stored.record);
    let before = before.filter(|before| before.public_key == settings.node.public_key);
    let mut record = record(settings, started);
    record.fence = in_force.kept().fence;
    record.serving = before.map(|before| before.serving).unwrap_or_default();
    let own = registry.register_node(&record, arrival).await?;
    Ok(Registered { own, in_force })
}

async fn prepare_dir(dir: &Path) -> io::Result<()> {
    tokio::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).await
}

/// Refuses a fleet of several nodes of which one cannot be reached: it would be placed on and routed to, and nobody could
/// follow. Nodes that come at the same moment may both pass; the next start of either says so.
async fn refuse_strangers(registry: &Registry, settings: &RegistrydSettings) -> Result<(), Problem> {
    let id = &settings.node.id;
    for other in registry.node_ids().await?.iter().filter(|other| *other != id) {
        if settings.embedded {
            return Err(refused(format!(
                "the embedded store belongs to node `{other}` and serves one node only; set `node.id` back to `{other}`, \
                 or configure a bucket (`bucket.name`) that both can reach"
            )));
        }
        if settings.local_only {
            return Err(refused(format!(
                "node `{other}` is in this fleet already, and `node.address` of this node is not set, so that the other \
                 cannot reach it; set `node.address` to an IP address of this machine"
            )));
        }
        let there = match registry.node(other).await {
            Ok(there) => there,
            // A record that cannot be read is its own node's trouble.
            Err(problem) if problem.code == ProblemCode::StoreNonconforming => None,
            Err(problem) => return Err(problem),
        };
        if there.is_some_and(|there| there.record.local_only) {
            return Err(refused(format!(
                "node `{other}` is in this fleet and has no `node.address`, so that this node cannot reach it; set it \
                 there and start that node again, or remove it (`scafo node remove {other}`), then start this one"
            )));
        }
    }
    Ok(())
}

fn refused(detail: String) -> Problem {
    Problem::new(ProblemCode::ReferenceHeld, detail)
}

/// What the settings say about this node, with no process yet.
pub(crate) fn record(settings: &RegistrydSettings, started: Timestamp) -> NodeRecord {
    let node = &settings.node;
    NodeRecord {
        v: V1,
        id: node.id.clone(),
        public_key: node.public_key.clone(),
        address: node.address.clone(),
        api: node.api.clone(),
        labels: node.labels.clone(),
        platform_domains: node.platform_domains.clone(),
        api_public: node.api_public,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        celld_version: node.celld_version.clone(),
        started_at: started,
        heartbeat_at: started,
        leaving: false,
        draining: false,
        drain: None,
        local_only: settings.local_only,
        fence: scafo_core::record::Fence::default(),
        serving: Vec::new(),
        rest: Rest::new(),
    }
}

#[cfg(test)]
mod tests {
    use scafo_core::key::{META, node};
    use scafo_core::record::RegistryMeta;
    use scafo_store::{Bucket as _, Lie, MemoryBucket};

    use super::*;
    use crate::daemon::testing::settings;
    use crate::registry::testing::{World, put_raw};

    /// A machine with a state directory of its own.
    struct Machine {
        settings: RegistrydSettings,
        _dir: tempfile::TempDir,
    }

    impl Machine {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            Self { settings: RegistrydSettings { dir: dir.path().join("registry"), ..settings("a") }, _dir: dir }
        }

        async fn starts(&self, world: &World) -> Result<NodeRecord, NotRegistered> {
            let started = world.registry.clock().wall();
            register(&world.registry, &self.settings, started).await.map(|registered| registered.own)
        }
    }

    fn nonconforming(outcome: Result<NodeRecord, NotRegistered>) -> &'static str {
        match outcome {
            Err(NotRegistered::Away(problem)) if problem.code == ProblemCode::StoreNonconforming => "away",
            Err(NotRegistered::Refused(problem)) if problem.code == ProblemCode::StoreNonconforming => "refused",
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_waits_for_a_record_that_cannot_be_read_and_a_first_start_is_refused() {
        for key in [META.to_owned(), node("a")] {
            for body in ["damaged", r#"{ "v": 2 }"#] {
                let (world, machine) = (World::new(), Machine::new());
                let own = machine.starts(&world).await.unwrap();
                let good = world.memory.get(&key).await.unwrap().unwrap().body;
                put_raw(&world.memory, &key, body).await;
                assert_eq!(nonconforming(machine.starts(&world).await), "away", "{key}");
                assert_eq!(nonconforming(Machine::new().starts(&world).await), "refused", "{key}");
                put_raw(&world.memory, &key, std::str::from_utf8(&good).unwrap()).await;
                assert_eq!(machine.starts(&world).await.unwrap().public_key, own.public_key);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_waits_for_a_store_that_lies_and_only_in_its_own_fleet() {
        let (world, machine) = (World::new(), Machine::new());
        machine.starts(&world).await.unwrap();
        let meta = world.memory.get(META).await.unwrap().unwrap().body;
        let lying = World::on(MemoryBucket::lying(Lie::IgnoresRange));
        assert_eq!(nonconforming(machine.starts(&lying).await), "refused", "another bucket, which is empty");
        put_raw(&lying.memory, META, std::str::from_utf8(&meta).unwrap()).await;
        assert_eq!(nonconforming(machine.starts(&lying).await), "away");
        let other = RegistryMeta { installation: "another".to_owned(), ..serde_json::from_slice(&meta).unwrap() };
        put_raw(&lying.memory, META, &serde_json::to_string(&other).unwrap()).await;
        assert_eq!(nonconforming(machine.starts(&lying).await), "refused", "the bucket of another fleet");
    }

    #[tokio::test(start_paused = true)]
    async fn a_removed_record_and_another_key_are_refused_after_a_restart_too() {
        let (world, machine) = (World::new(), Machine::new());
        machine.starts(&world).await.unwrap();
        let mut other = Machine::new();
        other.settings = RegistrydSettings { dir: machine.settings.dir.clone(), ..other.settings };
        other.settings.node.public_key = crate::registry::testing::key_of(9);
        let code = |outcome: Result<NodeRecord, NotRegistered>| match outcome {
            Err(NotRegistered::Refused(problem)) => problem.code,
            other => panic!("{other:?}"),
        };
        assert_eq!(code(other.starts(&world).await), ProblemCode::ReferenceHeld);
        world.memory.delete(&node("a")).await.unwrap();
        assert_eq!(code(machine.starts(&world).await), ProblemCode::NotFound);
    }
}

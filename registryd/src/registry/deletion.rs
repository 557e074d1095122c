//! Deleting an application and everything of it, which only the coordinator may do.
//!
//! Kept true: the application's own record goes last, so that until then a repeated call finds it, marked `deleting`, and
//! goes on where the last one ended; nothing is deleted while something may still serve or write it; and a new application of
//! the same name inherits nothing.
//!
//! Order: the record is marked (no routing, no deploys, no setters from then on); the placement goes, so that every node
//! stops; wait until no live node reports a process of it, no lease of celld in its fleet is fresh, and no deploy of it is on
//! its way on a live node; then everything goes.

use std::time::Duration;

use async_trait::async_trait;
use scafo_core::{
    ApplicationName, NodeId, Problem, ProblemCode, Timestamp, key,
    record::{ApplicationRecord, DeployRecord, DomainClaim, PlacementRecord},
};
use scafo_store::{Listed, PAGE_KEYS_MAX};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use super::{Cache, Guard, Intent, Registry, Step, Stored};

/// How long an application stays after it was retired, unless its deletion is forced.
pub const GRACE: Duration = Duration::from_hours(7 * 24);
/// How long a deletion waits for everything to stop: a node's pass, celld's drain of 90 s and its lease of 10 s.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two looks meanwhile.
const LOOK: Duration = Duration::from_secs(1);
/// How old, by the store's clock, a lease of celld must be to be nobody's: its life of 10 s, after which celld fences itself,
/// and half of that for clocks that count whole seconds and a renewal on its way.
const LEASE_AGE: Duration = Duration::from_secs(15);
/// Largest lease of celld that is read.
const LEASE_BYTES_MAX: u64 = 1 << 20;
/// Bytes of keys that are told one by one, as JSON: a hundred thousand of 120 bytes.
pub const TOLD_BYTES_MAX: usize = 12 << 20;

/// What the fleet does right now, as far as a bucket does not show it.
#[async_trait]
pub trait Surroundings: Send + Sync {
    /// Live nodes that report a process of the application, by a look that begins after this call.
    ///
    /// # Errors
    /// Store errors.
    async fn serving(&self, name: &ApplicationName) -> Result<Vec<NodeId>, Problem>;

    /// Whether a node answers.
    fn lives(&self, node: &NodeId) -> bool;
}

/// One deletion.
pub struct Deletion<'a> {
    /// Which application.
    pub name: &'a ApplicationName,
    /// Skips retirement and grace.
    pub force: bool,
    /// The fleet.
    pub around: &'a dyn Surroundings,
    /// Asked right before each delete whether this node still coordinates.
    pub holder: &'a dyn Guard,
    /// Cancelled when this node steps down.
    pub authority: CancellationToken,
    /// How long a node may take to notice that the placement is gone, before which its silence proves nothing.
    pub notice: Duration,
}

impl std::fmt::Debug for Deletion<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deletion").field("name", &self.name).field("force", &self.force).finish_non_exhaustive()
    }
}

impl Registry {
    /// Deletes an application. Answers the keys that were removed by this call, sorted; beyond [`TOLD_BYTES_MAX`] they
    /// are gone and not told.
    ///
    /// # Errors
    /// `not-found`; `reference-held` while it is neither retired for the whole [`GRACE`] nor forced nor being deleted
    /// already; `draining` naming what still runs after two minutes; `lease-lost` when this node steps down; store errors.
    /// After all but the first two a repeated call goes on.
    pub async fn delete_application(&self, deletion: &Deletion<'_>) -> Result<Vec<String>, Problem> {
        let deploys = Cache::under(key::deploys(deletion.name));
        let mut removal =
            Removal { registry: self, deletion, intent: deletion.intent(), deploys, told: Told::default() };
        let application = self.mark_deleting(deletion).await?;
        let noticed = removal.stop_placing().await?;
        removal.wait_for_quiet(noticed).await?;
        removal.remove_everything(&application).await?;
        let mut removed = removal.told.keys;
        removed.sort();
        removed.dedup();
        Ok(removed)
    }

    /// Removes a claim whose application does not exist, as a claimant leaves one that died while the application was being
    /// deleted. Answers whether it did.
    ///
    /// # Errors
    /// Store errors; an application that cannot be read still exists.
    pub async fn remove_orphaned_claim(&self, claim: &Stored<DomainClaim>) -> Result<bool, Problem> {
        if claim.record.released || self.application(&claim.record.application).await?.is_some() {
            return Ok(false);
        }
        self.give_up(&Intent::new(), &claim.record.host, |stored| stored.etag == claim.etag).await
    }

    /// Removes a placement whose application does not exist, as a pass leaves one that had begun before the application was
    /// deleted. Answers whether it did.
    ///
    /// # Errors
    /// `lease-lost`; store errors; an application that cannot be read still exists.
    pub async fn remove_orphaned_placement(&self, intent: &Intent, name: &ApplicationName) -> Result<bool, Problem> {
        if self.application(name).await?.is_some() {
            return Ok(false);
        }
        self.engine().delete(intent, &key::placement(name)).await?;
        Ok(true)
    }

    async fn mark_deleting(&self, deletion: &Deletion<'_>) -> Result<ApplicationRecord, Problem> {
        let Deletion { name, force, holder, .. } = *deletion;
        let now = self.clock().wall();
        let decide = |there: Option<&Stored<ApplicationRecord>>| {
            let Some(Stored { record, .. }) = there else {
                return Err(Problem::new(ProblemCode::NotFound, format!("there is no application `{name}`")));
            };
            if record.deleting == Some(true) {
                return Ok(Step::Keep);
            }
            if !force {
                ripe(record, now)?;
            }
            Ok(Step::Write(ApplicationRecord { deleting: Some(true), ..record.clone() }))
        };
        let marked = self.engine().change(&deletion.intent(), &key::application(name), Some(holder), decide).await?;
        self.mint_hint();
        Ok(marked.stored.record)
    }
}

impl Deletion<'_> {
    fn intent(&self) -> Intent {
        Intent::new().under(self.authority.clone())
    }
}

fn still_busy(name: &ApplicationName, busy: &[String]) -> Problem {
    let busy = busy.join(", ");
    let detail = format!("`{name}` is marked for deletion and has not stopped yet: {busy}; delete it again to go on");
    Problem::new(ProblemCode::Draining, detail)
}

/// Whether an application may be deleted without force.
fn ripe(record: &ApplicationRecord, now: Timestamp) -> Result<(), Problem> {
    let name = &record.name;
    let Some(retired) = record.retired_at else {
        let detail = format!("`{name}` is not retired: retire it, then delete it after seven days, or force it");
        return Err(Problem::new(ProblemCode::ReferenceHeld, detail));
    };
    let ripe = retired.after(GRACE);
    if now < ripe {
        let detail = format!("`{name}` was retired at {retired} and can be deleted from {ripe} on, or by force now");
        return Err(Problem::new(ProblemCode::ReferenceHeld, detail));
    }
    Ok(())
}

/// A deletion under way.
struct Removal<'a> {
    registry: &'a Registry,
    deletion: &'a Deletion<'a>,
    intent: Intent,
    /// Kept from look to look: of what is there already only what moved is read again.
    deploys: Cache<DeployRecord>,
    told: Told,
}

/// Keys to tell, no more than an answer takes.
#[derive(Default)]
struct Told {
    keys: Vec<String>,
    /// Of the keys as JSON, with the commas.
    bytes: usize,
}

impl Told {
    fn add(&mut self, key: String) {
        // A key that cannot be written as JSON is none that could be told.
        let Ok(text) = serde_json::to_string(&key) else { return };
        self.bytes = self.bytes.saturating_add(text.len() + 1);
        if self.bytes <= TOLD_BYTES_MAX {
            self.keys.push(key);
        }
    }
}

impl Removal<'_> {
    /// Removes the placement. Answers how long the nodes have to notice.
    async fn stop_placing(&mut self) -> Result<Duration, Problem> {
        let key = key::placement(self.deletion.name);
        // One that cannot be read may have placed something.
        let placed: bool = match self.registry.placement(self.deletion.name).await {
            Ok(there) => there.is_some_and(|stored: Stored<PlacementRecord>| !stored.record.nodes.is_empty()),
            Err(problem) if problem.code == ProblemCode::StoreNonconforming => true,
            Err(problem) => return Err(problem),
        };
        self.remove_if_there(&key).await?;
        Ok(if placed { self.deletion.notice } else { Duration::ZERO })
    }

    async fn wait_for_quiet(&mut self, noticed: Duration) -> Result<(), Problem> {
        let clock = self.registry.clock();
        let until = clock.mono().after(PATIENCE);
        clock.sleep(noticed).await;
        loop {
            self.authorised().await?;
            let late = clock.mono() >= until;
            match self.busy().await {
                Ok(busy) if busy.is_empty() => return Ok(()),
                Ok(busy) if late => return Err(still_busy(self.deletion.name, &busy)),
                // A store in trouble shows nothing, which is neither busy nor quiet.
                Err(problem) if late || problem.code != ProblemCode::StoreUnavailable => return Err(problem),
                Ok(_) | Err(_) => {}
            }
            clock.sleep(LOOK).await;
        }
    }

    /// What still runs, in words.
    async fn busy(&mut self) -> Result<Vec<String>, Problem> {
        let Deletion { name, around, .. } = self.deletion;
        let serving = around.serving(name).await?;
        let mut busy: Vec<String> = serving.iter().map(|node| format!("node `{node}` still runs it")).collect();
        let leases = self.registry.engine().list(&format!("{}/nodes/", key::fleet(name))).await?;
        for listed in &leases.entries {
            if self.is_fresh(listed).await? {
                let holder = listed.key.rsplit('/').next().unwrap_or_default().trim_end_matches(".json");
                busy.push(format!("celld node `{holder}` still has a lease"));
            }
        }
        self.deploys.refresh_patiently(self.registry.engine()).await?;
        for deploy in self.deploys.iter().map(|stored| &stored.record) {
            if !deploy.state.is_terminal() && around.lives(&deploy.node) {
                busy.push(format!("node `{}` is still carrying out deploy `{}`", deploy.node, deploy.id));
            }
        }
        Ok(busy)
    }

    /// Whether a celld process may still live by this lease. Its own expiry is by its writer's clock, so the store's decides;
    /// only what the writer says outright, that it has none any more, is believed.
    async fn is_fresh(&self, listed: &Listed) -> Result<bool, Problem> {
        #[derive(Deserialize)]
        struct Lease {
            expires_ms: Option<i64>,
        }
        let age = listed.date.zip(listed.last_modified).map(|(date, written)| date.since(written));
        if age.is_some_and(|age| age > LEASE_AGE) {
            return Ok(false);
        }
        let Some(object) = self.registry.engine().try_get(&listed.key, LEASE_BYTES_MAX).await? else {
            return Ok(false);
        };
        let expires = serde_json::from_slice::<Lease>(&object.body).ok().and_then(|lease| lease.expires_ms);
        Ok(match (expires, age) {
            (Some(0), _) => false,
            // A store without dates leaves the writer's clock to go by.
            (Some(expires), None) => expires > self.registry.clock().wall().as_millis(),
            (Some(_) | None, Some(_)) => true,
            (None, None) => false,
        })
    }

    async fn remove_everything(&mut self, application: &ApplicationRecord) -> Result<(), Problem> {
        let name = self.deletion.name;
        for key in [key::placement(name), key::trust(name)] {
            self.remove_if_there(&key).await?;
        }
        for prefix in [key::deployments(name), key::deploys(name), format!("{}/", key::fleet(name))] {
            self.remove_under(&prefix).await?;
        }
        for host in &application.domains {
            self.authorised().await?;
            if self.registry.remove_claim(&self.intent, name, host).await? {
                self.tell([key::domain(host)]);
            }
        }
        let key = key::application(name);
        // From here on somebody may make an application of this name anew.
        let is_it = |stands: &Stored<ApplicationRecord>| {
            stands.record.deleting == Some(true) && stands.record.created_at == application.created_at
        };
        if self.registry.application(name).await?.is_some_and(|stands| is_it(&stands)) {
            self.authorised().await?;
            self.registry.engine().delete_record(&self.intent, &key, is_it).await?;
            self.tell([key]);
        }
        Ok(())
    }

    async fn remove_under(&mut self, prefix: &str) -> Result<(), Problem> {
        loop {
            let keys = self.registry.engine().first(prefix, PAGE_KEYS_MAX).await?;
            if keys.is_empty() {
                return Ok(());
            }
            // What was listed may be another coordinator's by now, who made an end of it, and somebody's who came after.
            self.authorised().await?;
            self.registry.engine().delete_many(&self.intent, &keys).await?;
            self.tell(keys);
        }
    }

    async fn remove_if_there(&mut self, key: &str) -> Result<(), Problem> {
        if self.registry.engine().exists(key).await? {
            self.authorised().await?;
            self.registry.engine().delete(&self.intent, key).await?;
            self.tell([key.to_owned()]);
        }
        Ok(())
    }

    fn tell(&mut self, keys: impl IntoIterator<Item = String>) {
        keys.into_iter().for_each(|key| self.told.add(key));
    }

    async fn authorised(&self) -> Result<(), Problem> {
        self.deletion.holder.check().await
    }
}

/// Whether `object` is one of those that go with an application; the claims' keys do not tell.
#[cfg(test)]
pub(super) fn belongs(object: &str, name: &ApplicationName) -> bool {
    let single = [key::application(name), key::placement(name), key::trust(name)];
    let many = [key::deployments(name), key::deploys(name), format!("{}/", key::fleet(name))];
    single.iter().any(|own| own == object)
        || many.iter().any(|prefix| object.starts_with(prefix.as_str()))
        || object.starts_with(key::prefix::DOMAINS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_of_a_deletion_has_room_in_an_answer_whatever_the_keys_are() {
        for key in ["fleets/shop/k".to_owned(), "x".repeat(900), "\"\\\u{1}ä".repeat(200)] {
            let mut told = Told::default();
            for _ in 0..1_000_000 {
                if told.bytes > TOLD_BYTES_MAX {
                    break;
                }
                told.add(key.clone());
            }
            assert!(told.bytes > TOLD_BYTES_MAX && !told.keys.is_empty());
            let answer = serde_json::to_vec(&told.keys).unwrap();
            assert!(answer.len() <= TOLD_BYTES_MAX + 2, "{}", answer.len());
        }
    }
}

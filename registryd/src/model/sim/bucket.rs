//! The store through the network of one machine.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use scafo_core::key::prefix;
use scafo_core::record::PlacementRecord;
use scafo_store::{Bucket, Cause, Condition, ETagForm, Error, Head, ListRequest, Object, Page, Put, PutOptions};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use super::super::checks::Ledger;
use super::super::seeds::{Rule, is_broken};
use super::{DEADLINE, Sim, Way};

/// The store as one run on one machine reaches it.
pub(in super::super) struct SimBucket {
    pub(super) sim: Arc<Sim>,
    pub(super) machine: usize,
    pub(super) run: u64,
}

impl fmt::Debug for SimBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SimBucket").field("machine", &self.machine).finish_non_exhaustive()
    }
}

impl SimBucket {
    fn count(&self) {
        self.sim.machines[self.machine].requests.fetch_add(1, Ordering::Relaxed);
    }

    async fn read<T: Send>(
        &self,
        operation: &'static str,
        key: &str,
        read: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        self.count();
        let sim = &self.sim;
        sim.while_paused(self.machine).await;
        let (way, there, back) = sim.way(self.machine);
        let outcome = match way {
            Way::Through | Way::Conflict | Way::Refused => {
                sleep(there).await;
                sim.tick();
                let value = read.await;
                sleep(back).await;
                value
            }
            Way::Lost | Way::Unanswered | Way::Late => {
                sleep(DEADLINE).await;
                Err(Error::Unavailable { operation, key: key.to_owned(), cause: Cause::new("lost") })
            }
            Way::Busy => {
                sleep(there).await;
                Err(Error::Busy { operation, key: key.to_owned() })
            }
        };
        sim.while_paused(self.machine).await;
        outcome
    }

    /// Sends a change and waits for its answer for as long as a client does.
    async fn change<T: Send + 'static>(
        &self,
        way: &Way,
        there: Duration,
        back: Duration,
        change: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let (answer, answered) = oneshot::channel();
        let gives_up = Instant::now() + DEADLINE;
        let arrives = !matches!(way, Way::Lost);
        let answers = matches!(way, Way::Through);
        self.sim.send(async move {
            if !arrives {
                return;
            }
            sleep(there).await;
            let outcome = change.await;
            if answers {
                sleep(back).await;
                let _ = answer.send(outcome);
            }
        });
        let outcome = tokio::time::timeout_at(gives_up, answered).await.ok().and_then(Result::ok);
        if outcome.is_none() {
            sleep_until(gives_up).await;
        }
        outcome
    }
}

#[async_trait]
impl Bucket for SimBucket {
    async fn get_bounded(&self, key: &str, limit: u64) -> Result<Option<Object>, Error> {
        self.read("get", key, self.sim.memory.get_bounded(key, limit)).await
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, Error> {
        self.read("head", key, self.sim.memory.head(key)).await
    }

    async fn get_range(&self, key: &str, range: std::ops::Range<u64>) -> Result<Option<Bytes>, Error> {
        self.read("get", key, self.sim.memory.get_range(key, range)).await
    }

    async fn put(&self, key: &str, body: Bytes, mut options: PutOptions) -> Result<Put, Error> {
        self.count();
        let sim = &self.sim;
        if key.starts_with(prefix::PLACEMENT) {
            let placement: PlacementRecord = serde_json::from_slice(&body).unwrap();
            sim.ledger().sends(sim, (self.machine, self.run), placement.fence);
        }
        match options.condition {
            Condition::Absent if is_broken(Rule::CreatesAreConditional) => options.condition = Condition::None,
            Condition::Matches(_) if is_broken(Rule::UpdatesAreConditional) => options.condition = Condition::None,
            Condition::Absent | Condition::Matches(_) | Condition::None => {}
        }
        sim.while_paused(self.machine).await;
        sim.step(self.machine).await;
        let (way, there, back) = sim.way(self.machine);
        let early = match way {
            Way::Busy => Some(Put::Busy),
            Way::Conflict => Some(Put::Conflict),
            Way::Refused => Some(Put::Refused),
            Way::Through | Way::Lost | Way::Unanswered | Way::Late => None,
        };
        let put = if let Some(early) = early {
            sleep(there + back).await;
            early
        } else {
            let (world, machine, run, key) = (Arc::clone(sim), self.machine, self.run, key.to_owned());
            let landing = async move {
                world.tick();
                let before = Ledger::before(&world, &key);
                let put = world.memory.put(&key, body.clone(), options).await.unwrap();
                if matches!(put, Put::Written(_)) {
                    Ledger::landed(&world, (machine, run), &key, &body, before);
                }
                put
            };
            self.change(&way, there, back, landing).await.unwrap_or_else(|| Put::Unknown(Cause::new("lost")))
        };
        sim.while_paused(self.machine).await;
        sim.step(self.machine).await;
        Ok(put)
    }

    async fn delete(&self, key: &str) -> Result<(), Error> {
        self.count();
        let sim = &self.sim;
        sim.while_paused(self.machine).await;
        sim.step(self.machine).await;
        let (way, there, back) = sim.way(self.machine);
        let way = if matches!(way, Way::Conflict | Way::Refused) { Way::Through } else { way };
        let unavailable = || Error::Unavailable { operation: "delete", key: key.to_owned(), cause: Cause::new("lost") };
        let outcome = if matches!(way, Way::Busy) {
            sleep(there + back).await;
            Err(Error::Busy { operation: "delete", key: key.to_owned() })
        } else {
            let (world, key) = (Arc::clone(sim), key.to_owned());
            let deleted = self.change(&way, there, back, async move { world.memory.delete(&key).await }).await;
            deleted.unwrap_or_else(|| Err(unavailable()))
        };
        sim.while_paused(self.machine).await;
        sim.step(self.machine).await;
        outcome
    }

    async fn delete_many(&self, keys: &[String]) -> Result<(), Error> {
        for key in keys {
            self.delete(key).await?;
        }
        Ok(())
    }

    async fn list_page(&self, request: ListRequest<'_>) -> Result<Page, Error> {
        let mut page = self.read("list", request.prefix, self.sim.memory.list_page(request)).await?;
        if self.sim.shuffles.load(Ordering::Relaxed) {
            self.sim.dice().shuffle(&mut page.entries);
        }
        Ok(page)
    }

    fn use_etag_form(&self, _form: ETagForm) {}

    fn requests(&self) -> u64 {
        self.sim.machines[self.machine].requests.load(Ordering::Relaxed)
    }
}

//! Carries out what the lock machine decides, for all locks of this node, in one task that owns everything.

use std::{
    collections::{BTreeMap, HashMap, btree_map::Entry},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use scafo_core::{
    NodeId, Problem, ProblemCode, Timestamp,
    record::{Rest, V1, to_bytes},
};
use scafo_store::{Bucket, Condition, Put, PutOptions};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use super::{
    StorageKey,
    lock::{Body, Effect, Event, Inputs, LockOwner, Loss, Stamp, State, Ticket, Write, step},
};
use crate::registry::{Clock, Registry};

/// Locks that are known at once: four per certificate being ordered, and no terminator orders a thousand at a time.
const NAMES_MAX: usize = 4096;
/// Clients that wait for their turn to be heard; each waits no longer than its call may take.
const QUEUE: usize = 256;
/// Largest lock body that is read.
const LOCK_BYTES_MAX: u64 = 64 << 10;
/// What `refreshedAt` says of a lock that was given up.
const FREE: &str = "released";
/// How long the task sleeps when nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LockRecord {
    v: V1,
    holder: String,
    nonce: String,
    #[serde(default)]
    acquired_at: Value,
    #[serde(default)]
    refreshed_at: Value,
    #[serde(flatten)]
    rest: Rest,
}

#[derive(Debug)]
enum Command {
    Lock {
        name: StorageKey,
        owner: Option<LockOwner>,
        reply: oneshot::Sender<Result<(), Problem>>,
    },
    Unlock {
        name: StorageKey,
        owner: Option<LockOwner>,
        reply: oneshot::Sender<Result<(), Problem>>,
    },
    #[cfg(test)]
    Holds {
        name: StorageKey,
        reply: oneshot::Sender<bool>,
    },
}

/// A handle on the locks of this node. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Locks(mpsc::Sender<Command>);

impl Locks {
    /// Takes a lock or, by the same named owner, keeps it. Never waits for somebody else. If the caller gives up on the
    /// answer, the lock is given up as soon as it is had.
    ///
    /// # Errors
    /// `cas-conflict` while somebody else holds it; `store-nonconforming` for an object that is no lock; `draining` when
    /// more locks are known than this node keeps; store errors.
    pub async fn lock(&self, name: StorageKey, owner: Option<LockOwner>) -> Result<(), Problem> {
        self.ask(|reply| Command::Lock { name, owner, reply }).await
    }

    /// Gives a lock up. One that is not this owner's stays; that is no error.
    ///
    /// # Errors
    /// `draining` when the daemon is ending.
    pub async fn unlock(&self, name: StorageKey, owner: Option<LockOwner>) -> Result<(), Problem> {
        self.ask(|reply| Command::Unlock { name, owner, reply }).await
    }

    #[cfg(test)]
    pub(super) async fn holds(&self, name: &StorageKey) -> bool {
        let (reply, answer) = oneshot::channel();
        self.0.send(Command::Holds { name: name.clone(), reply }).await.unwrap();
        answer.await.unwrap()
    }

    async fn ask(&self, command: impl FnOnce(oneshot::Sender<Result<(), Problem>>) -> Command) -> Result<(), Problem> {
        let ending = || Problem::new(ProblemCode::Draining, "this node is ending; try again in a moment");
        let (reply, answer) = oneshot::channel();
        self.0.send(command(reply)).await.map_err(|_| ending())?;
        answer.await.map_err(|_| ending())?
    }
}

struct Waiting {
    name: StorageKey,
    owner: Option<LockOwner>,
    reply: oneshot::Sender<Result<(), Problem>>,
}

/// The task. Locks that it held when it ended lapse by themselves.
pub struct LockKeeper {
    node: NodeId,
    bucket: Arc<dyn Bucket>,
    clock: Arc<dyn Clock>,
    commands: mpsc::Receiver<Command>,
    locks: BTreeMap<StorageKey, State>,
    waiting: HashMap<Ticket, Waiting>,
    requests: JoinSet<(StorageKey, Event)>,
    next: Ticket,
}

impl std::fmt::Debug for LockKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LockKeeper").field("node", &self.node).field("locks", &self.locks.len()).finish_non_exhaustive()
    }
}

impl LockKeeper {
    /// The task of `node` and the handle on it. Nothing happens until [`LockKeeper::run`].
    #[must_use]
    pub fn new(registry: &Registry, node: NodeId) -> (Self, Locks) {
        let (sender, commands) = mpsc::channel(QUEUE);
        let keeper = Self {
            node,
            bucket: Arc::clone(registry.bucket()),
            clock: Arc::clone(registry.clock()),
            commands,
            locks: BTreeMap::new(),
            waiting: HashMap::new(),
            requests: JoinSet::new(),
            next: 0,
        };
        (keeper, Locks(sender))
    }

    /// Works until every handle is gone.
    pub async fn run(mut self) {
        let clock = Arc::clone(&self.clock);
        loop {
            let due = self.locks.values().filter_map(State::due).min();
            let due = due.unwrap_or_else(|| clock.mono().after(IDLE));
            tokio::select! {
                biased;
                // What became of a write before anything that builds on it.
                Some(done) = self.requests.join_next() => match done {
                    Ok((name, event)) => self.feed(&name, event),
                    // A request panicked: its lock would be stuck, so this node starts over with none.
                    Err(error) => {
                        tracing::error!(%error, "a request about a lock failed in a way it must not");
                        return;
                    }
                },
                () = clock.sleep_until(due) => self.due(),
                command = self.commands.recv() => match command {
                    Some(command) => self.command(command),
                    None => return,
                },
            }
        }
    }

    fn due(&mut self) {
        let now = self.clock.mono();
        let due = self.locks.iter().filter(|(_, state)| state.due().is_some_and(|due| due <= now));
        for name in due.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.feed(&name, Event::Due);
        }
    }

    fn command(&mut self, command: Command) {
        let (name, owner, reply, lock) = match command {
            Command::Lock { name, owner, reply } => (name, owner, reply, true),
            Command::Unlock { name, owner, reply } => (name, owner, reply, false),
            #[cfg(test)]
            Command::Holds { name, reply } => {
                let now = self.clock.mono();
                let _ = reply.send(self.locks.get(&name).is_some_and(|state| state.holds(now)));
                return;
            }
        };
        if lock && self.locks.len() >= NAMES_MAX && !self.locks.contains_key(&name) {
            let detail = "this node keeps as many locks as it can; try again in a minute";
            let _ = reply.send(Err(Problem::new(ProblemCode::Draining, detail)));
            return;
        }
        self.next += 1;
        let ticket = self.next;
        self.waiting.insert(ticket, Waiting { name: name.clone(), owner: owner.clone(), reply });
        let event = if lock { Event::Lock { owner, ticket } } else { Event::Unlock { owner, ticket } };
        self.feed(&name, event);
    }

    fn feed(&mut self, name: &StorageKey, event: Event) {
        let inputs = Inputs {
            now: self.clock.mono(),
            wall: self.clock.wall(),
            nonce: format!("{:032x}", rand::random::<u128>()),
        };
        let state = self.locks.remove(name).unwrap_or(State::Elsewhere(None));
        let (state, effects) = step(state, event, &inputs);
        if let (Entry::Vacant(slot), false) = (self.locks.entry(name.clone()), state.is_blank()) {
            slot.insert(state);
        }
        for effect in effects {
            self.carry_out(name, effect);
        }
    }

    fn carry_out(&mut self, name: &StorageKey, effect: Effect) {
        match effect {
            Effect::Read => {
                let (bucket, name) = (Arc::clone(&self.bucket), name.clone());
                self.requests.spawn(async move {
                    let there = read(&*bucket, &name).await;
                    (name, Event::Read(there))
                });
            }
            Effect::Write(write) => {
                let (bucket, name) = (Arc::clone(&self.bucket), name.clone());
                let body = self.body(&write);
                self.requests.spawn(async move {
                    let event = put(&*bucket, &name, write, body).await;
                    (name, event)
                });
            }
            Effect::Answer(ticket, answer) => self.answer(ticket, answer),
            Effect::Kept(ticket) => {
                if let Some(waiting) = self.waiting.remove(&ticket) {
                    let _ = waiting.reply.send(Ok(()));
                }
            }
        }
    }

    fn answer(&mut self, ticket: Ticket, answer: Result<(), Problem>) {
        let Some(Waiting { name, owner, reply }) = self.waiting.remove(&ticket) else { return };
        let granted = answer.is_ok();
        if reply.send(answer).is_err() && granted {
            // Its client has gone while the lock was being taken, and nobody would ever give it up.
            self.next += 1;
            self.feed(&name, Event::Unlock { owner, ticket: self.next });
        }
    }

    fn body(&self, write: &Write) -> Bytes {
        let refreshed = match write.what {
            Stamp::Hold => self.clock.wall().to_string(),
            Stamp::Free => FREE.to_owned(),
        };
        let record = LockRecord {
            v: V1,
            holder: self.node.to_string(),
            nonce: write.nonce.clone(),
            acquired_at: write.acquired_at.to_string().into(),
            refreshed_at: refreshed.into(),
            rest: Rest::new(),
        };
        to_bytes(&record).into()
    }
}

/// One read, one try: the client comes again.
async fn read(bucket: &dyn Bucket, name: &StorageKey) -> Result<Option<Body>, Problem> {
    let Some(object) = bucket.get_bounded(&name.lock(), LOCK_BYTES_MAX).await? else { return Ok(None) };
    let record: LockRecord = serde_json::from_slice(&object.body).map_err(|error| {
        let detail = format!("`{}` is no lock that this version of scafo reads: remove it", name.lock());
        Problem::new(ProblemCode::StoreNonconforming, detail).because(error)
    })?;
    let fresh = record.refreshed_at.as_str().is_some_and(|text| text.parse::<Timestamp>().is_ok());
    Ok(Some(Body { etag: object.head.etag, free: !fresh }))
}

/// One write, one try: a second would only prove later what is too late by then.
async fn put(bucket: &dyn Bucket, name: &StorageKey, write: Write, body: Bytes) -> Event {
    let Write { nonce, replacing, .. } = write;
    let options = PutOptions {
        condition: replacing.map_or(Condition::Absent, Condition::Matches),
        content_type: Some("application/json".to_owned()),
        ..PutOptions::default()
    };
    let why = match bucket.put(&name.lock(), body, options).await {
        Ok(Put::Written(etag)) => return Event::Written { nonce, etag },
        Ok(Put::Refused | Put::Gone | Put::Conflict | Put::Busy) => Loss::Contended,
        Ok(Put::Unknown(cause)) => {
            let detail = "the bucket does not answer: try again";
            Loss::Unclear(Problem::new(ProblemCode::StoreUnavailable, detail).because(cause))
        }
        Err(error) => Loss::Unclear(error.into()),
    };
    Event::Lost { nonce, why }
}

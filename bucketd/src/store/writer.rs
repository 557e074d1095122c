//! One thread owns the writing connection and commits in groups.
//!
//! Kept true: each write is decided and applied inside a transaction, so a conditional write has exactly one winner; its
//! answer leaves only after the commit is on the disk; a write that fails takes nothing of its group with it, and a commit that
//! fails answers the whole group with the failure, refusals included, because those were decided on what did not come to be.
//!
//! A write that reached the queue is carried out even if its caller has gone away: whoever drops the future does not know the
//! outcome, as with any store.

use std::{sync::Arc, thread};

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    error::StoreError,
    files::{FileName, Files, PendingFile},
    lock::DirectoryLock,
};

/// Writes that may wait. Each carries at most one inline body (64 KiB), so the queue holds at most 16 MiB; callers beyond it wait.
const QUEUE: usize = 256;

/// Writes that share one commit: with 64 KiB each the transaction stays near the 4 MiB at which SQLite checkpoints its log.
const GROUP: usize = 64;

/// What a write leaves to do once it is committed.
pub(super) struct Change<T> {
    /// The answer.
    pub(super) value: T,
    /// Files that are now named by a row.
    pub(super) adopted: Option<PendingFile>,
    /// Files that no row names any more.
    pub(super) retired: Vec<FileName>,
}

impl<T> Change<T> {
    pub(super) fn of(value: T) -> Self {
        Self { value, adopted: None, retired: Vec::new() }
    }

    pub(super) fn retire(mut self, files: Vec<FileName>) -> Self {
        self.retired.extend(files);
        self
    }
}

type Settle = Box<dyn FnOnce(Result<(), StoreError>) + Send>;
/// Without a transaction a job is not run: its settlement then passes the failure of the group on.
type Job = Box<dyn FnOnce(Option<&mut Transaction<'_>>) -> Settle + Send>;

/// The handle of the writing thread. Dropping the last one ends the thread after the writes that are queued.
#[derive(Clone)]
pub(super) struct Writer {
    jobs: mpsc::Sender<Job>,
    files: Arc<Files>,
}

impl Writer {
    /// Starts the thread. The token is cancelled when the thread has ended, for whatever reason.
    pub(super) fn start(
        conn: Connection,
        lock: DirectoryLock,
        files: Arc<Files>,
    ) -> std::io::Result<(Self, CancellationToken)> {
        let (jobs, queue) = mpsc::channel(QUEUE);
        let ended = CancellationToken::new();
        let guard = ended.clone().drop_guard();
        thread::Builder::new().name("store-writer".into()).spawn(move || run(conn, lock, queue, guard))?;
        Ok((Self { jobs, files }, ended))
    }

    /// Runs `change` in a transaction and answers after its commit.
    pub(super) async fn submit<T, F>(&self, change: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: FnOnce(&Connection) -> Result<Change<T>, StoreError> + Send + 'static,
    {
        let (job, outcome) = job(Arc::clone(&self.files), change);
        self.jobs.send(job).await.map_err(|_| StoreError::Closed)?;
        outcome.await.map_err(|_| StoreError::Closed)?
    }
}

/// A write for the queue, and where its answer comes.
fn job<T, F>(files: Arc<Files>, change: F) -> (Job, oneshot::Receiver<Result<T, StoreError>>)
where
    T: Send + 'static,
    F: FnOnce(&Connection) -> Result<Change<T>, StoreError> + Send + 'static,
{
    let (answer, outcome) = oneshot::channel();
    let job: Job = Box::new(move |tx| {
        let changed = tx.map_or(Err(StoreError::Closed), |tx| within_savepoint(tx, change));
        Box::new(move |committed| {
            let result = committed.and(changed).map(|change| settle(&files, change));
            // Nobody listens when the caller has gone away; the write stands all the same.
            drop(answer.send(result));
        })
    });
    (job, outcome)
}

/// A failed change leaves no trace in the group's transaction.
fn within_savepoint<T>(
    tx: &mut Transaction<'_>,
    change: impl FnOnce(&Connection) -> Result<Change<T>, StoreError>,
) -> Result<Change<T>, StoreError> {
    let savepoint = tx.savepoint()?;
    let changed = change(&savepoint)?;
    savepoint.commit()?;
    Ok(changed)
}

fn settle<T>(files: &Files, change: Change<T>) -> T {
    if let Some(file) = change.adopted {
        file.keep();
    }
    files.retire(change.retired);
    change.value
}

fn run(mut conn: Connection, lock: DirectoryLock, mut queue: mpsc::Receiver<Job>, ended: DropGuard) {
    let mut group = Vec::with_capacity(GROUP);
    while let Some(first) = queue.blocking_recv() {
        group.push(first);
        while group.len() < GROUP
            && let Ok(next) = queue.try_recv()
        {
            group.push(next);
        }
        commit_group(&mut conn, &mut group);
    }
    // In this order: nobody may open the directory while the log is still being folded into the database.
    drop(conn);
    drop(lock);
    drop(ended);
}

/// Runs a group in one transaction, then answers every job of it.
fn commit_group(conn: &mut Connection, group: &mut Vec<Job>) {
    let mut settles = Vec::with_capacity(group.len());
    let mut jobs = group.drain(..);
    let committed = apply(conn, &mut jobs, &mut settles);
    // What is left was not run, because the transaction ended early: it gets the same answer.
    settles.extend(jobs.map(|job| job(None)));
    for settle in settles {
        settle(committed.clone());
    }
}

fn apply(
    conn: &mut Connection,
    jobs: &mut impl Iterator<Item = Job>,
    settles: &mut Vec<Settle>,
) -> Result<(), StoreError> {
    let mut tx = conn.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for job in jobs {
        settles.push(job(Some(&mut tx)));
        // A full disk may make SQLite roll the whole transaction back by itself: then nothing of the group exists.
        if tx.is_autocommit() {
            return Err(StoreError::NoSpace);
        }
    }
    tx.commit().map_err(StoreError::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group of writes and what each was answered.
    struct Group {
        conn: Connection,
        files: Arc<Files>,
        jobs: Vec<Job>,
        answers: Vec<oneshot::Receiver<Result<(), StoreError>>>,
        _dir: tempfile::TempDir,
    }

    impl Group {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let conn = Connection::open_in_memory().unwrap();
            conn.execute_batch(
                "PRAGMA foreign_keys = ON;
                 CREATE TABLE item (name TEXT PRIMARY KEY);
                 CREATE TABLE child (name TEXT REFERENCES item DEFERRABLE INITIALLY DEFERRED);",
            )
            .unwrap();
            let files = Files::open(dir.path().join("bodies")).unwrap();
            Self { conn, files, jobs: Vec::new(), answers: Vec::new(), _dir: dir }
        }

        fn add(&mut self, sql: &'static str, then: fn() -> Result<(), StoreError>) -> &mut Self {
            let (job, answer) = job(Arc::clone(&self.files), move |conn: &Connection| {
                conn.execute_batch(sql)?;
                then().map(Change::of)
            });
            self.jobs.push(job);
            self.answers.push(answer);
            self
        }

        fn commit(&mut self) -> (Vec<String>, Vec<String>) {
            commit_group(&mut self.conn, &mut self.jobs);
            let answers = self.answers.drain(..).map(|mut answer| match answer.try_recv().unwrap() {
                Ok(()) => "ok".to_owned(),
                Err(StoreError::Database(_)) => "Database".to_owned(),
                Err(error) => format!("{error:?}"),
            });
            let mut names = self.conn.prepare("SELECT name FROM item ORDER BY name").unwrap();
            let names = names.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
            (answers.collect(), names)
        }
    }

    fn fine() -> Result<(), StoreError> {
        Ok(())
    }

    fn refused() -> Result<(), StoreError> {
        Err(StoreError::PreconditionFailed)
    }

    #[test]
    fn refused_write_takes_nothing_of_its_group_with_it() {
        let mut group = Group::new();
        group.add("INSERT INTO item VALUES ('a')", fine).add("INSERT INTO item VALUES ('b')", refused);
        let (answers, names) = group.add("INSERT INTO item VALUES ('c')", fine).commit();
        assert_eq!(answers, ["ok", "PreconditionFailed", "ok"]);
        assert_eq!(names, ["a", "c"]);
    }

    #[test]
    fn failed_commit_answers_the_whole_group() {
        let mut group = Group::new();
        group.add("INSERT INTO item VALUES ('a')", fine).add("SELECT 1", refused);
        // Only the commit notices that the item is missing.
        let (answers, names) = group.add("INSERT INTO child VALUES ('nobody')", fine).commit();
        assert_eq!(answers, ["Database", "Database", "Database"]);
        assert!(names.is_empty(), "{names:?}");
        let (answers, names) = group.add("INSERT INTO item VALUES ('later')", fine).commit();
        assert_eq!((answers, names), (vec!["ok".to_owned()], vec!["later".to_owned()]));
    }

    #[test]
    fn transaction_that_rolls_itself_back_fails_its_whole_group() {
        let mut group = Group::new();
        // As SQLite does by itself when the disk fills up in the middle of a statement.
        group.add("INSERT INTO item VALUES ('a')", fine).add("ROLLBACK", fine);
        let (answers, names) = group.add("INSERT INTO item VALUES ('b')", fine).commit();
        assert_eq!(answers, ["NoSpace", "NoSpace", "NoSpace"]);
        assert!(names.is_empty(), "{names:?}");
    }
}

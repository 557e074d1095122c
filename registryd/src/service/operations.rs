//! What this daemon remembers of calls that remove something.
//!
//! A change leaves the id of its operation beside what it wrote, and is recognised by that. A removal leaves nothing, so that
//! the call, made again after this daemon was killed, would say that there was nothing to remove. Therefore it notes on this
//! node's disk *what* it found, before it removes it. When it comes again, it goes on only if that still stands, and is done
//! if it is gone; what was made anew under the same name since is left alone.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use scafo_core::{Problem, ProblemCode};
use scafo_proto::transport::Operation;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

use crate::files;

/// Name of the file, in the settings' `dir`.
const FILE: &str = "operations.json";
/// How many removals are remembered. A caller makes a call again for 155 s at most, and a fleet is not taken apart faster than
/// this in that time; the file stays below 100 KiB.
const REMEMBERED: usize = 512;
/// What stands for a record that is there and cannot be read.
const UNREADABLE: &str = "unreadable";

/// One removal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    operation: String,
    /// Tells what was found from what may be made anew in its place.
    found: String,
}

/// The removals of the last runs and of this one.
#[derive(Debug)]
pub(crate) struct Operations {
    /// None: nothing outlives the daemon.
    path: Option<PathBuf>,
    notes: Mutex<VecDeque<Note>>,
}

impl Operations {
    /// Those of earlier runs, as far as the file can be read.
    pub(crate) async fn resume(dir: &Path) -> Self {
        let path = dir.join(FILE);
        let notes = files::read(&path).await.unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "earlier removals are not remembered");
            None
        });
        Self { path: Some(path), notes: Mutex::new(notes.unwrap_or_default()) }
    }

    /// Those of a simulation.
    pub(crate) fn in_memory() -> Self {
        Self { path: None, notes: Mutex::default() }
    }

    /// Makes a removal once: `found` says what is there to be removed now, if anything, in words that do not change while the
    /// removal goes on. `None` means that an earlier try of this operation has removed it.
    ///
    /// # Errors
    /// Those of `found` and `remove`.
    pub(crate) async fn remove<T>(
        &self,
        operation: Operation,
        found: impl Future<Output = Result<Option<String>, Problem>> + Send,
        remove: impl Future<Output = Result<T, Problem>> + Send,
    ) -> Result<Option<T>, Problem> {
        let now = match found.await {
            Err(problem) if problem.code == ProblemCode::StoreNonconforming => Some(UNREADABLE.to_owned()),
            found => found?,
        };
        let noted = self.noted(operation).await;
        match (&noted, now) {
            (Some(noted), now) if now.as_ref() != Some(noted) => return Ok(None),
            (None, Some(found)) => self.note(operation, found).await,
            // What is not there is refused below, in the words of the removal.
            (Some(_), _) | (None, None) => {}
        }
        match remove.await {
            // Gone since the look.
            Err(problem) if problem.code == ProblemCode::NotFound && noted.is_some() => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// Whether an earlier try of this operation found something to remove.
    pub(crate) async fn comes_again(&self, operation: Operation) -> bool {
        self.noted(operation).await.is_some()
    }

    /// What an earlier try of this operation found, if it found anything.
    pub(crate) async fn noted(&self, operation: Operation) -> Option<String> {
        let name = operation.to_string();
        let notes = self.notes.lock().await;
        notes.iter().rev().find(|note| note.operation == name).map(|note| note.found.clone())
    }

    /// Returns once it would survive a crash. A disk that takes nothing holds up no removal: an access that has to be taken away
    /// is worth more than the answer to a call that is made twice.
    async fn note(&self, operation: Operation, found: String) {
        let mut notes = self.notes.lock().await;
        notes.push_back(Note { operation: operation.to_string(), found });
        while notes.len() > REMEMBERED {
            notes.pop_front();
        }
        if let Some(path) = &self.path
            && let Err(error) = files::write(path, &*notes).await
        {
            tracing::warn!(path = %path.display(), %error, "a removal is not remembered over a restart");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing<T>() -> Result<T, Problem> {
        Err(Problem::new(ProblemCode::NotFound, "nothing is there"))
    }

    /// One try while `there` stands; what `remove` would answer, and the outcome.
    async fn one(
        operations: &Operations,
        operation: Operation,
        there: Option<&str>,
        answer: Result<u8, Problem>,
    ) -> Result<Option<u8>, ProblemCode> {
        let there = there.map(str::to_owned);
        operations.remove(operation, async { Ok(there) }, async { answer }).await.map_err(|problem| problem.code)
    }

    #[tokio::test]
    async fn a_removal_that_comes_again_after_a_restart_is_recognised() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second, third) = (Operation::fresh(), Operation::fresh(), Operation::fresh());
        let before = Operations::resume(dir.path()).await;
        let busy = Problem::new(ProblemCode::StoreUnavailable, "no answer");
        for operation in [first, second] {
            assert_eq!(one(&before, operation, Some("a"), Err(busy.clone())).await, Err(ProblemCode::StoreUnavailable));
        }
        assert_eq!(one(&before, third, None, missing()).await, Err(ProblemCode::NotFound), "there never was anything");
        drop(before);
        let after = Operations::resume(dir.path()).await;
        assert_eq!(one(&after, first, None, missing()).await, Ok(None), "it was removed");
        assert_eq!(one(&after, second, Some("a"), Ok(7)).await, Ok(Some(7)), "it still stood");
        assert_eq!(one(&after, second, Some("b"), Ok(8)).await, Ok(None), "what came later stays");
        assert_eq!(one(&after, second, Some("a"), missing()).await, Ok(None), "gone since the look");
        assert_eq!(one(&after, third, None, missing()).await, Err(ProblemCode::NotFound));
        assert_eq!(one(&after, Operation::fresh(), None, missing()).await, Err(ProblemCode::NotFound));
    }

    #[tokio::test]
    async fn what_cannot_be_read_can_be_removed_once() {
        let operations = Operations::in_memory();
        let operation = Operation::fresh();
        let unreadable = || async { Err(Problem::new(ProblemCode::StoreNonconforming, "html")) };
        assert_eq!(operations.remove(operation, unreadable(), async { Ok(1) }).await.unwrap(), Some(1));
        assert_eq!(operations.remove(operation, async { Ok(None) }, async { Ok(2) }).await.unwrap(), None);
    }

    #[tokio::test]
    async fn only_the_last_removals_are_remembered() {
        let operations = Operations::in_memory();
        for _ in 0..REMEMBERED + 10 {
            assert_eq!(one(&operations, Operation::fresh(), Some("a"), Ok(1)).await, Ok(Some(1)));
        }
        assert_eq!(operations.notes.lock().await.len(), REMEMBERED);
    }
}

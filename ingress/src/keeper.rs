//! Writes what a poller learns to disk, beside it: a disk that is slow, full or gone keeps nobody from polling or serving.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::Notify, time::sleep};

use crate::kept::{Boot, Kept};

/// How far the time of the last confirmation on disk may lag: a small part of the hour for which a document is good.
const LAG: Duration = Duration::from_secs(60);
/// Pause after a write that failed.
const RETRY: Duration = Duration::from_secs(10);
/// Pause after a write, for each MiB begun: a fleet in which much moves costs the disk no more than 1 MiB/s.
const PAUSE_PER_MIB: Duration = Duration::from_secs(1);

/// Where a poller leaves what it learned. Never waits.
#[derive(Debug, Default)]
pub(crate) struct Desk {
    news: Mutex<News>,
    bell: Notify,
}

#[derive(Debug, Default)]
struct News {
    /// The document in force, until the keeper takes it.
    document: Option<Bytes>,
    /// When the poll left that last brought it or confirmed it.
    confirmed: Duration,
}

impl Desk {
    /// The node gave this document to a poll that left at `asked`.
    pub(crate) fn fresh(&self, document: Bytes, asked: Duration) {
        *self.news() = News { document: Some(document), confirmed: asked };
        self.bell.notify_one();
    }

    /// The node said that nothing has changed.
    pub(crate) fn confirmed(&self, asked: Duration) {
        self.news().confirmed = asked;
        self.bell.notify_one();
    }

    fn take(&self) -> (Option<Bytes>, Duration) {
        let mut news = self.news();
        (mem::take(&mut news.document), news.confirmed)
    }

    fn news(&self) -> MutexGuard<'_, News> {
        // No section can leave it half changed.
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What to do about the disk.
#[derive(Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Confirm,
    Write,
}

/// What is known of the file of one fleet.
#[derive(Debug, Default)]
struct Disk {
    /// The document in force, as long as it is not in the file. What is in the file instead is not confirmed any more.
    unwritten: Option<Bytes>,
    /// What the file says, if it holds the document in force.
    confirmed: Option<Duration>,
    /// When a write last failed, until one succeeds.
    failed: Option<Duration>,
}

impl Disk {
    /// At `now`, after the document in force was confirmed at `confirmed`.
    fn due(&self, confirmed: Duration, now: Duration) -> Due {
        let resting = self.failed.is_some_and(|failed| now.saturating_sub(failed) < RETRY);
        let lags = self.confirmed.is_some_and(|written| confirmed.saturating_sub(written) >= LAG);
        match (&self.unwritten, resting) {
            (_, true) => Due::Nothing,
            (Some(_), false) => Due::Write,
            (None, false) if lags => Due::Confirm,
            (None, false) => Due::Nothing,
        }
    }
}

/// Keeps the document of one fleet.
pub(crate) struct Keeper {
    kept: Kept,
    fleet: String,
    desk: Arc<Desk>,
    disk: Disk,
}

impl Keeper {
    pub(crate) fn new(kept: Kept, fleet: String, desk: Arc<Desk>) -> Self {
        Self { kept, fleet, desk, disk: Disk::default() }
    }

    /// Keeps for ever. May be dropped at any time: a file is replaced in one step.
    pub(crate) async fn run(mut self) {
        loop {
            // Polls ring at least each half minute, so that what was put off has its turn.
            self.desk.bell.notified().await;
            let (document, confirmed) = self.desk.take();
            if document.is_some() {
                self.disk.unwritten = document;
                self.disk.confirmed = None;
            }
            let pause = match self.disk.due(confirmed, Boot::uptime()) {
                Due::Nothing => Duration::ZERO,
                Due::Confirm => self.store(None, confirmed).await,
                Due::Write => {
                    let document = self.disk.unwritten.clone();
                    self.store(document, confirmed).await
                }
            };
            sleep(pause).await;
        }
    }

    /// Writes the document, or only the time of a confirmation. Gives the pause that the disk has earned.
    async fn store(&mut self, document: Option<Bytes>, confirmed: Duration) -> Duration {
        let (kept, fleet) = (self.kept.clone(), self.fleet.clone());
        let pause = PAUSE_PER_MIB * document.as_ref().map_or(0, |bytes| (bytes.len() >> 20) as u32 + 1);
        let written = tokio::task::spawn_blocking(move || match document {
            Some(document) => kept.write(&fleet, &document, confirmed),
            None => kept.confirm(&fleet, confirmed),
        });
        match written.await.unwrap_or_else(|broken| Err(std::io::Error::other(broken))) {
            Ok(()) => {
                self.disk = Disk { confirmed: Some(confirmed), ..Disk::default() };
                pause
            }
            Err(error) => {
                if self.disk.failed.replace(Boot::uptime()).is_none() {
                    tracing::warn!(%error, "the routing document cannot be kept: after a restart this ingress waits for its node");
                }
                Duration::ZERO
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_written_once_and_confirmed_once_a_minute() {
        let seconds = Duration::from_secs;
        let current = |failed| Disk { unwritten: None, confirmed: Some(seconds(100)), failed };
        let news = |failed| Disk { unwritten: Some(Bytes::new()), confirmed: None, failed };
        for (disk, confirmed, now, due) in [
            (Disk::default(), 100, 100, Due::Nothing),
            (news(None), 100, 100, Due::Write),
            (news(Some(seconds(95))), 100, 100, Due::Nothing),
            (news(Some(seconds(90))), 100, 100, Due::Write),
            (current(None), 159, 160, Due::Nothing),
            (current(None), 160, 160, Due::Confirm),
            (current(Some(seconds(155))), 160, 160, Due::Nothing),
        ] {
            assert_eq!(disk.due(seconds(confirmed), seconds(now)), due, "{disk:?}, {confirmed}, {now}");
        }
    }
}

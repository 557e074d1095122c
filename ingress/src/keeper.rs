//! Writes what a poller learns to disk, beside it: a disk that is slow, full or gone keeps nobody from polling or serving.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use scafo_proto::boot::Boot;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout_at},
};

use crate::kept::Kept;

/// How far the time of the last confirmation on disk may lag: a small part of the hour for which a document is good.
const LAG: Duration = Duration::from_secs(60);
/// Pause after a write that failed.
const RETRY: Duration = Duration::from_secs(10);
/// Pause after a write, for each MiB begun: a fleet in which much moves costs the disk no more than 1 MiB/s.
const PAUSE_PER_MIB: Duration = Duration::from_secs(1);
/// Longest pause for which a file may stay that does not hold the document in force: a document that takes over every few seconds
/// shall not keep its file from being there.
const LONGEST_STALE: Duration = Duration::from_secs(10);

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
    /// The file is gone, and its document with it: nobody else has the bytes.
    missing: bool,
}

impl Desk {
    /// The node gave this document to a poll that left at `asked`.
    pub(crate) fn fresh(&self, document: Bytes, asked: Duration) {
        *self.news() = News { document: Some(document), confirmed: asked, missing: false };
        self.bell.notify_one();
    }

    /// Whether the bytes of the document in force are wanted, although the poller has it already. Says so once.
    pub(crate) fn wants_document(&self) -> bool {
        mem::take(&mut self.news().missing)
    }

    /// The next poll shall bring the bytes.
    pub(crate) fn want_document(&self) {
        self.news().missing = true;
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

    /// Resolves when there is a document to take. The bell rings again for whoever waits next.
    async fn document(&self) {
        while self.news().document.is_none() {
            self.bell.notified().await;
        }
        self.bell.notify_one();
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
    /// The document in force, as long as it is not in the file. What is in the file instead is not confirmed any more, and is removed
    /// when writing this one fails.
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
            self.rest(pause).await;
        }
    }

    /// Gives the disk its pause. Where that is long, what is replaced meanwhile goes at once; that takes no writing.
    async fn rest(&mut self, pause: Duration) {
        let end = Instant::now() + pause;
        if pause > LONGEST_STALE && timeout_at(end, self.desk.document()).await.is_ok() {
            let (kept, fleet) = (self.kept.clone(), self.fleet.clone());
            let gone = tokio::task::spawn_blocking(move || kept.forget(&fleet)).await;
            if let Err(error) = gone.unwrap_or_else(|broken| Err(std::io::Error::other(broken))) {
                tracing::warn!(%error, "a kept routing document that was replaced cannot be removed");
            }
            self.disk.confirmed = None;
        }
        sleep_until(end).await;
    }

    /// Writes the document, or only the time of a confirmation. Gives the pause that the disk has earned.
    async fn store(&mut self, document: Option<Bytes>, confirmed: Duration) -> Duration {
        let confirming = document.is_none();
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
            Err(error) if confirming && error.kind() == std::io::ErrorKind::NotFound => {
                tracing::info!("the kept routing document is gone, it is asked for again");
                self.disk = Disk::default();
                self.desk.want_document();
                Duration::ZERO
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

    const DOCUMENT: &[u8] = br#"{"v":1,"routes":[]}"#;

    fn keeper(dir: &tempfile::TempDir) -> Keeper {
        let kept = Kept::open(&dir.path().join("kept"), Boot::named(&"a".repeat(36)).unwrap()).unwrap();
        Keeper::new(kept, "fleet".to_owned(), Arc::default())
    }

    fn is_kept(keeper: &Keeper, at: Duration) -> bool {
        keeper.kept.read("fleet", at).unwrap().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_replaced_during_a_long_pause_goes_and_during_a_short_one_stays() {
        let (dir, at) = (tempfile::tempdir().unwrap(), Duration::from_secs(100));
        let mut keeper = keeper(&dir);
        for (pause, news, left) in [
            (LONGEST_STALE, true, true),
            (LONGEST_STALE + Duration::from_secs(1), false, true),
            (LONGEST_STALE + Duration::from_secs(1), true, false),
        ] {
            keeper.store(Some(Bytes::from_static(DOCUMENT)), at).await;
            drop(keeper.desk.take());
            keeper.desk.confirmed(at);
            if news {
                keeper.desk.fresh(Bytes::from_static(DOCUMENT), at);
            }
            keeper.rest(pause).await;
            assert_eq!(is_kept(&keeper, at), left, "{pause:?}, {news}");
        }
        assert!(keeper.desk.take().0.is_some(), "it is written after the pause");
    }

    #[tokio::test]
    async fn a_file_that_is_gone_is_asked_for_again_once() {
        let (dir, at) = (tempfile::tempdir().unwrap(), Duration::from_secs(100));
        let mut keeper = keeper(&dir);
        keeper.store(Some(Bytes::from_static(DOCUMENT)), at).await;
        keeper.store(None, at).await;
        assert!(!keeper.desk.wants_document());
        keeper.kept.forget("fleet").unwrap();
        keeper.store(None, at).await;
        assert!(keeper.desk.wants_document() && !keeper.desk.wants_document());
        keeper.store(Some(Bytes::from_static(DOCUMENT)), at).await;
        assert!(is_kept(&keeper, at));
    }

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

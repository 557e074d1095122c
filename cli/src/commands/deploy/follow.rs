//! Waiting, with a limit on everything: for a place in the queue, for a node that restarts a part of itself, for the end.
//!
//! A poll only reads, so it is asked again whatever went wrong on the way. An upload is sent again only when the node has said
//! that it did not take it, or was never reached.

use std::time::Duration;

use scafo_core::ApplicationName;
use scafo_core::deploy::Metadata;
use scafo_core::record::DeployState;
use scafo_core::view::DeployStatus;
use tokio::time::{Instant, sleep};

use crate::client::{Archive, CallError, Client};
use crate::commands::deploy::progress::Progress;
use crate::error::Outcome;
use crate::keys::Signer;

/// How long an upload waits for a place, whatever the node says meanwhile: twice the time that the node lets a deploy wait for its
/// turn. A place comes as others end.
const QUEUE_PATIENCE: Duration = Duration::from_secs(10 * 60);
/// How long a node may be away: while its deploy is followed it is judged dead after 90 s, and that judgement is worth reading. One
/// that refuses to work gets the time of a restart, and then a person has to look.
const AWAY_PATIENCE: Duration = Duration::from_secs(2 * 60);
/// The status of a node that has no place.
const FULL: u16 = 429;
/// Wait for a node that says "not now" without saying how long.
const NOT_NOW: Duration = Duration::from_secs(1);

/// What to do when the node has no place for the deploy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Queue {
    /// Come back.
    Wait,
    /// Say so.
    FailAtOnce,
}

/// One deploy's way through the node.
pub(super) struct Follower<'a> {
    pub(super) client: &'a Client,
    pub(super) signer: &'a Signer,
    pub(super) progress: &'a Progress,
}

impl Follower<'_> {
    /// Uploads the archive, and comes back while the node is full or not there yet.
    pub(super) async fn upload(
        &self,
        application: &ApplicationName,
        metadata: &Metadata,
        archive: Archive,
        queue: Queue,
    ) -> Outcome<DeployStatus> {
        let bytes = archive.bytes;
        // What the node said last.
        let mut told = String::new();
        let mut patience = Patience::begin();
        loop {
            let error = match self.client.upload(application, metadata, archive.clone(), self.signer).await {
                Ok(accepted) => return Ok(accepted),
                Err(error) => error,
            };
            let Some(wait) = come_back(&error, queue) else {
                return Err(error.into_failure("the deploy was not accepted", self.client.api()));
            };
            if patience.is_spent_by(&wait) {
                return Err(error.into_failure("the deploy was not accepted", self.client.api()));
            }
            if told != wait.why {
                self.progress.note(&format!("the node does not take the deploy at the moment: {}; waiting", wait.why));
                told = wait.why;
            }
            self.progress.step("waiting for a place");
            sleep(wait.pause).await;
            let _ = self.progress.uploading(bytes);
        }
    }

    /// Asks until the deploy has ended, or nobody answers: how long one may take is the node's to say (`deploy.taskTimeout`), and it
    /// ends each of them.
    pub(super) async fn follow(&self, accepted: DeployStatus) -> Outcome<DeployStatus> {
        let mut heard = Instant::now();
        let mut pause = Pause::default();
        let mut status = accepted;
        self.progress.step(doing(status.state));
        while !status.state.is_terminal() {
            sleep(pause.next()).await;
            match self.client.deploy_status(&status.id, self.signer).await {
                Ok(now) => {
                    if now.state != status.state {
                        // It moves: look closely again.
                        pause = Pause::default();
                        self.progress.step(doing(now.state));
                    }
                    heard = Instant::now();
                    status = now;
                }
                Err(error) if error.may_pass() && heard.elapsed() < AWAY_PATIENCE => {
                    self.progress.step("waiting for the node to answer");
                }
                Err(error) => {
                    let what = format!("the deploy {} was accepted, but how it goes cannot be read", status.id);
                    return Err(error.into_failure(&what, self.client.api()));
                }
            }
        }
        Ok(status)
    }
}

const fn doing(state: DeployState) -> &'static str {
    match state {
        DeployState::Accepted => "accepted, waiting for its turn",
        DeployState::Uploading => "bundling, publishing, and waiting for the nodes to serve it",
        DeployState::Deployed => "deployed",
        DeployState::Failed => "failed",
    }
}

/// How an upload that was not taken is sent again.
#[derive(Debug, PartialEq, Eq)]
struct Wait {
    pause: Duration,
    status: u16,
    /// What the node said.
    why: String,
}

/// How long an upload is sent again and again.
struct Patience {
    begun: Instant,
    /// Since when the node cannot work at all.
    away: Option<Instant>,
}

impl Patience {
    fn begin() -> Self {
        Self { begun: Instant::now(), away: None }
    }

    /// Whether waiting as the node asks for now would take too long.
    fn is_spent_by(&mut self, wait: &Wait) -> bool {
        // A node that has no place works.
        self.away = (wait.status != FULL).then(|| self.away.unwrap_or_else(Instant::now));
        let spent = |since: Instant, patience| since.elapsed() + wait.pause >= patience;
        self.away.is_some_and(|away| spent(away, AWAY_PATIENCE)) || spent(self.begun, QUEUE_PATIENCE)
    }
}

/// How to send an upload again; `None` when it must not be.
fn come_back(error: &CallError, queue: Queue) -> Option<Wait> {
    match (error, queue) {
        (_, Queue::FailAtOnce) => None,
        (CallError::Refused { status: status @ (FULL | 503), retry_after, problem }, Queue::Wait) => {
            let why = if problem.detail.is_empty() { problem.title() } else { problem.detail.as_str() };
            Some(Wait { pause: retry_after.unwrap_or(NOT_NOW), status: *status, why: why.to_owned() })
        }
        // Nobody there may mean that nobody will be: that is an error to read, not to wait for. After a break the node may
        // have it already.
        (CallError::Refused { .. } | CallError::Unreachable(_) | CallError::Broken(_) | CallError::Foreign(_), _) => {
            None
        }
    }
}

/// From 50 ms, since a small deploy is served within a second, up to half a second.
struct Pause(Duration);

impl Pause {
    const FIRST: Duration = Duration::from_millis(50);
    const LAST: Duration = Duration::from_millis(500);

    fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 3 / 2).min(Self::LAST);
        now
    }
}

impl Default for Pause {
    fn default() -> Self {
        Self(Self::FIRST)
    }
}

#[cfg(test)]
mod tests {
    use scafo_core::{Problem, ProblemCode};

    use super::*;

    fn refused(code: ProblemCode, detail: &str, retry_after: Option<u64>) -> CallError {
        let problem = Problem::new(code, detail);
        CallError::Refused { status: code.status(), problem, retry_after: retry_after.map(Duration::from_secs) }
    }

    #[test]
    fn only_an_upload_that_was_not_taken_is_sent_again() {
        let overloaded = refused(ProblemCode::DeployOverloaded, "full", Some(3));
        assert_eq!(come_back(&overloaded, Queue::Wait).unwrap().pause, Duration::from_secs(3));
        assert_eq!(come_back(&overloaded, Queue::FailAtOnce), None);
        for final_ in [ProblemCode::DeploysFrozen, ProblemCode::AuthInvalid, ProblemCode::ResourceLimit] {
            assert_eq!(come_back(&refused(final_, "", None), Queue::Wait), None);
        }
        assert_eq!(come_back(&CallError::Broken(String::new()), Queue::Wait), None);
    }

    #[test]
    fn a_node_that_does_not_take_a_deploy_is_waited_for_in_its_own_words() {
        for (code, detail, status, why) in [
            (ProblemCode::Draining, "this node is starting", 503, "this node is starting"),
            (ProblemCode::StoreUnavailable, "", 503, "The bucket does not answer"),
            (ProblemCode::DeployOverloaded, "full", FULL, "full"),
        ] {
            let wait = come_back(&refused(code, detail, None), Queue::Wait).unwrap();
            assert_eq!(wait, Wait { pause: NOT_NOW, status, why: why.to_owned() });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_is_not_sent_again_without_end_however_its_refusals_alternate() {
        let pause = Duration::from_secs(7);
        for (statuses, limit) in
            [(&[FULL][..], QUEUE_PATIENCE), (&[503], AWAY_PATIENCE), (&[FULL, 503], QUEUE_PATIENCE)]
        {
            let begun = Instant::now();
            let mut patience = Patience::begin();
            // Twice as often as the longest limit allows.
            let most = 2 * QUEUE_PATIENCE.as_secs() / pause.as_secs();
            let mut refusals = statuses.iter().cycle().take(usize::try_from(most).unwrap());
            while let Some(status) = refusals.next()
                && !patience.is_spent_by(&Wait { pause, status: *status, why: String::new() })
            {
                sleep(pause).await;
            }
            assert!((limit - pause..limit).contains(&begun.elapsed()), "{statuses:?}: {:?}", begun.elapsed());
        }
    }

    #[test]
    fn pauses_grow_from_a_twentieth_to_half_a_second() {
        let mut pause = Pause::default();
        let pauses: Vec<Duration> = (0..12).map(|_| pause.next()).collect();
        assert_eq!((pauses[0], pauses[11]), (Pause::FIRST, Pause::LAST));
        assert!(pauses.is_sorted());
    }
}

//! How the process of one application takes a deploy on this node. Pure; one machine for each application.
//!
//! Every new deploy id is offered to the process once it can take it, even when the version did not change: a version is a
//! hash of content and leaves schedules out. `failed` is only said for what the runtime itself said about this very deploy;
//! silence, a refusal for the moment and timeouts are tried again.

use std::time::Duration;

use scafo_core::record::{Adoption, ProcessState, Published};
use scafo_core::view::{LastExit, ProcessStatus};
use scafo_core::{DeployId, DeploymentVersion, Timestamp, text};

use crate::registry::Mono;

/// Longest text of a failure that is kept, in bytes; it stands in the node record.
pub(crate) const ERROR_BYTES: usize = 2048;
/// The first pause before a reload is tried again; doubled up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// As long as the default reconcile interval: a process that is not ready for it is asked about as often as anything else.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How long a reload's word counts for more than what looks at the process show: the supervisor looks every 2 s.
const TOLD: Duration = Duration::from_secs(10);

/// How many processes in a row have to end early, without having been ready, for the deploy to be the reason. The first may
/// have met a bucket that was away.
const EARLY_ENDS: u32 = 2;
/// What celld ends with when it was fenced (celld contract, section 4): no word about the code.
const EXIT_FENCED: i32 = 3;

/// Which life of a process something is known of: an adopted process has a pid but may have no start time.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Life {
    pid: Option<u32>,
    started: Option<Timestamp>,
}

impl Life {
    const fn of(status: &ProcessStatus) -> Self {
        Self { pid: status.pid, started: status.started_at }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// To be offered at `at`, as soon as the process can take it. `tries` so far.
    Waiting {
        at: Mono,
        tries: u32,
    },
    /// The process had served nothing yet when this deploy was already the published one: it boots with it.
    Booting,
    /// A reload is on its way.
    Reloading {
        tries: u32,
    },
    Adopted {
        /// When a reload said so, until a look at the process shows it.
        told: Option<Mono>,
    },
    Failed {
        error: String,
    },
}

/// The machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Adopting {
    deploy: DeployId,
    version: DeploymentVersion,
    life: Life,
    phase: Phase,
    /// Processes that ended in a row before they were ready with this deploy.
    early: u32,
    /// The last end that was looked at.
    seen: Option<Timestamp>,
}

/// How a reload ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reloaded {
    /// The process serves this version now, or did already.
    Serves(DeploymentVersion),
    /// The runtime could not build it.
    Failed { version: Option<DeploymentVersion>, error: String },
    /// Not now, or no answer.
    Unavailable,
}

/// What a node record says about a deploy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) deploy: DeployId,
    pub(crate) adoption: Option<Adoption>,
    pub(crate) error: Option<String>,
    /// The version that the process was told of last, when it took it.
    pub(crate) serves: Option<DeploymentVersion>,
    /// Whether that is newer than what a look at the process shows.
    pub(crate) unseen: bool,
}

impl Adopting {
    /// The machine after a restart of this daemon, from what this node's own record said.
    pub(crate) fn resumed(
        published: &Published,
        status: &ProcessStatus,
        adoption: Adoption,
        error: Option<String>,
    ) -> Self {
        let phase = match adoption {
            Adoption::Adopted => Phase::Adopted { told: None },
            Adoption::Failed => Phase::Failed { error: error.unwrap_or_default() },
        };
        Self::at(published, status, phase)
    }

    fn at(published: &Published, status: &ProcessStatus, phase: Phase) -> Self {
        Self {
            deploy: published.deploy.clone(),
            version: published.version.clone(),
            life: Life::of(status),
            phase,
            early: 0,
            // Whatever ended before is no word about this deploy.
            seen: status.last_exit.as_ref().map(|exit| exit.at),
        }
    }

    fn fresh(published: &Published, status: &ProcessStatus, now: Mono) -> Self {
        // What has served nothing reads the pointer after this moment, or again when it has waited for its first
        // deployment; and the pointer moved before the record did.
        let phase = match (status.state, &status.deployment) {
            (ProcessState::Starting | ProcessState::BackingOff | ProcessState::CrashLooping, None) => Phase::Booting,
            _ => Phase::Waiting { at: now, tries: 0 },
        };
        Self::at(published, status, phase)
    }

    /// What the record and the process say now. True when a reload is to be sent; its end goes to [`Adopting::reloaded`].
    pub(crate) fn look(
        machine: Option<Self>,
        published: &Published,
        status: &ProcessStatus,
        now: Mono,
    ) -> (Self, bool) {
        let mut this = match machine {
            Some(this) if this.deploy == published.deploy => this,
            Some(_) | None => Self::fresh(published, status, now),
        };
        this.count_ends(status);
        let life = Life::of(status);
        if life != this.life {
            // Spawned while this deploy was the published one. A reload that was on its way went to the dead.
            this.life = life;
            this.phase = Phase::Booting;
        }
        let serves = status.deployment.as_ref();
        match this.phase {
            Phase::Booting if status.state == ProcessState::Ready && serves == Some(&this.version) => {
                this.phase = Phase::Adopted { told: None };
                this.early = 0;
            }
            // It came up with something else, or does not say with what.
            Phase::Booting if status.state == ProcessState::Ready => {
                this.phase = Phase::Waiting { at: now, tries: 0 };
                this.early = 0;
            }
            Phase::Booting if this.early >= EARLY_ENDS => {
                this.phase = Phase::Failed { error: never_ready(this.early, status.last_exit.as_ref()) };
            }
            Phase::Adopted { told: Some(at) } if serves == Some(&this.version) || at.after(TOLD) <= now => {
                this.phase = Phase::Adopted { told: None };
            }
            _ => {}
        }
        let send = match this.phase {
            Phase::Waiting { at, tries } if at <= now && status.state == ProcessState::Ready => {
                this.phase = Phase::Reloading { tries };
                true
            }
            _ => false,
        };
        (this, send)
    }

    /// Counts a process that ended while it booted with this deploy.
    fn count_ends(&mut self, status: &ProcessStatus) {
        let Some(exit) = &status.last_exit else { return };
        let gave_up = self.early >= EARLY_ENDS && matches!(self.phase, Phase::Failed { .. });
        if gave_up {
            // It is started again and again; should one come up, that one counts.
            self.phase = Phase::Booting;
        }
        if self.seen == Some(exit.at) {
            return;
        }
        self.seen = Some(exit.at);
        if matches!(self.phase, Phase::Booting) && exit.code.is_some_and(|code| code != 0 && code != EXIT_FENCED) {
            self.early = self.early.saturating_add(1);
        }
    }

    /// A reload for `deploy` ended.
    pub(crate) fn reloaded(&mut self, deploy: &DeployId, outcome: Reloaded, now: Mono) {
        let Phase::Reloading { tries } = self.phase else { return };
        if self.deploy != *deploy {
            return;
        }
        self.phase = match outcome {
            Reloaded::Serves(version) if version == self.version => Phase::Adopted { told: Some(now) },
            Reloaded::Failed { version, error } if version.as_ref().is_none_or(|version| *version == self.version) => {
                Phase::Failed { error: cut(&error) }
            }
            // The pointer names another version already: the record that goes with it is on its way.
            Reloaded::Serves(_) | Reloaded::Failed { .. } | Reloaded::Unavailable => {
                let pause = FIRST_PAUSE.saturating_mul(1 << tries.min(8)).min(LONGEST_PAUSE);
                Phase::Waiting { at: now.after(pause), tries: tries.saturating_add(1) }
            }
        };
    }

    /// When [`Adopting::look`] is to be called again, if nothing else happens.
    pub(crate) const fn due(&self) -> Option<Mono> {
        match self.phase {
            Phase::Waiting { at, .. } => Some(at),
            Phase::Booting | Phase::Reloading { .. } | Phase::Adopted { .. } | Phase::Failed { .. } => None,
        }
    }

    /// What to tell the fleet.
    pub(crate) fn report(&self) -> Report {
        let (adoption, error, serves) = match &self.phase {
            Phase::Adopted { .. } => (Some(Adoption::Adopted), None, Some(self.version.clone())),
            Phase::Failed { error } => (Some(Adoption::Failed), Some(error.clone()), None),
            Phase::Waiting { .. } | Phase::Booting | Phase::Reloading { .. } => (None, None, None),
        };
        let unseen = matches!(self.phase, Phase::Adopted { told: Some(_) });
        Report { deploy: self.deploy.clone(), adoption, error, serves, unseen }
    }
}

fn never_ready(times: u32, exit: Option<&LastExit>) -> String {
    if let Some(why) = exit.and_then(LastExit::not_started) {
        return cut(&format!("its process {}{why}", LastExit::NOT_STARTED));
    }
    let code = exit.and_then(|exit| exit.code).map(|code| format!(" with code {code}")).unwrap_or_default();
    let ended = format!("its process ended{code} before it was ready, {times} times in a row");
    match exit.and_then(|exit| exit.said.as_ref()) {
        Some(said) => cut(&format!("{ended}; it said: {said}")),
        None => format!("{ended}; its log on that node says why"),
    }
}

fn cut(error: &str) -> String {
    text::head(error, ERROR_BYTES).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Mono {
        Mono::at(Duration::from_secs(seconds))
    }

    fn version(text: &str) -> DeploymentVersion {
        text.parse().unwrap()
    }

    fn published(digit: u64, version: &str) -> Published {
        let shop = "shop".parse().unwrap();
        Published { version: version.parse().unwrap(), deploy: DeployId::new(&shop, digit), rest: Default::default() }
    }

    fn process(pid: u32, state: ProcessState, deployment: Option<&str>) -> ProcessStatus {
        ProcessStatus {
            application: "shop".parse().unwrap(),
            state,
            since: Timestamp::from_millis(0),
            pid: Some(pid),
            port: 1,
            internal_port: 2,
            deployment: deployment.map(version),
            celld_version: None,
            restarts: 0,
            started_at: None,
            last_exit: None,
            adopted: false,
        }
    }

    fn adoption(machine: &Adopting) -> Option<Adoption> {
        machine.report().adoption
    }

    #[test]
    fn each_new_deploy_is_offered_even_for_an_equal_version() {
        let ready = process(1, ProcessState::Ready, Some("v1"));
        let (mut machine, send) = Adopting::look(None, &published(1, "v1"), &ready, s(0));
        assert!(send && adoption(&machine).is_none());
        machine.reloaded(&published(1, "v1").deploy, Reloaded::Serves(version("v1")), s(1));
        assert_eq!(adoption(&machine), Some(Adoption::Adopted));
        let (machine, send) = Adopting::look(Some(machine), &published(1, "v1"), &ready, s(2));
        assert!(!send);
        let (machine, send) = Adopting::look(Some(machine), &published(2, "v1"), &ready, s(3));
        assert!(send && adoption(&machine).is_none());
    }

    #[test]
    fn a_process_that_boots_with_a_deploy_needs_no_reload() {
        let starting = process(1, ProcessState::Starting, None);
        let (machine, send) = Adopting::look(None, &published(1, "v1"), &starting, s(0));
        assert!(!send);
        let (machine, send) = Adopting::look(Some(machine), &published(1, "v1"), &starting, s(1));
        assert!(!send && adoption(&machine).is_none());
        let ready = process(1, ProcessState::Ready, Some("v1"));
        let (machine, send) = Adopting::look(Some(machine), &published(1, "v1"), &ready, s(2));
        assert!(!send && adoption(&machine) == Some(Adoption::Adopted));
        // Started again, it has to show the version again.
        let again = process(2, ProcessState::Starting, None);
        let (machine, _) = Adopting::look(Some(machine), &published(1, "v1"), &again, s(3));
        assert_eq!(adoption(&machine), None);
    }

    #[test]
    fn a_process_that_booted_with_something_else_is_told() {
        let starting = process(1, ProcessState::Starting, None);
        let (machine, _) = Adopting::look(None, &published(1, "v2"), &starting, s(0));
        let (_, send) =
            Adopting::look(Some(machine), &published(1, "v2"), &process(1, ProcessState::Ready, Some("v1")), s(1));
        assert!(send);
    }

    #[test]
    fn processes_that_end_before_they_are_ready_fail_the_deploy_until_one_comes_up() {
        let target = published(1, "v1");
        let ended = |at: i64, code: i32| ProcessStatus {
            pid: None,
            last_exit: Some(LastExit {
                code: Some(code),
                signal: None,
                at: Timestamp::from_millis(at),
                said: Some("Error: not today".to_owned()),
            }),
            ..process(1, ProcessState::BackingOff, None)
        };
        let again = |pid: u32, state: ProcessState, serves: Option<&str>, before: &ProcessStatus| ProcessStatus {
            last_exit: before.last_exit.clone(),
            ..process(pid, state, serves)
        };
        // An end before this deploy, and one that says nothing about the code.
        let (mut machine, _) = Adopting::look(None, &target, &ended(1, 1), s(0));
        for (second, at, code, failed) in
            [(1, 1, 1, false), (2, 2, EXIT_FENCED, false), (3, 3, 1, false), (4, 4, 1, true)]
        {
            let status = ended(at, code);
            machine = Adopting::look(Some(machine), &target, &status, s(second)).0;
            assert_eq!(adoption(&machine) == Some(Adoption::Failed), failed, "{at}");
            let starting = again(u32::try_from(second).unwrap(), ProcessState::Starting, None, &status);
            machine = Adopting::look(Some(machine), &target, &starting, s(second)).0;
            assert_eq!(adoption(&machine) == Some(Adoption::Failed), failed, "{at}");
        }
        let error = machine.report().error.unwrap();
        assert!(error.contains("with code 1") && error.ends_with("it said: Error: not today"), "{error}");
        let mut unstarted = ended(5, 1);
        let exit = unstarted.last_exit.as_mut().unwrap();
        (exit.code, exit.said) = (None, Some(format!("{}the disk is full", LastExit::NOT_STARTED)));
        machine = Adopting::look(Some(machine), &target, &unstarted, s(5)).0;
        assert_eq!(machine.report().error.as_deref(), Some("its process could not be started: the disk is full"));
        let ready = again(9, ProcessState::Ready, Some("v1"), &ended(4, 1));
        machine = Adopting::look(Some(machine), &target, &ready, s(5)).0;
        assert_eq!(adoption(&machine), Some(Adoption::Adopted));
        // What ends later has been ready.
        machine = Adopting::look(Some(machine), &target, &ended(6, 1), s(6)).0;
        assert_eq!((adoption(&machine), machine.early), (None, 0));
    }

    #[test]
    fn only_the_runtimes_own_word_is_a_failure() {
        let ready = process(1, ProcessState::Ready, Some("v1"));
        let target = published(2, "v2");
        let (mut machine, _) = Adopting::look(None, &target, &ready, s(0));
        machine.reloaded(&target.deploy, Reloaded::Unavailable, s(0));
        assert_eq!((adoption(&machine), machine.due()), (None, Some(s(0).after(FIRST_PAUSE))));
        let (machine, send) = Adopting::look(Some(machine), &target, &ready, s(0));
        assert!(!send);
        let (mut machine, send) = Adopting::look(Some(machine), &target, &ready, s(1));
        assert!(send);
        let failed = Reloaded::Failed { version: Some(version("v2")), error: "x".repeat(5000) };
        machine.reloaded(&target.deploy, failed, s(1));
        assert_eq!(adoption(&machine), Some(Adoption::Failed));
        assert_eq!(machine.report().error.map(|error| error.len()), Some(ERROR_BYTES));
        let (machine, send) = Adopting::look(Some(machine), &target, &ready, s(99));
        assert!(!send && adoption(&machine) == Some(Adoption::Failed));
    }

    #[test]
    fn a_reloads_word_counts_until_a_look_at_the_process_shows_it_and_not_for_ever() {
        let process = |serves: &str| process(1, ProcessState::Ready, Some(serves));
        let target = published(2, "v2");
        let (mut machine, _) = Adopting::look(None, &target, &process("v1"), s(0));
        machine.reloaded(&target.deploy, Reloaded::Serves(version("v2")), s(0));
        let unseen =
            |serves, at| Adopting::look(Some(machine.clone()), &target, &process(serves), s(at)).0.report().unseen;
        assert!(unseen("v1", 9), "the look may be older than the reload");
        assert!(!unseen("v2", 1) && !unseen("v1", 10));
    }

    #[test]
    fn an_outcome_about_another_version_is_no_outcome() {
        let ready = process(1, ProcessState::Ready, Some("v1"));
        let target = published(2, "v2");
        let (mut machine, _) = Adopting::look(None, &target, &ready, s(0));
        machine.reloaded(&target.deploy, Reloaded::Serves(version("v3")), s(0));
        assert!(adoption(&machine).is_none() && machine.due().is_some());
    }

    #[test]
    fn the_answer_for_an_older_deploy_says_nothing_about_this_one() {
        let ready = process(1, ProcessState::Ready, Some("v1"));
        let (machine, _) = Adopting::look(None, &published(1, "v1"), &ready, s(0));
        let (mut machine, send) = Adopting::look(Some(machine), &published(2, "v1"), &ready, s(0));
        assert!(send);
        machine.reloaded(&published(1, "v1").deploy, Reloaded::Serves(version("v1")), s(1));
        assert_eq!(adoption(&machine), None);
    }
}

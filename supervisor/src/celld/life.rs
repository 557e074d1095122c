//! The life of one application's process, without doing anything: events and the time go in, effects come out.
//!
//! The floor under every start is one celld lease lifetime after an exit that was not asked for: an earlier start would meet the
//! dead process's own lease and wait for it anyway, or fence a process that is still ending.

use std::collections::VecDeque;
use std::time::Duration;

use scafo_core::record::ProcessState;
use tokio::time::Instant;

use crate::spawn::Exit;

/// Life of a celld lease when `celld.env` does not say otherwise (`CELLD_TTL_MS`).
pub(super) const LEASE_TTL: Duration = Duration::from_secs(10);
/// Longest pause between two starts, in lease lifetimes.
const LONGEST_PAUSE_TTLS: u32 = 6;
/// So many probes in a row that did not find it ready make it unhealthy.
const UNHEALTHY_AFTER: u32 = 3;
/// A process that was ready and gives no answer at all for so long is killed: a frozen owner keeps its cells from everybody.
const HUNG: Duration = Duration::from_secs(60);
/// So many exits…
const LOOP_EXITS: usize = 5;
/// …within so long, without having been ready, are a crash loop.
const LOOP_WINDOW: Duration = Duration::from_secs(10 * 60);
/// How long celld may take to leave: twice its own bound of 40 s for a shutdown, and some.
const STOP_GRACE: Duration = Duration::from_secs(90);
/// It fenced itself: its lease was lost. Says nothing about the program.
const EXIT_FENCED: i32 = 3;
const SIGTERM: i32 = 15;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Wanted,
    /// Wanted, with a deploy that is new: what crashed before may be mended.
    Renewed,
    Unwanted,
    /// Unwanted, and nobody waits for a drain.
    Hurried,
    Spawned,
    NotSpawned,
    Ended(Exit),
    Probed(Found),
    /// Nothing, but [`Machine::wake`] has come.
    Time,
}

/// What a probe of the health route found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// 200.
    Ready,
    /// Another answer.
    NotReady,
    /// None.
    Silent,
    /// We could not ask.
    Unknown,
}

/// What is to be done. The outcome of `Spawn` comes back as an event at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    Spawn,
    Terminate,
    Kill,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Waiting { until: Instant },
    Spawning,
    Running(Run),
    Stopping { kill_at: Instant, killed: bool },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    was_ready: bool,
    /// Probes in a row that did not find it ready.
    failures: u32,
    /// The last answer, or the last probe that we could not make.
    last_answer: Instant,
    killed: bool,
}

/// What a machine was when it was kept, as times before that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Past {
    pub(super) starts: u32,
    pub(super) next_pause: Duration,
    /// Of the pause before the next start.
    pub(super) left: Duration,
    pub(super) crashed: Option<Duration>,
    pub(super) early_exits: Vec<Duration>,
}

/// Tells what a machine knows of crashes apart from what it knew before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CrashMark {
    crashed_at: Option<Instant>,
    next_pause: Duration,
    early_exits: usize,
}

/// One application's process over its restarts.
#[derive(Debug)]
pub(super) struct Machine {
    ttl: Duration,
    phase: Phase,
    wanted: bool,
    starts: u32,
    next_pause: Duration,
    /// Not sooner than this, whoever asks.
    floor: Option<Instant>,
    /// When the last one crashed, or could not be started; none after an end that was asked for.
    crashed_at: Option<Instant>,
    /// Exits without having been ready, those of the last [`LOOP_WINDOW`].
    early_exits: VecDeque<Instant>,
    /// Added to every pause after a crash, so that what crashed together does not start together.
    jitter: Duration,
}

impl Machine {
    /// Nothing runs and nothing is wanted.
    pub(super) const fn new(ttl: Duration) -> Self {
        Self {
            ttl,
            phase: Phase::Idle,
            wanted: false,
            starts: 0,
            next_pause: ttl,
            floor: None,
            crashed_at: None,
            early_exits: VecDeque::new(),
            jitter: Duration::ZERO,
        }
    }

    /// The same, with a jitter.
    pub(super) const fn with_jitter(mut self, jitter: Duration) -> Self {
        self.jitter = jitter;
        self
    }

    /// Not before this. For a machine at rest.
    pub(super) fn hold_until(&mut self, instant: Instant) {
        self.floor = self.floor.max(Some(instant));
    }

    /// What an earlier supervisor knew of its crashes, as of `now`. For a new machine.
    pub(super) fn resume(&mut self, past: &Past, now: Instant) {
        let before = |ago: Duration| now.checked_sub(ago);
        self.starts = past.starts;
        self.next_pause = past.next_pause.clamp(self.ttl, self.ttl * LONGEST_PAUSE_TTLS);
        self.early_exits = past.early_exits.iter().filter_map(|ago| before(*ago)).collect();
        self.crashed_at = past.crashed.and_then(before);
        let longest = self.ttl * LONGEST_PAUSE_TTLS + self.jitter;
        self.floor = Some(now + past.left.min(longest));
    }

    /// Differs whenever something else is to be kept.
    pub(super) fn crash_mark(&self) -> CrashMark {
        CrashMark { crashed_at: self.crashed_at, next_pause: self.next_pause, early_exits: self.early_exits.len() }
    }

    /// What is to be kept for the next supervisor; `None` when there is nothing to keep.
    pub(super) fn past(&self, now: Instant) -> Option<Past> {
        if self.is_over(now) {
            return None;
        }
        let left = self.floor.map_or(Duration::ZERO, |floor| floor.saturating_duration_since(now));
        let ago = |instant: &Instant| now.saturating_duration_since(*instant);
        let early_exits: Vec<_> = self.early_exits.iter().map(ago).filter(|ago| *ago < LOOP_WINDOW).collect();
        let nothing = left.is_zero() && early_exits.is_empty() && self.next_pause == self.ttl;
        (!nothing).then(|| Past {
            starts: self.starts,
            next_pause: self.next_pause,
            left,
            crashed: self.crashed_at.as_ref().map(ago),
            early_exits,
        })
    }

    /// One that an earlier supervisor started has ended, `ago`, and nobody saw how: that counts as a crash. For a machine at rest
    /// that nobody has wanted yet.
    pub(super) fn ended_unseen(&mut self, was_ready: bool, ago: Duration, now: Instant) {
        self.starts = self.starts.max(1);
        self.crashed(was_ready, true, now.checked_sub(ago).unwrap_or(now));
    }

    /// One runs already, started by an earlier supervisor, and is wanted until somebody says otherwise.
    pub(super) fn adopted(ttl: Duration, was_ready: bool, now: Instant) -> Self {
        let run = Run { was_ready, failures: 0, last_answer: now, killed: false };
        Self { phase: Phase::Running(run), wanted: true, starts: 1, ..Self::new(ttl) }
    }

    pub(super) fn step(&mut self, event: Event, now: Instant) -> Option<Effect> {
        match event {
            Event::Wanted => self.wanted = true,
            Event::Renewed => {
                self.wanted = true;
                self.forgive();
            }
            Event::Unwanted | Event::Hurried => self.wanted = false,
            Event::Spawned | Event::NotSpawned | Event::Ended(_) | Event::Probed(_) | Event::Time => {}
        }
        match self.phase {
            Phase::Idle | Phase::Waiting { .. } => self.rest(now),
            Phase::Spawning => self.spawning(event, now),
            Phase::Running(run) => self.running(run, event, now),
            Phase::Stopping { kill_at, killed } => self.stopping(kill_at, killed, event, now),
        }
    }

    /// Nothing runs: start, wait, or be idle.
    fn rest(&mut self, now: Instant) -> Option<Effect> {
        if !self.wanted {
            self.floor = self.floor.filter(|floor| now < *floor);
            self.phase = Phase::Idle;
            return None;
        }
        match self.floor {
            Some(until) if now < until => {
                self.phase = Phase::Waiting { until };
                None
            }
            _ => {
                self.phase = Phase::Spawning;
                self.starts = self.starts.saturating_add(1);
                Some(Effect::Spawn)
            }
        }
    }

    fn spawning(&mut self, event: Event, now: Instant) -> Option<Effect> {
        match event {
            Event::Spawned => {
                let run = Run { was_ready: false, failures: 0, last_answer: now, killed: false };
                self.phase = Phase::Running(run);
                if self.wanted { None } else { self.stop(now) }
            }
            Event::NotSpawned => self.crashed(false, true, now),
            Event::Wanted
            | Event::Renewed
            | Event::Unwanted
            | Event::Hurried
            | Event::Ended(_)
            | Event::Probed(_)
            | Event::Time => None,
        }
    }

    /// The pauses that grew belong to the deploy before. What stays is one lease lifetime after the crash.
    fn forgive(&mut self) {
        self.next_pause = self.ttl;
        self.early_exits.clear();
        if let (Some(floor), Some(crashed)) = (self.floor, self.crashed_at) {
            self.floor = Some(floor.min(crashed + self.ttl + self.jitter));
        }
    }

    fn running(&mut self, mut run: Run, event: Event, now: Instant) -> Option<Effect> {
        match event {
            Event::Unwanted => return self.stop(now),
            Event::Hurried => {
                self.phase = Phase::Stopping { kill_at: now, killed: true };
                return Some(Effect::Kill);
            }
            Event::Ended(exit) => return self.crashed(run.was_ready, exit != Exit::Code(EXIT_FENCED), now),
            Event::Probed(Found::Ready) => {
                run = Run { was_ready: true, failures: 0, last_answer: now, ..run };
                self.next_pause = self.ttl;
                self.early_exits.clear();
            }
            Event::Probed(Found::NotReady) => {
                run = Run { failures: run.failures.saturating_add(1), last_answer: now, ..run };
            }
            Event::Probed(Found::Silent) => {
                run.failures = run.failures.saturating_add(1);
                if run.was_ready && !run.killed && now.duration_since(run.last_answer) >= HUNG {
                    self.phase = Phase::Running(Run { killed: true, ..run });
                    return Some(Effect::Kill);
                }
            }
            // Nothing is known of this time, so no silence lasts over it.
            Event::Probed(Found::Unknown) => run.last_answer = now,
            Event::Wanted | Event::Renewed | Event::Spawned | Event::NotSpawned | Event::Time => {}
        }
        self.phase = Phase::Running(run);
        None
    }

    fn stop(&mut self, now: Instant) -> Option<Effect> {
        self.phase = Phase::Stopping { kill_at: now + STOP_GRACE, killed: false };
        Some(Effect::Terminate)
    }

    fn stopping(&mut self, kill_at: Instant, killed: bool, event: Event, now: Instant) -> Option<Effect> {
        match event {
            Event::Ended(exit) => {
                // What left as it was asked to may be followed at once; SIGTERM before its handlers exist kills without harm.
                let clean = !killed && matches!(exit, Exit::Code(0 | 143) | Exit::Signal(SIGTERM));
                self.floor = (!clean).then(|| now + self.ttl);
                self.crashed_at = self.floor.map(|_| now);
                self.rest(now)
            }
            Event::Hurried | Event::Time if !killed && (event == Event::Hurried || now >= kill_at) => {
                self.phase = Phase::Stopping { kill_at, killed: true };
                Some(Effect::Kill)
            }
            Event::Wanted
            | Event::Renewed
            | Event::Unwanted
            | Event::Hurried
            | Event::Spawned
            | Event::NotSpawned
            | Event::Probed(_)
            | Event::Time => None,
        }
    }

    /// It ended without having been asked to, or could not be started.
    fn crashed(&mut self, was_ready: bool, counts: bool, now: Instant) -> Option<Effect> {
        if was_ready {
            self.next_pause = self.ttl;
        } else if counts {
            self.early_exits.push_back(now);
            if self.early_exits.len() > LOOP_EXITS {
                self.early_exits.pop_front();
            }
        }
        self.crashed_at = Some(now);
        self.floor = Some(now + self.next_pause + self.jitter);
        self.next_pause = (self.next_pause * 2).min(self.ttl * LONGEST_PAUSE_TTLS);
        self.rest(now)
    }

    /// When to call with [`Event::Time`].
    pub(super) fn wake(&self) -> Option<Instant> {
        match self.phase {
            Phase::Waiting { until } => Some(until),
            Phase::Stopping { kill_at, killed: false } => Some(kill_at),
            Phase::Idle => self.floor,
            Phase::Spawning | Phase::Running(_) | Phase::Stopping { .. } => None,
        }
    }

    /// How long it waits until it is started again; `None` when it does not.
    pub(super) fn pause(&self, now: Instant) -> Option<Duration> {
        match self.phase {
            Phase::Waiting { until } => Some(until.saturating_duration_since(now)),
            Phase::Idle | Phase::Spawning | Phase::Running(_) | Phase::Stopping { .. } => None,
        }
    }

    /// The state that people see; `None` when there is nothing to see: nothing runs and nothing is wanted.
    pub(super) fn state(&self, now: Instant) -> Option<ProcessState> {
        match self.phase {
            Phase::Idle => None,
            // Its turn has not come yet.
            Phase::Waiting { .. } if self.starts == 0 => Some(ProcessState::Starting),
            Phase::Waiting { .. } if self.loops(now) => Some(ProcessState::CrashLooping),
            Phase::Waiting { .. } => Some(ProcessState::BackingOff),
            Phase::Spawning => Some(ProcessState::Starting),
            Phase::Running(run) if !run.was_ready => Some(ProcessState::Starting),
            Phase::Running(run) if run.failures >= UNHEALTHY_AFTER => Some(ProcessState::Unhealthy),
            Phase::Running(_) => Some(ProcessState::Ready),
            Phase::Stopping { .. } => Some(ProcessState::Stopping),
        }
    }

    /// Whether the one that runs has been ready.
    pub(super) const fn was_ready(&self) -> bool {
        matches!(self.phase, Phase::Running(Run { was_ready: true, .. }))
    }

    /// Whether one runs that is not asked to end, so that it is worth probing.
    pub(super) const fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running(_))
    }

    /// Whether nothing runs, nothing is wanted, and a new machine would not start sooner than this one.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.phase == Phase::Idle && self.floor.is_none_or(|floor| floor <= now)
    }

    /// How often it was started again.
    pub(super) const fn restarts(&self) -> u32 {
        self.starts.saturating_sub(1)
    }

    fn loops(&self, now: Instant) -> bool {
        let recent = |exit: &&Instant| now.duration_since(**exit) < LOOP_WINDOW;
        self.early_exits.iter().filter(recent).count() >= LOOP_EXITS
    }
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "life_histories.rs"]
mod histories;

//! When a daemon is started again, and when it counts as hung. Pure: the time is handed in.

use std::time::Duration;

use tokio::time::Instant;

use super::plan::Name;

/// First pause after an exit.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// So much health makes the next pause the first one again.
const SETTLED: Duration = Duration::from_secs(60);
/// How long a daemon may be away, by what its absence costs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Longest pause before the next start.
    pub(super) longest_pause: Duration,
    /// One that has served and gives no answer for so long is killed.
    pub(super) hung: Duration,
    /// One that has given no answer of any kind since it was started is killed after so long.
    pub(super) mute: Duration,
}

impl Patience {
    /// Nothing but the daemon's own work waits for it. Three times the longest answer that one may owe (10 s on a slow disk),
    /// so that a busy daemon is not taken for a dead one.
    ///
    /// All of them answer before they wait for anybody, registryd for its bucket above all: that is an answer too. What is before that
    /// takes a second; a minute is for a machine that boots.
    pub(super) const USUAL: Self =
        Self { longest_pause: Duration::from_secs(30), hung: Duration::from_secs(30), mute: Duration::from_secs(60) };
    /// Every application renews its lease in the embedded store, each third of 10 s, and stops serving when it could not for 10 s:
    /// a hang that is noticed and a restart have to fit between the renewals.
    ///
    /// It answers only once it has opened what it stores, which may have grown over years, on a disk that may be slow.
    pub(super) const LEASES: Self =
        Self { longest_pause: Duration::from_secs(2), hung: Duration::from_secs(5), mute: Duration::from_secs(600) };

    /// A daemon's own.
    pub(super) const fn of(daemon: Name) -> Self {
        match daemon {
            Name::Bucketd => Self::LEASES,
            Name::Registryd | Name::Routerd | Name::Apiserver | Name::Ingressd => Self::USUAL,
        }
    }
}

/// What a probe found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// It answers and does its work.
    Serving,
    /// It answers and does not do its work yet.
    NotServing,
    /// No answer.
    Silent,
    /// We could not ask.
    Unknown,
}

/// One daemon over its restarts.
#[derive(Debug)]
pub(super) struct Life {
    patience: Patience,
    next_pause: Duration,
    /// Since when it serves without a break.
    serving_since: Option<Instant>,
    /// When this process was started, or when we last could not ask it.
    started: Option<Instant>,
    /// Whether it has answered at all.
    spoke: bool,
    /// When it last answered, or we last could not ask it; counted only once it has served.
    last_answer: Option<Instant>,
}

impl Life {
    pub(super) const fn new(patience: Patience) -> Self {
        Self { patience, next_pause: FIRST_PAUSE, serving_since: None, started: None, spoke: false, last_answer: None }
    }

    /// A process was started.
    pub(super) fn started(&mut self, now: Instant) {
        self.started = Some(now);
        self.spoke = false;
        self.serving_since = None;
        self.last_answer = None;
    }

    /// A probe came back. `true`: it hangs, kill it.
    pub(super) fn probed(&mut self, found: Found, now: Instant) -> bool {
        self.spoke |= matches!(found, Found::Serving | Found::NotServing);
        match found {
            Found::Serving => {
                let since = *self.serving_since.get_or_insert(now);
                self.last_answer = Some(now);
                if now.duration_since(since) >= SETTLED {
                    self.next_pause = FIRST_PAUSE;
                }
                false
            }
            Found::NotServing => {
                self.serving_since = None;
                self.last_answer = self.last_answer.map(|_| now);
                false
            }
            // Nothing is known of this time, so no silence lasts over it.
            Found::Unknown => {
                self.started = self.started.map(|_| now);
                self.last_answer = self.last_answer.map(|_| now);
                false
            }
            Found::Silent => {
                let over =
                    |since: Option<Instant>, limit| since.is_some_and(|since| now.duration_since(since) >= limit);
                over(self.last_answer, self.patience.hung) || (!self.spoke && over(self.started, self.patience.mute))
            }
        }
    }

    /// It ended by itself. How long to wait before the next start.
    pub(super) fn ended(&mut self) -> Duration {
        let pause = self.next_pause;
        self.next_pause = (pause * 2).min(self.patience.longest_pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn the_pause_doubles_from_a_tenth_of_a_second_to_half_a_minute() {
        let mut life = Life::new(Patience::USUAL);
        let pauses: Vec<u128> = (0..11).map(|_| life.ended().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
    }

    #[test]
    fn the_store_of_the_leases_is_never_away_for_as_long_as_a_lease_lives() {
        let lease = seconds(10);
        let mut life = Life::new(Patience::LEASES);
        assert!((0..20).all(|_| life.ended() <= lease / 5));
        let start = Instant::now();
        life.started(start);
        life.probed(Found::Serving, start);
        assert!(life.probed(Found::Silent, start + lease / 2));
    }

    #[test]
    fn a_minute_of_health_forgives() {
        let mut life = Life::new(Patience::USUAL);
        let start = Instant::now();
        for _ in 0..5 {
            life.ended();
        }
        life.started(start);
        life.probed(Found::Serving, start);
        life.probed(Found::Serving, start + seconds(59));
        assert_eq!(life.ended(), Duration::from_millis(3200), "not yet");
        life.started(start);
        life.probed(Found::Serving, start);
        life.probed(Found::NotServing, start + seconds(50));
        life.probed(Found::Serving, start + seconds(61));
        assert_eq!(life.ended(), Duration::from_millis(6400), "the minute has no break");
        life.started(start);
        life.probed(Found::Serving, start);
        life.probed(Found::Serving, start + seconds(60));
        assert_eq!(life.ended(), FIRST_PAUSE);
    }

    #[test]
    fn silence_counts_only_once_it_has_served() {
        let mut life = Life::new(Patience::USUAL);
        let start = Instant::now();
        life.started(start);
        life.probed(Found::NotServing, start);
        assert!(
            !life.probed(Found::Silent, start + seconds(1000)),
            "it waits for somebody, as registryd for its bucket"
        );
        life.probed(Found::Serving, start + seconds(1000));
        assert!(!life.probed(Found::Silent, start + seconds(1029)));
        assert!(life.probed(Found::Silent, start + seconds(1030)));
    }

    #[test]
    fn one_that_never_says_anything_is_killed_and_the_next_one_has_the_same_time() {
        let mut life = Life::new(Patience::USUAL);
        let start = Instant::now();
        for begun in [start, start + seconds(100)] {
            life.started(begun);
            assert!(!life.probed(Found::Silent, begun + seconds(59)));
            assert!(life.probed(Found::Silent, begun + seconds(60)));
        }
    }

    #[test]
    fn an_answer_of_any_kind_is_life() {
        let mut life = Life::new(Patience::USUAL);
        let start = Instant::now();
        life.started(start);
        life.probed(Found::Serving, start);
        assert!(!life.probed(Found::NotServing, start + seconds(29)));
        assert!(!life.probed(Found::Silent, start + seconds(58)));
        assert!(life.probed(Found::Silent, start + seconds(59)));
    }

    #[test]
    fn a_probe_that_we_cannot_make_ourselves_is_no_silence() {
        let mut life = Life::new(Patience::LEASES);
        let start = Instant::now();
        life.started(start);
        assert!(!life.probed(Found::Unknown, start + seconds(700)), "it may have had much to say");
        assert!(!life.probed(Found::Silent, start + seconds(702)));
        life.probed(Found::Serving, start + seconds(704));
        for second in 706..800 {
            assert!(!life.probed(Found::Unknown, start + seconds(second)));
        }
        assert!(!life.probed(Found::Silent, start + seconds(803)));
        assert!(life.probed(Found::Silent, start + seconds(804)), "the silence began when it could be heard");
    }
}

use super::*;

/// A machine on virtual time, in seconds.
pub(super) struct Test {
    pub(super) machine: Machine,
    start: Instant,
    now: u64,
}

impl Test {
    pub(super) fn new() -> Self {
        Self { machine: Machine::new(LEASE_TTL), start: Instant::now(), now: 0 }
    }

    pub(super) fn at(&self, second: u64) -> Instant {
        self.start + Duration::from_secs(second)
    }

    /// Lets the time pass to `second`, then hands in the event.
    pub(super) fn step(&mut self, second: u64, event: Event) -> Option<Effect> {
        self.now = second;
        let now = self.at(second);
        self.machine.step(event, now)
    }

    fn state(&self) -> Option<ProcessState> {
        self.machine.state(self.at(self.now))
    }

    /// Wanted, started, ready at second 0.
    fn ready() -> Self {
        let mut test = Self::new();
        assert_eq!(test.step(0, Event::Wanted), Some(Effect::Spawn));
        assert_eq!(test.state(), Some(ProcessState::Starting));
        assert_eq!(test.step(0, Event::Spawned), None);
        assert_eq!(test.step(0, Event::Probed(Found::Ready)), None);
        assert_eq!(test.state(), Some(ProcessState::Ready));
        test
    }

    /// The second at which it is started again, which must be one that `wake` names.
    fn restarted(&mut self) -> u64 {
        let wake = self.machine.wake().expect("it waits");
        let second = wake.duration_since(self.start).as_secs();
        assert_eq!(self.step(second - 1, Event::Time), None, "not before");
        assert_eq!(self.step(second, Event::Time), Some(Effect::Spawn));
        assert_eq!(self.step(second, Event::Spawned), None);
        second
    }
}

#[test]
fn a_fence_a_crash_and_a_kill_wait_one_lease_lifetime() {
    for exit in [Exit::Code(3), Exit::Code(134), Exit::Signal(9), Exit::Code(0), Exit::Unknown] {
        let mut test = Test::ready();
        assert_eq!(test.step(100, Event::Ended(exit)), None);
        assert_eq!(test.state(), Some(ProcessState::BackingOff), "{exit:?}");
        assert_eq!(test.restarted(), 110, "{exit:?}");
        assert_eq!(test.machine.restarts(), 1);
    }
}

#[test]
fn the_pause_doubles_to_a_minute_and_there_is_no_limit_of_tries() {
    let mut test = Test::new();
    test.step(0, Event::Wanted);
    test.step(0, Event::Spawned);
    let mut pauses = Vec::new();
    let mut now = 0;
    for _ in 0..50 {
        test.step(now, Event::Ended(Exit::Code(1)));
        let next = test.restarted();
        pauses.push(next - now);
        now = next;
    }
    assert_eq!(pauses[..5], [10, 20, 40, 60, 60]);
    assert!(pauses[5..].iter().all(|pause| *pause == 60));
}

#[test]
fn having_been_ready_makes_the_next_pause_the_shortest() {
    let mut test = Test::new();
    test.step(0, Event::Wanted);
    test.step(0, Event::Spawned);
    test.step(0, Event::Ended(Exit::Code(1)));
    assert_eq!(test.restarted(), 10);
    test.step(10, Event::Ended(Exit::Code(1)));
    assert_eq!(test.restarted(), 30);
    test.step(31, Event::Probed(Found::Ready));
    test.step(40, Event::Ended(Exit::Signal(11)));
    assert_eq!(test.restarted(), 50);
}

#[test]
fn five_early_exits_within_ten_minutes_are_a_crash_loop_and_fences_do_not_count() {
    let mut test = Test::new();
    test.step(0, Event::Wanted);
    test.step(0, Event::Spawned);
    let mut now = 0;
    for exit in [Exit::Code(1), Exit::Code(3), Exit::Code(1), Exit::Unknown, Exit::Code(3), Exit::Code(1)] {
        test.step(now, Event::Ended(exit));
        assert_eq!(test.state(), Some(ProcessState::BackingOff));
        now = test.restarted();
    }
    test.step(now, Event::Ended(Exit::Code(1)));
    assert_eq!(test.state(), Some(ProcessState::CrashLooping));
    now = test.restarted();
    test.step(now, Event::Probed(Found::Ready));
    test.step(now, Event::Ended(Exit::Code(1)));
    assert_eq!(test.state(), Some(ProcessState::BackingOff), "it has been ready");
}

#[test]
fn a_program_that_cannot_be_started_is_tried_again_like_one_that_ends() {
    let mut test = Test::new();
    assert_eq!(test.step(0, Event::Wanted), Some(Effect::Spawn));
    assert_eq!(test.step(0, Event::NotSpawned), None);
    assert_eq!(test.restarted(), 10);
}

#[test]
fn three_bad_probes_make_it_unhealthy_and_one_good_one_ready() {
    let mut test = Test::ready();
    for (second, bad) in [(2, Found::NotReady), (4, Found::Silent)] {
        test.step(second, Event::Probed(bad));
        assert_eq!(test.state(), Some(ProcessState::Ready));
    }
    test.step(6, Event::Probed(Found::NotReady));
    assert_eq!(test.state(), Some(ProcessState::Unhealthy));
    test.step(8, Event::Probed(Found::Ready));
    assert_eq!(test.state(), Some(ProcessState::Ready));
}

#[test]
fn a_minute_without_any_answer_kills_a_process_that_was_ready() {
    let mut test = Test::ready();
    test.step(10, Event::Probed(Found::NotReady));
    assert_eq!(test.step(69, Event::Probed(Found::Silent)), None, "an answer of any kind is one");
    assert_eq!(test.step(70, Event::Probed(Found::Silent)), Some(Effect::Kill));
    assert_eq!(test.step(73, Event::Probed(Found::Silent)), None, "once is enough");
    test.step(74, Event::Ended(Exit::Signal(9)));
    assert_eq!(test.restarted(), 84);
}

#[test]
fn before_it_was_ready_silence_is_only_starting() {
    let mut test = Test::new();
    test.step(0, Event::Wanted);
    test.step(0, Event::Spawned);
    for second in (0..7200).step_by(3) {
        assert_eq!(test.step(second, Event::Probed(Found::Silent)), None);
    }
    assert_eq!(test.state(), Some(ProcessState::Starting));
}

#[test]
fn a_stop_is_a_request_first_and_a_kill_after_the_grace() {
    let mut test = Test::ready();
    assert_eq!(test.step(10, Event::Unwanted), Some(Effect::Terminate));
    assert_eq!(test.state(), Some(ProcessState::Stopping));
    assert_eq!(test.step(11, Event::Unwanted), None, "a second signal would do nothing");
    assert_eq!(test.step(99, Event::Time), None);
    assert_eq!(test.machine.wake(), Some(test.at(100)));
    assert_eq!(test.step(100, Event::Time), Some(Effect::Kill));
    assert_eq!(test.step(101, Event::Ended(Exit::Signal(9))), None);
    assert_eq!(test.state(), None);
    assert!(!test.machine.is_over(test.at(110)), "its floor still holds");
    assert!(test.machine.is_over(test.at(111)));
}

#[test]
fn a_start_after_a_clean_stop_has_no_floor() {
    for exit in [Exit::Code(0), Exit::Code(143), Exit::Signal(15)] {
        let mut test = Test::ready();
        test.step(10, Event::Unwanted);
        assert_eq!(test.step(11, Event::Wanted), None, "never two at once");
        assert_eq!(test.step(12, Event::Ended(exit)), Some(Effect::Spawn), "{exit:?}");
    }
}

#[test]
fn a_start_after_a_stop_that_went_wrong_waits() {
    let mut test = Test::ready();
    test.step(10, Event::Unwanted);
    test.step(11, Event::Wanted);
    assert_eq!(test.step(12, Event::Ended(Exit::Code(3))), None);
    assert_eq!(test.restarted(), 22);
}

#[test]
fn the_floor_holds_for_whoever_asks() {
    let mut test = Test::ready();
    test.step(10, Event::Ended(Exit::Signal(9)));
    assert_eq!(test.step(11, Event::Unwanted), None);
    assert_eq!(test.state(), None);
    assert_eq!(test.step(12, Event::Wanted), None);
    assert_eq!(test.restarted(), 20);
}

#[test]
fn hurry_kills_at_once_and_also_in_the_middle_of_a_stop() {
    let mut test = Test::ready();
    assert_eq!(test.step(1, Event::Hurried), Some(Effect::Kill));
    assert_eq!(test.step(2, Event::Hurried), None);
    let mut test = Test::ready();
    test.step(1, Event::Unwanted);
    assert_eq!(test.step(2, Event::Hurried), Some(Effect::Kill));
}

#[test]
fn an_adopted_process_runs_on_and_counts_no_restart() {
    let start = Instant::now();
    let mut machine = Machine::adopted(LEASE_TTL, false, start);
    assert_eq!(machine.state(start), Some(ProcessState::Starting));
    assert_eq!(machine.step(Event::Wanted, start), None);
    machine.step(Event::Probed(Found::Ready), start);
    assert_eq!((machine.state(start), machine.restarts()), (Some(ProcessState::Ready), 0));
    assert_eq!(machine.step(Event::Unwanted, start), Some(Effect::Terminate));
}

#[test]
fn an_adopted_process_that_was_ready_may_not_be_silent_for_ever() {
    let start = Instant::now();
    let mut machine = Machine::adopted(LEASE_TTL, true, start);
    let silent =
        |machine: &mut Machine, second| machine.step(Event::Probed(Found::Silent), start + Duration::from_secs(second));
    assert_eq!(silent(&mut machine, 59), None);
    assert_eq!(silent(&mut machine, 60), Some(Effect::Kill));
}

#[test]
fn whatever_happens_there_is_never_a_second_process_and_never_an_early_start() {
    // Every sequence of six events of these, a second apart.
    let events = [
        Event::Wanted,
        Event::Renewed,
        Event::Unwanted,
        Event::Ended(Exit::Signal(9)),
        Event::Probed(Found::Ready),
        Event::Hurried,
        Event::Time,
    ];
    for mut sequence in 0..events.len().pow(6) {
        let mut test = Test::new();
        let (mut runs, mut crashed_at) = (false, None::<u64>);
        for second in 0..6 {
            let event = events[sequence % events.len()];
            sequence /= events.len();
            if matches!(event, Event::Ended(_)) {
                if !runs {
                    continue;
                }
                runs = false;
                crashed_at = Some(second);
            }
            if test.step(second, event) == Some(Effect::Spawn) {
                assert!(!runs, "a second process");
                assert!(crashed_at.is_none_or(|at| second >= at + 10), "an early start");
                runs = true;
                test.step(second, Event::Spawned);
            }
        }
    }
}

#[test]
fn a_first_start_waits_for_its_turn_as_starting() {
    let mut test = Test::new();
    let turn = test.at(2);
    test.machine.hold_until(turn);
    assert_eq!(test.step(0, Event::Wanted), None);
    assert_eq!((test.state(), test.machine.wake()), (Some(ProcessState::Starting), Some(turn)));
    assert_eq!(test.step(1, Event::Time), None);
    assert_eq!(test.step(2, Event::Time), Some(Effect::Spawn));
    assert_eq!(test.machine.restarts(), 0);
}

#[test]
fn what_crashed_together_starts_apart() {
    let mut test = Test::ready();
    test.machine.jitter = Duration::from_secs(2);
    assert_eq!(test.step(100, Event::Ended(Exit::Code(3))), None);
    assert_eq!(test.step(111, Event::Time), None, "the lease's life has passed, its own part of the jitter has not");
    assert_eq!(test.step(112, Event::Time), Some(Effect::Spawn));
}

#[test]
fn a_new_deploy_ends_the_growing_pauses_and_not_the_first_one() {
    let mut test = Test::new();
    test.step(0, Event::Wanted);
    test.step(0, Event::Spawned);
    let mut now = 0;
    for _ in 0..5 {
        test.step(now, Event::Ended(Exit::Code(1)));
        now = test.restarted();
    }
    test.step(now, Event::Ended(Exit::Code(1)));
    assert_eq!(test.state(), Some(ProcessState::CrashLooping));
    assert_eq!(test.machine.wake(), Some(test.at(now + 60)));
    // Within the lifetime of the dead one's lease it has to wait for that…
    assert_eq!(test.step(now + 3, Event::Renewed), None);
    assert_eq!((test.state(), test.machine.wake()), (Some(ProcessState::BackingOff), Some(test.at(now + 10))));
    assert_eq!(test.restarted(), now + 10);
    // …and later it does not wait at all.
    test.step(now + 10, Event::Ended(Exit::Code(1)));
    assert_eq!(test.restarted(), now + 20, "the pauses begin anew");
    test.step(now + 20, Event::Ended(Exit::Code(1)));
    assert_eq!(test.machine.wake(), Some(test.at(now + 40)));
    assert_eq!(test.step(now + 31, Event::Renewed), Some(Effect::Spawn));
}

#[test]
fn a_new_deploy_leaves_what_runs_alone() {
    let mut test = Test::ready();
    assert_eq!(test.step(1, Event::Renewed), None);
    assert_eq!(test.state(), Some(ProcessState::Ready));
    let mut test = Test::new();
    assert_eq!(test.step(0, Event::Renewed), Some(Effect::Spawn));
    assert_eq!(test.step(1, Event::Renewed), None, "it is just being started");
    test.step(1, Event::Spawned);
    test.step(2, Event::Unwanted);
    assert_eq!(test.step(3, Event::Renewed), None, "it ends first");
    assert_eq!(test.step(4, Event::Ended(Exit::Code(0))), Some(Effect::Spawn));
}

#[test]
fn the_next_supervisor_goes_on_where_this_one_stood() {
    let mut test = Test::new();
    test.step(0, Event::Wanted);
    test.step(0, Event::Spawned);
    let mut now = 0;
    for _ in 0..4 {
        test.step(now, Event::Ended(Exit::Code(1)));
        now = test.restarted();
    }
    test.step(now, Event::Ended(Exit::Code(1)));
    let past = test.machine.past(test.at(now + 20)).unwrap();
    assert_eq!((past.left, past.crashed), (Duration::from_secs(40), Some(Duration::from_secs(20))));
    let mut next = Test::new();
    let start = next.at(1000);
    next.machine.resume(&past, start);
    next.now = 1000;
    assert_eq!(next.step(1000, Event::Wanted), None);
    assert_eq!(next.state(), Some(ProcessState::CrashLooping));
    assert_eq!(next.restarted(), 1040);
    assert_eq!(next.machine.restarts(), 5);
    next.step(1041, Event::Ended(Exit::Code(1)));
    assert_eq!(next.machine.wake(), Some(next.at(1101)), "the pause had grown");
}

#[test]
fn what_is_kept_is_nothing_once_it_has_been_ready_or_is_not_wanted_any_more() {
    let mut test = Test::ready();
    assert_eq!(test.machine.past(test.at(1)), None);
    let before = test.machine.crash_mark();
    test.step(1, Event::Ended(Exit::Signal(9)));
    assert_ne!(test.machine.crash_mark(), before);
    assert!(test.machine.past(test.at(5)).is_some());
    assert_eq!(test.restarted(), 11);
    assert!(test.machine.past(test.at(12)).is_some(), "the next pause would be longer");
    test.step(12, Event::Probed(Found::Ready));
    assert_eq!(test.machine.past(test.at(12)), None);
    test.step(20, Event::Ended(Exit::Code(1)));
    test.step(21, Event::Unwanted);
    assert!(test.machine.past(test.at(22)).is_some());
    assert_eq!(test.machine.past(test.at(30)), None);
}

#[test]
fn an_end_that_nobody_saw_counts_as_a_crash_just_now() {
    let mut test = Test::new();
    let now = test.at(100);
    test.machine.ended_unseen(true, Duration::ZERO, now);
    assert_eq!(test.step(101, Event::Wanted), None);
    assert_eq!(test.restarted(), 110);
    // One that was there before the machine booted has ended at least as long ago.
    let mut test = Test::new();
    let now = test.at(100);
    test.machine.ended_unseen(false, Duration::from_secs(7), now);
    assert_eq!(test.step(100, Event::Wanted), None);
    assert_eq!(test.restarted(), 103);
}

#[test]
fn what_the_disk_says_never_holds_a_start_for_longer_than_a_pause_may_be() {
    let mut test = Test::new();
    let day = Duration::from_secs(86_400);
    let past = Past { starts: 3, next_pause: day, left: day, crashed: None, early_exits: Vec::new() };
    let start = test.start;
    test.machine.resume(&past, start);
    assert_eq!(test.step(0, Event::Wanted), None);
    assert_eq!(test.restarted(), 60);
    test.step(60, Event::Ended(Exit::Code(1)));
    assert_eq!(test.restarted(), 120);
}

#[test]
fn each_exit_code_of_the_contract_has_its_consequence() {
    // Not asked for: everything waits one lease lifetime, and only a fence says nothing about the program.
    for (exit, counts) in [
        (Exit::Code(0), true),
        (Exit::Code(1), true),
        (Exit::Code(3), false),
        (Exit::Code(134), true),
        (Exit::Code(139), true),
        (Exit::Code(143), true),
        (Exit::Signal(6), true),
        (Exit::Signal(9), true),
        (Exit::Signal(11), true),
        (Exit::Unknown, true),
    ] {
        let mut test = Test::new();
        test.step(0, Event::Wanted);
        test.step(0, Event::Spawned);
        assert_eq!(test.step(0, Event::Ended(exit)), None, "{exit:?}");
        assert_eq!(test.machine.early_exits.len(), usize::from(counts), "{exit:?}");
        assert_eq!(test.restarted(), 10, "{exit:?}");
    }
    // Asked for: a clean end may be followed at once, any other waits.
    for (exit, clean) in [
        (Exit::Code(0), true),
        (Exit::Code(143), true),
        (Exit::Signal(15), true),
        (Exit::Code(1), false),
        (Exit::Code(3), false),
        (Exit::Code(134), false),
        (Exit::Signal(9), false),
        (Exit::Unknown, false),
    ] {
        let mut test = Test::ready();
        test.step(1, Event::Unwanted);
        test.step(2, Event::Wanted);
        let spawned = test.step(3, Event::Ended(exit)) == Some(Effect::Spawn);
        assert_eq!(spawned, clean, "{exit:?}");
        if !clean {
            assert_eq!(test.restarted(), 13, "{exit:?}");
        }
    }
}

#[test]
fn waiting_for_a_first_deployment_is_starting_for_as_long_as_it_takes() {
    let mut test = Test::new();
    test.step(0, Event::Wanted);
    test.step(0, Event::Spawned);
    for second in (2..86_400).step_by(600) {
        assert_eq!(test.step(second, Event::Probed(Found::NotReady)), None);
        assert_eq!(test.state(), Some(ProcessState::Starting));
    }
    test.step(86_400, Event::Probed(Found::Ready));
    assert_eq!((test.state(), test.machine.restarts()), (Some(ProcessState::Ready), 0));
}

#[test]
fn exits_that_are_ten_minutes_old_are_no_crash_loop() {
    let mut test = Test::new();
    test.step(0, Event::Wanted);
    test.step(0, Event::Spawned);
    for ends in [0, 200, 400, 600] {
        test.step(ends, Event::Ended(Exit::Code(1)));
        test.restarted();
    }
    test.step(800, Event::Ended(Exit::Code(1)));
    assert_eq!(test.state(), Some(ProcessState::BackingOff), "the first one was more than ten minutes ago");
}

#[test]
fn a_probe_that_we_cannot_make_ourselves_is_no_silence() {
    let mut test = Test::ready();
    for second in (2..600).step_by(2) {
        assert_eq!(test.step(second, Event::Probed(Found::Unknown)), None, "{second}");
        assert_eq!(test.state(), Some(ProcessState::Ready));
    }
    // The silence begins when it can be heard.
    assert_eq!(test.step(600, Event::Probed(Found::Silent)), None);
    assert_eq!(test.step(657, Event::Probed(Found::Silent)), None);
    assert_eq!(test.step(658, Event::Probed(Found::Silent)), Some(Effect::Kill));
}

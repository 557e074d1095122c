use super::*;

const TTL: Duration = Duration::from_secs(15);

fn s(seconds: u64) -> Mono {
    Mono::at(Duration::from_secs(seconds))
}

fn tag(text: &str) -> ETag {
    ETag::parse(text).unwrap()
}

fn body(etag: &str, node: &str, fence: u64) -> Body {
    Body { etag: tag(etag), node: node.parse().unwrap(), fence: Fence(fence), ttl: TTL, nonce: format!("n-{etag}") }
}

fn go(state: State, event: Event, at: u64) -> (State, Vec<Effect>) {
    let me = "me".parse().unwrap();
    step(state, event, &Inputs { now: s(at), me: &me, ttl: TTL, nonce: "fresh" })
}

fn write(fence: u64, replacing: Option<&str>) -> Write {
    Write { fence: Fence(fence), replacing: replacing.map(tag), nonce: "fresh".into(), ttl: TTL }
}

fn claiming_at(at: u64) -> State {
    State::Claiming { write: write(9, Some("e")), sent: s(at), doubtful: false }
}

fn renewing_at(at: u64, lapses: u64) -> State {
    State::Renewing {
        write: write(9, Some("e")),
        right: Right::Proven,
        sent: s(at),
        lapses: s(lapses),
        doubtful: false,
    }
}

fn written() -> Event {
    Event::Written { nonce: "fresh".into(), etag: tag("new") }
}

/// What follows when a survey, asked for in the last step, finds `floor`.
fn surveyed((state, effects): (State, Vec<Effect>), floor: u64, at: u64) -> (State, Vec<Effect>) {
    assert_eq!(effects, [Effect::Survey]);
    go(state, Event::Surveyed(Fence(floor)), at)
}

#[test]
fn a_lost_lease_is_claimed_after_a_life_above_every_fence_that_stands() {
    let (seen, none) = surveyed(go(State::Following(None), Event::Read(None), 1), 4, 1);
    assert_eq!((seen.due(), none.len()), (Some(s(16)), 0));
    assert_eq!(go(seen.clone(), Event::Read(None), 15), (seen.clone(), vec![]));
    let (state, effects) = surveyed(go(seen.clone(), Event::Read(None), 16), 4, 17);
    assert_eq!(effects, [Effect::Write(write(5, None))]);
    assert_eq!(state, State::Claiming { write: write(5, None), sent: s(17), doubtful: false });
    // Somebody acted meanwhile: another life.
    let (again, none) = surveyed(go(seen, Event::Read(None), 16), 6, 17);
    assert_eq!((again.due(), none.len()), (Some(s(32)), 0));
    // What was seen before it was lost counts as well.
    let (held, _) = go(State::Following(None), Event::Read(Some(body("a", "other", 8))), 0);
    let (lost, none) = go(held, Event::Read(None), 15);
    assert_eq!((lost.due(), none.len()), (Some(s(30)), 0));
    assert_eq!(surveyed(go(lost, Event::Read(None), 30), 0, 30).1, [Effect::Write(write(9, None))]);
}

#[test]
fn the_first_lease_of_a_bucket_is_claimed_at_once() {
    let (_, claim) = surveyed(go(State::Following(None), Event::Read(None), 0), 0, 0);
    assert_eq!(claim, [Effect::Write(write(1, None))]);
}

#[test]
fn a_body_is_gone_only_after_it_stood_its_whole_life_before_our_eyes() {
    let (seen, none) = go(State::Following(None), Event::Read(Some(body("a", "other", 8))), 100);
    assert!(none.is_empty());
    assert_eq!(seen.due(), Some(s(115)));
    let (still, none) = go(seen.clone(), Event::Read(Some(body("a", "other", 8))), 114);
    assert_eq!((&still, none.len()), (&seen, 0));
    let (moved, none) = go(seen.clone(), Event::Read(Some(body("b", "other", 8))), 115);
    assert_eq!((moved.due(), none.len()), (Some(s(130)), 0));
    let (_, claim) = surveyed(go(seen, Event::Read(Some(body("a", "other", 8))), 115), 8, 115);
    assert_eq!(claim, [Effect::Write(write(9, Some("a")))]);
}

#[test]
fn an_earlier_run_of_this_node_is_replaced_at_once() {
    let (_, claim) = surveyed(go(State::Following(None), Event::Read(Some(body("a", "me", 8))), 0), 8, 0);
    assert_eq!(claim, [Effect::Write(write(9, Some("a")))]);
}

#[test]
fn a_copy_from_before_a_higher_fence_is_left_alone_for_a_life_whatever_it_says() {
    let old = body("a", "other", 8);
    let given_back = Body { ttl: Duration::ZERO, ..old.clone() };
    let mine = body("a", "me", 8);
    let (timed, _) = go(State::Following(None), Event::Read(Some(old.clone())), 0);
    for (state, copy) in [(timed, old), (State::Following(None), given_back), (State::Following(None), mine)] {
        let (waits, none) = surveyed(go(state, Event::Read(Some(copy.clone())), 15), 11, 16);
        assert_eq!((waits.due(), none.len()), (Some(s(31)), 0));
        assert_eq!(go(waits.clone(), Event::Read(Some(copy.clone())), 30), (waits.clone(), vec![]));
        let claim = surveyed(go(waits, Event::Read(Some(copy)), 31), 11, 31).1;
        assert_eq!(claim, [Effect::Write(write(12, Some("a")))], "above what was acted under");
    }
}

#[test]
fn a_survey_that_fails_claims_nothing_and_is_repeated() {
    let (seen, _) = go(State::Following(None), Event::Read(Some(body("a", "other", 8))), 0);
    let (surveying, _) = go(seen.clone(), Event::Read(Some(body("a", "other", 8))), 15);
    assert_eq!(go(surveying.clone(), Event::SurveyFailed, 16), (seen.clone(), vec![]));
    assert_eq!(go(seen, Event::Read(Some(body("a", "other", 8))), 16).1, [Effect::Survey]);
    // Nobody waits for it any more.
    let (following, _) = go(surveying, Event::Resign, 16);
    assert_eq!(go(following.clone(), Event::Surveyed(Fence(8)), 17), (following, vec![]));
}

#[test]
fn nobody_leads_before_its_fence_is_proven_and_a_lease_is_kept_meanwhile() {
    let (claimed, effects) = go(claiming_at(10), written(), 11);
    assert_eq!(effects, [Effect::Prove(Fence(9))]);
    let (renewing, effects) = go(claimed.clone(), Event::Due, 15);
    assert!(matches!(effects[..], [Effect::Write(_)]));
    let (claimed, none) = go(renewing.clone(), written(), 16);
    assert_eq!((claimed.due(), none.len()), (Some(s(20)), 0), "renewed, and still no right to act");
    let lead = |lapses| [Effect::Lead { fence: Fence(9), lapses: s(lapses) }];
    let (held, effects) = go(claimed.clone(), Event::Proven(Fence(9)), 17);
    assert_eq!(effects, lead(30));
    assert!(go(held, Event::Proven(Fence(9)), 17).1.is_empty(), "once");
    assert_eq!(go(renewing.clone(), Event::Proven(Fence(9)), 17).1, lead(25));
    for state in [claimed.clone(), renewing] {
        assert_eq!(go(state.clone(), Event::Proven(Fence(8)), 17), (state, vec![]), "of an earlier claim");
    }
    assert_eq!(go(claimed, Event::Proven(Fence(9)), 30), (State::Following(None), vec![Effect::StepDown]), "too late");
}

#[test]
fn of_a_fence_that_another_has_its_claimant_lets_go_and_claims_above_it() {
    let (claimed, _) = go(claiming_at(10), written(), 11);
    let (renewing, _) = go(claimed.clone(), Event::Due, 15);
    for state in [claimed, renewing] {
        let (let_go, effects) = go(state, Event::Overtaken(Fence(9)), 16);
        assert_eq!((&let_go, effects), (&State::Following(None), vec![Effect::StepDown]));
        // The fence of the lease is its own, and the other's stands in that one's record.
        let (waits, _) = surveyed(go(let_go.clone(), Event::Read(Some(body("new", "me", 9))), 17), 11, 17);
        assert_eq!(
            surveyed(go(waits, Event::Read(Some(body("new", "me", 9))), 32), 11, 32).1,
            [Effect::Write(write(12, Some("new")))]
        );
        let again = surveyed(go(let_go, Event::Read(Some(body("new", "me", 9))), 17), 9, 17);
        assert_eq!(again.1, [Effect::Write(write(10, Some("new")))]);
    }
}

#[test]
fn an_unreadable_bucket_declares_nobody_gone() {
    let (seen, _) = go(State::Following(None), Event::Read(Some(body("a", "other", 8))), 0);
    assert_eq!(go(seen.clone(), Event::ReadFailed, 500), (seen, vec![]));
}

#[test]
fn the_life_of_a_lease_counts_from_when_its_write_left() {
    let (state, _) = go(claiming_at(10), written(), 20);
    assert_eq!(go(state.clone(), Event::Proven(Fence(9)), 21).1, [Effect::Lead { fence: Fence(9), lapses: s(25) }]);
    assert_eq!(state.due(), Some(s(15)));
    assert_eq!(go(claiming_at(10), written(), 25).1, [Effect::StepDown]);
}

#[test]
fn refused_renewal_steps_down_at_once() {
    let refused = Event::Refused { nonce: "fresh".into() };
    assert_eq!(go(renewing_at(5, 15), refused, 6), (State::Following(None), vec![Effect::StepDown]));
}

#[test]
fn a_renewal_without_an_answer_steps_down_when_the_lease_lapses() {
    let unknown = Event::Unknown { nonce: "fresh".into() };
    let (state, effects) = go(renewing_at(5, 15), unknown, 6);
    assert_eq!(effects, [Effect::Read]);
    assert_eq!(go(state.clone(), Event::Due, 15), (State::Following(None), vec![Effect::StepDown]));
    assert_eq!(go(state, Event::ReadFailed, 16).1, [Effect::StepDown]);
}

#[test]
fn a_lost_answer_is_recognised_by_the_nonce() {
    let (doubt, _) = go(renewing_at(5, 15), Event::Unknown { nonce: "fresh".into() }, 6);
    let mut ours = body("new", "me", 9);
    ours.nonce = "fresh".into();
    assert_eq!(go(doubt.clone(), Event::Read(Some(ours)), 8).1, [Effect::Lead { fence: Fence(9), lapses: s(20) }]);
    let (again, effects) = go(doubt.clone(), Event::Read(Some(body("e", "me", 9))), 8);
    assert_eq!(effects, [Effect::Write(write(9, Some("e")))]);
    // The first try landed after all, so that the second is refused: that is to be looked at, not believed.
    assert_eq!(go(again, Event::Refused { nonce: "fresh".into() }, 9).1, [Effect::Read]);
    assert_eq!(go(doubt, Event::Read(Some(body("x", "other", 10))), 8).1, [Effect::StepDown]);
}

#[test]
fn the_late_outcome_of_an_abandoned_write_changes_nothing() {
    let late = || Event::Written { nonce: "old".into(), etag: tag("late") };
    for state in [State::Following(None), claiming_at(10), renewing_at(5, 15)] {
        assert_eq!(go(state.clone(), late(), 11), (state, vec![]));
    }
}

#[test]
fn a_lost_claim_follows_the_winner() {
    let (state, effects) = go(claiming_at(1), Event::Refused { nonce: "fresh".into() }, 2);
    assert_eq!((state, effects.len()), (State::Following(None), 0));
    let (state, effects) = go(claiming_at(1), Event::Read(Some(body("w", "other", 9))), 2);
    assert_eq!((state.due(), effects.len()), (Some(s(17)), 0));
}

#[test]
fn a_lease_is_given_back_only_after_its_holder_stepped_down_and_taken_at_once() {
    let holding = State::Holding { fence: Fence(9), right: Right::Proven, etag: tag("e"), renew: s(5), lapses: s(15) };
    let back = Write { ttl: Duration::ZERO, ..write(9, Some("e")) };
    let (state, effects) = go(holding, Event::Resign, 3);
    assert_eq!((state, effects), (State::Following(None), vec![Effect::StepDown, Effect::Write(back)]));
    // Where the next body is depends on a renewal that is on its way.
    assert_eq!(go(renewing_at(5, 15), Event::Resign, 6), (renewing_at(5, 15), vec![]));
    let free = Body { ttl: Duration::ZERO, ..body("f", "other", 9) };
    let (seen, _) = go(State::Following(None), Event::Read(Some(body("a", "other", 9))), 0);
    for state in [State::Following(None), seen] {
        let claim = surveyed(go(state, Event::Read(Some(free.clone())), 1), 9, 1).1;
        assert_eq!(claim, [Effect::Write(write(10, Some("f")))]);
    }
}

#[test]
fn a_holder_renews_at_a_third_and_never_after_its_time() {
    let holding = State::Holding { fence: Fence(9), right: Right::Proven, etag: tag("e"), renew: s(5), lapses: s(15) };
    assert_eq!(go(holding.clone(), Event::Due, 5).1, [Effect::Write(write(9, Some("e")))]);
    assert_eq!(go(holding, Event::Due, 15), (State::Following(None), vec![Effect::StepDown]));
}

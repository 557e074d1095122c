//! What becomes of a deploy that nobody moves any more. Pure, and the only place that says it: a poll answers with it at
//! read time, and the coordinator's sweep stores the same.

use std::time::Duration;

use scafo_core::record::DeployRecord;
use scafo_core::{Problem, ProblemCode, Timestamp};

/// How long the record of a finished deploy is kept.
pub(crate) const RETENTION: Duration = Duration::from_hours(7 * 24);

/// Whether it takes a look at the accepting node to judge this record: it is not final, and it has not moved for a whole
/// liveness window.
pub(crate) fn is_silent(record: &DeployRecord, now: Timestamp, window: Duration) -> bool {
    !record.state.is_terminal() && now.since(record.moved_at) > window
}

/// The judgement on a silent deploy. `answers`: the accepting node lives.
pub(crate) fn abandoned(record: &DeployRecord, answers: bool, now: Timestamp, window: Duration) -> Option<Problem> {
    if answers || !is_silent(record, now, window) {
        return None;
    }
    Some(Problem::new(
        ProblemCode::DeployTimeout,
        format!(
            "node `{}` accepted this deploy and has not been answering since; deploy again through another node",
            record.node
        ),
    ))
}

/// When it finished, if it has.
pub(crate) fn finished(record: &DeployRecord) -> Option<Timestamp> {
    record.state.is_terminal().then(|| record.finished_at.unwrap_or(record.moved_at))
}

/// Whether the record of a deploy that finished then has been kept long enough.
pub(crate) fn is_past(finished: Timestamp, now: Timestamp) -> bool {
    now.since(finished) > RETENTION
}

/// Whether the record of a finished deploy has been kept long enough.
pub(crate) fn expired(record: &DeployRecord, now: Timestamp) -> bool {
    finished(record).is_some_and(|finished| is_past(finished, now))
}

#[cfg(test)]
mod tests {
    use scafo_core::DeployId;
    use scafo_core::record::{DeployState, V1};

    use super::*;

    const WINDOW: Duration = Duration::from_secs(90);

    fn record(state: DeployState) -> DeployRecord {
        let shop = "shop".parse().unwrap();
        DeployRecord {
            v: V1,
            id: DeployId::new(&shop, 1),
            application: shop,
            state,
            node: "n".parse().unwrap(),
            by: "op".into(),
            accepted_at: Timestamp::from_millis(0),
            application_since: None,
            admitted: None,
            moved_at: Timestamp::from_millis(0),
            finished_at: None,
            deployment: None,
            code: None,
            detail: None,
            source: None,
            oidc: None,
            artifact: None,
            celld_version: None,
            rest: Default::default(),
        }
    }

    #[test]
    fn a_deploy_is_abandoned_on_exactly_three_conditions() {
        for (state, answers, millis, verdict) in [
            (DeployState::Uploading, false, 90_001, true),
            (DeployState::Accepted, false, 90_001, true),
            (DeployState::Uploading, false, 90_000, false),
            (DeployState::Uploading, true, 90_001, false),
            (DeployState::Deployed, false, 90_001, false),
            (DeployState::Failed, false, 90_001, false),
        ] {
            let problem = abandoned(&record(state), answers, Timestamp::from_millis(millis), WINDOW);
            assert_eq!(problem.is_some(), verdict, "{state:?} {answers} {millis}");
            assert!(problem.is_none_or(|problem| problem.detail.contains("`n`")));
        }
    }

    #[test]
    fn finished_deploys_are_kept_for_a_week() {
        let week = 7 * 24 * 3600 * 1000;
        assert!(!expired(&record(DeployState::Deployed), Timestamp::from_millis(week)));
        assert!(expired(&record(DeployState::Deployed), Timestamp::from_millis(week + 1)));
        assert!(!expired(&record(DeployState::Accepted), Timestamp::from_millis(week * 9)));
    }
}

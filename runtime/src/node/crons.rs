//! Fires crons, once a minute each, on whatever generation serves then.

use std::{sync::Arc, time::Duration};

use http::Method;
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{gate::Gate, generation::Generation, status::Status};
use crate::failure::{Context, Outcome};

/// How long one `scheduled` handler may take: Cloudflare's own limit.
const HANDLER_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Handlers at once; a slow one must not pile up for ever.
const RUNNING_MAX: usize = 64;

/// A clock that is set back by no more than this fires no minute twice; one that is set back further was wrong before, and is followed.
const SET_BACK: SignedDuration = SignedDuration::from_mins(5);

/// Runs for as long as the node serves.
pub(super) async fn run(gate: Arc<Gate>, status: Arc<Status>) {
    let mut running = JoinSet::new();
    let mut fired = minute(Timestamp::now());
    loop {
        let now = Timestamp::now();
        let next = minute(now) + SignedDuration::from_secs(60);
        // A bound below a minute, since the wall clock may be set while we sleep.
        let wait = Duration::try_from(next.duration_since(now)).unwrap_or_default().min(Duration::from_secs(60));
        sleep(wait).await;
        while running.try_join_next().is_some() {}
        let at = minute(Timestamp::now());
        if !is_due(at, fired) || status.is_draining() || !status.has_authority() {
            continue;
        }
        fired = at;
        let Some(generation) = gate.current() else { continue };
        let civil = TimeZone::UTC.to_datetime(at);
        for schedule in generation.deployment.main.schedules.iter().filter(|schedule| schedule.fires_at(civil)) {
            if running.len() >= RUNNING_MAX {
                tracing::warn!(
                    cron = schedule.expression,
                    "too many scheduled handlers are running: this one is skipped"
                );
                continue;
            }
            let generation = Arc::clone(&generation);
            let cron = schedule.expression.clone();
            running.spawn(async move {
                let _token = generation.requests.token();
                match fire(&generation, &cron, at).await {
                    Ok(outcome) => tracing::info!(cron, outcome, "scheduled handler ran"),
                    Err(failure) => tracing::error!(cron, error = failure.chain(), "scheduled handler did not run"),
                }
            });
        }
    }
}

/// Whether this minute is still to be fired, after the last one that was.
fn is_due(at: Timestamp, fired: Timestamp) -> bool {
    at > fired || fired.duration_since(at) > SET_BACK
}

async fn fire(generation: &Generation, cron: &str, at: Timestamp) -> Outcome<String> {
    let order = serde_json::json!({ "cron": cron, "time": at.as_millisecond() }).to_string();
    let answer = timeout(HANDLER_LIMIT, generation.ask(Method::POST, order)).await;
    let answer = answer.context(|| "wait for the scheduled handler".into())??;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The beginning of the minute.
fn minute(at: Timestamp) -> Timestamp {
    let seconds = at.as_second();
    Timestamp::from_second(seconds - seconds.rem_euclid(60)).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_begins_at_its_first_second() {
        let at: Timestamp = "2026-11-30T09:28:59.999Z".parse().unwrap();
        assert_eq!(minute(at).to_string(), "2026-11-30T09:28:00Z");
    }

    #[test]
    fn a_clock_that_is_set_back_far_stops_no_cron_and_one_that_is_corrected_fires_none_twice() {
        let fired: Timestamp = "2026-11-30T09:28:00Z".parse().unwrap();
        for (minutes, due) in
            [(1, true), (60, true), (0, false), (-1, false), (-5, false), (-6, true), (-525_600, true)]
        {
            assert_eq!(is_due(fired + SignedDuration::from_mins(minutes), fired), due, "{minutes}");
        }
    }
}

//! Fires crons, once a minute each, on whatever generation serves then.

use std::{sync::Arc, time::Duration};

use http::Method;
use jiff::{Timestamp, tz::TimeZone};
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

/// Runs for as long as the node serves.
pub(super) async fn run(gate: Arc<Gate>, status: Arc<Status>) {
    let mut running = JoinSet::new();
    let mut fired = minute(Timestamp::now());
    loop {
        let now = Timestamp::now();
        let next = minute(now) + jiff::SignedDuration::from_secs(60);
        // A bound below a minute, since the wall clock may be set while we sleep.
        let wait = Duration::try_from(next.duration_since(now)).unwrap_or_default().min(Duration::from_secs(60));
        sleep(wait).await;
        while running.try_join_next().is_some() {}
        let at = minute(Timestamp::now());
        if at <= fired || status.is_draining() || !status.has_authority() {
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
}

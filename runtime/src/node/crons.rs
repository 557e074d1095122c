//! Fires crons, once a minute each, on whatever generation serves then.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full, Limited};
use jiff::{Timestamp, tz::TimeZone};
use scafo_proxy::{Forwarder, Limits, Outbound, Tunnels};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{gate::Gate, status::Status};
use crate::failure::{Context, Outcome};

/// How long one `scheduled` handler may take: Cloudflare's own limit.
const HANDLER_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Handlers at once; a slow one must not pile up for ever.
const RUNNING_MAX: usize = 64;

/// The answer is two fields.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Runs for as long as the node serves.
pub(super) async fn run(gate: Arc<Gate>, status: Arc<Status>) {
    let forwarder = Forwarder::new(Limits { response_head: Some(HANDLER_LIMIT), ..Limits::default() });
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
            let (forwarder, generation) = (forwarder.clone(), Arc::clone(&generation));
            let cron = schedule.expression.clone();
            running.spawn(async move {
                let _token = generation.requests.token();
                match fire(&forwarder, &generation.workerd.cron, &cron, at).await {
                    Ok(outcome) => tracing::info!(cron, outcome, "scheduled handler ran"),
                    Err(failure) => tracing::error!(cron, error = failure.chain(), "scheduled handler did not run"),
                }
            });
        }
    }
}

async fn fire(
    forwarder: &Forwarder<Full<Bytes>>,
    cron_socket: &scafo_proxy::Upstream,
    cron: &str,
    at: Timestamp,
) -> Outcome<String> {
    let order = serde_json::json!({ "cron": cron, "time": at.as_millisecond() }).to_string();
    let request =
        Request::post("http://cron/").body(Full::new(Bytes::from(order))).context(|| "make a request".into())?;
    let outbound = Outbound::new(request).context(|| "make a request".into())?;
    let sent = forwarder.forward(cron_socket, outbound, &Tunnels::new(0)).await;
    // The request goes back to us with some failures; it is not an error's business.
    let response = sent.map_err(|failure| failure.to_string()).context(|| "call workerd".into())?;
    let answer = timeout(HANDLER_LIMIT, Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect()).await;
    let answer = answer.context(|| "wait for the handler".into())?.context(|| "read the handler's outcome".into())?;
    Ok(String::from_utf8_lossy(&answer.to_bytes()).into_owned())
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

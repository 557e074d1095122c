//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

/// How often a condition is looked at.
const STEP: Duration = Duration::from_millis(25);

/// Polls `condition` until it gives a value.
///
/// # Panics
/// When it has not within `limit`: names what was waited for.
pub async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> F,
) -> T {
    let started = Instant::now();
    loop {
        if let Some(value) = condition().await {
            return value;
        }
        assert!(started.elapsed() < limit, "waited {limit:?} for {what}");
        tokio::time::sleep(STEP).await;
    }
}

/// The pause between two looks at a condition, for loops that have more to say than [`until`] when they give up.
pub async fn moment() {
    tokio::time::sleep(STEP).await;
}

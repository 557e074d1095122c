//! The SDK's side of a call: its deadline, its errors in our words, and what the SDK hides (the `Date` of an answer).

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64, atomic::Ordering},
    time::Duration,
};

use aws_sdk_s3::{
    config::{
        ConfigBag, Intercept, RuntimeComponents,
        interceptors::{BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef},
    },
    error::{BoxError, ProvideErrorMetadata, SdkError},
    primitives::{DateTime, DateTimeFormat},
};
use scafo_core::Timestamp;

use super::answer::{Answer, Failure};
use crate::Cause;

/// Counts the requests of one call and keeps what its answer's head said.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    requests: Arc<AtomicU64>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Clone, Default)]
struct Seen {
    date: Option<Timestamp>,
    region: Option<String>,
    status: Option<u16>,
}

impl Trace {
    pub(super) fn new(requests: Arc<AtomicU64>) -> Self {
        Self { requests, seen: Arc::default() }
    }

    /// The `Date` of the answer.
    pub(super) fn date(&self) -> Option<Timestamp> {
        self.seen().date
    }

    fn seen(&self) -> Seen {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Intercept for Trace {
    fn name(&self) -> &'static str {
        "scafo-trace"
    }

    fn read_before_transmit(
        &self,
        _context: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        _config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response();
        let headers = response.headers();
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Seen {
            date: headers.get("date").and_then(http_date),
            region: headers.get("x-amz-bucket-region").map(str::to_owned),
            status: Some(response.status().as_u16()),
        };
        Ok(())
    }
}

/// Sends a call and waits for its answer's head, at most for `limit`.
pub(super) async fn ask<T, E, R>(
    limit: Duration,
    call: impl Future<Output = Result<T, SdkError<E, R>>>,
    trace: &Trace,
) -> Result<T, Failure>
where
    E: std::error::Error + ProvideErrorMetadata + 'static,
    R: std::fmt::Debug,
{
    // The SDK's futures are tens of kilobytes: on the heap they do not swell those of our callers.
    match tokio::time::timeout(limit, Box::pin(call)).await {
        Err(_) => Err(Failure::Silence(Cause::new(format!("no answer within {} s", limit.as_secs())))),
        Ok(Ok(output)) => Ok(output),
        Ok(Err(error)) => Err(failure(&error, &trace.seen())),
    }
}

fn failure<E, R>(error: &SdkError<E, R>, seen: &Seen) -> Failure
where
    E: std::error::Error + ProvideErrorMetadata + 'static,
    R: std::fmt::Debug,
{
    match (error, seen.status) {
        (SdkError::ConstructionFailure(_), _) => Failure::NeverSent(chain(error)),
        (SdkError::ServiceError(service), Some(status)) => Failure::Answer(Answer {
            status,
            code: service.err().code().map(str::to_owned),
            message: service.err().message().map(str::to_owned),
            region: seen.region.clone(),
            date: seen.date,
        }),
        // An answer that the SDK cannot read. A page of HTML with a refusing status is still a refusal.
        (SdkError::ResponseError(_), Some(status)) if (300..500).contains(&status) => Failure::Answer(Answer {
            status,
            region: seen.region.clone(),
            date: seen.date,
            message: Some(chain(error).to_string()),
            code: None,
        }),
        _ => Failure::Silence(chain(error)),
    }
}

fn chain<E, R>(error: &SdkError<E, R>) -> Cause
where
    E: std::error::Error + 'static,
    R: std::fmt::Debug,
{
    let mut text = error.to_string();
    let mut below = std::error::Error::source(error);
    while let Some(error) = below {
        text.push_str(": ");
        text.push_str(&error.to_string());
        below = error.source();
    }
    Cause::new(text)
}

fn http_date(text: &str) -> Option<Timestamp> {
    time(DateTime::from_str(text, DateTimeFormat::HttpDate).ok().as_ref())
}

/// The SDK's time in ours.
pub(super) fn time(time: Option<&DateTime>) -> Option<Timestamp> {
    time?.to_millis().ok().map(Timestamp::from_millis)
}

/// User metadata with the names in lower case, as HTTP compares them.
pub(super) fn metadata(given: Option<&HashMap<String, String>>) -> BTreeMap<String, String> {
    given.into_iter().flatten().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())).collect()
}

/// Whether `Content-Range` (RFC 9110, section 14.4) announces bytes from `start` on.
pub(super) fn range_starts_at(content_range: &str, start: u64) -> bool {
    content_range
        .trim()
        .strip_prefix("bytes")
        .map(str::trim_start)
        .and_then(|rest| rest.split_once('-'))
        .is_some_and(|(first, _)| first.trim() == start.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_range_is_read_for_its_start() {
        assert!(range_starts_at("bytes 5-9/20", 5));
        assert!(range_starts_at("bytes 0-0/*", 0));
        assert!(!range_starts_at("bytes 0-19/20", 5));
        assert!(!range_starts_at("bytes */20", 5));
        assert!(!range_starts_at("", 0));
    }

    #[test]
    fn the_date_of_an_answer_is_read() {
        assert_eq!(http_date("Thu, 01 Jan 1970 00:00:10 GMT"), Some(Timestamp::from_millis(10_000)));
        assert_eq!(http_date("now"), None);
    }
}

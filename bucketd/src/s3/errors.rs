//! What the store answers, in the error codes of S3. The one place that chooses them.

use std::sync::atomic::{AtomicI64, Ordering};

use s3s::{S3Error, S3ErrorCode};

use crate::store::{Millis, StoreError};

/// The S3 error of a store error. Failures of the store itself are logged here, with their cause; the caller learns only what
/// concerns it.
#[expect(clippy::needless_pass_by_value, reason = "the form that map_err takes")]
pub(super) fn to_s3(error: StoreError) -> S3Error {
    let code = match &error {
        StoreError::NoSuchBucket => S3ErrorCode::NoSuchBucket,
        StoreError::NoSuchKey => S3ErrorCode::NoSuchKey,
        StoreError::PreconditionFailed => S3ErrorCode::PreconditionFailed,
        StoreError::NoSuchUpload => S3ErrorCode::NoSuchUpload,
        StoreError::InvalidPart(_) => S3ErrorCode::InvalidPart,
        StoreError::InvalidPartOrder => S3ErrorCode::InvalidPartOrder,
        StoreError::PartTooSmall(_) => S3ErrorCode::EntityTooSmall,
        StoreError::InvalidArgument(_) => S3ErrorCode::InvalidArgument,
        StoreError::KeyTooLong => S3ErrorCode::KeyTooLongError,
        StoreError::BodyTooLarge => S3ErrorCode::EntityTooLarge,
        // 503: worth another try, as soon as there is room or the process is back.
        StoreError::NoSpace | StoreError::Closed => S3ErrorCode::ServiceUnavailable,
        StoreError::Database(_) | StoreError::File(_) | StoreError::Damaged(_) => S3ErrorCode::InternalError,
    };
    log(&error);
    let message = match &error {
        StoreError::NoSpace => {
            format!("{error}. Free space where scafo-bucketd keeps its data, then send the request again.")
        }
        StoreError::Database(_) | StoreError::File(_) | StoreError::Damaged(_) => {
            "The store failed; its log has the cause.".to_owned()
        }
        StoreError::NoSuchBucket
        | StoreError::NoSuchKey
        | StoreError::PreconditionFailed
        | StoreError::NoSuchUpload
        | StoreError::InvalidPart(_)
        | StoreError::InvalidPartOrder
        | StoreError::PartTooSmall(_)
        | StoreError::InvalidArgument(_)
        | StoreError::KeyTooLong
        | StoreError::BodyTooLarge
        | StoreError::Closed => error.to_string(),
    };
    S3Error::with_message(code, message)
}

fn log(error: &StoreError) {
    match error {
        StoreError::Database(cause) => tracing::error!(%error, %cause, "a request failed"),
        StoreError::File(cause) => tracing::error!(%error, %cause, "a request failed"),
        StoreError::Damaged(_) => tracing::error!(%error, "a request failed"),
        StoreError::NoSpace => warn_of_no_space(Millis::now()),
        StoreError::NoSuchBucket
        | StoreError::NoSuchKey
        | StoreError::PreconditionFailed
        | StoreError::NoSuchUpload
        | StoreError::InvalidPart(_)
        | StoreError::InvalidPartOrder
        | StoreError::PartTooSmall(_)
        | StoreError::InvalidArgument(_)
        | StoreError::KeyTooLong
        | StoreError::BodyTooLarge
        | StoreError::Closed => {}
    }
}

/// A full disk refuses every write, and the log is often on the same disk: one line in 10 s says it.
fn warn_of_no_space(now: Millis) {
    static NEXT: AtomicI64 = AtomicI64::new(0);
    const PAUSE_SECONDS: i64 = 10;
    let next = NEXT.load(Ordering::Relaxed);
    let due = now.to_seconds() >= next;
    // Who loses the exchange leaves the line to who wins it.
    if due
        && NEXT.compare_exchange(next, now.to_seconds() + PAUSE_SECONDS, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    {
        tracing::warn!("the disk refuses writes; free space where the store keeps its data");
    }
}

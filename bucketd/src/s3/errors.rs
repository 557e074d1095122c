//! What the store answers, in the error codes of S3. The one place that chooses them.

use s3s::{S3Error, S3ErrorCode};

use crate::store::StoreError;

/// The S3 error of a store error. Failures of the store itself are logged here, with their cause; the caller learns only what
/// concerns it.
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
        StoreError::NoSpace => tracing::warn!("no space left for a write"),
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

//! Answers that the proxy gives itself, as S3 words them.

use bytes::Bytes;
use http::{HeaderValue, Method, Response, StatusCode, header};
use serde::Deserialize;

use super::Body;
use super::body::full;

/// An answer in place of the store's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reply {
    /// 409: another write of the key was in flight.
    ConditionalRequestConflict,
    /// 409: busy; not a lost condition.
    OperationAborted,
    /// 412.
    PreconditionFailed,
    /// 429.
    TooManyRequests,
    /// 500.
    InternalError,
    /// 503: too many requests.
    SlowDown,
    /// 503: something else.
    ServiceUnavailable,
    /// 403: the signature's time is too far off.
    RequestTimeTooSkewed,
    /// 403.
    AccessDenied,
    /// 404 for an object; one well-known release answers creates with it.
    NoSuchKey,
    /// 301 with the region `eu-central-1`.
    OtherRegion,
    /// 200 with a page for people: no store at all.
    WebPage,
}

impl Reply {
    /// Status, code and message: the only place that spells them.
    const fn row(self) -> (StatusCode, &'static str, &'static str) {
        match self {
            Self::ConditionalRequestConflict => {
                (StatusCode::CONFLICT, "ConditionalRequestConflict", "Another write of this key is under way.")
            }
            Self::OperationAborted => (StatusCode::CONFLICT, "OperationAborted", "The key is being worked on."),
            Self::PreconditionFailed => {
                (StatusCode::PRECONDITION_FAILED, "PreconditionFailed", "The condition does not hold.")
            }
            Self::TooManyRequests => (StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", "Please wait."),
            Self::InternalError => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError", "Something went wrong."),
            Self::SlowDown => (StatusCode::SERVICE_UNAVAILABLE, "SlowDown", "Please ask less often."),
            Self::ServiceUnavailable => {
                (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "Not available right now.")
            }
            Self::RequestTimeTooSkewed => {
                (StatusCode::FORBIDDEN, "RequestTimeTooSkewed", "The request's time is too far from the store's.")
            }
            Self::AccessDenied => (StatusCode::FORBIDDEN, "AccessDenied", "These credentials may not do that."),
            Self::NoSuchKey => (StatusCode::NOT_FOUND, "NoSuchKey", "There is no such key."),
            Self::OtherRegion => {
                (StatusCode::MOVED_PERMANENTLY, "PermanentRedirect", "The bucket is in another region.")
            }
            Self::WebPage => (StatusCode::OK, "", ""),
        }
    }

    /// The whole answer to a request with this method.
    pub(super) fn answer(self, method: &Method) -> Response<Body> {
        let (status, code, message) = self.row();
        let (kind, text) = if self == Self::WebPage {
            ("text/html", "<!doctype html><title>Router</title><p>Please log in".to_owned())
        } else {
            let text = format!(
                "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>{code}</Code><Message>{message}</Message>\
                 <RequestId>fault-proxy</RequestId></Error>"
            );
            ("application/xml", text)
        };
        let body = if method == Method::HEAD { Bytes::new() } else { Bytes::from(text) };
        let mut answer = Response::new(full(body));
        *answer.status_mut() = status;
        answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        if self == Self::OtherRegion {
            answer.headers_mut().insert("x-amz-bucket-region", HeaderValue::from_static("eu-central-1"));
        }
        answer
    }
}

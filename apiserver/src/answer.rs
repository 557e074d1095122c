//! What every answer has: a request id, one line in the log, and, when it is a refusal, a problem document.
//!
//! Handlers return a [`Refusal`]; the document is written in one place, around every route, so that refusals of the framework,
//! of handlers and of a handler that panicked cannot differ in form.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use scafo_core::problem::{Problem, ProblemCode, ProblemDocument};
use serde::Serialize;

/// Where the access log goes: one line for each request, with neither query, headers nor body, since those hold secrets.
const ACCESS: &str = "scafo::access";
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// As much of a path as the log shows. The longest of ours has about 150 characters.
const SHOWN_PATH: usize = 200;

/// A problem on its way to the caller.
#[derive(Debug)]
pub(crate) struct Refusal(Problem);

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Refusal {
    /// Only the status and the problem itself; [`envelope`] writes the document.
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = status(self.0.code);
        response.extensions_mut().insert(self.0);
        response
    }
}

/// Who signed the request, in the extensions of its answer: for the log.
#[derive(Debug, Clone)]
pub(crate) struct Signed(pub(crate) String);

/// A JSON answer.
pub(crate) fn json(status: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// A JSON answer of a type of ours.
pub(crate) fn json_of(status: StatusCode, value: &impl Serialize) -> Response {
    json(status, to_json(value))
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("answers hold strings, numbers, lists and maps with string keys")
}

/// `{"<name>":<value>}` around JSON that passes as it is, unknown members included.
pub(crate) fn member(name: &str, value: &[u8]) -> Bytes {
    let mut body = BytesMut::with_capacity(name.len() + value.len() + 5);
    for piece in [b"{\"", name.as_bytes(), b"\":", value, b"}"] {
        body.put_slice(piece);
    }
    body.freeze()
}

/// An answer without a body.
pub(crate) fn no_content() -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Around every route: gives the request its id, turns refusals and panics into documents, writes the access log.
pub(crate) async fn envelope(request: Request, next: Next) -> Response {
    let id = format!("{:016x}", rand::random::<u64>());
    let method = request.method().clone();
    let path: String = request.uri().path().chars().take(SHOWN_PATH).collect();
    let started = Instant::now();
    let mut response = match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(panicked) => Refusal(Problem::new(ProblemCode::Internal, "").because(said(&*panicked))).into_response(),
    };
    let problem = response.extensions_mut().remove::<Problem>();
    let caller = response.extensions_mut().remove::<Signed>().map(|Signed(id)| id);
    if let Some(problem) = &problem {
        write_document(&mut response, problem, &id);
    }
    let shown = HeaderValue::from_str(&id).expect("hexadecimal digits are legal in a header");
    response.headers_mut().insert(REQUEST_ID, shown);
    let status = response.status().as_u16();
    let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    match (problem, &caller) {
        (Some(problem), _) if problem.code == ProblemCode::Internal => {
            tracing::error!(target: ACCESS, id, %method, path, status, took_ms, caller, ?problem, "request failed");
        }
        (Some(problem), _) => {
            tracing::info!(target: ACCESS, id, %method, path, status, took_ms, caller, ?problem, "request refused");
        }
        (None, Some(_)) => {
            tracing::info!(target: ACCESS, id, %method, path, status, took_ms, caller, "request answered");
        }
        // Health checks and polls of ingresses, several a second.
        (None, None) => tracing::debug!(target: ACCESS, id, %method, path, status, took_ms, "request answered"),
    }
    response
}

fn status(code: ProblemCode) -> StatusCode {
    StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn write_document(response: &mut Response, problem: &Problem, id: &str) {
    let mut document = problem.document();
    if problem.code == ProblemCode::Internal {
        document.detail = format!("something failed in this node that must not; its log says what under request {id}");
    }
    let body = to_json(&document);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(ProblemDocument::CONTENT_TYPE));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    match problem.code {
        ProblemCode::AuthInvalid => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        ProblemCode::DeployOverloaded => {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        _ => {}
    }
    *response.body_mut() = body.into();
}

fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the handler panicked: {}", text.as_deref().unwrap_or("no message"))
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use http_body_util::BodyExt as _;
    use tower::ServiceExt as _;

    use super::*;

    async fn ask(path: &str) -> (Response<()>, String) {
        let refuse = async || Refusal::from(Problem::new(ProblemCode::Internal, "secret").because("more secret"));
        let router = Router::new()
            .route("/panics", get(async || -> Response { panic!("secret") }))
            .route("/fails", get(refuse))
            .layer(axum::middleware::from_fn(envelope));
        let answer = router.oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        (Response::from_parts(parts, ()), String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_handler_that_panics_or_fails_answers_500_with_the_request_id_and_no_cause() {
        for path in ["/panics", "/fails"] {
            let (answer, body) = ask(path).await;
            assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
            let id = answer.headers()[REQUEST_ID].to_str().unwrap();
            assert!(body.contains(id) && body.contains("urn:scafo:internal") && !body.contains("secret"), "{body}");
        }
    }
}

//! What every answer has: a request id, one line in the log, and, when it is a refusal, a problem document.
//!
//! Handlers return a [`Refusal`]; the document is written in one place, around every route, so that refusals of the framework,
//! of handlers and of a handler that panicked cannot differ in form.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::{BufMut as _, Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use scafo_core::problem::{Problem, ProblemCode, ProblemDocument};
use scafo_telemetry::trace;
use serde::Serialize;
use tracing::field::Empty;
use tracing::{Instrument as _, Span};

use crate::auth::unauthenticated;
use crate::figures::Figures;
use crate::surface::{ROUTES, Route};

/// Where the access log goes: one line for each request, with neither query, headers nor body, since those hold secrets.
pub(crate) const ACCESS: &str = "scafo::access";
const HEALTH: &str = "/.well-known/scafo/health";
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
pub(crate) struct Signed {
    pub(crate) id: String,
    pub(crate) kind: &'static str,
}

/// What an action is about when its path does not say it, in the extensions of its answer: for the event that it leaves.
#[derive(Debug, Clone)]
pub(crate) struct Target(pub(crate) String);

/// The request's id, in its extensions.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) String);

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

/// Around every route: gives the request its id, turns refusals and panics into documents, writes the access log, counts.
pub(crate) async fn envelope(State(figures): State<Figures>, mut request: Request, next: Next) -> Response {
    let id = request_id();
    let (method, route) = (method_of(request.method()), route_of(&request));
    let path: String = request.uri().path().chars().take(SHOWN_PATH).collect();
    request.extensions_mut().insert(RequestId(id.clone()));
    let (started, _open) = (Instant::now(), figures.open());
    let span = span(&request, method, route, &id);
    let answering = AssertUnwindSafe(next.run(request)).catch_unwind().instrument(span.clone());
    let mut response = match answering.await {
        Ok(response) => response,
        Err(panicked) => Refusal(Problem::new(ProblemCode::Internal, "").because(said(&*panicked))).into_response(),
    };
    let problem = response.extensions_mut().remove::<Problem>();
    let caller = response.extensions_mut().remove::<Signed>().map(|signed| signed.id);
    if let Some(problem) = &problem {
        write_document(&mut response, problem, &id);
        span.record("error.type", problem.code.as_str());
    }
    if let Some(caller) = &caller {
        span.record("scafo.caller", caller);
    }
    let shown = HeaderValue::from_str(&id).expect("hexadecimal digits are legal in a header");
    response.headers_mut().insert(REQUEST_ID, shown);
    let status = response.status().as_u16();
    let took = started.elapsed();
    figures.answered(method, route, status, took.as_secs_f64());
    span.record("http.response.status_code", status);
    if status >= 500 {
        span.record("otel.status_code", "ERROR");
    }
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    match (problem, &caller) {
        (Some(problem), _) if problem.code == ProblemCode::Internal => {
            tracing::error!(target: ACCESS, id, method, path, status, took_ms, caller, ?problem, "request failed");
        }
        (Some(problem), _) => {
            tracing::info!(target: ACCESS, id, method, path, status, took_ms, caller, ?problem, "request refused");
        }
        (None, Some(_)) => {
            tracing::info!(target: ACCESS, id, method, path, status, took_ms, caller, "request answered");
        }
        // Health checks and polls of ingresses, several a second.
        (None, None) => tracing::debug!(target: ACCESS, id, method, path, status, took_ms, "request answered"),
    }
    response
}

/// A name for a request, in the log and for its caller.
pub(crate) fn request_id() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// The span of a request. Names of routes, ids and codes go into it; paths, queries, headers and bodies may hold secrets. The trace
/// that a caller names is gone on with, whoever it is: it says under which id the span is filed, and nothing else.
fn span(request: &Request, method: &'static str, route: &'static str, id: &str) -> Span {
    // The supervisor's look each second tells nothing.
    if !trace::is_on() || route == HEALTH {
        return Span::none();
    }
    let span = tracing::info_span!(target: trace::SPANS, parent: None, "request",
        otel.name = format!("{method} {route}"), otel.kind = "server", http.request.method = method, http.route = route,
        http.response.status_code = Empty, otel.status_code = Empty, error.type = Empty, scafo.caller = Empty,
        scafo.application = Empty, scafo.request = id);
    trace::join(&span, request.headers());
    span
}

/// The route as it stands in the table: metrics have one label value for each.
fn route_of(request: &Request) -> &'static str {
    let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let Some(matched) = matched else { return "none" };
    let is = |route: &&Route| matched == route.path || Some(matched) == route.before_tail();
    ROUTES.iter().find(is).map_or("none", |route| route.path)
}

/// The method, of those that there are.
fn method_of(method: &Method) -> &'static str {
    const KNOWN: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"];
    KNOWN.into_iter().find(|known| method == known).unwrap_or("other")
}

fn status(code: ProblemCode) -> StatusCode {
    StatusCode::from_u16(code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

fn write_document(response: &mut Response, problem: &Problem, id: &str) {
    let mut document = problem.document();
    match problem.code {
        ProblemCode::Internal => {
            document.detail =
                format!("something failed in this node that must not; its log says what under request {id}");
        }
        // Whoever found it, and also when that was another part of this node: the reason is for the log.
        ProblemCode::AuthInvalid => document = unauthenticated().document(),
        _ => {}
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
            .layer(axum::middleware::from_fn_with_state(Figures::default(), envelope));
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

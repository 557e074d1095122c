//! `DELETE /v1/applications/{name}`: done here or by the coordinator, whose answer is passed on as it is.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use scafo_core::id::ApplicationName;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::token::{FORWARDED, OPERATION};
use scafo_proto::transport::Operation;

use super::first;
use crate::administration::{Deletion, Verbatim};
use crate::answer::Refusal;
use crate::app::App;
use crate::auth::Caller;

pub(crate) async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(application): Extension<ApplicationName>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Refusal> {
    let forwarded = forwarded(&caller, &headers);
    let deletion = Deletion {
        application: &application,
        force: ["1", "true"].contains(&first(&uri, "force").as_str()),
        forwarded,
        operation: headers
            .get(OPERATION)
            .filter(|_| forwarded)
            .and_then(|value| Operation::parse(value.to_str().ok()?)),
    };
    Ok(respond(app.administration.delete(&caller, &deletion).await?)?)
}

/// Only a node forwards, so the mark counts only from one: with it the request is not forwarded again.
fn forwarded(caller: &Caller, headers: &HeaderMap) -> bool {
    matches!(caller, Caller::Node(_)) && headers.get(FORWARDED).is_some_and(|value| value == "1")
}

fn respond(answer: Verbatim) -> Result<Response, Problem> {
    let unreadable = |cause: String| Problem::new(ProblemCode::Internal, "").because(cause);
    let status = u16::try_from(answer.status).ok().and_then(|status| StatusCode::from_u16(status).ok());
    let status = status.ok_or_else(|| unreadable(format!("the status {}", answer.status)))?;
    let content_type = HeaderValue::from_str(&answer.content_type).map_err(|error| unreadable(error.to_string()))?;
    let mut response = Response::new(answer.body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    Ok(response)
}

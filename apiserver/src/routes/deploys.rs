//! `POST /v1/applications/:name/deploys` and `GET /v1/deploys/:id`.
//!
//! The order of the checks is part of the API: what the guard checks, the metadata header, what the registry says (freeze,
//! application, versions), whether this node can deploy at all and has room, and only then the body.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::header::LOCATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use scafo_core::deploy::{HEADER, Metadata};
use scafo_core::id::{ApplicationName, DeployId};
use scafo_core::problem::{Problem, ProblemCode};

use super::Last;
use crate::answer::{Refusal, json_of};
use crate::app::App;
use crate::auth::Caller;
use crate::registry::Failure;

pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(application): Extension<ApplicationName>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let metadata = metadata(&headers)?;
    let deploy = app.intake.take(&application, &caller, metadata, &headers, body).await?;
    let location = HeaderValue::from_str(&format!("/v1/deploys/{}", deploy.id))
        .map_err(|error| Problem::new(ProblemCode::Internal, "").because(error))?;
    let mut response = json_of(StatusCode::ACCEPTED, &deploy);
    response.headers_mut().insert(LOCATION, location);
    Ok(response)
}

fn metadata(headers: &HeaderMap) -> Result<Metadata, Problem> {
    let malformed = |detail: &str| Problem::new(ProblemCode::InvalidInput, detail);
    let mut values = headers.get_all(HEADER).iter();
    let value = values.next().ok_or_else(|| malformed("the header `x-scafo-deploy` is missing"))?;
    if values.next().is_some() {
        return Err(malformed("the header `x-scafo-deploy` stands there more than once"));
    }
    let value = value.to_str().map_err(|_| malformed("the header is not unpadded base64url"))?;
    Metadata::decode(value)
}

pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(application): Extension<ApplicationName>,
    Last(id): Last,
) -> Result<Response, Refusal> {
    let id: DeployId = id.parse()?;
    let deploy = app.registry.deploy(&id).await.map_err(Failure::into_problem)?;
    if deploy.id != id || deploy.application != application {
        return Err(Problem::new(ProblemCode::NotFound, "no deploy has this id").into());
    }
    Ok(json_of(StatusCode::OK, &deploy))
}

//! `POST /v1/applications/:name/deploys` and `GET /v1/deploys/:id`.
//!
//! The order of the checks is part of the API: the caller, the name in the path, the caller's scope, the metadata header, what
//! the registry says (freeze, application, versions), whether this node can deploy at all and has room, and only then the
//! body. The caller comes before the name, so that nothing about a path is said to somebody unknown.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::header::LOCATION;
use http::{HeaderMap, HeaderValue, StatusCode};
use scafo_core::deploy::{HEADER, Metadata};
use scafo_core::id::{ApplicationName, DeployId};
use scafo_core::problem::{Problem, ProblemCode};

use super::Segment;
use crate::answer::{Refusal, json_of};
use crate::app::App;
use crate::registry::Failure;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    Segment(name): Segment,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let application: Result<ApplicationName, Problem> = name.parse();
    let caller = app.authenticator.verify_deployer(&headers, application.as_ref().ok()).await?;
    let application = application?;
    caller.must_reach(&application)?;
    let metadata = metadata(&headers)?;
    let deploy = app.intake.take(&application, caller.id(), metadata, &headers, body).await?;
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

pub(super) async fn show(
    State(app): State<Arc<App>>,
    Segment(id): Segment,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let id: Result<DeployId, Problem> = id.parse();
    let application = id.as_ref().ok().map(DeployId::application);
    let caller = app.authenticator.verify_deployer(&headers, application.as_ref()).await?;
    let id = id?;
    let application = id.application();
    caller.must_reach(&application)?;
    let deploy = app.registry.deploy(&id).await.map_err(Failure::into_problem)?;
    if deploy.id != id || deploy.application != application {
        return Err(Problem::new(ProblemCode::NotFound, "no deploy has this id").into());
    }
    Ok(json_of(StatusCode::OK, &deploy))
}

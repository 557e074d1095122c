//! The routes, one file for each thing that they are about.

mod applications;
mod deploys;
mod health;
mod routing;
mod state;

use std::sync::Arc;

use axum::Router;
use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use axum::routing::{get, post};
use http::request::Parts;
use scafo_core::problem::{Problem, ProblemCode};

use crate::answer::{Refusal, envelope};
use crate::app::App;

/// Every route, with the answers to unknown paths and methods.
pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/.well-known/scafo/health", get(health::show))
        .route("/v1/state", get(state::show))
        .route("/v1/applications", get(applications::list))
        .route("/v1/applications/{name}/deploys", post(deploys::create))
        .route("/v1/deploys/{id}", get(deploys::show))
        .route("/v1/ingress/routes", get(routing::generic))
        .route("/v1/ingress/routes/{format}", get(routing::native))
        .fallback(no_such_route)
        .method_not_allowed_fallback(no_such_method)
        .layer(axum::middleware::from_fn(envelope))
        .with_state(app)
}

async fn no_such_route() -> Refusal {
    Problem::new(ProblemCode::NotFound, "the API has no such path").titled("No such route").into()
}

/// The framework adds the `allow` header.
async fn no_such_method() -> Refusal {
    Problem::new(ProblemCode::MethodNotAllowed, "the path is right and the method is not; `allow` names those it has")
        .into()
}

/// The one parameter of a path, decoded. What does not decode to text holds a character that no name has, so that the route
/// refuses it in its own words and at its own time.
struct Segment(String);

impl<S: Send + Sync> FromRequestParts<S> for Segment {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let decoded: Result<Path<String>, PathRejection> = Path::from_request_parts(parts, state).await;
        Ok(Self(decoded.map_or_else(|_| char::REPLACEMENT_CHARACTER.to_string(), |Path(text)| text)))
    }
}

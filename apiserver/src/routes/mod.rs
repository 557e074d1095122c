//! The routes, one file for each thing that they are about. Which there are stands in [`crate::surface`].

pub(crate) mod applications;
pub(crate) mod deletion;
pub(crate) mod deploys;
pub(crate) mod description;
pub(crate) mod domains;
pub(crate) mod fleet;
pub(crate) mod health;
pub(crate) mod operators;
pub(crate) mod routing;
pub(crate) mod state;
pub(crate) mod storage;

use std::sync::Arc;

use axum::Router;
use axum::extract::{FromRequestParts, MatchedPath, Query, Request};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use http::request::Parts;
use http::{Uri, Version};
use percent_encoding::percent_decode_str;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::routing::{DENIED, is_denied};

use crate::answer::{Refusal, envelope};
use crate::app::App;
use crate::guard::guard;
use crate::surface::ROUTES;

/// Every route behind its guard, with the answers to unknown paths and methods.
pub(crate) fn router(app: Arc<App>) -> Router {
    let mut router = Router::new();
    for route in ROUTES {
        let guarded = || (route.handler)().route_layer(from_fn_with_state((app.clone(), route), guard));
        router = router.route(route.path, guarded());
        // A tail may be empty, which the pattern does not match: that is a bad key and not another route.
        if let Some(before) = route.before_tail() {
            router = router.route(before, guarded());
        }
    }
    let around = from_fn_with_state(app.figures.clone(), envelope);
    let router = router.fallback(no_such_route).method_not_allowed_fallback(no_such_method);
    router.layer(from_fn(hidden_in_a_target)).layer(around).with_state(app)
}

/// Around every route: what ingresses deny is not there for a target in absolute form. An ingress in Go may take `x:http://host/path`
/// for a scheme without a path, so that no rule about paths applies, and send on what stands after the scheme. Whoever holds an
/// ingress token asks a node itself, and writes the path alone.
async fn hidden_in_a_target(request: Request, next: Next) -> Response {
    // Over HTTP/2 every request names its scheme (RFC 9113 §8.3.1).
    let absolute = request.version() < Version::HTTP_2 && request.uri().scheme().is_some();
    if absolute && is_denied(request.uri().path(), &DENIED) {
        return no_such_route().await.into_response();
    }
    next.run(request).await
}

async fn no_such_route() -> Refusal {
    Problem::new(ProblemCode::NotFound, "the API has no such path").titled("No such route").into()
}

/// The framework adds the `allow` header.
async fn no_such_method() -> Refusal {
    Problem::new(ProblemCode::MethodNotAllowed, "the path is right and the method is not; `allow` names those it has")
        .into()
}

/// The last parameter of a path, as [`parameter`] reads it.
pub(crate) struct Last(String);

impl<S: Send + Sync> FromRequestParts<S> for Last {
    type Rejection = std::convert::Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        Ok(Self(find(parts, |pattern| pattern.starts_with('{'))))
    }
}

/// The parameter `{name}` of a path, decoded. What is no text gets a character that no name has in its place, so that a route
/// refuses it in its own words and at its own time.
pub(crate) fn parameter(parts: &Parts, name: &str) -> String {
    find(parts, |pattern| pattern.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) == Some(name))
}

/// The last component of the path whose place in the pattern is as wanted.
fn find(parts: &Parts, wanted: impl Fn(&str) -> bool) -> String {
    let Some(pattern) = parts.extensions.get::<MatchedPath>() else { return String::new() };
    let places = pattern.as_str().split('/').zip(parts.uri.path().split('/'));
    let component = places.filter(|(pattern, _)| wanted(pattern)).map(|(_, component)| component).last();
    component.map(|component| percent_decode_str(component).decode_utf8_lossy().into_owned()).unwrap_or_default()
}

/// The first value of a parameter of the query, decoded (form encoding); empty when it is not there.
fn first(uri: &Uri, name: &str) -> String {
    let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri).map(|Query(pairs)| pairs).unwrap_or_default();
    pairs.into_iter().find(|(key, _)| key == name).map(|(_, value)| value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_of_a_parameter_counts() {
        for (uri, expected) in [
            ("/x", ""),
            ("/x?prefer=", ""),
            ("/x?prefer=self", "self"),
            ("/x?a=1&prefer=vps%2Da&prefer=b", "vps-a"),
            ("/x?prefer", ""),
            ("/x?prefer=%ff", "\u{fffd}"),
        ] {
            assert_eq!(first(&uri.parse().unwrap(), "prefer"), expected, "{uri}");
        }
    }
}

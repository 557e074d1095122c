//! `GET /v1/ingress/routes` and `GET /v1/ingress/routes/:format`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::response::Response;
use http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use scafo_core::problem::{Problem, ProblemCode};

use super::Segment;
use crate::answer::{Refusal, json};
use crate::app::App;

pub(super) async fn generic(State(app): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Result<Response, Refusal> {
    answer(&app, "", &uri, &headers).await
}

pub(super) async fn native(
    State(app): State<Arc<App>>,
    Segment(format): Segment,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    answer(&app, &format, &uri, &headers).await
}

async fn answer(app: &App, format: &str, uri: &Uri, headers: &HeaderMap) -> Result<Response, Refusal> {
    app.ingress_tokens.admit(headers)?;
    let document = app.documents.get(format, &prefer(uri)).await?;
    let tag = HeaderValue::from_str(&document.etag)
        .map_err(|error| Problem::new(ProblemCode::Internal, "").because(error))?;
    let mut response = if matches(headers, &document.etag) {
        let mut unchanged = Response::new(Body::empty());
        *unchanged.status_mut() = StatusCode::NOT_MODIFIED;
        unchanged
    } else {
        json(StatusCode::OK, document.body)
    };
    response.headers_mut().insert(ETAG, tag);
    // To be asked for again each time: an ingress must not route by what some cache between kept.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}

/// The first `prefer` of the query; empty without one.
fn prefer(uri: &Uri) -> String {
    let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri).map(|Query(pairs)| pairs).unwrap_or_default();
    pairs.into_iter().find(|(name, _)| name == "prefer").map(|(_, value)| value).unwrap_or_default()
}

/// `If-None-Match` (RFC 9110 §13.1.2): `*`, or a list compared weakly.
fn matches(headers: &HeaderMap, etag: &str) -> bool {
    let values = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    // Our tags hold no comma, so cutting a foreign tag at one cannot make it ours.
    values
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_preference_counts() {
        for (uri, expected) in [
            ("/x", ""),
            ("/x?prefer=", ""),
            ("/x?prefer=self", "self"),
            ("/x?a=1&prefer=vps%2Da&prefer=b", "vps-a"),
            ("/x?prefer", ""),
            ("/x?prefer=%ff", "\u{fffd}"),
        ] {
            assert_eq!(prefer(&uri.parse().unwrap()), expected, "{uri}");
        }
    }

    #[test]
    fn an_entity_tag_matches_alone_in_a_list_or_weakly() {
        for (given, expected) in
            [("\"a\"", true), ("W/\"a\"", true), ("\"b\", \"a\"", true), ("*", true), ("\"b\"", false), ("a", false)]
        {
            let headers = HeaderMap::from_iter([(IF_NONE_MATCH, given.parse().unwrap())]);
            assert_eq!(matches(&headers, "\"a\""), expected, "{given}");
        }
        assert!(!matches(&HeaderMap::new(), "\"a\""));
    }
}

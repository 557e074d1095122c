//! `GET /v1/ingress/routes` and `GET /v1/ingress/routes/:format`.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use scafo_core::problem::{Problem, ProblemCode};

use super::{Last, first};
use crate::answer::Refusal;
use crate::app::App;
use crate::encoding::{compressed, plain, wanted};

pub(crate) async fn generic(State(app): State<Arc<App>>, uri: Uri, headers: HeaderMap) -> Result<Response, Refusal> {
    answer(&app, "", &uri, &headers).await
}

pub(crate) async fn native(
    State(app): State<Arc<App>>,
    Last(format): Last,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    answer(&app, &format, &uri, &headers).await
}

async fn answer(app: &App, format: &str, uri: &Uri, headers: &HeaderMap) -> Result<Response, Refusal> {
    let document = app.documents.get(format, &first(uri, "prefer")).await?;
    let compress = wanted(headers, document.length);
    // A strong tag stands for the very bytes, and the compressed ones are others (RFC 9110 §8.8.3.3).
    let tag = if compress { format!("W/{}", document.etag) } else { document.etag.clone() };
    let tag = HeaderValue::from_str(&tag).map_err(|error| Problem::new(ProblemCode::Internal, "").because(error))?;
    let mut response = if matches(headers, &document.etag) {
        let mut unchanged = Response::new(Body::empty());
        *unchanged.status_mut() = StatusCode::NOT_MODIFIED;
        unchanged.headers_mut().insert(VARY, HeaderValue::from_static("accept-encoding"));
        unchanged
    } else if compress {
        compressed(document.gzip)
    } else {
        plain(app.documents.plain(&document).await?)
    };
    response.headers_mut().insert(ETAG, tag);
    // To be asked for again each time: an ingress must not route by what some cache between kept.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
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

//! `GET /openapi.json`. Open to everybody: it says what every node of this version says and nothing about any fleet.

use axum::response::Response;
use http::HeaderMap;

use crate::answer::Refusal;
use crate::encoding::document;
use crate::openapi;

pub(crate) async fn show(headers: HeaderMap) -> Result<Response, Refusal> {
    Ok(document(&headers, openapi::json()).await?)
}

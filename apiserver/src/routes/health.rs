//! `GET /.well-known/scafo/health`. Asks nobody: it tells that this process answers, and the supervisor waits for it.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;

use crate::answer::json_of;
use crate::app::App;

pub(crate) async fn show(State(app): State<Arc<App>>) -> Response {
    json_of(StatusCode::OK, &app.health)
}

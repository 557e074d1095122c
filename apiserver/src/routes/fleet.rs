//! `/v1/fleet/freeze`.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::{BufMut as _, BytesMut};
use http::{HeaderMap, StatusCode};
use serde::{Deserialize, Serialize};

use crate::answer::{Refusal, json, json_of, member};
use crate::app::App;
use crate::auth::Caller;
use crate::body::{self, given};

#[derive(Default, Deserialize)]
struct Freeze {
    #[serde(default, deserialize_with = "given")]
    reason: Option<String>,
}

pub(crate) async fn freeze(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let given = app.control(&headers, body).await?;
    let Freeze { reason } = if given.is_empty() { Freeze::default() } else { body::object(&given)? };
    let reply = app.administration.freeze(&caller, reason).await?;
    let mut body = BytesMut::with_capacity(reply.freeze.len() + 32);
    body.put_slice(b"{\"freeze\":");
    body.put_slice(&reply.freeze);
    body.put_slice(if reply.created { b",\"created\":true}" } else { b",\"created\":false}" });
    Ok(json(StatusCode::OK, body.freeze()))
}

#[derive(Serialize)]
struct Lifted {
    lifted: bool,
}

pub(crate) async fn unfreeze(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, Refusal> {
    let lifted = app.administration.unfreeze(&caller).await?;
    Ok(json_of(StatusCode::OK, &Lifted { lifted }))
}

pub(crate) async fn show(State(app): State<Arc<App>>) -> Result<Response, Refusal> {
    Ok(json(StatusCode::OK, member("freeze", &app.administration.frozen().await?)))
}

//! `GET /v1/applications`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use bytes::{BufMut as _, Bytes, BytesMut};
use http::{HeaderMap, StatusCode};
use scafo_core::problem::Problem;
use scafo_core::record::{ApplicationRecord, OperatorRecord};
use serde::Serialize;

use crate::answer::{Refusal, json, json_of};
use crate::app::App;
use crate::auth::Freshness;
use crate::registry::parse;

/// What an operator reads who is no admin.
#[derive(Serialize)]
struct Scoped {
    applications: Vec<ApplicationRecord>,
    scoped: bool,
}

pub(super) async fn list(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, Refusal> {
    let caller = app.authenticator.verify(&headers, Freshness::Now).await?;
    caller.operator()?;
    let records = app.registry.applications().await?;
    Ok(match caller.narrowed() {
        None => json(StatusCode::OK, whole(&records)),
        Some(operator) => json_of(StatusCode::OK, &scoped(&records, operator)?),
    })
}

/// Records pass as they are, unknown members included.
fn whole(records: &Bytes) -> Bytes {
    let mut body = BytesMut::with_capacity(records.len() + 32);
    body.put_slice(b"{\"applications\":");
    body.put_slice(records);
    body.put_slice(b"}");
    body.freeze()
}

/// Only what the key reaches, without the fleet's own notes.
fn scoped(records: &[u8], operator: &OperatorRecord) -> Result<Scoped, Problem> {
    let mut applications: Vec<ApplicationRecord> = parse("the applications", records)?;
    applications.retain(|application| operator.applications.reaches(&application.name));
    for application in &mut applications {
        application.labels = None;
    }
    Ok(Scoped { applications, scoped: true })
}

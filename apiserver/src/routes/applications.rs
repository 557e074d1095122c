//! `/v1/applications` and what one application's settings are changed with.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, StatusCode};
use scafo_core::id::ApplicationName;
use scafo_core::problem::Problem;
use scafo_core::record::{ApplicationRecord, OperatorRecord, Replicas};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::answer::{Refusal, json, member};
use crate::app::App;
use crate::auth::Caller;
use crate::body;
use crate::encoding::document;
use crate::registry::parse;

/// What an operator reads who is no admin.
#[derive(Serialize)]
struct Scoped {
    applications: Vec<ApplicationRecord>,
    scoped: bool,
}

pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let records = app.registry.applications().await?;
    let body = match caller.narrowed() {
        None => member("applications", &records),
        Some(operator) => scoped(&records, operator)?,
    };
    Ok(document(&headers, body).await?)
}

/// Only what the key reaches, without the fleet's own notes.
fn scoped(records: &[u8], operator: &OperatorRecord) -> Result<Bytes, Problem> {
    let mut applications: Vec<ApplicationRecord> = parse("the applications", records)?;
    applications.retain(|application| operator.applications.reaches(&application.name));
    for application in &mut applications {
        application.labels = None;
    }
    let body = serde_json::to_vec(&Scoped { applications, scoped: true });
    Ok(body.expect("records hold strings, numbers, lists and maps with string keys").into())
}

pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(name): Extension<ApplicationName>,
) -> Result<Response, Refusal> {
    answer(&caller, &app.administration.application(&name).await?)
}

/// Blocks an application, or lifts the block.
pub(crate) async fn set_blocked<const BLOCKED: bool>(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(name): Extension<ApplicationName>,
) -> Result<Response, Refusal> {
    answer(&caller, &app.administration.set_blocked(&caller, &name, BLOCKED).await?)
}

/// Retires an application, or takes that back.
pub(crate) async fn set_retired<const RETIRED: bool>(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(name): Extension<ApplicationName>,
) -> Result<Response, Refusal> {
    answer(&caller, &app.administration.set_retired(&caller, &name, RETIRED).await?)
}

#[derive(Deserialize)]
struct Labels {
    labels: BTreeMap<String, String>,
}

pub(crate) async fn label(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(name): Extension<ApplicationName>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let Labels { labels } = body::object(&app.control(&headers, body).await?)?;
    answer(&caller, &app.administration.set_labels(&caller, &name, labels).await?)
}

/// `null` lifts the constraint, and has to be said.
#[derive(Deserialize)]
struct Selector {
    #[serde(default, deserialize_with = "body::given")]
    selector: Option<Option<BTreeMap<String, String>>>,
}

pub(crate) async fn select(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(name): Extension<ApplicationName>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let Selector { selector } = body::object(&app.control(&headers, body).await?)?;
    let selector = selector.ok_or_else(|| body::missing("selector", "an object of strings, or `null` for any node"))?;
    answer(&caller, &app.administration.set_selector(&caller, &name, selector).await?)
}

#[derive(Deserialize)]
struct Wanted {
    replicas: Replicas,
}

pub(crate) async fn replicate(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(name): Extension<ApplicationName>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let Wanted { replicas } = body::object(&app.control(&headers, body).await?)?;
    answer(&caller, &app.administration.set_replicas(&caller, &name, replicas).await?)
}

fn answer(caller: &Caller, record: &Bytes) -> Result<Response, Refusal> {
    Ok(json(StatusCode::OK, member("application", &seen(caller, record)?)))
}

/// One record as the caller may see it: the fleet's own notes are for admins and nodes.
pub(super) fn seen(caller: &Caller, record: &Bytes) -> Result<Bytes, Problem> {
    if caller.narrowed().is_none() {
        return Ok(record.clone());
    }
    let mut record: Map<String, Value> = parse("an application", record)?;
    record.remove("labels");
    Ok(serde_json::to_vec(&record).expect("JSON that was read can be written").into())
}

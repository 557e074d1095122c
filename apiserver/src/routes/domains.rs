//! `/v1/applications/{name}/domains/{host}`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use bytes::{BufMut as _, BytesMut};
use http::{StatusCode, Uri};
use scafo_core::id::ApplicationName;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_proto::registry::DomainReply;
use serde::Serialize;

use super::applications::seen;
use super::{Last, first};
use crate::answer::{Refusal, json};
use crate::app::App;
use crate::auth::Caller;

pub(crate) async fn claim(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(name): Extension<ApplicationName>,
    Last(host): Last,
    uri: Uri,
) -> Result<Response, Refusal> {
    let wildcard = first(&uri, "wildcard") == "1";
    if wildcard {
        must_reach_environments(&caller, &name)?;
    }
    let claimed = app.administration.claim_domain(&caller, &name, &host.parse()?, wildcard).await?;
    answer(&caller, &claimed)
}

pub(crate) async fn release(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Extension(name): Extension<ApplicationName>,
    Last(host): Last,
) -> Result<Response, Refusal> {
    let released = app.administration.release_domain(&caller, &name, &host.parse()?).await?;
    answer(&caller, &released)
}

/// A claim that covers the label below its host decides what every `<name>-<env>` answers on.
fn must_reach_environments(caller: &Caller, name: &ApplicationName) -> Result<(), Problem> {
    if caller.operator()?.applications.reaches_prefix(&format!("{name}-")) {
        return Ok(());
    }
    Err(Problem::new(
        ProblemCode::AuthScope,
        format!("a claim with its subdomains needs a key that reaches `{name}-*`, and this one does not"),
    ))
}

/// What stands beside the record.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Beside<'a> {
    host: &'a str,
    platform_hosts: &'a [String],
}

fn answer(caller: &Caller, reply: &DomainReply) -> Result<Response, Refusal> {
    let beside = Beside { host: &reply.host, platform_hosts: &reply.platform_hosts };
    let beside = serde_json::to_vec(&beside).expect("strings and a list of them always serialise");
    let record = seen(caller, &reply.application)?;
    let mut body = BytesMut::with_capacity(record.len() + beside.len() + 16);
    body.put_slice(b"{\"application\":");
    body.put_slice(&record);
    body.put_slice(b",");
    body.put_slice(beside.strip_prefix(b"{").expect("an object starts with a brace"));
    Ok(json(StatusCode::OK, body.freeze()))
}

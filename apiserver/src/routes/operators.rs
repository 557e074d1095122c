//! `/v1/operators`. Who may grant and revoke what is decided where the records are.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, StatusCode};
use scafo_core::id::OperatorId;
use scafo_core::record::Role;
use scafo_core::scope::ApplicationScope;
use scafo_core::token::PublicKey;
use serde::{Deserialize, Serialize};

use super::Last;
use crate::administration::Grant;
use crate::answer::{Refusal, Target, json, json_of, member};
use crate::app::App;
use crate::auth::Caller;
use crate::body::{self, given};
use crate::encoding::document;

pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let operators = app.administration.operators(&caller).await?;
    Ok(document(&headers, operators).await?)
}

/// A key to register. Of `publicKey` only the public members are read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Key {
    id: OperatorId,
    public_key: PublicKey,
    #[serde(default, deserialize_with = "given")]
    role: Option<Role>,
    #[serde(default, deserialize_with = "given")]
    supersedes: Option<OperatorId>,
    #[serde(default, deserialize_with = "given")]
    applications: Option<ApplicationScope>,
}

pub(crate) async fn register(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let Key { id, public_key, role, supersedes, applications } = body::object(&app.control(&headers, body).await?)?;
    let target = Target(id.to_string());
    let grant = Grant { id, public_key, role, supersedes, applications };
    let registered = app.administration.register_operator(&caller, grant).await;
    let mut response = match registered {
        Ok(operator) => json(StatusCode::OK, member("operator", &operator)),
        Err(problem) => Refusal::from(problem).into_response(),
    };
    response.extensions_mut().insert(target);
    Ok(response)
}

#[derive(Serialize)]
struct Removed {
    removed: OperatorId,
}

pub(crate) async fn revoke(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    Last(id): Last,
) -> Result<Response, Refusal> {
    let removed: OperatorId = id.parse()?;
    app.administration.revoke_operator(&caller, &removed).await?;
    Ok(json_of(StatusCode::OK, &Removed { removed }))
}

//! `GET /v1/state`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, StatusCode};
use scafo_core::id::ApplicationName;
use scafo_core::scope::ApplicationScope;
use scafo_core::view::{DaemonState, RecordFault};

use crate::answer::{Refusal, json, json_of};
use crate::app::App;
use crate::auth::Freshness;
use crate::registry::parse;

pub(super) async fn show(State(app): State<Arc<App>>, headers: HeaderMap) -> Result<Response, Refusal> {
    let caller = app.authenticator.verify(&headers, Freshness::Cached).await?;
    let document = app.registry.state().await?;
    Ok(match caller.narrowed() {
        None => json(StatusCode::OK, document),
        Some(operator) => {
            let mut state: DaemonState = parse("the state", &document)?;
            narrow(&mut state, &operator.applications);
            json_of(StatusCode::OK, &state)
        }
    })
}

/// Leaves out everything that names an application out of `scope`, texts that may name one included.
fn narrow(state: &mut DaemonState, scope: &ApplicationScope) {
    if let Some(node) = &mut state.node {
        node.serving.retain(|serving| scope.reaches(&serving.application));
    }
    if let Some(unplaced) = state.coordinator.as_mut().and_then(|coordinator| coordinator.unplaced.as_mut()) {
        unplaced.retain(|unplaced| scope.reaches(&unplaced.application));
    }
    state.processes.retain(|process| scope.reaches(&process.application));
    state.placements.retain(|placement| scope.reaches(&placement.application));
    state.faults.retain(|fault| is_about(fault, scope));
    if let Some(reconcile) = &mut state.reconcile {
        reconcile.error = None;
    }
    state.scoped = Some(true);
}

/// Whether a record that cannot be read belongs to an application in scope: its key is `_scafo/<kind>/<application>…`.
fn is_about(fault: &RecordFault, scope: &ApplicationScope) -> bool {
    let mut segments = fault.key.split('/').skip(1);
    let (Some(kind), Some(segment)) = (segments.next(), segments.next()) else { return false };
    let owned = matches!(kind, "applications" | "placement" | "deploys" | "deployments" | "trust");
    let name = segment.strip_suffix(".json").unwrap_or(segment).parse::<ApplicationName>();
    owned && name.is_ok_and(|name| scope.reaches(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_shown_to_who_reaches_its_application() {
        let scope = ApplicationScope::try_from(vec!["shop".to_owned()]).unwrap();
        for (key, shown) in [
            ("_scafo/applications/shop.json", true),
            ("_scafo/deploys/shop/shop.0000000000000001.json", true),
            ("_scafo/applications/other.json", false),
            ("_scafo/nodes/shop.json", false),
            ("_scafo/", false),
        ] {
            let fault = RecordFault { key: key.to_owned(), error: String::new() };
            assert_eq!(is_about(&fault, &scope), shown, "{key}");
        }
    }
}

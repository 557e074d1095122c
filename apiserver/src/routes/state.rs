//! `GET /v1/state`.

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use http::HeaderMap;
use scafo_core::id::ApplicationName;
use scafo_core::scope::ApplicationScope;
use scafo_core::view::{DaemonState, RecordFault};

use crate::answer::Refusal;
use crate::app::App;
use crate::auth::Caller;
use crate::encoding::document;
use crate::registry::parse;

pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let whole = app.registry.state().await?;
    let body = match caller.narrowed() {
        None => whole,
        Some(operator) => {
            let mut state: DaemonState = parse("the state", &whole)?;
            narrow(&mut state, &operator.applications);
            let body = serde_json::to_vec(&state);
            body.expect("views hold strings, numbers, lists and maps with string keys").into()
        }
    };
    Ok(document(&headers, body).await?)
}

/// Leaves out everything that names an application out of `scope`, texts that may name one included.
fn narrow(state: &mut DaemonState, scope: &ApplicationScope) {
    if let Some(node) = &mut state.node {
        node.serving.retain(|serving| scope.reaches(&serving.application));
        if let Some(drain) = &mut node.drain {
            drain.waits_for.retain(|application| scope.reaches(application));
        }
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

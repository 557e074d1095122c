//! `scafo status`: what a node runs, and whether all is well.

mod render;
mod warnings;

use scafo_core::view::DaemonState;
use serde_json::{Value, json};

use crate::args::StatusArgs;
use crate::client::CallError;
use crate::error::Outcome;
use crate::output::Output;
use crate::target::Target;

/// `scafo status`
pub(super) async fn run(args: StatusArgs, output: Output) -> Outcome {
    let target = Target::find(&args.target, output)?;
    let signer = target.signer()?;
    let api = target.client.api();
    let failed = |error: CallError| error.into_failure("cannot read the state of the node", api);
    // The answer is kept whole: a newer node may say more than this build knows.
    let whole: Value = target.client.get("/v1/state", &signer).await.map_err(failed)?;
    let state: DaemonState =
        serde_json::from_value(whole.clone()).map_err(|error| failed(CallError::Foreign(error.to_string())))?;
    let local = target.local.as_ref();
    let warnings = warnings::warnings(&state, local);
    // Only a node on this machine says so: what it does not hold is nobody else's business.
    let not_enforced = local.map_or_else(Vec::new, |node| node.not_enforced.clone());
    let printed = with_findings(whole, &warnings, &not_enforced, local.map(|node| json!(node)));
    output.data(&printed, || render::render(&state, local, &api.to_string(), &warnings, &not_enforced))
}

/// The state as the node gave it, with what this command found added.
fn with_findings(mut state: Value, warnings: &[String], not_enforced: &[String], local: Option<Value>) -> Value {
    if let Value::Object(members) = &mut state {
        members.insert("warnings".to_owned(), json!(warnings));
        members.insert("notEnforced".to_owned(), json!(not_enforced));
        if let Some(local) = local {
            members.insert("local".to_owned(), local);
        }
    }
    state
}

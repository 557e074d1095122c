//! `scafo fleet`: what holds for the fleet as a whole.

use reqwest::Method;
use scafo_core::ProblemCode;
use scafo_core::record::FreezeRecord;
use scafo_core::view::{CoordinatorView, DaemonState, Unplaced};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::args::{FleetCommand, FleetFreezeArgs, FleetStatusArgs, FleetUnfreezeArgs};
use crate::client::CallError;
use crate::commands::remote::{Ask, Remote};
use crate::error::Outcome;
use crate::output::{Output, clean};

/// What to do when the key is no admin's.
const ADMINS_ONLY: [(ProblemCode, &str); 1] =
    [(ProblemCode::AuthScope, "use an admin's key, or ask an admin of the fleet")];
const FREEZE: &str = "/v1/fleet/freeze";

/// Answer of freezing.
#[derive(Debug, Serialize, Deserialize)]
struct Frozen {
    freeze: FreezeRecord,
    created: bool,
}

/// Answer of unfreezing.
#[derive(Debug, Serialize, Deserialize)]
struct Lifted {
    lifted: bool,
}

/// Answer of asking for the freeze.
#[derive(Debug, Deserialize)]
struct Freeze {
    freeze: FreezeRecord,
}

/// What `scafo fleet status` prints.
#[derive(Debug, Serialize)]
struct Status {
    freeze: Option<FreezeRecord>,
    coordinator: Option<CoordinatorView>,
    placed: usize,
    /// Known to the coordinator only.
    #[serde(skip_serializing_if = "Option::is_none")]
    unplaced: Option<Vec<Unplaced>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    scoped: Option<bool>,
}

/// `scafo fleet …`
pub(super) async fn run(command: FleetCommand, output: Output) -> Outcome {
    match command {
        FleetCommand::Freeze(args) => freeze(args, output).await,
        FleetCommand::Unfreeze(args) => unfreeze(args, output).await,
        FleetCommand::Status(args) => status(args, output).await,
    }
}

async fn freeze(args: FleetFreezeArgs, output: Output) -> Outcome {
    let remote = Remote::find(&args.target, output).await?;
    let ask = Ask::new(Method::POST, FREEZE.to_owned(), "deploys were not frozen").hinting(&ADMINS_ONLY);
    let ask = match &args.reason {
        Some(reason) => ask.with(json!({ "reason": reason })),
        None => ask,
    };
    let answer: Frozen = remote.ask(ask).await?;
    output.data(&answer, || format!("deploys are {}\n", since(&answer.freeze)))?;
    if !answer.created {
        output.say("they were frozen already; that freeze holds, with its reason");
    }
    Ok(())
}

async fn unfreeze(args: FleetUnfreezeArgs, output: Output) -> Outcome {
    let remote = Remote::find(&args.target, output).await?;
    let ask = Ask::new(Method::DELETE, FREEZE.to_owned(), "the freeze was not lifted").hinting(&ADMINS_ONLY);
    let answer: Lifted = remote.ask(ask).await?;
    let said = if answer.lifted { "deploys are taken again" } else { "deploys were not frozen" };
    output.data(&answer, || format!("{said}\n"))
}

async fn status(args: FleetStatusArgs, output: Output) -> Outcome {
    let remote = Remote::find(&args.target, output).await?;
    let otherwise = "cannot read the state of the fleet";
    let ask = Ask::new(Method::GET, FREEZE.to_owned(), otherwise);
    let freeze = match remote.answer::<Freeze>(&ask).await {
        Ok(answer) => Some(answer.freeze),
        Err(CallError::Refused { problem, .. }) if problem.code == ProblemCode::NotFound => None,
        Err(error) => return Err(remote.explain(error, &ask)),
    };
    let state: DaemonState = remote.ask(Ask::new(Method::GET, "/v1/state".to_owned(), otherwise)).await?;
    let mut coordinator = state.coordinator;
    let status = Status {
        freeze,
        unplaced: coordinator.as_mut().and_then(|view| view.unplaced.take()),
        placed: state.placements.iter().filter(|placement| !placement.nodes.is_empty()).count(),
        coordinator,
        scoped: state.scoped,
    };
    output.data(&status, || render(&status))
}

fn render(status: &Status) -> String {
    let mut page = String::new();
    let mut line = |name: &str, value: &str| page.push_str(&format!("{name:<13}{}\n", clean(value)));
    line("deploys", &status.freeze.as_ref().map_or_else(|| "taken".to_owned(), since));
    line("coordinator", &status.coordinator.as_ref().map_or_else(|| "nobody".to_owned(), coordinator));
    let s = if status.placed == 1 { "" } else { "s" };
    line("placed", &format!("{} application{s}", status.placed));
    match status.unplaced.as_deref() {
        None => line("not placed", "only the node that coordinates knows"),
        Some([]) => line("not placed", "none"),
        Some(unplaced) => {
            for each in unplaced {
                line("not placed", &format!("{} has {} of {} nodes", each.application, each.placed, each.wanted));
            }
        }
    }
    page
}

fn coordinator(view: &CoordinatorView) -> String {
    let this = if view.is_self { " (the node that answers)" } else { "" };
    format!("{}{this}, fence {}", view.node, view.fence.0)
}

fn since(freeze: &FreezeRecord) -> String {
    let reason = freeze.reason.as_ref().map(|reason| format!(": {}", clean(reason))).unwrap_or_default();
    format!("frozen since {} by {}{reason}", freeze.frozen_at, clean(&freeze.by))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_that_is_frozen_and_short_of_nodes() {
        let status = Status {
            freeze: serde_json::from_value(json!({
                "v": 1, "frozenAt": "2026-04-01T12:30:00.000Z", "by": "op-9f3c", "reason": "moving\u{7} celld"
            }))
            .unwrap(),
            coordinator: serde_json::from_value(json!({ "node": "vps-a", "fence": 3, "self": true })).unwrap(),
            placed: 2,
            unplaced: serde_json::from_value(
                json!([{ "application": "shop", "wanted": 3, "placed": 1, "reason": "selector" }]),
            )
            .unwrap(),
            scoped: None,
        };
        insta::assert_snapshot!(render(&status), @r#"
deploys      frozen since 2026-04-01T12:30:00.000Z by op-9f3c: moving� celld
coordinator  vps-a (the node that answers), fence 3
placed       2 applications
not placed   shop has 1 of 3 nodes
"#);
    }

    #[test]
    fn a_fleet_that_is_well_and_one_that_nobody_coordinates() {
        let well = Status { freeze: None, coordinator: None, placed: 1, unplaced: Some(Vec::new()), scoped: None };
        insta::assert_snapshot!(render(&well), @r#"
deploys      taken
coordinator  nobody
placed       1 application
not placed   none
"#);
        assert!(render(&Status { unplaced: None, ..well }).contains("only the node that coordinates knows"));
    }
}

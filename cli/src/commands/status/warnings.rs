//! What a person should look at, found in the state of a node.

use scafo_core::record::{Adoption, NodeRecord, ProcessState, Serving, UnplacedReason};
use scafo_core::view::{DaemonState, LastExit, ProcessStatus, Unplaced};
use scafo_supervisor::Ready;

use super::render::is_standin;

/// Everything to look at, the most general first.
pub(super) fn warnings(state: &DaemonState, local: Option<&Ready>) -> Vec<String> {
    let mut found = Vec::new();
    match &state.node {
        None => {
            found.push("the node has not registered yet: it does not reach its bucket, or has just started".to_owned());
        }
        Some(node) => of_node(node, local, &mut found),
    }
    if state.coordinator.is_none() {
        found.push("nobody coordinates: new applications are not placed until a node holds the lease".to_owned());
    }
    if let Some(reconcile) = state.reconcile.as_ref().filter(|reconcile| !reconcile.ok) {
        let why = reconcile.error.as_deref().unwrap_or("the log says why");
        found.push(format!("reconcile pass {} failed: {why}", reconcile.pass));
    }
    found.extend(state.faults.iter().map(|fault| format!("the record {} cannot be used: {}", fault.key, fault.error)));
    let unplaced = state.coordinator.as_ref().and_then(|coordinator| coordinator.unplaced.as_deref());
    found.extend(unplaced.unwrap_or_default().iter().map(not_placed));
    found.extend(state.processes.iter().filter_map(of_process));
    found
}

fn of_node(node: &NodeRecord, local: Option<&Ready>, found: &mut Vec<String>) {
    if node.draining {
        found.push("the node is draining: it is in no routing document".to_owned());
    } else if node.leaving {
        found.push("the node is leaving: nothing new is placed on it".to_owned());
    }
    match &node.celld_version {
        None => {
            found.push("the node has no runtime: install celld or set celld.path, then restart the node".to_owned());
        }
        Some(version) if is_standin(version) => {
            found.push("applications run in the development stand-in, which is not for production".to_owned());
        }
        Some(_) => {}
    }
    if local.is_some_and(|node| node.bucket.is_some()) {
        found.push(
            "the bucket is embedded in this node: no second node can join, and its disk is the only copy".to_owned(),
        );
    }
    found.extend(node.serving.iter().filter_map(not_adopted));
}

fn not_adopted(serving: &Serving) -> Option<String> {
    if serving.adoption != Some(Adoption::Failed) {
        return None;
    }
    let why = serving.error.as_deref().unwrap_or("no reason was given");
    let serves = if serving.state == ProcessState::Ready { "still serves the one before" } else { "serves nothing" };
    Some(format!(
        "{} did not take its last deploy and {serves}; deploy again with the fault corrected: {why}",
        serving.application
    ))
}

fn not_placed(unplaced: &Unplaced) -> String {
    let Unplaced { application, wanted, placed, reason } = unplaced;
    let why = match reason {
        UnplacedReason::NoLiveNode => "no node lives that could take it",
        UnplacedReason::Selector => "too few nodes match its selector",
        UnplacedReason::Capacity => "there are too few nodes",
    };
    format!("{application} has {placed} of {wanted} nodes: {why}")
}

fn of_process(process: &ProcessStatus) -> Option<String> {
    let name = &process.application;
    let waits = matches!(process.state, ProcessState::BackingOff | ProcessState::CrashLooping);
    if let Some(why) = process.last_exit.as_ref().filter(|_| waits).and_then(LastExit::not_started) {
        let said = LastExit::NOT_STARTED;
        return Some(format!("{name} {said}{why}; it is tried again after a pause, see the log of the node"));
    }
    let what = match process.state {
        ProcessState::Unhealthy => "does not answer its health checks",
        ProcessState::BackingOff => "has ended and is started again after a pause",
        ProcessState::CrashLooping => "ends again and again without having been ready",
        ProcessState::Starting | ProcessState::Ready | ProcessState::Stopping => return None,
    };
    let last = process.last_exit.as_ref().map_or_else(String::new, |exit| match (exit.code, exit.signal) {
        (Some(code), _) => format!(" (last exit: code {code})"),
        (None, Some(signal)) => format!(" (last exit: signal {signal})"),
        (None, None) => String::new(),
    });
    Some(format!("{name} {what}{last}; see `scafo logs {name}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_is_well_has_nothing_to_say() {
        let state: DaemonState = serde_json::from_value(super::super::render::tests::well()).unwrap();
        assert_eq!(warnings(&state, None), Vec::<String>::new());
    }

    #[test]
    fn everything_that_is_wrong_is_named() {
        let mut json = super::super::render::tests::well();
        json["node"]["leaving"] = true.into();
        json["node"]["serving"][0]["adoption"] = "failed".into();
        json["node"]["serving"][0]["error"] = "no such export".into();
        json["coordinator"]["unplaced"] =
            serde_json::json!([{ "application": "shop", "wanted": 3, "placed": 1, "reason": "selector" }]);
        json["reconcile"]["ok"] = false.into();
        json["reconcile"]["error"] = "the bucket does not answer".into();
        json["processes"][0]["state"] = "crash-looping".into();
        json["processes"][0]["lastExit"] = serde_json::json!({ "code": 3, "at": "2026-04-01T12:30:00.000Z" });
        json["faults"] = serde_json::json!([{ "key": "_scafo/applications/x.json", "error": "v is 2" }]);
        let state: DaemonState = serde_json::from_value(json).unwrap();
        insta::assert_snapshot!(warnings(&state, None).join("\n"), @r#"
the node is leaving: nothing new is placed on it
counter did not take its last deploy and still serves the one before; deploy again with the fault corrected: no such export
reconcile pass 12 failed: the bucket does not answer
the record _scafo/applications/x.json cannot be used: v is 2
shop has 1 of 3 nodes: too few nodes match its selector
counter ends again and again without having been ready (last exit: code 3); see `scafo logs counter`
"#);
    }

    #[test]
    fn the_reason_why_a_process_could_not_be_started_is_said() {
        let mut json = super::super::render::tests::well();
        json["processes"][0]["state"] = "backing-off".into();
        json["processes"][0]["lastExit"] = serde_json::json!({ "at": "2026-04-01T12:30:00.000Z", "said": format!("{}the disk is full", LastExit::NOT_STARTED) });
        let state: DaemonState = serde_json::from_value(json).unwrap();
        assert_eq!(
            warnings(&state, None),
            [
                "counter could not be started: the disk is full; it is tried again after a pause, see the log of the node"
            ]
        );
    }

    #[test]
    fn a_node_that_has_not_registered_and_has_no_coordinator_says_both() {
        let json =
            serde_json::json!({ "node": null, "lease": null, "coordinator": null, "processes": [], "placements": [] });
        assert_eq!(warnings(&serde_json::from_value(json).unwrap(), None).len(), 2);
    }
}

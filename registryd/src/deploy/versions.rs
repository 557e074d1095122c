//! Which versions of celld may serve one application at a time (celld contract, section 5). Pure.

use scafo_core::record::{NodeRecord, ProcessState};
use scafo_core::view::ProcessStatus;
use scafo_core::{ApplicationName, NodeId, Problem, ProblemCode, Timestamp};

use crate::daemon::Core;

/// The pairs that upstream declares as rolling upgrades. The last one holds for durability `bucket`, which is what scafo
/// starts its processes with.
const ROLLING: [(&str, &str); 3] = [("0.2.1", "0.3.0"), ("0.4.0", "0.4.1"), ("0.5.1", "0.6.0")];

/// Versions are spelled as `celld --version` does, with or without the program's name. The development stand-in has another
/// name, and never serves beside a real celld.
fn may_meet(a: &str, b: &str) -> bool {
    let (program_a, a) = split(a);
    let (program_b, b) = split(b);
    program_a == program_b && (a == b || ROLLING.iter().any(|pair| *pair == (a, b) || *pair == (b, a)))
}

fn split(line: &str) -> (&str, &str) {
    line.split_once(' ').unwrap_or(("celld", line))
}

/// The version that this node starts now. It changes under a running node when celld is upgraded in place: the last job and the
/// processes that were started since the node runs know it better than the settings of its start do.
pub(crate) fn current(core: &Core) -> Option<String> {
    let world = core.worlds.borrow().clone();
    latest(core.settings.node.celld_version.clone(), core.deploys.last_ran_on(), &world.processes)
}

fn latest(at_start: Option<String>, job: Option<(Timestamp, String)>, processes: &[ProcessStatus]) -> Option<String> {
    // One that was taken over is of before.
    let started = processes.iter().filter(|process| !process.adopted);
    let started = started.filter_map(|process| Some((process.started_at?, process.celld_version.clone()?)));
    started.chain(job).max_by_key(|(at, _)| *at).map(|(_, version)| version).or(at_start)
}

/// Refuses a deploy by a node with runtime `ours` while a living node serves the application on a version that may not meet
/// it. A node whose process crashed, once or in a loop, counts: it starts it again.
///
/// # Errors
/// `version-skew` naming every such node.
pub(crate) fn check<'a>(
    application: &ApplicationName,
    me: &NodeId,
    ours: &str,
    living: impl Iterator<Item = &'a NodeRecord>,
) -> Result<(), Problem> {
    let mut strangers: Vec<String> = Vec::new();
    for node in living.filter(|node| node.id != *me) {
        let serving = node.serving.iter().find(|serving| serving.application == *application);
        let Some(serving) = serving.filter(|serving| counts(serving.state)) else { continue };
        let Some(theirs) = serving.celld_version.as_deref() else { continue };
        if !may_meet(ours, theirs) {
            strangers.push(format!("`{}` ({theirs})", node.id));
        }
    }
    if strangers.is_empty() {
        return Ok(());
    }
    let pairs: Vec<String> = ROLLING.iter().map(|(from, to)| format!("{from} with {to}")).collect();
    Err(Problem::new(
        ProblemCode::VersionSkew,
        format!(
            "node `{me}` has runtime version {ours}, but `{application}` is served on another version by {}; stop it there first, or \
             deploy through a node with that version. Only these versions may serve together: {}",
            strangers.join(", "),
            pairs.join(", ")
        ),
    ))
}

const fn counts(state: ProcessState) -> bool {
    match state {
        ProcessState::Starting
        | ProcessState::Ready
        | ProcessState::Unhealthy
        | ProcessState::BackingOff
        | ProcessState::CrashLooping => true,
        ProcessState::Stopping => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equal_versions_and_declared_pairs_may_meet() {
        for (a, b, may) in [
            ("0.6.0", "0.6.0", true),
            ("0.5.1", "0.6.0", true),
            ("0.6.0", "0.5.1", true),
            ("0.4.0", "0.4.1", true),
            ("0.3.0", "0.4.0", false),
            ("0.4.1", "0.5.1", false),
            ("0.6.0", "0.6.1", false),
            ("celld 0.5.1", "0.6.0", true),
            ("celld-workerd 0.6.0", "celld-workerd 0.6.0", true),
            ("celld-workerd 0.6.0", "celld 0.6.0", false),
        ] {
            assert_eq!(may_meet(a, b), may, "{a} {b}");
        }
    }

    #[test]
    fn an_upgrade_in_place_is_seen_by_what_was_started_last() {
        let process = |started: i64, version: &str, adopted: bool| ProcessStatus {
            application: "shop".parse().unwrap(),
            state: ProcessState::Ready,
            since: Timestamp::from_millis(0),
            pid: Some(1),
            port: 1,
            internal_port: 2,
            deployment: None,
            celld_version: Some(version.to_owned()),
            restarts: 0,
            started_at: Some(Timestamp::from_millis(started)),
            last_exit: None,
            adopted,
        };
        let at_start = || Some("0.5.1".to_owned());
        let job = |at: i64| Some((Timestamp::from_millis(at), "0.6.1".to_owned()));
        for (job, processes, expected) in [
            (None, vec![], "0.5.1"),
            (None, vec![process(9, "0.4.1", true)], "0.5.1"),
            (None, vec![process(1, "0.5.1", false), process(2, "0.6.0", false)], "0.6.0"),
            (job(3), vec![process(2, "0.6.0", false)], "0.6.1"),
            (job(1), vec![process(2, "0.6.0", false)], "0.6.0"),
        ] {
            assert_eq!(latest(at_start(), job, &processes).as_deref(), Some(expected));
        }
        assert_eq!(latest(None, None, &[]), None);
    }

    #[test]
    fn a_skew_names_every_node_that_has_to_stop_and_the_pairs_that_may_meet() {
        let node = |id: &str, application: &str, state: &str, version: &str| -> NodeRecord {
            let at = "2026-04-01T12:30:00.000Z";
            serde_json::from_value(serde_json::json!({
                "v": 1, "id": id, "address": "127.0.0.1", "api": "127.0.0.1:7400", "labels": {}, "platformDomains": [],
                "publicKey": { "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" },
                "apiPublic": true, "version": "0.1.0", "startedAt": at, "heartbeatAt": at, "leaving": false,
                "draining": false, "fence": 0,
                "serving": [{ "application": application, "port": 1, "state": state, "celldVersion": version, "since": at }],
            }))
            .unwrap()
        };
        let fleet = [
            node("me", "shop", "ready", "0.4.0"),
            node("ready", "shop", "ready", "0.4.0"),
            node("looping", "shop", "crash-looping", "0.4.1"),
            node("restarting", "shop", "backing-off", "0.4.1"),
            node("rolling", "shop", "ready", "0.5.1"),
            node("stopping", "shop", "stopping", "0.4.0"),
            node("elsewhere", "other", "ready", "0.4.0"),
        ];
        let (shop, me) = ("shop".parse().unwrap(), "me".parse().unwrap());
        let refused = check(&shop, &me, "0.6.0", fleet.iter()).unwrap_err();
        assert_eq!(refused.code, ProblemCode::VersionSkew);
        for named in ["`ready` (0.4.0)", "`looping` (0.4.1)", "`restarting` (0.4.1)", "0.5.1 with 0.6.0"] {
            assert!(refused.detail.contains(named), "{named}: {refused}");
        }
        for left_out in ["rolling", "stopping", "elsewhere"] {
            assert!(!refused.detail.contains(left_out), "{left_out}: {refused}");
        }
        assert!(check(&shop, &me, "0.4.0", fleet[..2].iter()).is_ok());
    }
}

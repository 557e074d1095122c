//! The state of a node as text.

use scafo_core::record::{NodeRecord, ProcessState};
use scafo_core::view::{DaemonState, ProcessStatus};
use scafo_supervisor::Ready;

use crate::output::{clean, clean_lines, table};

/// The whole page.
pub(super) fn render(
    state: &DaemonState,
    local: Option<&Ready>,
    api: &str,
    warnings: &[String],
    not_enforced: &[String],
) -> String {
    let mut page = String::new();
    let mut line = |name: &str, value: &str| page.push_str(&format!("{name:<13}{}\n", clean(value)));
    if let Some(node) = &state.node {
        line("node", &format!("{} at {}, scafo {}, since {}", node.id, node.address, node.version, node.started_at));
        line("runtime", &runtime(node));
        if !node.platform_domains.is_empty() {
            let domains: Vec<String> = node.platform_domains.iter().map(ToString::to_string).collect();
            line("domains", &domains.join(" "));
        }
    }
    line("api", api);
    if let Some(ingress) = local.and_then(|node| node.ingress.as_deref()) {
        line("ingress", ingress);
    }
    if let Some(node) = local {
        line("bucket", node.bucket.as_deref().map_or("outside this node", |_| "embedded in this node"));
    }
    line("coordinator", &coordinator(state));
    if let Some(pass) = &state.reconcile {
        let outcome = if pass.ok { "went through" } else { "failed" };
        let requests = pass.store_requests;
        line(
            "reconcile",
            &format!("pass {} {outcome} in {} ms, {requests} requests to the bucket", pass.pass, pass.took_ms),
        );
    }
    page.push('\n');
    page.push_str(&processes(&state.processes));
    list(&mut page, "warning", warnings);
    list(&mut page, "not enforced", not_enforced);
    page
}

/// The runtime by its name. A node reports the stand-in by name and celld by its bare version, so that the one is never taken
/// for the other.
fn runtime(node: &NodeRecord) -> String {
    match &node.celld_version {
        None => "none".to_owned(),
        Some(version) if is_standin(version) => format!("{version}, the development stand-in for celld"),
        Some(version) => format!("celld {version}"),
    }
}

/// Whether a runtime's version is the stand-in's.
pub(super) fn is_standin(version: &str) -> bool {
    version.starts_with("celld-workerd")
}

fn coordinator(state: &DaemonState) -> String {
    match &state.coordinator {
        Some(view) if view.is_self => format!("{} (this node), fence {}", view.node, view.fence.0),
        Some(view) => format!("{}, fence {}", view.node, view.fence.0),
        None => "nobody".to_owned(),
    }
}

fn processes(processes: &[ProcessStatus]) -> String {
    if processes.is_empty() {
        return "no application runs here\n".to_owned();
    }
    let row = |process: &ProcessStatus| {
        vec![
            process.application.to_string(),
            spelled(process.state).to_owned(),
            process.deployment.as_ref().map_or("-", |version| version.as_str()).to_owned(),
            process.port.to_string(),
            process.pid.map_or("-".to_owned(), |pid| pid.to_string()),
            process.restarts.to_string(),
            process.since.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = processes.iter().map(row).collect();
    table(&["APPLICATION", "STATE", "DEPLOYMENT", "PORT", "PID", "RESTARTS", "SINCE"], &rows)
}

const fn spelled(state: ProcessState) -> &'static str {
    match state {
        ProcessState::Starting => "starting",
        ProcessState::Ready => "ready",
        ProcessState::Unhealthy => "unhealthy",
        ProcessState::Stopping => "stopping",
        ProcessState::BackingOff => "backing-off",
        ProcessState::CrashLooping => "crash-looping",
    }
}

fn list(page: &mut String, label: &str, items: &[String]) {
    if items.is_empty() {
        return;
    }
    page.push('\n');
    for item in items {
        page.push_str(&format!("{label}: {}\n", clean_lines(item).trim_end().replace('\n', "\n    ")));
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The state of a node on which all is well.
    pub(in crate::commands::status) fn well() -> serde_json::Value {
        let at = "2026-04-01T12:30:00.000Z";
        serde_json::json!({
            "node": {
                "v": 1, "id": "vps-a", "address": "127.0.0.1", "api": "127.0.0.1:7400", "apiPublic": true,
                "publicKey": { "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" },
                "platformDomains": ["dev.localhost"], "version": "0.1.0", "celldVersion": "0.6.0",
                "startedAt": at, "heartbeatAt": at,
                "serving": [{ "application": "counter", "port": 24000, "state": "ready", "since": at,
                              "deployment": "00aa", "adoption": "adopted" }],
            },
            "lease": null,
            "coordinator": { "node": "vps-a", "fence": 3, "self": true },
            "processes": [{
                "application": "counter", "state": "ready", "since": at, "pid": 4242, "port": 24000, "internalPort": 24001,
                "deployment": "00aa", "celldVersion": "0.6.0", "restarts": 0, "adopted": false,
            }],
            "placements": [],
            "reconcile": { "pass": 12, "startedAt": at, "finishedAt": at, "tookMs": 3, "ok": true, "storeRequests": 40 },
        })
    }

    #[test]
    fn a_node_that_is_well() {
        let state: DaemonState = serde_json::from_value(well()).unwrap();
        insta::assert_snapshot!(render(&state, None, "http://127.0.0.1:7400", &[], &[]), @r#"
node         vps-a at 127.0.0.1, scafo 0.1.0, since 2026-04-01T12:30:00.000Z
runtime      celld 0.6.0
domains      dev.localhost
api          http://127.0.0.1:7400
coordinator  vps-a (this node), fence 3
reconcile    pass 12 went through in 3 ms, 40 requests to the bucket

APPLICATION  STATE  DEPLOYMENT  PORT   PID   RESTARTS  SINCE
counter      ready  00aa        24000  4242  0         2026-04-01T12:30:00.000Z
"#);
    }

    #[test]
    fn a_node_that_is_empty_says_so_and_warns_below() {
        let state =
            serde_json::json!({ "node": null, "lease": null, "coordinator": null, "processes": [], "placements": [] });
        let state: DaemonState = serde_json::from_value(state).unwrap();
        let warnings = ["first".to_owned(), "second\nline\u{7}".to_owned()];
        insta::assert_snapshot!(render(&state, None, "http://a:1", &warnings, &["limits".to_owned()]), @r#"
api          http://a:1
coordinator  nobody

no application runs here

warning: first
warning: second
    line�

not enforced: limits
"#);
    }
}

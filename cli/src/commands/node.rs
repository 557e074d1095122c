//! `scafo node`: the nodes of the fleet. Through the registry of a node on this machine, or in the bucket itself.

use std::time::Duration;

use scafo_core::record::{DrainState, NodeRecord};
use scafo_core::view::NodeStatus;
use scafo_core::{NodeId, Problem, ProblemCode};
use scafo_proto::chunk;
use scafo_proto::registry::admin_client::AdminClient;
use scafo_proto::registry::{DrainNodeRequest, ListNodesRequest, RemoveNodeRequest, UndrainNodeRequest};
use scafo_proto::transport::within;
use scafo_registryd::registry::{DrainRequest, Life};
use serde::Serialize;
use serde_json::json;
use tokio::time::Instant;

use crate::args::{NodeArgs, NodeCommand, NodeDrainArgs, NodeListArgs, NodeRemoveArgs};
use crate::commands::direct::{BY, Direct};
use crate::commands::local::{Place, decode};
use crate::error::{Failure, Outcome};
use crate::output::{Output, table};

/// How often a drain is looked at: a node moves with its passes, which are 5 s apart by default.
const LOOK: Duration = Duration::from_secs(1);
/// How long a drain may take beside its own time: the longest hold that can be set is 10 min, and passes come on top.
const BESIDE: Duration = Duration::from_secs(15 * 60);

/// How long others have to take over where nobody says: `drain.timeout` of a node that was not told otherwise.
const DRAIN: Duration = Duration::from_secs(10 * 60);

#[derive(Debug, Serialize)]
struct Nodes {
    nodes: Vec<NodeStatus>,
}

/// `scafo node …`
pub(super) async fn run(command: NodeCommand, output: Output) -> Outcome {
    match command {
        NodeCommand::List(args) => list(args, output).await,
        NodeCommand::Drain(args) => drain(args, output).await,
        NodeCommand::Undrain(args) => undrain(args, output).await,
        NodeCommand::Remove(args) => remove(args, output).await,
    }
}

async fn list(args: NodeListArgs, output: Output) -> Outcome {
    let place = Place::find(&args.local, output).await?;
    let nodes = nodes(&place).await.map_err(|problem| Failure::refused("cannot list the nodes", &problem))?;
    let printed = Nodes { nodes };
    output.data(&printed, || render(&printed.nodes))
}

async fn nodes(place: &Place) -> Result<Vec<NodeStatus>, Problem> {
    let registry = match place {
        Place::Bucket(direct) => return direct.nodes().await,
        Place::Node(registry) => registry,
    };
    let document = registry.call(|channel, left| async move {
        let nodes = AdminClient::new(channel).list_nodes(within(left, ListNodesRequest {})).await?;
        Ok(chunk::collect(nodes.into_inner()).await)
    });
    document.await.and_then(|document| document).and_then(|document| decode(&document))
}

async fn drain(args: NodeDrainArgs, output: Output) -> Outcome {
    let place = Place::find(&args.local, output).await?;
    let answer = match &place {
        Place::Bucket(direct) => {
            let timeout = args.timeout.unwrap_or(DRAIN);
            let request = DrainRequest { by: BY.to_owned(), timeout, force: args.force };
            direct.hinted(direct.registry().drain_node(&args.node, &request).await).await
        }
        Place::Node(registry) => {
            let timeout_ms = args.timeout.map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX));
            let request = DrainNodeRequest { node: args.node.to_string(), force: args.force, timeout_ms };
            let answer = registry.call(|channel, left| {
                let request = within(left, request.clone());
                async move { AdminClient::new(channel).drain_node(request).await }
            });
            answer.await.and_then(|reply| decode::<NodeRecord>(&reply.into_inner().node))
        }
    };
    let asked = answer.map_err(|problem| unknown(Failure::refused("the drain was not begun", &problem), &problem))?;
    let ended = if args.no_wait { asked } else { follow(&place, asked, output).await? };
    output.data(&json!({ "node": ended }), || format!("{} is {}\n", ended.id, drained_so_far(&ended)))
}

/// Says each step of a drain until it has come to its end.
async fn follow(place: &Place, asked: NodeRecord, output: Output) -> Outcome<NodeRecord> {
    let allowed = asked.drain.as_ref().map_or(0, |drain| drain.timeout_ms);
    let until = Instant::now() + Duration::from_millis(allowed).min(Duration::from_secs(24 * 60 * 60)) + BESIDE;
    let mut said = String::new();
    let mut node = NodeStatus { node: asked, live: true };
    loop {
        let now = drained_so_far(&node.node);
        if now != said {
            output.say(&format!("{} is {now}", node.node.id));
            said = now;
        }
        match step(&node)? {
            Step::Done => return Ok(node.node),
            Step::GoOn if Instant::now() > until => {
                return Err(Failure::new(format!("{} is {said}, and for longer than that takes", node.node.id))
                    .hint("look at its log; giving the command again goes on"));
            }
            Step::GoOn => tokio::time::sleep(LOOK).await,
        }
        let all = nodes(place).await.map_err(|problem| Failure::refused("cannot follow the drain", &problem))?;
        let id = node.node.id;
        node = all.into_iter().find(|each| each.node.id == id).ok_or_else(|| {
            Failure::new(format!("{id} is no node of the fleet any more")).hint("see `scafo node list`")
        })?;
    }
}

/// Whether there is more to wait for.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    GoOn,
    Done,
}

fn step(status: &NodeStatus) -> Outcome<Step> {
    let id = &status.node.id;
    let Some(drain) = &status.node.drain else {
        return Err(Failure::new(format!("the drain of {id} was taken back")).hint("see `scafo node list`"));
    };
    match drain.state {
        DrainState::Drained => Ok(Step::Done),
        DrainState::Failed => {
            let names: Vec<String> = drain.waits_for.iter().map(ToString::to_string).collect();
            Err(Failure::new(format!("the drain of {id} has failed: in time nobody else served {}", names.join(", ")))
                .hint("see that other nodes may serve them and have room, then drain again; or --force, without them"))
        }
        DrainState::Waiting | DrainState::Draining if !status.live => {
            Err(Failure::new(format!("{id} shows no signs of life, and only itself can drain"))
                .hint(format!("start it again, or give it up: `scafo node remove {id}`")))
        }
        DrainState::Waiting | DrainState::Draining => Ok(Step::GoOn),
    }
}

async fn undrain(args: NodeArgs, output: Output) -> Outcome {
    let answer = match Place::find(&args.local, output).await? {
        Place::Bucket(direct) => direct.hinted(direct.registry().undrain_node(&args.node).await).await,
        Place::Node(registry) => {
            let request = UndrainNodeRequest { node: args.node.to_string() };
            let answer = registry.call(|channel, left| {
                let request = within(left, request.clone());
                async move { AdminClient::new(channel).undrain_node(request).await }
            });
            answer.await.and_then(|reply| decode::<NodeRecord>(&reply.into_inner().node))
        }
    };
    let node =
        answer.map_err(|problem| unknown(Failure::refused("the drain was not taken back", &problem), &problem))?;
    output.data(&json!({ "node": node }), || format!("{} takes applications again\n", node.id))
}

async fn remove(args: NodeRemoveArgs, output: Output) -> Outcome {
    let answer = match Place::find(&args.local, output).await? {
        Place::Bucket(direct) => direct.hinted(remove_directly(&direct, &args).await).await,
        Place::Node(registry) => {
            let request = RemoveNodeRequest { node: args.node.to_string(), force: args.force };
            let answer = registry.call(|channel, left| {
                let request = within(left, request.clone());
                async move { AdminClient::new(channel).remove_node(request).await }
            });
            answer.await.map(drop)
        }
    };
    answer.map_err(|problem| not_removed(&problem, &args.node))?;
    output.data(&json!({ "removed": args.node }), || format!("{} is removed\n", args.node))
}

async fn remove_directly(direct: &Direct, args: &NodeRemoveArgs) -> Result<(), Problem> {
    let live = direct.nodes().await?.iter().any(|status| status.node.id == args.node && status.live);
    let life = if live { Life::Live } else { Life::Silent };
    direct.registry().remove_node(&args.node, life, args.force).await
}

fn not_removed(problem: &Problem, node: &NodeId) -> Failure {
    let failure = Failure::refused("the node was not removed", problem);
    if problem.code == ProblemCode::ReferenceHeld {
        return failure.hint(format!("`scafo node drain {node}` first; or --force, and what only it serves is away"));
    }
    unknown(failure, problem)
}

fn unknown(failure: Failure, problem: &Problem) -> Failure {
    if problem.code == ProblemCode::NotFound {
        failure.hint("`scafo node list` shows which there are")
    } else {
        failure
    }
}

/// Where a node is on its way out, for a sentence.
fn drained_so_far(node: &NodeRecord) -> String {
    let Some(drain) = &node.drain else { return "not draining".to_owned() };
    match drain.state {
        DrainState::Waiting if drain.waits_for.is_empty() => "leaving".to_owned(),
        DrainState::Waiting => {
            let names: Vec<String> = drain.waits_for.iter().map(ToString::to_string).collect();
            format!("leaving; others have still to serve {}", names.join(", "))
        }
        DrainState::Failed => "not drained: nobody took over in time".to_owned(),
        DrainState::Draining => "out of the routes, its processes end after the hold".to_owned(),
        DrainState::Drained => "drained".to_owned(),
    }
}

fn render(nodes: &[NodeStatus]) -> String {
    let row = |status: &NodeStatus| {
        let node = &status.node;
        let labels: Vec<String> = node.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        vec![
            node.id.to_string(),
            state(status).to_owned(),
            node.api.clone(),
            node.serving.len().to_string(),
            node.version.clone(),
            node.celld_version.clone().unwrap_or_else(|| "-".to_owned()),
            if labels.is_empty() { "-".to_owned() } else { labels.join(" ") },
            node.heartbeat_at.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = nodes.iter().map(row).collect();
    table(&["NODE", "STATE", "API", "APPLICATIONS", "SCAFO", "RUNTIME", "LABELS", "HEARTBEAT"], &rows)
}

fn state(status: &NodeStatus) -> &'static str {
    if !status.live {
        return "silent";
    }
    match status.node.drain.as_ref().map(|drain| drain.state) {
        Some(DrainState::Waiting) => "leaving",
        Some(DrainState::Failed) => "drain failed",
        Some(DrainState::Draining) => "draining",
        Some(DrainState::Drained) => "drained",
        None if status.node.draining => "draining",
        None if status.node.leaving => "leaving",
        None => "live",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: &str, live: bool, drain: Option<(&str, &[&str])>) -> NodeStatus {
        let at = "2026-04-01T12:30:00.000Z";
        let mut record = json!({
            "v": 1, "id": id, "address": "10.0.0.1", "api": "10.0.0.1:7400", "apiPublic": true, "version": "0.1.0",
            "publicKey": { "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" },
            "startedAt": at, "heartbeatAt": at, "labels": { "tier": "fast" },
        });
        if let Some((state, waits_for)) = drain {
            record["drain"] = json!({ "id": "1", "by": "local", "askedAt": at, "timeoutMs": 600_000, "state": state,
                                      "waitsFor": waits_for });
        }
        serde_json::from_value(json!({ "node": record, "live": live })).unwrap()
    }

    #[test]
    fn nodes_as_a_table() {
        let nodes = [
            node("vps-a", true, None),
            node("vps-b", false, None),
            node("vps-c", true, Some(("waiting", &["shop"]))),
            node("vps-d", true, Some(("drained", &[]))),
        ];
        insta::assert_snapshot!(render(&nodes), @r#"
NODE   STATE    API            APPLICATIONS  SCAFO  RUNTIME  LABELS     HEARTBEAT
vps-a  live     10.0.0.1:7400  0             0.1.0  -        tier=fast  2026-04-01T12:30:00.000Z
vps-b  silent   10.0.0.1:7400  0             0.1.0  -        tier=fast  2026-04-01T12:30:00.000Z
vps-c  leaving  10.0.0.1:7400  0             0.1.0  -        tier=fast  2026-04-01T12:30:00.000Z
vps-d  drained  10.0.0.1:7400  0             0.1.0  -        tier=fast  2026-04-01T12:30:00.000Z
"#);
    }

    #[test]
    fn a_drain_is_followed_until_it_cannot_go_on() {
        for (status, goes_on) in [
            (node("a", true, Some(("waiting", &["shop"]))), Ok(Step::GoOn)),
            (node("a", true, Some(("draining", &[]))), Ok(Step::GoOn)),
            (node("a", true, Some(("drained", &[]))), Ok(Step::Done)),
            (node("a", false, Some(("drained", &[]))), Ok(Step::Done)),
            (node("a", true, Some(("failed", &["shop", "chat"]))), Err("nobody else served shop, chat")),
            (node("a", false, Some(("waiting", &["shop"]))), Err("no signs of life")),
            (node("a", true, None), Err("taken back")),
        ] {
            match (step(&status), goes_on) {
                (Ok(step), Ok(expected)) => assert_eq!(step, expected),
                (Err(failure), Err(said)) => {
                    let report = failure.report().unwrap();
                    assert!(report.message().contains(said) && report.next().is_some(), "{report:?}");
                }
                (step, expected) => panic!("{step:?} {expected:?}"),
            }
        }
    }
}

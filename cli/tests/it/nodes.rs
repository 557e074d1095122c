//! Nodes that leave when they are asked to, a step further each time that somebody looks.

use std::sync::{Arc, Mutex};

use scafo_core::ProblemCode;
use scafo_proto::registry::{DrainNodeRequest, NodeReply, RemoveNodeReply, RemoveNodeRequest};
use serde_json::{Value, json};
use tonic::{Response, Status};

use crate::administration::refused;
use crate::local::local;
use crate::run::Home;

/// The one node `vps-b`, while it is there.
#[derive(Clone)]
pub(crate) struct Nodes(Arc<Mutex<Option<Value>>>);

impl Default for Nodes {
    fn default() -> Self {
        let mut node = crate::node::state()["node"].take();
        node["id"] = "vps-b".into();
        Self(Arc::new(Mutex::new(Some(node))))
    }
}

fn bytes(node: &Value) -> Response<NodeReply> {
    Response::new(NodeReply { node: node.to_string().into() })
}

impl Nodes {
    pub(crate) fn look(&self) -> Value {
        let mut there = self.0.lock().unwrap();
        let Some(node) = there.as_mut() else { return json!([]) };
        let fails = node["drain"]["timeoutMs"] == 1;
        let next = match node["drain"]["state"].as_str() {
            Some("waiting") if fails => Some("failed"),
            Some("waiting") => Some("draining"),
            Some("draining") => Some("drained"),
            _ => None,
        };
        if let Some(next) = next {
            node["drain"]["state"] = next.into();
        }
        json!([{ "node": node, "live": true }])
    }

    pub(crate) fn drain(&self, asked: &DrainNodeRequest) -> Result<Response<NodeReply>, Status> {
        let mut there = self.0.lock().unwrap();
        let node = there.as_mut().filter(|node| node["id"] == asked.node.as_str());
        let node = node.ok_or_else(|| refused(ProblemCode::NotFound, "no such node"))?;
        node["drain"] = json!({
            "id": "1", "by": "local", "askedAt": "2026-04-01T12:30:00.000Z", "state": "waiting", "force": asked.force,
            "timeoutMs": asked.timeout_ms.unwrap_or(600_000), "waitsFor": ["shop"],
        });
        Ok(bytes(node))
    }

    pub(crate) fn undrain(&self, id: &str) -> Result<Response<NodeReply>, Status> {
        let mut there = self.0.lock().unwrap();
        let node = there.as_mut().filter(|node| node["id"] == id);
        let node = node.ok_or_else(|| refused(ProblemCode::NotFound, "no such node"))?;
        node.as_object_mut().unwrap().remove("drain");
        Ok(bytes(node))
    }

    pub(crate) fn remove(&self, asked: &RemoveNodeRequest) -> Result<Response<RemoveNodeReply>, Status> {
        let mut there = self.0.lock().unwrap();
        let drained = there.as_ref().is_some_and(|node| node["drain"]["state"] == "drained");
        if !drained && !asked.force {
            return Err(refused(ProblemCode::ReferenceHeld, "the node lives and is not drained"));
        }
        *there = None;
        Ok(Response::new(RemoveNodeReply {}))
    }
}

#[tokio::test]
async fn a_drain_is_followed_to_its_end_and_the_node_removed() {
    let home = Home::new();
    let _local = local(&home, "http://127.0.0.1:1", None);
    let ran = home.run("node remove vps-b --state-dir state").await;
    assert!(ran.code == Some(1) && ran.stderr.contains("scafo node drain vps-b"), "{}", ran.all());

    let ran = home.run("node drain vps-b --state-dir state").await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "vps-b is drained\n"), "{}", ran.all());
    for said in ["have still to serve shop", "out of the routes"] {
        assert!(ran.stderr.contains(said), "{said}: {}", ran.all());
    }
    let ran = home.run("node list --state-dir state").await;
    assert!(ran.code == Some(0) && ran.stdout.contains("\nvps-b  drained  10.0.0.1:7400"), "{}", ran.all());
    let ran = home.run("node remove vps-b --state-dir state --json").await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "{\"removed\":\"vps-b\"}\n"), "{}", ran.all());
}

#[tokio::test]
async fn a_drain_that_nobody_takes_over_from_fails_and_is_taken_back() {
    let home = Home::new();
    let local = local(&home, "http://127.0.0.1:1", None);
    let ran = home.run("node drain vps-b --timeout 1ms --state-dir state").await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{}", ran.all());
    assert!(ran.stderr.contains("nobody else served shop") && ran.stderr.contains("--force"), "{}", ran.all());
    let ran = home.run("node undrain vps-b --state-dir state").await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "vps-b takes applications again\n"), "{}", ran.all());

    let ran = home.run("node drain vps-b --force --no-wait --state-dir state --json").await;
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&json["node"]["drain"]["state"], &json["node"]["drain"]["force"]), (&"waiting".into(), &true.into()));
    assert_eq!(local.registry.nodes.look()[0]["node"]["drain"]["state"], "draining", "nobody had looked before");
    let ran = home.run("node undrain vps-x --state-dir state").await;
    assert!(ran.code == Some(1) && ran.stderr.contains("scafo node list"), "{}", ran.all());
}

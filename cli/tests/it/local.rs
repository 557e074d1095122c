//! A node on this machine: found by its state directory, administered through its socket.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use scafo_core::record::{OperatorRecord, Role, V1};
use scafo_core::scope::ApplicationScope;
use scafo_core::{Problem, ProblemCode, Timestamp};
use scafo_proto::registry::admin_server::{Admin, AdminServer};
use scafo_proto::registry::administration_server::AdministrationServer;
use scafo_proto::registry::{
    Chunk, DrainNodeRequest, InitOperatorRequest, InitOperatorResponse, ListNodesRequest, NodeReply, PrepareStopReply,
    PrepareStopRequest, RemoveNodeReply, RemoveNodeRequest, UndrainNodeRequest,
};
use scafo_proto::status::to_status;
use scafo_proto::transport::{self, Peers};
use serde_json::json;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tonic::{Request, Response, Status};

use crate::administration::{Decided, Pieces, listed};
use crate::node::{Node, Say, deploy, state};
use crate::nodes::Nodes;
use crate::run::Home;

/// A registry that takes the first operator, and further ones when forced; and nodes that leave when they are asked to.
#[derive(Clone, Default)]
pub(crate) struct Registry {
    known: Arc<Mutex<Vec<InitOperatorRequest>>>,
    pub(crate) nodes: Nodes,
}

#[tonic::async_trait]
impl Admin for Registry {
    type ListNodesStream = Pieces<Chunk>;

    async fn list_nodes(&self, _: Request<ListNodesRequest>) -> Result<Response<Pieces<Chunk>>, Status> {
        Ok(listed(&self.nodes.look()))
    }

    async fn drain_node(&self, request: Request<DrainNodeRequest>) -> Result<Response<NodeReply>, Status> {
        self.nodes.drain(&request.into_inner())
    }

    async fn undrain_node(&self, request: Request<UndrainNodeRequest>) -> Result<Response<NodeReply>, Status> {
        self.nodes.undrain(&request.into_inner().node)
    }

    async fn remove_node(&self, request: Request<RemoveNodeRequest>) -> Result<Response<RemoveNodeReply>, Status> {
        self.nodes.remove(&request.into_inner())
    }

    async fn prepare_stop(&self, _: Request<PrepareStopRequest>) -> Result<Response<PrepareStopReply>, Status> {
        Ok(Response::new(PrepareStopReply::default()))
    }

    async fn init_operator(
        &self,
        request: Request<InitOperatorRequest>,
    ) -> Result<Response<InitOperatorResponse>, Status> {
        let asked = request.into_inner();
        let mut known = self.known.lock().unwrap();
        let same = known.iter().any(|each| each.id == asked.id && each.public_key == asked.public_key);
        if !same && !known.is_empty() && !asked.force {
            return Err(to_status(&Problem::new(ProblemCode::ReferenceHeld, "the fleet has an operator")));
        }
        let record = OperatorRecord {
            v: V1,
            id: asked.id.parse().unwrap(),
            public_key: serde_json::from_slice(&asked.public_key).unwrap(),
            role: Role::Admin,
            applications: ApplicationScope::all(),
            supersedes: None,
            created_at: Timestamp::from_millis(0),
            created_by: None,
            revoking: None,
            rest: serde_json::Map::new(),
        };
        known.push(asked);
        Ok(Response::new(InitOperatorResponse { operator: serde_json::to_vec(&record).unwrap().into() }))
    }
}

/// What a supervisor keeps in the state directory, and the socket that it names.
pub(crate) struct Local {
    pub(crate) registry: Registry,
    pub(crate) decided: Decided,
    _serving: JoinSet<()>,
    _lock: File,
}

pub(crate) fn local(home: &Home, api: &str, ingress: Option<&str>) -> Local {
    let state_dir = home.path().join("state");
    std::fs::create_dir(&state_dir).unwrap();
    let socket = state_dir.join("admin.sock");
    let ready = json!({
        "node": "vps-a", "api": api, "apiListen": ["127.0.0.1:7400"], "ingress": ingress,
        "platformDomains": ["dev.localhost"], "ingressTokenFile": state_dir.join("ingress-token"), "stateDir": state_dir,
        "adminSocket": socket, "celldVersion": "celld-workerd 0.6.0", "standin": true, "bucket": "http://127.0.0.1:1",
        "pids": { "supervisor": std::process::id(), "registryd": 1, "routerd": 1, "apiserver": 1 },
    });
    std::fs::write(state_dir.join("node.json"), ready.to_string()).unwrap();
    let mut lock = File::create(state_dir.join("lock")).unwrap();
    writeln!(lock, "{}", std::process::id()).unwrap();
    lock.lock().unwrap();
    std::fs::write(state_dir.join("ingress-token"), "opaque\n").unwrap();
    let registry = Registry::default();
    let decided = Decided::default();
    let router = transport::server()
        .add_service(AdminServer::new(registry.clone()))
        .add_service(AdministrationServer::new(decided.clone()));
    let listener = UnixListener::bind(socket).unwrap();
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        transport::serve(listener, Peers::same_user(), router, std::future::pending()).await.unwrap();
    });
    Local { registry, decided, _serving: serving, _lock: lock }
}

fn keys(home: &Home) -> Vec<PathBuf> {
    let directory = home.path().join(".config/scafo/keys");
    std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[tokio::test]
async fn the_first_operators_key_is_kept_and_then_used_without_being_named() {
    let home = Home::new();
    let node = {
        let mut standin = state();
        standin["node"]["celldVersion"] = "celld-workerd 0.6.0".into();
        Node::start([Say::Json(200, standin)]).await
    };
    let local = local(&home, &node.url, None);
    let ran = home.run("operator init --state-dir state").await;
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let [key] = keys(&home).try_into().unwrap();
    let id = ran.stdout.trim();
    assert_eq!(key.file_name().unwrap().to_str().unwrap(), format!("{id}.pem"));
    assert_eq!((mode(&key), mode(key.parent().unwrap())), (0o600, 0o700));
    assert!(ran.stderr.contains(key.to_str().unwrap()), "{}", ran.all());
    assert_eq!(local.registry.known.lock().unwrap()[0].id, id);

    let ran = home.run("status --state-dir state").await;
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    assert!(ran.stdout.contains("celld-workerd 0.6.0, the development stand-in"), "{}", ran.all());
    assert!(ran.stdout.contains("warning: the bucket is embedded"), "{}", ran.all());
    let token = node.asked()[0].header("authorization").to_owned();
    let token = token.strip_prefix("Bearer ").unwrap();
    assert_eq!(scafo_core::token::Unverified::parse(token).unwrap().kid(), id);
}

#[tokio::test]
async fn an_operator_that_was_made_is_made_again_with_the_same_key() {
    let home = Home::new();
    let local = local(&home, "http://127.0.0.1:1", None);
    for _ in 0..2 {
        let ran = home.run("operator init --id ops --state-dir state --json").await;
        assert_eq!(ran.code, Some(0), "{}", ran.all());
        let json: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(json["operator"]["id"], "ops");
    }
    let known = local.registry.known.lock().unwrap();
    assert_eq!(known[0].public_key, known[1].public_key);
}

#[tokio::test]
async fn a_second_first_operator_is_refused_unless_forced() {
    let home = Home::new();
    let _local = local(&home, "http://127.0.0.1:1", None);
    assert_eq!(home.run("operator init --id one --state-dir state").await.code, Some(0));
    let ran = home.run("operator init --id two --state-dir state").await;
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{}", ran.all());
    assert!(ran.stderr.contains("reference-held") && ran.stderr.contains("--force"), "{}", ran.all());
    assert_eq!(keys(&home).len(), 1, "a key that nobody knows is not kept");
    assert_eq!(home.run("operator init --id two --state-dir state --force").await.code, Some(0));
}

#[tokio::test]
async fn logs_as_json_are_an_object_a_line_with_the_text_as_it_came() {
    let home = Home::new();
    std::fs::create_dir_all(home.path().join("state/logs")).unwrap();
    let printed = b"before\nplain\n{\"level\":\"info\"}\n\x1b[31mred\x1b[0m\n\xff\n\nno end";
    std::fs::write(home.path().join("state/logs/shop.log"), printed).unwrap();
    let ran = home.run("logs shop --state-dir state --lines 6 --json").await;
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let shown: Vec<serde_json::Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let lines = ["plain", "{\"level\":\"info\"}", "\u{1b}[31mred\u{1b}[0m", "\u{fffd}", "", "no end"];
    assert_eq!(shown, lines.map(|line| serde_json::json!({ "line": line })));
    let ran = home.run("logs shop --state-dir state --lines 6").await;
    assert!(ran.stdout.starts_with("plain\n") && !ran.stdout.contains('\u{1b}'), "{}", ran.all());
}

#[tokio::test]
async fn a_deploy_to_the_node_here_shows_its_url_once_the_ingress_knows_it() {
    let home = Home::new();
    let upstreams = json!([{ "node": "vps-a", "address": "127.0.0.1:24000" }]);
    let route = json!({ "host": "shop.dev.localhost", "application": "shop", "upstreams": upstreams });
    let routes = |routes: serde_json::Value| Say::Json(200, json!({ "v": 1, "routes": routes }));
    let node = Node::start([
        Say::Json(202, deploy("accepted")),
        Say::Json(200, deploy("deployed")),
        routes(json!([])),
        routes(json!([&route])),
        routes(json!([&route])),
    ])
    .await;
    let ingress = Node::start([Say::Json(200, json!({ "hosts": 0 })), Say::Json(200, json!({ "hosts": 1 }))]).await;
    let _local = local(&home, &node.url, Some(&ingress.url));
    // The state directory of the environment, and the key that a development node keeps in it.
    let (key, label) = (home.path().join("state/operator.key"), home.path().join("state/operator.json"));
    std::fs::copy(home.key(), &key).unwrap();
    std::fs::write(label, r#"{"id":"ops"}"#).unwrap();
    let ran = home.command("deploy project").env("SCAFO_STATE_DIR", "state").output().await.unwrap();
    let ran = crate::run::Ran::from(ran);
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let port = ingress.url.rsplit_once(':').unwrap().1;
    assert!(ran.stdout.ends_with(&format!("http://shop.dev.localhost:{port}/\n")), "{}", ran.all());
    assert_eq!(node.asked().len(), 5);
    // It wants the token, which must not go where an application can be: on the ingress's own address there is none.
    let asked: Vec<_> = ingress
        .asked()
        .iter()
        .map(|asked| {
            let field = |name| asked.headers[name].to_str().unwrap().to_owned();
            [asked.uri.to_string(), field("host"), field("authorization")]
        })
        .collect();
    let expected =
        ["/.well-known/scafo-ingress/health".to_owned(), format!("127.0.0.1:{port}"), "Bearer opaque".to_owned()];
    assert_eq!(asked, [expected.clone(), expected]);
}

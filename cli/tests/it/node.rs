//! A node that answers from a script and remembers what it was asked.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use ed25519_dalek::SigningKey;
use scafo_core::time::Timestamp;
use scafo_core::token::{PublicKey, Unverified};
use scafo_core::{Problem, ProblemCode};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// One request as it came in.
pub(crate) struct Asked {
    pub(crate) method: Method,
    pub(crate) uri: Uri,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// One answer of the script.
pub(crate) enum Say {
    Json(u16, Value),
    Problem(Problem),
    /// `deploy-overloaded` with `retry-after: 0`.
    Full,
}

#[derive(Clone)]
struct Script {
    answers: Arc<Mutex<VecDeque<Say>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// The node. It ends with its value.
pub(crate) struct Node {
    pub(crate) url: String,
    script: Script,
    _serving: JoinSet<()>,
}

impl Node {
    pub(crate) async fn start(answers: impl IntoIterator<Item = Say>) -> Self {
        let script = Script { answers: Arc::new(Mutex::new(answers.into_iter().collect())), asked: Arc::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).layer(DefaultBodyLimit::disable()).with_state(script.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, script, _serving: serving }
    }

    /// What it was asked so far.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.script.asked.lock().unwrap())
    }
}

async fn answer(State(script): State<Script>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    script.asked.lock().unwrap().push(Asked { method, uri, headers, body });
    let next = script.answers.lock().unwrap().pop_front();
    match next.unwrap_or_else(|| Say::Problem(Problem::new(ProblemCode::Internal, "the script is over"))) {
        Say::Json(status, value) => (StatusCode::from_u16(status).unwrap(), value.to_string()).into_response(),
        Say::Problem(problem) => refusal(&problem),
        Say::Full => {
            let mut response = refusal(&Problem::new(ProblemCode::DeployOverloaded, "sixteen deploys are waiting"));
            response.headers_mut().insert("retry-after", "0".parse().unwrap());
            response
        }
    }
}

fn refusal(problem: &Problem) -> Response {
    let status = StatusCode::from_u16(problem.code.status()).unwrap();
    let body = serde_json::to_string(&problem.document()).unwrap();
    (status, [("content-type", "application/problem+json")], body).into_response()
}

impl Asked {
    /// The header's text.
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// The `jti` of its token, once that was found to hold up for `ops`.
    pub(crate) fn verified_jti(&self) -> String {
        let token = self.header("authorization").strip_prefix("Bearer ").unwrap();
        let key = PublicKey::from(&SigningKey::from_bytes(&crate::run::SEED));
        let unverified = Unverified::parse(token).unwrap();
        assert_eq!(unverified.kid(), "ops");
        unverified.verify(&key, Timestamp::from_system(SystemTime::now())).unwrap().jti
    }
}

/// A deploy of `shop` in this state.
pub(crate) fn deploy(state: &str) -> Value {
    let mut status = json!({ "id": "shop.0123456789abcdef", "application": "shop", "state": state });
    match state {
        "deployed" => status["deployment"] = "00d1f0e2a9b8c7d6".into(),
        "failed" => {
            status["code"] = "publish-failed".into();
            status["detail"] = "src/index.js:1:5: ERROR: Expected \";\" but found \"default\"".into();
        }
        _ => {}
    }
    status
}

/// The state of a node that serves `apps.example`.
pub(crate) fn state() -> Value {
    let at = "2026-04-01T12:30:00.000Z";
    json!({
        "node": {
            "v": 1, "id": "vps-a", "address": "10.0.0.1", "api": "10.0.0.1:7400", "apiPublic": true,
            "publicKey": { "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" },
            "platformDomains": ["apps.example"], "version": "0.1.0", "celldVersion": "0.6.0",
            "startedAt": at, "heartbeatAt": at, "future": 1,
        },
        "lease": null, "coordinator": { "node": "vps-a", "fence": 3, "self": true },
        "processes": [], "placements": [], "later": true,
    })
}

//! `scafo operator rotate` against a fleet that keeps keys as the specification says, and that can lose an answer anywhere.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use ed25519_dalek::SigningKey;
use scafo_core::token::{PublicKey, Unverified};
use scafo_core::{Problem, ProblemCode, Timestamp};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::run::{Home, SEED};

/// The keys of a fleet and what it does with the next requests.
#[derive(Default)]
struct Keys {
    operators: BTreeMap<String, (PublicKey, Option<String>)>,
    /// How many requests are carried out before one is, whose answer is lost.
    loses_answer_of: Option<usize>,
    /// How many are carried out before one is refused.
    refuses: Option<usize>,
    asked: usize,
}

#[derive(Clone)]
struct Fleet {
    url: String,
    keys: Arc<Mutex<Keys>>,
    _serving: Arc<JoinSet<()>>,
}

impl Fleet {
    /// With the key of a [`Home`] as `ops`, and another admin's.
    async fn start() -> Self {
        let keys: Arc<Mutex<Keys>> = Arc::default();
        let known = |seed: [u8; 32]| (PublicKey::from(&SigningKey::from_bytes(&seed)), None);
        keys.lock().unwrap().operators =
            BTreeMap::from([("ops".to_owned(), known(SEED)), ("other".to_owned(), known([9; 32]))]);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(keys.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { url, keys, _serving: Arc::new(serving) }
    }

    fn ids(&self) -> Vec<String> {
        self.keys.lock().unwrap().operators.keys().cloned().collect()
    }
}

async fn answer(
    State(keys): State<Arc<Mutex<Keys>>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let mut keys = keys.lock().unwrap();
    let number = keys.asked;
    keys.asked += 1;
    if keys.refuses == Some(number) {
        return refusal(&Problem::new(ProblemCode::AuthScope, "not this one"));
    }
    let outcome = carry_out(&mut keys, &method, uri.path(), &headers, &body);
    if keys.loses_answer_of == Some(number) {
        return refusal(&Problem::new(ProblemCode::Internal, "the answer is lost"));
    }
    outcome.map_or_else(|problem| refusal(&problem), |json| json.to_string().into_response())
}

fn refusal(problem: &Problem) -> Response {
    let status = StatusCode::from_u16(problem.code.status()).unwrap();
    (status, serde_json::to_string(&problem.document()).unwrap()).into_response()
}

fn record(id: &str, (key, supersedes): &(PublicKey, Option<String>)) -> Value {
    json!({ "v": 1, "id": id, "publicKey": key, "role": "admin", "applications": ["*"], "supersedes": supersedes,
            "createdAt": "2026-04-01T12:30:00.000Z" })
}

fn carry_out(keys: &mut Keys, method: &Method, path: &str, headers: &HeaderMap, body: &[u8]) -> Result<Value, Problem> {
    let token = headers["authorization"].to_str().unwrap().strip_prefix("Bearer ").unwrap();
    let token = Unverified::parse(token).unwrap();
    let kid = token.kid().to_owned();
    let refused = || Problem::new(ProblemCode::AuthInvalid, "the token does not hold up");
    let (key, _) = keys.operators.get(&kid).ok_or_else(refused)?;
    token.verify(key, Timestamp::from_system(SystemTime::now())).map_err(|_| refused())?;
    match (method.as_str(), path) {
        ("GET", "/v1/operators") => {
            Ok(json!({ "operators": keys.operators.iter().map(|(id, key)| record(id, key)).collect::<Vec<_>>() }))
        }
        ("POST", "/v1/operators") => {
            let asked: Value = serde_json::from_slice(body).unwrap();
            assert_eq!(asked["supersedes"], kid.as_str());
            let (id, key) =
                (asked["id"].as_str().unwrap(), serde_json::from_value(asked["publicKey"].clone()).unwrap());
            let new = (key, Some(kid));
            match keys.operators.get(id) {
                Some(there) if *there != new => return Err(Problem::new(ProblemCode::ReferenceHeld, "taken")),
                _ => keys.operators.insert(id.to_owned(), new.clone()),
            };
            Ok(json!({ "operator": record(id, &new) }))
        }
        ("DELETE", path) => {
            let id = path.strip_prefix("/v1/operators/").unwrap();
            assert_ne!(id, kid, "no key revokes itself");
            keys.operators.remove(id).ok_or_else(|| Problem::new(ProblemCode::NotFound, "no such key"))?;
            Ok(json!({ "removed": id }))
        }
        other => panic!("{other:?}"),
    }
}

/// Rotates until it comes to its end, at most a few times.
async fn rotate(home: &Home, fleet: &Fleet) -> String {
    for _ in 0..3 {
        let ran = home.against(&fleet.url, "operator rotate").await;
        if ran.code == Some(0) {
            return ran.stdout.trim().to_owned();
        }
        assert_eq!(ran.code, Some(1), "{}", ran.all());
        assert!(ran.stderr.contains("\nhint: "), "{}", ran.all());
        let works = home.against(&fleet.url, "operator list").await;
        assert_eq!(works.code, Some(0), "the file always holds a key that works: {}", works.all());
    }
    panic!("it never comes to its end");
}

#[tokio::test]
async fn a_key_is_replaced_where_it_is_and_the_old_one_revoked() {
    let (home, fleet) = (Home::new(), Fleet::start().await);
    let ran = home.against(&fleet.url, "operator rotate --json").await;
    assert_eq!(ran.code, Some(0), "{}", ran.all());
    let json: Value = serde_json::from_str(&ran.stdout).unwrap();
    let id = json["operator"]["id"].as_str().unwrap();
    assert_eq!((&json["replaced"], json["key"].as_str()), (&"ops".into(), home.key().to_str()));
    assert_eq!(fleet.ids(), [id, "other"]);
    let text = std::fs::read_to_string(home.key()).unwrap();
    assert!(text.starts_with(&format!("scafo-operator: {id}\n-----BEGIN PRIVATE KEY-----\n")));
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 2, "nothing stays behind");
    assert_eq!(home.against(&fleet.url, "operator list").await.code, Some(0));
    let again = rotate(&home, &fleet).await;
    assert_eq!(fleet.ids(), [again.as_str(), "other"]);
}

/// The requests of a rotation: list, register, try, revoke.
#[tokio::test]
async fn a_rotation_that_lost_any_answer_goes_on_where_it_stopped() {
    for lost in 0..4 {
        let (home, fleet) = (Home::new(), Fleet::start().await);
        fleet.keys.lock().unwrap().loses_answer_of = Some(lost);
        let id = rotate(&home, &fleet).await;
        assert_eq!(fleet.ids(), [id.as_str(), "other"], "answer {lost}");
        assert!(!home.path().join("ops.pem.next").exists(), "answer {lost}");
    }
}

#[tokio::test]
async fn a_refused_rotation_leaves_everything_as_it_was() {
    let (home, fleet) = (Home::new(), Fleet::start().await);
    fleet.keys.lock().unwrap().refuses = Some(1);
    let before = std::fs::read(home.key()).unwrap();
    let ran = home.against(&fleet.url, "operator rotate").await;
    assert!(ran.code == Some(1) && ran.stderr.contains("was not registered"), "{}", ran.all());
    assert_eq!(std::fs::read(home.key()).unwrap(), before);
    assert!(!home.path().join("ops.pem.next").exists());
    assert_eq!(fleet.ids(), ["ops", "other"]);
}

#[tokio::test]
async fn a_rotation_whose_revocation_was_refused_is_finished_by_the_next() {
    let (home, fleet) = (Home::new(), Fleet::start().await);
    fleet.keys.lock().unwrap().refuses = Some(3);
    let ran = home.against(&fleet.url, "operator rotate").await;
    assert!(ran.code == Some(1) && ran.stderr.contains("the new key is in place"), "{}", ran.all());
    assert_eq!(fleet.ids().len(), 3);
    let ran = home.against(&fleet.url, "operator rotate").await;
    assert!(ran.code == Some(0) && ran.stderr.contains("it has now"), "{}", ran.all());
    assert_eq!(fleet.ids().len(), 2);
    assert!(!fleet.ids().contains(&"ops".to_owned()));
}

#[tokio::test]
async fn an_id_that_was_named_is_said_to_be_gone() {
    let (home, fleet) = (Home::new(), Fleet::start().await);
    let ran = home.against(&fleet.url, "operator rotate --operator ops").await;
    assert!(ran.code == Some(0) && ran.stderr.contains("SCAFO_OPERATOR"), "{}", ran.all());
    let ran = home.against(&fleet.url, "operator list --operator ops").await;
    assert!(ran.code == Some(2) && ran.stderr.contains("leave out --operator"), "{}", ran.all());
}

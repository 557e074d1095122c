//! kill -9 of registryd in the middle of each write of each route that changes something.
//!
//! The proxy before the bucket holds one write of every request back, either before the store sees it or after it was carried
//! out; then registryd is killed. What is proved of each route: the answer is honest (a success only of what the bucket has),
//! nothing is said but what the API documents, and the same request again leads to its end.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder};
use scafo_core::Timestamp;
use scafo_core::deploy::Metadata;
use scafo_core::token::PublicKey;
use scafo_store::Bucket as _;
use scafo_tests::fault_proxy::{Exchange, Fault, FaultProxy, Nth, Operation, Rule};
use scafo_tests::stores::Store;
use scafo_tests::{Api, Node, wait};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Longer than any of these tests waits for anything: what is held back stays so.
const HELD: u64 = 600_000;
/// How long anything may take on a machine that is busy.
const LIMIT: Duration = Duration::from_secs(120);

/// A whole node with the proxy between it and its bucket.
struct World {
    node: Node,
    api: Api,
    proxy: FaultProxy,
    store: Store,
    _dir: TempDir,
}

/// When registryd dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// The write is on its way and never arrives.
    Before,
    /// The write is done and its answer never arrives.
    After,
}

/// A change of something, and where it is held back.
struct Row {
    what: &'static str,
    method: Method,
    path: &'static str,
    body: Body,
    held: (Operation, &'static str),
    /// Statuses beside a success and 503 that say the truth in this situation.
    also: &'static [u16],
    /// Whether the bucket has it.
    done: fn(&Seen) -> bool,
}

#[derive(Clone)]
enum Body {
    None,
    Json(Value),
    Artifact,
    Bytes(&'static str),
}

/// Everything that the checks look at, read past the node.
#[derive(Debug, Default)]
struct Seen(BTreeMap<String, Value>);

impl Seen {
    fn at(&self, key: &str) -> Option<&Value> {
        self.0.get(&format!("_scafo/{key}"))
    }

    fn application<'a>(&'a self, name: &str) -> &'a Value {
        self.at(&format!("applications/{name}.json")).unwrap_or(&Value::Null)
    }

    fn under(&self, prefix: &str) -> usize {
        self.0.keys().filter(|key| key.starts_with(&format!("_scafo/{prefix}"))).count()
    }

    /// A claim that stands. One that was given up may leave its mark.
    fn claims(&self, host: &str) -> bool {
        self.at(&format!("domains/{host}.json")).is_some_and(|claim| claim["released"] != true)
    }

    /// Whether an application has a host, and nothing of it is half there.
    fn has_host(&self, name: &str, host: &str) -> Option<bool> {
        let lists = self.application(name)["domains"].as_array().is_some_and(|hosts| hosts.contains(&host.into()));
        (lists == self.claims(host)).then_some(lists)
    }

    /// Whether somebody holds a lock. One that was given up leaves a body that counts as stale.
    fn locked(&self, name: &str) -> bool {
        let time = self.at(&format!("tls/locks/{name}")).and_then(|lock| lock["refreshedAt"].as_str());
        time.is_some_and(|at| at.parse::<Timestamp>().is_ok())
    }
}

fn posts(what: &'static str, path: &'static str, held: (Operation, &'static str), done: fn(&Seen) -> bool) -> Row {
    Row { what, method: Method::POST, path, body: Body::None, held, also: &[], done }
}

fn key(id: &str) -> Value {
    let mut seed = [7; 32];
    seed[..id.len()].copy_from_slice(id.as_bytes());
    json!(PublicKey::from(&ed25519_dalek::SigningKey::from_bytes(&seed)))
}

fn registers(what: &'static str, id: &'static str, held: (Operation, &'static str), done: fn(&Seen) -> bool) -> Row {
    let body = json!({ "id": id, "publicKey": key(id), "applications": ["*"], "role": "admin" });
    Row { body: Body::Json(body), ..posts(what, "/v1/operators", held, done) }
}

/// Every route that changes something, once for each write that it makes; each about something of its own.
fn rows() -> Vec<Row> {
    [settings(), domains(), deletions_and_deploys(), operators(), storage()].into_iter().flatten().collect()
}

fn with(row: Row, body: Value) -> Row {
    Row { body: Body::Json(body), ..row }
}

/// A removal: made again, it finds that there is nothing left to remove.
fn removes(what: &'static str, path: &'static str, held: (Operation, &'static str), done: fn(&Seen) -> bool) -> Row {
    Row { method: Method::DELETE, also: &[404], ..posts(what, path, held, done) }
}

fn settings() -> Vec<Row> {
    use Operation::Put;
    vec![
        posts("block", "/v1/applications/block/block", (Put, "applications/block.json"), |seen| {
            seen.application("block")["blocked"] == true
        }),
        posts("unblock", "/v1/applications/unblock/unblock", (Put, "applications/unblock.json"), |seen| {
            seen.application("unblock")["blocked"] == false
        }),
        with(
            posts("labels", "/v1/applications/labels/labels", (Put, "applications/labels.json"), |seen| {
                seen.application("labels")["labels"] == json!({ "plan": "pro" })
            }),
            json!({ "labels": { "plan": "pro" } }),
        ),
        posts("retire", "/v1/applications/retire/retire", (Put, "applications/retire.json"), |seen| {
            seen.application("retire")["retiredAt"].is_string()
        }),
        posts("unretire", "/v1/applications/unretire/unretire", (Put, "applications/unretire.json"), |seen| {
            seen.application("unretire").get("retiredAt").is_none()
        }),
        with(
            posts("selector", "/v1/applications/selector/selector", (Put, "applications/selector.json"), |seen| {
                seen.application("selector")["nodeSelector"] == json!({ "nobody": "2" })
            }),
            json!({ "selector": { "nobody": "2" } }),
        ),
        with(
            posts("replicas", "/v1/applications/replicas/replicas", (Put, "applications/replicas.json"), |seen| {
                seen.application("replicas")["replicas"] == 7
            }),
            json!({ "replicas": 7 }),
        ),
    ]
}

fn domains() -> Vec<Row> {
    use Operation::{Delete, Put};
    vec![
        posts("claim", "/v1/applications/claim/domains/claim.example", (Put, "domains/claim.example.json"), |seen| {
            seen.has_host("claim", "claim.example") == Some(true)
        }),
        posts("claim: list", "/v1/applications/list/domains/list.example", (Put, "applications/list.json"), |seen| {
            seen.has_host("list", "list.example") == Some(true)
        }),
        removes(
            "release",
            "/v1/applications/release/domains/release.example",
            (Put, "applications/release.json"),
            |seen| seen.has_host("release", "release.example") == Some(false),
        ),
        removes(
            "release: mark",
            "/v1/applications/mark/domains/mark.example",
            (Put, "domains/mark.example.json"),
            |seen| seen.has_host("mark", "mark.example") == Some(false),
        ),
        removes(
            "release: remove",
            "/v1/applications/remove/domains/remove.example",
            (Delete, "domains/remove.example.json"),
            |seen| seen.has_host("remove", "remove.example") == Some(false),
        ),
    ]
}

fn deletions_and_deploys() -> Vec<Row> {
    use Operation::{Delete, Put};
    let deploys = |row: Row| Row { body: Body::Artifact, ..row };
    vec![
        removes("delete", "/v1/applications/delete?force=1", (Put, "applications/delete.json"), |seen| {
            seen.application("delete").is_null()
        }),
        removes("delete: remove", "/v1/applications/gone?force=1", (Delete, "applications/gone.json"), |seen| {
            seen.application("gone").is_null()
        }),
        deploys(posts("deploy", "/v1/applications/deploy/deploys", (Put, "deploys/deploy/"), |seen| {
            seen.under("deploys/deploy/") > 1
        })),
        deploys(posts(
            "deploy: create",
            "/v1/applications/create/deploys",
            (Put, "applications/create.json"),
            |seen| !seen.application("create").is_null() && seen.under("deploys/create/") > 0,
        )),
    ]
}

fn operators() -> Vec<Row> {
    use Operation::{Delete, Put};
    vec![
        registers("register", "op-register", (Put, "operators/op-register.json"), |seen| {
            seen.at("operators/op-register.json").is_some()
        }),
        registers("register: reserve", "op-reserve", (Put, "identities/op-reserve.json"), |seen| {
            seen.at("operators/op-reserve.json").is_some() && seen.at("identities/op-reserve.json").is_some()
        }),
        removes("revoke", "/v1/operators/op-revoke", (Put, "operators/op-revoke.json"), |seen| {
            seen.at("operators/op-revoke.json").is_none()
        }),
        removes("revoke: remove", "/v1/operators/op-remove", (Delete, "operators/op-remove.json"), |seen| {
            seen.at("operators/op-remove.json").is_none()
        }),
    ]
}

fn storage() -> Vec<Row> {
    use Operation::Put;
    let put = posts("put", "/v1/storage/objects/put/key", (Put, "tls/objects/put/key"), |seen| {
        seen.at("tls/objects/put/key").is_some()
    });
    let lock = posts("lock", "/v1/storage/locks/lock", (Put, "tls/locks/lock"), |seen| seen.locked("lock"));
    vec![
        Row { method: Method::PUT, body: Body::Bytes("value"), ..put },
        // A lock of the process that died is nobody's any more, but only after its time.
        Row { also: &[409], ..lock },
        Row {
            method: Method::DELETE,
            ..posts("unlock", "/v1/storage/locks/unlock", (Put, "tls/locks/unlock"), |_| true)
        },
    ]
}

/// A key as the store has it. A delete of several names none.
fn full(key: &str) -> String {
    if key.is_empty() { String::new() } else { format!("_scafo/{key}") }
}

/// Those about what is the fleet's, and a delete of several keys, which would be told from no other one.
fn rows_apart() -> [Row; 3] {
    let lifts = posts("unfreeze", "/v1/fleet/freeze", (Operation::Delete, "freeze.json"), |seen| !frozen(seen));
    [
        removes("drop", "/v1/storage/objects/drop", (Operation::DeleteMany, ""), |seen| {
            seen.under("tls/objects/drop") == 0
        }),
        posts("freeze", "/v1/fleet/freeze", (Operation::Put, "freeze.json"), frozen),
        Row { method: Method::DELETE, ..lifts },
    ]
}

fn frozen(seen: &Seen) -> bool {
    seen.at("freeze.json").is_some()
}

impl World {
    async fn start() -> Self {
        let store = Store::bucketd().await;
        let proxy = FaultProxy::start(store.access(), 1).await.unwrap();
        let dir = TempDir::new().unwrap();
        let access = store.access();
        let environment = [
            ("SCAFO_BUCKET_NAME", access.name.as_str()),
            ("SCAFO_BUCKET_ENDPOINT", proxy.endpoint()),
            ("SCAFO_BUCKET_REGION", &access.region),
            ("AWS_ACCESS_KEY_ID", &access.access_key_id),
            ("AWS_SECRET_ACCESS_KEY", access.secret_access_key.expose()),
            ("SCAFO_CELLD_ENV", "CELLD_STANDIN_ALLOW_BUCKET=1"),
        ];
        let node = Node::start_in(&dir.path().join("state"), &environment).await;
        Self { api: node.api(), node, proxy, store, _dir: dir }
    }

    fn request(&self, row: &Row) -> RequestBuilder {
        let by_ingress = row.path.starts_with("/v1/storage");
        let request = if by_ingress {
            // As ingresses of ours name themselves: who names nobody cannot ask again for a lock that it may have.
            self.api.ingress_with(row.method.clone(), row.path).header("x-scafo-lock-owner", "one-ingress")
        } else {
            self.api.request(row.method.clone(), row.path)
        };
        let request = match &row.body {
            Body::None => request,
            Body::Json(value) => request.body(value.to_string()),
            Body::Bytes(text) => request.body(*text),
            // No archive, which its record says later; and no node has the label, so that nothing is started.
            Body::Artifact => request.header(scafo_core::deploy::HEADER, nowhere()).body("no archive"),
        };
        request.timeout(LIMIT)
    }

    /// Status and body of one try.
    async fn ask(&self, row: &Row) -> (u16, String) {
        let answer = self.request(row).send().await.unwrap_or_else(|error| panic!("{}: {error:?}", row.what));
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// The same until it succeeds. Where the first try may have done it, that there is nothing left to do is success.
    async fn ask_until_done(&self, row: &Row) {
        wait::until(&format!("{} to succeed", row.what), LIMIT, || async {
            let (status, body) = self.ask(row).await;
            let done = (200..300).contains(&status) || status == 404 && row.also.contains(&404);
            let later = status == 503 || row.also.contains(&status);
            assert!(done || later, "{}: {status} {body}", row.what);
            done.then_some(())
        })
        .await;
    }

    /// Everything under `_scafo/`, as the store has it at this moment.
    async fn look(&self) -> Seen {
        let bucket = self.store.bucket();
        let listing = bucket.list("_scafo/").await.unwrap();
        let mut seen = Seen::default();
        for key in listing.entries.into_iter().map(|listed| listed.key) {
            // Some go between the listing and the look.
            let Some(object) = bucket.get(&key).await.unwrap() else { continue };
            seen.0.insert(key, serde_json::from_slice(&object.body).unwrap_or(Value::Null));
        }
        seen
    }

    /// What the rows take for granted.
    async fn prepare(&self, rows: &[Row]) {
        let names = rows.iter().filter_map(|row| row.path.strip_prefix("/v1/applications/"));
        let names: Vec<&str> = names.filter_map(|rest| rest.split(['/', '?']).next()).collect();
        for name in names.into_iter().filter(|name| *name != "create") {
            let path = format!("/v1/applications/{name}/deploys");
            let request = self.api.request(Method::POST, &path).header(scafo_core::deploy::HEADER, nowhere());
            assert_eq!(request.body("no archive").send().await.unwrap().status(), 202, "{name}");
        }
        for (method, path, body) in [
            (Method::POST, "/v1/applications/unblock/block", String::new()),
            (Method::POST, "/v1/applications/unretire/retire", String::new()),
            (Method::POST, "/v1/applications/release/domains/release.example", String::new()),
            (Method::POST, "/v1/applications/mark/domains/mark.example", String::new()),
            (Method::POST, "/v1/applications/remove/domains/remove.example", String::new()),
            (Method::PUT, "/v1/storage/objects/drop/key", "value".to_owned()),
            (Method::POST, "/v1/storage/locks/unlock", String::new()),
            (Method::POST, "/v1/operators", operator("op-revoke")),
            (Method::POST, "/v1/operators", operator("op-remove")),
        ] {
            let request = if path.starts_with("/v1/storage") {
                self.api.ingress_with(method, path).header("x-scafo-lock-owner", "one-ingress")
            } else {
                self.api.request(method, path)
            };
            let answer = request.body(body).send().await.unwrap();
            assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap());
        }
        // What was deployed is no archive, and a deletion waits for a deploy that is still under way.
        wait::until("the deploys to end", LIMIT, || async {
            let seen = self.look().await;
            let under_way = |(key, deploy): (&String, &Value)| {
                key.starts_with("_scafo/deploys/")
                    && !["failed", "deployed"].map(Value::from).contains(&deploy["state"])
            };
            (!seen.0.iter().any(under_way)).then_some(())
        })
        .await;
    }

    /// Sends every row, holds a write of each back, kills registryd, and checks what comes of it.
    async fn kill_in_the_middle(&self, rows: &[Row], moment: Moment) {
        for row in rows {
            let fault = match moment {
                Moment::Before => Fault::DelayRequest { by_ms: HELD },
                Moment::After => Fault::DelayAnswer { by_ms: HELD },
            };
            let (operation, key) = row.held;
            self.proxy.push(Rule::new(fault).on([operation]).under(full(key)).nth(Nth::First(1)));
        }
        self.proxy.take_log();
        let answers = join_all(rows.iter().map(|row| self.ask(row)));
        let kill = async {
            let since = Instant::now();
            loop {
                let log = self.proxy.log();
                let free = |row: &&Row| !log.iter().any(|exchange| is_held(exchange, row, moment));
                let free: Vec<&str> = rows.iter().filter(free).map(|row| row.what).collect();
                if free.is_empty() {
                    break;
                }
                assert!(since.elapsed() < LIMIT, "not in the middle: {free:?}\n{}", self.node.log());
                wait::moment().await;
            }
            self.node.kill_daemon("scafo-registryd").await;
        };
        let (answers, ()) = tokio::join!(answers, kill);
        self.proxy.calm();

        let seen = self.look().await;
        for (row, (status, body)) in rows.iter().zip(&answers) {
            let success = (200..300).contains(status);
            assert!(success || *status == 503 || row.also.contains(status), "{moment:?} {}: {status} {body}", row.what);
            assert!(!success || (row.done)(&seen), "{moment:?} {}: {status} {body}, but {seen:#?}", row.what);
        }
        join_all(rows.iter().map(|row| self.ask_until_done(row))).await;
        let seen = self.look().await;
        for row in rows {
            assert!((row.done)(&seen), "{moment:?} {} is not done: {seen:#?}", row.what);
        }
    }

    /// Each route of the description that changes something.
    async fn every_route_is_among<'a>(&self, rows: impl Iterator<Item = &'a Row> + Clone) {
        let answer = self.api.bare(Method::GET, "/openapi.json").send().await.unwrap();
        let description: Value = answer.json().await.unwrap();
        for (path, methods) in description["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys().filter(|method| *method != "get") {
                let of = |row: &Row| row.method.as_str().eq_ignore_ascii_case(method) && fits(path, row.path);
                assert!(rows.clone().any(of), "nothing kills {method} {path}");
            }
        }
    }

    async fn check_that_nothing_is_left_over(&self) {
        // No deploy that nobody was told of stays on its way.
        wait::until("every deploy to end", LIMIT, || async {
            let seen = self.look().await;
            let ended = ["failed", "deployed"].map(Value::from);
            let deploys = seen.0.iter().filter(|(key, _)| key.starts_with("_scafo/deploys/"));
            deploys.map(|(_, deploy)| &deploy["state"]).all(|state| ended.contains(state)).then_some(())
        })
        .await;
        // A lock that was given up is anybody's: at once, or, where the one who held it died, after its time.
        wait::until("the lock that was given up", LIMIT, || async {
            let request = self.api.ingress_with(Method::POST, "/v1/storage/locks/unlock");
            let status = request.header("x-scafo-lock-owner", "another").send().await.ok()?.status().as_u16();
            (status == 204).then_some(())
        })
        .await;
    }
}

fn is_held(exchange: &Exchange, row: &Row, moment: Moment) -> bool {
    let (operation, key) = row.held;
    let about = exchange.asked.operation == operation && exchange.asked.key.starts_with(&full(key));
    let reached = exchange.store.is_some() == (moment == Moment::After);
    about && !exchange.faults.is_empty() && exchange.ended.is_none() && reached
}

/// Whether a path is one of a pattern; the last parameter of a storage route takes all that is left.
fn fits(pattern: &str, path: &str) -> bool {
    let tail = pattern.starts_with("/v1/storage/");
    let (mut pattern, mut path) = (pattern.split('/'), path.split('?').next().unwrap_or_default().split('/'));
    loop {
        match (pattern.next(), path.next()) {
            (Some(wanted), Some(part)) if wanted.starts_with('{') || wanted == part => {}
            (None, None) => return true,
            (None, Some(_)) => return tail,
            (Some(_), Some(_) | None) => return false,
        }
    }
}

fn nowhere() -> String {
    let selector = [("nobody".to_owned(), "1".to_owned())].into();
    Metadata { node_selector: Some(selector), ..Metadata::default() }.encode()
}

fn operator(id: &str) -> String {
    json!({ "id": id, "publicKey": key(id), "applications": ["*"], "role": "admin" }).to_string()
}

async fn killed(moment: Moment) {
    let world = World::start().await;
    let rows = rows();
    let apart = rows_apart();
    world.every_route_is_among(rows.iter().chain(&apart)).await;
    world.prepare(&rows).await;
    world.kill_in_the_middle(&rows, moment).await;
    for row in &apart {
        world.kill_in_the_middle(std::slice::from_ref(row), moment).await;
    }
    world.check_that_nothing_is_left_over().await;
    world.node.stop().await;
}

#[tokio::test]
async fn a_registryd_that_dies_before_a_write_arrives_leaves_honest_answers_and_safe_retries() {
    killed(Moment::Before).await;
}

#[tokio::test]
async fn a_registryd_that_dies_after_a_write_landed_leaves_honest_answers_and_safe_retries() {
    killed(Moment::After).await;
}

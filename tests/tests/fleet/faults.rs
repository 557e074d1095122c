//! Three whole nodes, each behind a proxy that fails its requests to the bucket, while clients of all three change things.
//! Afterwards nothing that was acknowledged is lost, nobody was told that it lost what it won, and the nodes agree.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use ed25519_dalek::SigningKey;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use reqwest::Method;
use scafo_core::token::PublicKey;
use scafo_tests::fault_proxy::{
    Character, Cut, Fault, FaultProxy, Operation, Reply, Rule, TagForm, TagForms, WriteLimit,
};
use scafo_tests::linear::{self, Claim, Event, Register};
use scafo_tests::{Api, Node, Project};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{Fleet, call, ended, id, long, record, seed, send_deploy, until};

const NODES: usize = 3;
const HOSTS: usize = 6;

/// Everything of scafo's own.
const REGISTRY: &str = "_scafo/";
/// What the runtime keeps for applications: their code, their pointers, the leases of its processes.
const FLEETS: &str = "fleets/";

/// Together they befall about three requests in ten.
const FAULTS: [Fault; 14] = [
    Fault::DropRequest,
    Fault::DropAnswer,
    Fault::DropAnswer,
    Fault::LandLate { after_ms: 300 },
    Fault::TearAnswer,
    Fault::Mask(Reply::InternalError),
    Fault::Answer(Reply::InternalError),
    Fault::Answer(Reply::ServiceUnavailable),
    Fault::Answer(Reply::ConditionalRequestConflict),
    Fault::Answer(Reply::OperationAborted),
    Fault::Answer(Reply::SlowDown),
    Fault::Answer(Reply::TooManyRequests),
    Fault::DelayRequest { by_ms: 80 },
    Fault::DelayAnswer { by_ms: 80 },
];

/// What befalls requests of the runtime, about one in ten: deploy jobs fail in the middle, and processes that cannot renew their
/// lease fence themselves. Nothing here lands after its sender was told that it failed: a pointer that moves long after its
/// job is celld's to protect against.
const FAULTS_OF_RUNTIMES: [Fault; 7] = [
    Fault::DropRequest,
    Fault::DropAnswer,
    Fault::TearAnswer,
    Fault::Answer(Reply::InternalError),
    Fault::Answer(Reply::ServiceUnavailable),
    Fault::Answer(Reply::SlowDown),
    Fault::DelayAnswer { by_ms: 80 },
];

/// What each node's proxy does beside that: every node has another store, as far as it can tell.
fn misbehave(proxies: &[FaultProxy]) {
    let writes = [Operation::Get, Operation::Head, Operation::Put, Operation::List];
    for (number, proxy) in proxies.iter().enumerate() {
        for fault in FAULTS {
            proxy.push(Rule::new(fault).on(writes).under(REGISTRY).percent(2));
        }
        for fault in FAULTS_OF_RUNTIMES {
            proxy.push(Rule::new(fault).on(writes).under(FLEETS).percent(2));
        }
        proxy.push(Rule::new(Fault::DropRequest).on([Operation::Delete]).under(REGISTRY).percent(10));
        proxy.push(Rule::new(Fault::DropAnswer).on([Operation::Delete]).under(REGISTRY).percent(10));
        proxy.push(Rule::new(Fault::CutListing(Cut::LaterPages)).on([Operation::List]).under(REGISTRY).percent(5));
        proxy.push(Rule::new(Fault::ShiftDate { by_s: 7 }).on([Operation::List]).under(REGISTRY).percent(10));
        let bare = Some(TagForm::Bare);
        proxy.play(match number % NODES {
            0 => Character { tags: TagForms { answers: bare, listings: bare, takes: None }, ..Character::honest() },
            1 => Character {
                write_limit: Some(WriteLimit { every_ms: 1_000, answer: Reply::SlowDown }),
                ..Character::honest()
            },
            _ => Character { clock_s: -5, ..Character::honest() },
        });
    }
}

fn behave(proxies: &[FaultProxy]) {
    for proxy in proxies {
        proxy.calm();
        proxy.play(Character::honest());
    }
}

/// What one client of one node was told.
#[derive(Default)]
struct Told {
    labels: Vec<Event<Register>>,
    hosts: Vec<(usize, Event<Claim>)>,
    /// Operator keys, and whether they stand as far as anybody said.
    operators: BTreeMap<String, Option<bool>>,
    /// Of its own application: answers that a deploy may have left, the last certain one first.
    answers: Vec<String>,
    /// Requests whose outcome nobody knows.
    unknown: usize,
    requests: usize,
}

struct Client {
    api: Api,
    number: usize,
    start: Instant,
    random: StdRng,
    told: Told,
}

fn application(number: usize) -> String {
    format!("shop-{number}")
}

fn host(number: usize) -> String {
    format!("host-{number}.example.net")
}

fn worker(number: usize, answer: &str) -> Project {
    Project::answering(&application(number), answer)
}

impl Client {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// One request: `Some` with its status when that says what became of it.
    async fn known(&mut self, method: Method, path: &str, body: Option<Value>) -> Option<(u16, Value)> {
        self.told.requests += 1;
        let (status, body) = call(&self.api, method, path, body).await;
        let unknown = match status {
            0 | 503 => true,
            409 => body["type"] == "urn:scafo:cas-conflict",
            _ => false,
        };
        if unknown {
            self.told.unknown += 1;
            return None;
        }
        Some((status, body))
    }

    async fn run(mut self, turns: usize) -> Told {
        for turn in 0..turns {
            let value = (turn * NODES + self.number + 1) as u64;
            match self.random.random_range(0..100) {
                0..25 => self.set_labels(value).await,
                25..50 => self.read_labels().await,
                50..75 => self.claim().await,
                75..90 => self.register(turn).await,
                _ => self.set_own(turn).await,
            }
            if turn % 10 == 5 {
                self.deploy(turn).await;
            }
        }
        self.told
    }

    /// Everybody sets the same register.
    async fn set_labels(&mut self, value: u64) {
        let began = self.now();
        let body = json!({ "labels": { "value": value.to_string() } });
        let answer = self.known(Method::POST, "/v1/applications/shop-0/labels", Some(body)).await;
        if let Some((status, body)) = &answer {
            assert_eq!(*status, 200, "{body}");
        }
        let event = Event { what: Register::Write(value), began, ended: answer.map(|_| self.now()) };
        self.told.labels.push(event);
    }

    async fn read_labels(&mut self) {
        let began = self.now();
        let Some((status, body)) = self.known(Method::GET, "/v1/applications/shop-0", None).await else { return };
        assert_eq!(status, 200, "{body}");
        let value = body["application"]["labels"]["value"].as_str().map(|value| value.parse().unwrap());
        self.told.labels.push(Event { what: Register::Read(value), began, ended: Some(self.now()) });
    }

    async fn claim(&mut self) {
        let number = self.random.random_range(0..HOSTS);
        let path = format!("/v1/applications/{}/domains/{}", application(self.number), host(number));
        let began = self.now();
        let told = match self.known(Method::POST, &path, None).await {
            Some((200, _)) => Some(true),
            Some((409, body)) if body["type"] == "urn:scafo:reference-held" => Some(false),
            Some((status, body)) => panic!("{status} {body}"),
            None => None,
        };
        let event = Event { what: Claim::By(self.number, told), began, ended: told.map(|_| self.now()) };
        self.told.hosts.push((number, event));
    }

    async fn register(&mut self, turn: usize) {
        let name = format!("key-{}-{turn}", self.number);
        let secret = [u8::try_from(self.number * 80 + turn % 80).unwrap(); 32];
        let key = PublicKey::from(&SigningKey::from_bytes(&secret));
        let body = json!({ "id": name, "publicKey": key, "applications": ["shop-*"] });
        let registered = self.known(Method::POST, "/v1/operators", Some(body)).await;
        if let Some((status, body)) = &registered {
            assert_eq!(*status, 200, "{body}");
        }
        self.told.operators.insert(name.clone(), registered.map(|_| true));
        if turn.is_multiple_of(2) {
            return;
        }
        match self.known(Method::DELETE, &format!("/v1/operators/{name}"), None).await {
            Some((200 | 404, _)) => self.told.operators.insert(name, Some(false)),
            Some((status, body)) => panic!("{status} {body}"),
            None => self.told.operators.insert(name, None),
        };
    }

    /// What only this client decides about its own application.
    async fn set_own(&mut self, turn: usize) {
        let path = format!("/v1/applications/{}/replicas", application(self.number));
        let replicas = 1 + turn % NODES;
        if let Some((status, body)) = self.known(Method::POST, &path, Some(json!({ "replicas": replicas }))).await {
            assert_eq!(status, 200, "{body}");
        }
    }

    async fn deploy(&mut self, turn: usize) {
        let answer = format!("answer {turn} of {}", self.number);
        self.told.requests += 1;
        match send_deploy(&self.api, &application(self.number), &worker(self.number, &answer)).await {
            // Nothing was told; it may be carried out or not.
            Err((0 | 503, _)) => {
                self.told.unknown += 1;
                self.told.answers.push(answer);
            }
            Err((status, body)) => panic!("{status} {body}"),
            Ok(deploy) => match ended(&self.api, &deploy).await {
                deploy if deploy["state"] == "deployed" => self.told.answers = vec![answer],
                // Published and not taken up in time, mostly.
                _ => self.told.answers.push(answer),
            },
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_nodes_lose_nothing_that_was_acknowledged_and_agree_when_the_faults_end() {
    let seed = seed();
    println!("SCAFO_TEST_SEED={seed}");
    let fleet = Fleet::start(NODES, seed, &[]).await;
    for number in 0..NODES {
        let api = fleet.nodes[number].api();
        let deploy = send_deploy(&api, &application(number), &worker(number, "first")).await.unwrap();
        let deploy = ended(&api, &deploy).await;
        assert_eq!(deploy["state"], "deployed", "{deploy}\n{}", fleet.nodes[number].log());
    }
    misbehave(&fleet.proxies);
    let start = Instant::now();
    let turns = if long() { 200 } else { 16 };
    let mut clients = JoinSet::new();
    for (number, node) in fleet.nodes.iter().enumerate() {
        let random = StdRng::seed_from_u64(seed.wrapping_add(number as u64));
        let told = Told { answers: vec!["first".to_owned()], ..Told::default() };
        let client = Client { api: node.api(), number, start, random, told };
        clients.spawn(async move { (number, client.run(turns).await) });
    }
    let told: BTreeMap<usize, Told> = clients.join_all().await.into_iter().collect();
    let counts: Vec<_> = fleet.proxies.iter().map(FaultProxy::counts).collect();
    behave(&fleet.proxies);
    let (requests, unknown) = told.values().fold((0, 0), |sum, told| (sum.0 + told.requests, sum.1 + told.unknown));
    println!("{requests} requests of clients in {:.1?}, {unknown} of unknown end; {counts:?}", start.elapsed());
    for counts in &counts {
        assert!(counts.faulty * 10 > counts.requests, "the run was not hard: {counts:?}");
    }
    assert!(unknown * 2 < requests, "hardly anything was acknowledged");
    let calm = Instant::now();
    agree(&fleet.nodes).await;
    let answers: BTreeMap<usize, BTreeSet<String>> =
        told.iter().map(|(number, told)| (*number, told.answers.iter().cloned().collect())).collect();
    served(&fleet.nodes, &answers).await;
    println!("the nodes agree and serve after {:.1?}", calm.elapsed());
    nothing_is_lost(&fleet, told, start).await;
    fleet.stop().await;
}

/// What the nodes know and say is the same.
async fn agree(nodes: &[Node]) {
    until("the nodes to agree", nodes, || async {
        let mut seen: Vec<(Value, Value, Vec<u8>)> = Vec::new();
        for node in nodes {
            let api = node.api();
            let (_, applications) = call(&api, Method::GET, "/v1/applications", None).await;
            let (_, state) = call(&api, Method::GET, "/v1/state", None).await;
            let placements = state["placements"].as_array().ok_or_else(|| format!("no placements: {state}"))?;
            if placements.len() != NODES || !placements.iter().all(placed) {
                return Err(format!("not placed: {placements:?}"));
            }
            let placements = placements.iter().map(|it| json!([it["application"], it["nodes"], it["fence"]]));
            let path = format!("/v1/ingress/routes?prefer={}", id(0));
            let document = api.ingress(&path).send().await.map_err(|error| error.to_string())?;
            let document = document.bytes().await.map_err(|error| error.to_string())?;
            seen.push((applications, placements.collect(), document.to_vec()));
        }
        let [first, others @ ..] = &seen[..] else { return Err("no nodes".to_owned()) };
        if others.iter().all(|other| other == first) { Ok(()) } else { Err(format!("they differ: {seen:?}")) }
    })
    .await;
}

fn placed(placement: &Value) -> bool {
    placement["nodes"].as_array().is_some_and(|nodes| !nodes.is_empty())
}

/// Every application answers through every node's ingress, with an answer that may be its last.
async fn served(nodes: &[Node], answers: &BTreeMap<usize, BTreeSet<String>>) {
    until("every application to be served", nodes, || async {
        for node in nodes {
            for (number, expected) in answers {
                match node.get(&application(*number), "/").await {
                    Ok((200, body)) if expected.contains(&body) => {}
                    other => return Err(format!("{} at {}: {other:?}, not {expected:?}", number, node.dev.node)),
                }
            }
        }
        Ok(())
    })
    .await;
}

async fn nothing_is_lost(fleet: &Fleet, told: BTreeMap<usize, Told>, start: Instant) {
    let (mut labels, mut hosts, mut operators) = (Vec::new(), BTreeMap::<usize, Vec<Event<Claim>>>::new(), Vec::new());
    for told in told.into_values() {
        labels.extend(told.labels);
        operators.extend(told.operators);
        for (number, event) in told.hosts {
            hosts.entry(number).or_default().push(event);
        }
    }
    let began = start.elapsed();
    let shop = record(fleet.store(), "_scafo/applications/shop-0.json").await.unwrap();
    let value = shop["labels"]["value"].as_str().map(|value| value.parse().unwrap());
    labels.push(Event { what: Register::Read(value), began, ended: Some(start.elapsed()) });
    linear::seen_writes(&mut labels);
    linear::check(&labels).unwrap_or_else(|wrong| panic!("labels: {wrong}"));
    for (number, mut events) in hosts {
        let claim = record(fleet.store(), &format!("_scafo/domains/{}.json", host(number))).await;
        let holder = claim.filter(|claim| claim["released"] != true).map(|claim| {
            (0..NODES).find(|by| claim["application"] == application(*by)).unwrap_or_else(|| panic!("{claim}"))
        });
        events.push(Event { what: Claim::Read(holder), began, ended: Some(start.elapsed()) });
        linear::check(&events).unwrap_or_else(|wrong| panic!("{}: {wrong}", host(number)));
        for by in 0..NODES {
            let key = format!("_scafo/applications/{}.json", application(by));
            let record = record(fleet.store(), &key).await.unwrap();
            let lists = record["domains"].as_array().unwrap().iter().any(|listed| *listed == host(number));
            let won = events.iter().any(|event| matches!(event.what, Claim::By(who, Some(true)) if who == by));
            assert!(!won || lists, "{} won {} and does not list it", application(by), host(number));
            assert!(!lists || holder == Some(by), "{} lists {}, which {holder:?} holds", application(by), host(number));
        }
    }
    for (name, stands) in operators {
        let there = record(fleet.store(), &format!("_scafo/operators/{name}.json")).await.is_some();
        assert!(stands.is_none_or(|stands| stands == there), "{name}: told {stands:?}, and it is there: {there}");
    }
}

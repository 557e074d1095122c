//! Registries of several nodes on one true store, each through a proxy of its own that fails three requests in ten.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ed25519_dalek::SigningKey;
use scafo_core::record::{ApplicationRecord, IdentityKind, IdentityReservation, Rest, V1};
use scafo_core::token::PublicKey;
use scafo_core::{ApplicationName, Problem, ProblemCode};
use scafo_registryd::registry::{Intent, Reason, Registry};
use scafo_store::Bucket as _;
use scafo_tests::fault_proxy::{
    Character, Conditional, Exchange, Fault, FaultProxy, Nth, Operation, Reply, Rule, WriteLimit,
};
use scafo_tests::stores::Store;
use scafo_tests::wait;
use tokio::task::JoinSet;

use crate::history::{self, Update};
use crate::support::{Bench, long, proxy, registry, seed};

const NODES: usize = 3;

/// Together they befall three requests in ten.
const FAULTS: [Fault; 12] = [
    Fault::DropRequest,
    Fault::DropAnswer,
    Fault::DropAnswer,
    Fault::LandLate { after_ms: 40 },
    Fault::LandLate { after_ms: 400 },
    Fault::TearAnswer,
    Fault::Mask(Reply::InternalError),
    Fault::Answer(Reply::ConditionalRequestConflict),
    Fault::Answer(Reply::OperationAborted),
    Fault::Answer(Reply::SlowDown),
    Fault::Answer(Reply::TooManyRequests),
    Fault::DelayAnswer { by_ms: 60 },
];

/// Three nodes on one store.
pub(crate) struct Fleet {
    store: Store,
    pub(crate) nodes: Vec<(FaultProxy, Arc<Registry>)>,
}

impl Fleet {
    pub(crate) async fn start(seed: u64) -> Self {
        let store = Store::bucketd().await;
        let mut nodes = Vec::new();
        for node in 0..NODES {
            let proxy = proxy(&store, seed.wrapping_add(node as u64)).await;
            let registry = Arc::new(registry(&proxy, &format!("node-{node}")));
            nodes.push((proxy, registry));
        }
        Self { store, nodes }
    }

    pub(crate) fn misbehave(&self) {
        for (proxy, _) in &self.nodes {
            for fault in FAULTS {
                proxy.push(Rule::new(fault).on([Operation::Get, Operation::Put]).percent(3));
            }
        }
    }

    pub(crate) fn registry(&self, number: usize) -> Arc<Registry> {
        Arc::clone(&self.nodes[number % NODES].1)
    }

    fn requests(&self) -> u64 {
        self.nodes.iter().map(|(proxy, _)| proxy.counts().requests).sum()
    }

    /// Makes sure that the run was hard, far below what is to be expected: a tenth of the requests faulty, and some answer to
    /// a conditional write that had taken place lost.
    pub(crate) fn assert_hard(&self) {
        let (mut faulty, mut all, mut lost) = (0, 0, 0);
        for (proxy, _) in &self.nodes {
            let counts = proxy.counts();
            faulty += counts.faulty;
            all += counts.requests;
            let took_place = |exchange: &&Exchange| exchange.asked.conditional.is_some() && exchange.store == Some(200);
            lost += proxy.log().iter().filter(took_place).filter(|exchange| exchange.told != Some(200)).count();
        }
        println!("{faulty} of {all} requests faulty, {lost} answers to conditional writes that took place lost");
        assert!(faulty * 10 > all, "{faulty} of {all}");
        assert!(lost > 0);
    }
}

/// What a caller may be told when nobody knows, or when others were quicker for half a minute.
pub(crate) fn is_undecided(problem: &Problem) -> bool {
    matches!(problem.code, ProblemCode::StoreUnavailable | ProblemCode::CasConflict)
}

pub(crate) fn application(number: usize) -> ApplicationName {
    format!("app-{number}").parse().unwrap()
}

/// One update that adds a label, if it is acknowledged.
async fn add(registry: &Registry, name: &ApplicationName, label: String, start: Instant) -> Option<Update> {
    let began = start.elapsed();
    let mutate = |record: &mut ApplicationRecord| {
        record.labels.get_or_insert_default().insert(label.clone(), "1".to_owned());
        Ok(())
    };
    match registry.update_application(&Intent::new().or_overtaken(), name, mutate).await {
        Ok(changed) => {
            let told = changed.stored.record.labels.unwrap_or_default().into_keys().collect();
            Some(Update { label, began, ended: start.elapsed(), told })
        }
        Err(problem) if is_undecided(&problem) => None,
        Err(problem) => panic!("{problem:?}"),
    }
}

/// Eight writers on three nodes; what they were told is one history that everybody could have seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_through_faults_are_linearizable_and_nothing_acknowledged_is_lost() {
    const WRITERS: usize = 8;
    let (operations, applications) = if long() { (1_250, 40) } else { (20, 5) };
    let seed = seed();
    println!("SCAFO_TEST_SEED={seed}");
    let fleet = Fleet::start(seed).await;
    for number in 0..applications {
        fleet.registry(0).create_application(&application(number)).await.unwrap();
    }
    fleet.misbehave();
    let start = Instant::now();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let registry = fleet.registry(writer);
        writers.spawn(async move {
            let mut acknowledged = Vec::new();
            for operation in 0..operations {
                let number = (writer * 7 + operation) % applications;
                let update = add(&registry, &application(number), format!("w{writer}-{operation}"), start).await;
                acknowledged.extend(update.map(|update| (number, update)));
            }
            acknowledged
        });
    }
    let acknowledged: Vec<(usize, Update)> = writers.join_all().await.into_iter().flatten().collect();
    for number in 0..applications {
        let key = scafo_core::key::application(&application(number));
        let object = fleet.store.bucket().get(&key).await.unwrap().unwrap();
        let record: ApplicationRecord = serde_json::from_slice(&object.body).unwrap();
        let stands: BTreeSet<String> = record.labels.unwrap_or_default().into_keys().collect();
        let of_key = acknowledged.iter().filter(|(of, _)| *of == number).map(|(_, update)| update.clone());
        history::check(of_key.collect(), &stands).unwrap_or_else(|wrong| panic!("{key}: {wrong}"));
    }
    println!("{} of {} acknowledged", acknowledged.len(), WRITERS * operations);
    fleet.assert_hard();
    // Faults cost time, hardly ever an operation.
    assert!(acknowledged.len() * 10 > WRITERS * operations * 9, "{} acknowledged", acknowledged.len());
}

/// A change that must not run twice runs at most once for each caller, and exactly once for one that was told that it did;
/// the store is killed in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_changes_through_faults_and_crashes_of_the_store_happen_once() {
    const WRITERS: usize = 6;
    let (operations, crashes) = if long() { (400, 20) } else { (15, 2) };
    let seed = seed();
    println!("SCAFO_TEST_SEED={seed}");
    let mut fleet = Fleet::start(seed).await;
    let name = application(0);
    fleet.registry(0).create_application(&name).await.unwrap();
    fleet.misbehave();
    let start = Instant::now();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (registry, name) = (fleet.registry(writer), name.clone());
        writers.spawn(async move {
            let mut steps = Vec::new();
            for _ in 0..operations {
                steps.extend(count_on(&registry, &name, start).await);
            }
            steps
        });
    }
    for crash in 1..=crashes {
        // Spread over the run by its own progress: each try takes a read and a write at least.
        let far = (WRITERS * operations * crash / (crashes + 1)) as u64;
        wait::until("progress", Duration::from_secs(300), || async { (fleet.requests() > far * 2).then_some(()) })
            .await;
        fleet.store.crash_bucketd().await;
    }
    let steps: Vec<history::Step> = writers.join_all().await.into_iter().flatten().collect();
    let tried = WRITERS * operations;
    println!("{} of {tried} acknowledged", steps.len());
    fleet.assert_hard();
    let object = fleet.store.bucket().get(&scafo_core::key::application(&name)).await.unwrap().unwrap();
    let record: ApplicationRecord = serde_json::from_slice(&object.body).unwrap();
    history::check_counter(steps, tried as u64, sum(&record)).unwrap_or_else(|wrong| panic!("{wrong}"));
}

/// One step of the counter, if it is acknowledged.
async fn count_on(registry: &Registry, name: &ApplicationName, start: Instant) -> Option<history::Step> {
    let began = start.elapsed();
    let mutate = |record: &mut ApplicationRecord| {
        let next = sum(record) + 1;
        record.labels.get_or_insert_default().insert("sum".to_owned(), next.to_string());
        Ok(())
    };
    match registry.update_application(&Intent::new().once(), name, mutate).await {
        Ok(changed) => Some(history::Step { began, ended: start.elapsed(), sum: sum(&changed.stored.record) }),
        Err(problem) if is_undecided(&problem) => None,
        Err(problem) => panic!("{problem:?}"),
    }
}

fn sum(record: &ApplicationRecord) -> u64 {
    let sum = record.labels.as_ref().and_then(|labels| labels.get("sum"));
    sum.map_or(0, |sum| sum.parse().unwrap())
}

/// Three nodes reserve the same identity at once, under write ids that tell afterwards whose create took place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_told_that_it_lost_a_create_that_it_won() {
    let rounds = if long() { 300 } else { 25 };
    let seed = seed();
    println!("SCAFO_TEST_SEED={seed}");
    let fleet = Fleet::start(seed).await;
    fleet.misbehave();
    for (proxy, _) in &fleet.nodes {
        // What this is about, often enough for a few rounds.
        proxy.push(Rule::new(Fault::DropAnswer).conditional(Conditional::Create).percent(30));
    }
    let mut told_won = 0;
    for round in 0..rounds {
        let id = format!("node-{round}");
        let mut racers = JoinSet::new();
        for racer in 0..NODES {
            let (registry, id) = (fleet.registry(racer), id.clone());
            racers.spawn(async move {
                let identity = reservation(&registry, &id, racer);
                let write_id = format!("{id}-by-{racer}");
                let intent = Intent::new().operation(&write_id);
                (write_id, registry.engine().create(&intent, &identity).await)
            });
        }
        let results = racers.join_all().await;
        let object = fleet.store.bucket().get(&scafo_core::key::identity(&id)).await.unwrap();
        let winner = object.map(|object| object.head.metadata["scafo-write"].clone());
        for (write_id, result) in results {
            let won = Some(&write_id) == winner.as_ref();
            match result {
                Ok(changed) => {
                    assert_eq!(changed.written, won, "{write_id} was told wrongly; {winner:?} won");
                    told_won += usize::from(won);
                }
                Err(problem) => assert!(is_undecided(&problem), "{problem:?}"),
            }
        }
    }
    fleet.assert_hard();
    assert!(told_won * 10 > rounds * 9, "only {told_won} of {rounds} winners know");
}

fn reservation(registry: &Registry, id: &str, racer: usize) -> IdentityReservation {
    let secret = [u8::try_from(racer).unwrap(); 32];
    IdentityReservation {
        v: V1,
        id: id.to_owned(),
        kind: IdentityKind::Node,
        public_key: PublicKey::from(&SigningKey::from_bytes(&secret)),
        reserved_at: registry.clock().wall(),
        rest: Rest::new(),
    }
}

/// Field case A03: two answers that say "busy" are no lost condition.
#[tokio::test]
async fn a_busy_store_does_not_run_a_change_again() {
    let bench = Bench::start().await;
    let registry = bench.registry();
    let name = application(1);
    registry.create_application(&name).await.unwrap();
    let aborted = Rule::new(Fault::Answer(Reply::OperationAborted)).conditional(Conditional::Update);
    bench.proxy.push(aborted.nth(Nth::First(2)));
    let runs = AtomicUsize::new(0);
    let mutate = |record: &mut ApplicationRecord| {
        runs.fetch_add(1, Ordering::Relaxed);
        record.blocked = true;
        Ok(())
    };
    assert!(registry.update_application(&Intent::new(), &name, mutate).await.unwrap().written);
    assert_eq!(runs.into_inner(), 1);
}

/// Field case A04: the record goes between the read and the write.
#[tokio::test]
async fn an_update_of_a_record_that_goes_does_not_bring_it_back() {
    let bench = Bench::start().await;
    let registry = bench.registry();
    let name = application(1);
    registry.create_application(&name).await.unwrap();
    let key = scafo_core::key::application(&name);
    // Long enough for the delete to come in between, and nothing depends on how long.
    bench.proxy.push(Rule::new(Fault::DelayRequest { by_ms: 1_000 }).conditional(Conditional::Update));
    let mutate = |record: &mut ApplicationRecord| {
        record.blocked = true;
        Ok(())
    };
    let intent = Intent::new();
    let update = registry.update_application(&intent, &name, mutate);
    let delete = async {
        wait::until("the update", Duration::from_secs(60), || async {
            let seen = bench.proxy.log().iter().any(|seen| seen.asked.conditional == Some(Conditional::Update));
            seen.then_some(())
        })
        .await;
        bench.store.bucket().delete(&key).await.unwrap();
    };
    let (updated, ()) = tokio::join!(update, delete);
    let problem = updated.unwrap_err();
    assert!(matches!(problem.code, ProblemCode::NotFound | ProblemCode::CasConflict), "{problem:?}");
    assert!(bench.store.bucket().get(&key).await.unwrap().is_none());
}

/// Field case A19: the read that should tell whether a create took place fails too.
#[tokio::test]
async fn a_create_in_conflict_whose_reads_fail_is_never_taken_for_existing() {
    let bench = Bench::start().await;
    let registry = bench.registry();
    let conflict = Rule::new(Fault::Answer(Reply::ConditionalRequestConflict)).conditional(Conditional::Create);
    bench.proxy.push(conflict.nth(Nth::First(2)));
    bench.proxy.push(Rule::new(Fault::DropAnswer).on([Operation::Get]).nth(Nth::First(3)));
    let created = registry.create_application(&application(1)).await.unwrap();
    assert!(created.written);
}

/// Field case A18: equal bodies prove nothing. Everybody freezes for the same reason, and the answer to each first try is lost.
#[tokio::test]
async fn of_equal_freezes_whose_answers_are_lost_exactly_one_is_told_that_it_is_the_one() {
    let fleet = Fleet::start(1).await;
    for round in 0..10 {
        for (proxy, _) in &fleet.nodes {
            proxy.calm();
            let lost = Rule::new(Fault::DropAnswer).conditional(Conditional::Create);
            proxy.push(lost.nth(Nth::First(1)));
        }
        let mut admins = JoinSet::new();
        for node in 0..NODES {
            let registry = fleet.registry(node);
            admins.spawn(async move {
                let reason = Reason::parse("the same").unwrap();
                registry.freeze("operator", reason).await.unwrap().created
            });
        }
        let created = admins.join_all().await.into_iter().filter(|created| *created).count();
        assert_eq!(created, 1, "round {round}");
        assert!(fleet.registry(0).unfreeze().await.unwrap());
    }
}

/// A store that takes one write in a while for each key makes writers wait, and nothing else.
#[tokio::test]
async fn a_store_that_limits_writes_loses_no_update() {
    for answer in [Reply::TooManyRequests, Reply::SlowDown] {
        let bench = Bench::start().await;
        let write_limit = Some(WriteLimit { every_ms: 150, answer });
        bench.proxy.play(Character { write_limit, ..Character::honest() });
        let registry = Arc::new(bench.registry());
        let name = application(1);
        registry.create_application(&name).await.unwrap();
        let start = Instant::now();
        let mut writers = JoinSet::new();
        for writer in 0..3 {
            let (registry, name) = (Arc::clone(&registry), name.clone());
            writers.spawn(async move {
                for number in 0..2 {
                    let update = add(&registry, &name, format!("w{writer}-{number}"), start).await;
                    assert!(update.is_some(), "{answer:?}: {writer} gave up at {number}");
                }
            });
        }
        writers.join_all().await;
        let record = registry.application(&name).await.unwrap().unwrap().record;
        assert_eq!(record.labels.unwrap().len(), 6, "{answer:?}");
    }
}

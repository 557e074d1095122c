//! Deleting applications: refusals, waiting, and crashes at every request.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use scafo_core::{
    ApplicationName, NodeId, Problem, ProblemCode,
    domain::Host,
    record::{DeployRecord, DeployState, Fence, PlacementRecord, Rest, V1},
};
use scafo_store::{Fault, MemoryBucket, Operation};
use tokio_util::sync::CancellationToken;

use crate::registry::{
    Deletion, GRACE, Guard, Intent, NewClaim, Registry, Surroundings,
    deletion::belongs,
    testing::{World, deploy, deployment, put_raw},
};

#[derive(Default)]
struct Fleet {
    serving: Mutex<Vec<NodeId>>,
    living: BTreeSet<NodeId>,
}

#[async_trait]
impl Surroundings for Fleet {
    async fn serving(&self, _name: &ApplicationName) -> Result<Vec<NodeId>, Problem> {
        Ok(self.serving.lock().unwrap().clone())
    }

    fn lives(&self, node: &NodeId) -> bool {
        self.living.contains(node)
    }
}

struct Coordinates(Mutex<Option<u32>>);

#[async_trait]
impl Guard for Coordinates {
    async fn check(&self) -> Result<(), Problem> {
        let mut left = self.0.lock().unwrap();
        match left.as_mut() {
            Some(0) => Err(Problem::new(ProblemCode::LeaseLost, "it ran out")),
            Some(checks) => {
                *checks -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

fn shop() -> ApplicationName {
    "shop".parse().unwrap()
}

async fn delete(registry: &Registry, force: bool, around: &Fleet) -> Result<Vec<String>, Problem> {
    delete_while(registry, force, around, &Coordinates(Mutex::new(None))).await
}

async fn delete_while(
    registry: &Registry,
    force: bool,
    around: &Fleet,
    holder: &dyn Guard,
) -> Result<Vec<String>, Problem> {
    let name = shop();
    let authority = CancellationToken::new();
    let notice = Duration::from_secs(10);
    registry.delete_application(&Deletion { name: &name, force, around, holder, authority, notice }).await
}

/// Two applications with everything that an application can have.
async fn furnished() -> World {
    let world = World::on(MemoryBucket::new());
    let registry = &world.registry;
    world.memory.set_now(registry.clock().wall());
    for name in ["shop", "shop-preview"] {
        let application: ApplicationName = name.parse().unwrap();
        registry.create_application(&application).await.unwrap();
        for host in [format!("{name}.example"), format!("{name}.test")] {
            let (application, host) = (application.clone(), host.parse().unwrap());
            let claim = NewClaim { application, host, wildcard: true, by: "op".to_owned(), names: None };
            registry.claim_domain(&claim, &[]).await.unwrap();
        }
        let rule = serde_json::from_str(r#"{"issuer": "https://a.example", "subjects": ["x"]}"#).unwrap();
        registry.set_trust(&application, &rule).await.unwrap();
        let placement = PlacementRecord {
            v: V1,
            application: application.clone(),
            nodes: vec!["a".parse().unwrap()],
            wanted: 1,
            reason: None,
            fence: Fence(1),
            updated_at: registry.clock().wall(),
            rest: Rest::new(),
        };
        registry.put_placement(&Intent::new(), &placement, &Coordinates(Mutex::new(None))).await.unwrap();
        for object in ["deploy/current.json", "cells/1/log", "images/x"] {
            put_raw(&world.memory, &format!("fleets/{name}/{object}"), "{}").await;
        }
    }
    let finished = DeployRecord { state: DeployState::Deployed, ..deploy(&world, 1) };
    registry.create_deploy(&finished).await.unwrap();
    registry.record_deployment(&deployment(&world, "v1", 1)).await.unwrap();
    world
}

fn left(world: &World) -> Vec<String> {
    let theirs = |key: &String| key.contains("/shop-preview") || !belongs(key, &shop());
    world.memory.keys("").into_iter().filter(|key| !theirs(key)).collect()
}

#[tokio::test(start_paused = true)]
async fn everything_of_the_application_goes_and_nothing_of_its_neighbour() {
    let world = furnished().await;
    let before: Vec<String> = world.memory.keys("").into_iter().filter(|key| key.contains("shop-preview")).collect();
    let expected = left(&world);
    let removed = delete(&world.registry, true, &Fleet::default()).await.unwrap();
    assert_eq!(left(&world), Vec::<String>::new());
    assert_eq!(removed, expected);
    assert!(removed.contains(&"_scafo/domains/shop.test.json".to_owned()));
    let after: Vec<String> = world.memory.keys("").into_iter().filter(|key| key.contains("shop-preview")).collect();
    assert_eq!(before, after);
    let again = delete(&world.registry, true, &Fleet::default()).await.unwrap_err();
    assert_eq!(again.code, ProblemCode::NotFound);
}

#[tokio::test(start_paused = true)]
async fn an_application_made_anew_while_the_last_delete_had_no_answer_stays() {
    let world = furnished().await;
    let other = world.sibling();
    let mut lost = false;
    world.memory.plan(move |operation| match operation {
        Operation::Delete("_scafo/applications/shop.json") if !std::mem::replace(&mut lost, true) => {
            Some(Fault::LoseAnswer)
        }
        Operation::Delete(_) | Operation::Get(_) | Operation::Put(..) | Operation::List(_) => None,
    });
    let anew = async {
        while other.registry.application(&shop()).await.unwrap().is_some() {
            other.registry.clock().sleep(Duration::from_millis(1)).await;
        }
        other.registry.create_application(&shop()).await.unwrap()
    };
    let fleet = Fleet::default();
    let (deleted, anew) = tokio::join!(delete(&world.registry, true, &fleet), anew);
    deleted.unwrap();
    assert!(anew.written);
    let stands = other.registry.application(&shop()).await.unwrap().expect("the new one");
    assert_eq!(stands.record, anew.stored.record);
}

#[tokio::test(start_paused = true)]
async fn an_application_is_deleted_only_a_week_after_it_was_retired() {
    let world = furnished().await;
    let registry = &world.registry;
    let refused = delete(registry, false, &Fleet::default()).await.unwrap_err();
    assert!(refused.code == ProblemCode::ReferenceHeld && refused.detail.contains("not retired"), "{refused}");
    let since = registry.set_retired(&shop(), true).await.unwrap().retired_at.unwrap();
    let refused = delete(registry, false, &Fleet::default()).await.unwrap_err();
    assert_eq!(refused.code, ProblemCode::ReferenceHeld);
    assert!(refused.detail.contains(&since.after(GRACE).to_string()), "{refused}");
    let untouched = registry.application(&shop()).await.unwrap().unwrap().record;
    assert_eq!(untouched.deleting, None);
    registry.clock().sleep(GRACE).await;
    delete(registry, false, &Fleet::default()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn it_waits_for_what_still_runs_and_a_repeat_goes_on_without_force() {
    let world = furnished().await;
    let registry = &world.registry;
    let fleet = Fleet { serving: Mutex::new(vec!["a".parse().unwrap()]), living: ["b".parse().unwrap()].into() };
    let mut under_way = deploy(&world, 2);
    under_way.node = "b".parse().unwrap();
    registry.create_deploy(&under_way).await.unwrap();
    let mut abandoned = deploy(&world, 3);
    abandoned.node = "gone".parse().unwrap();
    registry.create_deploy(&abandoned).await.unwrap();
    put_raw(&world.memory, "fleets/shop/nodes/c.json", r#"{"expires_ms": 1}"#).await;
    put_raw(&world.memory, "fleets/shop/nodes/tombstone.json", r#"{"expires_ms": 0}"#).await;
    let start = registry.clock().mono();
    let refused = delete(registry, true, &fleet).await.unwrap_err();
    assert_eq!(refused.code, ProblemCode::Draining);
    for (what, named) in
        [("node `a`", true), ("deploy `shop.", true), ("`c`", true), ("`tombstone`", false), ("`gone`", false)]
    {
        assert_eq!(refused.detail.contains(what), named, "{what}: {refused}");
    }
    assert!((120..125).contains(&registry.clock().mono().since(start).as_secs()));
    assert!(registry.placement(&shop()).await.unwrap().is_none(), "the nodes are told to stop");
    assert!(world.memory.keys("fleets/shop/").len() > 3, "nothing else is touched");
    let setter = registry.set_retired(&shop(), false).await.unwrap_err();
    assert_eq!(setter.code, ProblemCode::ReferenceHeld);
    // They stop; the lease of the process that ended lapses by the store's clock.
    fleet.serving.lock().unwrap().clear();
    let fail = |deploy: &mut scafo_core::record::DeployRecord| {
        deploy.state = DeployState::Failed;
        Ok(())
    };
    registry.update_deploy(&Intent::new(), &under_way.id, fail).await.unwrap();
    world.memory.set_now(registry.clock().wall().after(Duration::from_secs(16)));
    delete(registry, false, &fleet).await.unwrap();
    assert_eq!(left(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn whoever_stops_coordinating_stops_deleting() {
    for checks in 0..60 {
        let world = furnished().await;
        let holder = Coordinates(Mutex::new(Some(checks)));
        let stopped = delete_while(&world.registry, true, &Fleet::default(), &holder).await;
        if stopped.is_ok() {
            assert!(checks > 8);
            return;
        }
        assert_eq!(stopped.unwrap_err().code, ProblemCode::LeaseLost);
        assert!(world.registry.application(&shop()).await.unwrap().is_some(), "the record goes last");
        delete(&world.registry, true, &Fleet::default()).await.unwrap();
        assert_eq!(left(&world), Vec::<String>::new());
    }
    panic!("it never got through");
}

#[tokio::test(start_paused = true)]
async fn whoever_stops_coordinating_after_a_look_deletes_nothing_that_he_saw() {
    struct Until(Arc<AtomicU64>, u64);

    #[async_trait]
    impl Guard for Until {
        async fn check(&self) -> Result<(), Problem> {
            if self.0.load(Ordering::Relaxed) < self.1 {
                return Ok(());
            }
            Err(Problem::new(ProblemCode::LeaseLost, "it ran out"))
        }
    }

    // The last look before the delete; deploys and the application are looked at once before.
    for (looked_at, look) in [
        ("_scafo/trust/shop.json", 1),
        ("_scafo/deployments/shop/", 1),
        ("_scafo/deploys/shop/", 2),
        ("fleets/shop/", 1),
        ("_scafo/applications/shop.json", 2),
    ] {
        let world = furnished().await;
        let (deleter, looks) = (world.sibling(), Arc::new(AtomicU64::new(0)));
        let seen = Arc::clone(&looks);
        deleter.memory.plan(move |operation| {
            let is_look = matches!(operation, Operation::Get(key) | Operation::List(key) if key == looked_at);
            seen.fetch_add(u64::from(is_look), Ordering::Relaxed);
            None
        });
        let before = world.memory.keys(looked_at);
        let holder = Until(looks, look);
        let stopped = delete_while(&deleter.registry, true, &Fleet::default(), &holder).await;
        assert_eq!(stopped.unwrap_err().code, ProblemCode::LeaseLost, "{looked_at}");
        assert!(!before.is_empty() && world.memory.keys(looked_at) == before, "{looked_at}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fleet_of_many_objects_goes_in_pages() {
    let world = furnished().await;
    world.memory.set_page_keys(7);
    for number in 0..40 {
        put_raw(&world.memory, &format!("fleets/shop/cells/{number}"), "x").await;
    }
    let removed = delete(&world.registry, true, &Fleet::default()).await.unwrap();
    assert!(removed.len() > 45);
    assert_eq!(left(&world), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_deletion_cut_off_at_any_request_is_ended_by_the_next() {
    for fault in [Fault::LoseRequest, Fault::LoseAnswer] {
        for at in 1.. {
            let world = furnished().await;
            let crashed = world.sibling();
            let crash = Arc::new(tokio::sync::Notify::new());
            let trigger = Arc::clone(&crash);
            let mut requests = 0;
            crashed.memory.plan(move |_| {
                requests += 1;
                (requests == at).then(|| {
                    trigger.notify_one();
                    fault
                })
            });
            let fleet = Fleet::default();
            let reached = tokio::select! {
                biased;
                () = crash.notified() => true,
                _ = delete(&crashed.registry, true, &fleet) => false,
            };
            drop(crashed);
            match delete(&world.registry, true, &Fleet::default()).await {
                Ok(_) => {}
                Err(problem) => assert_eq!(problem.code, ProblemCode::NotFound, "{fault:?} at {at}: {problem:?}"),
            }
            // What stays of a claim may be a mark, which is no claim.
            let stays = left(&world);
            assert!(stays.iter().all(|key| key.starts_with("_scafo/domains/")), "{fault:?} at {at}: {stays:?}");
            for host in ["shop.example", "shop.test"] {
                assert!(world.registry.claim(&host.parse().unwrap()).await.unwrap().is_none());
            }
            // A new application of the name starts from nothing.
            let anew = world.registry.create_application(&shop()).await.unwrap();
            assert!(anew.written && anew.stored.record.domains.is_empty());
            if !reached {
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_asks_for_no_claim_but_its_own() {
    let world = furnished().await;
    let others = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&others);
    world.memory.plan(move |operation| {
        let asked = match operation {
            Operation::Get(key) | Operation::List(key) | Operation::Put(key, _) | Operation::Delete(key) => key,
        };
        let own = ["_scafo/domains/shop.example.json", "_scafo/domains/shop.test.json"];
        if asked.starts_with("_scafo/domains/") && !own.contains(&asked) {
            seen.lock().unwrap().push(asked.to_owned());
        }
        None
    });
    delete(&world.registry, true, &Fleet::default()).await.unwrap();
    assert_eq!(*others.lock().unwrap(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_cannot_be_read_stays_and_holds_up_no_deletion() {
    let world = furnished().await;
    let key = "_scafo/domains/shop.test.json";
    put_raw(&world.memory, key, "unreadable").await;
    let removed = delete(&world.registry, true, &Fleet::default()).await.unwrap();
    assert!(!removed.iter().any(|removed| removed == key));
    assert_eq!(left(&world), [key]);
}

#[tokio::test(start_paused = true)]
async fn only_what_has_no_application_is_swept_away() {
    let world = furnished().await;
    let registry = &world.registry;
    let host = "shop.example".parse().unwrap();
    let claim = registry.claim(&host).await.unwrap().unwrap();
    assert!(!registry.remove_orphaned_claim(&claim).await.unwrap());
    assert!(!registry.remove_orphaned_placement(&Intent::new(), &shop()).await.unwrap());
    let key = "_scafo/applications/shop.json";
    put_raw(&world.memory, key, "unreadable").await;
    registry.remove_orphaned_claim(&claim).await.unwrap_err();
    registry.remove_orphaned_placement(&Intent::new(), &shop()).await.unwrap_err();
    registry.engine().delete(&Intent::new(), key).await.unwrap();
    assert!(registry.remove_orphaned_claim(&claim).await.unwrap());
    assert!(registry.remove_orphaned_placement(&Intent::new(), &shop()).await.unwrap());
    assert!(registry.claim(&host).await.unwrap().is_none());
    assert!(registry.placement(&shop()).await.unwrap().is_none());
    // What stands there by now is somebody else's claim.
    let application = "shop-preview".parse().unwrap();
    let anew = NewClaim { application, host: host.clone(), wildcard: false, by: "op".to_owned(), names: None };
    registry.claim_domain(&anew, &[]).await.unwrap();
    assert!(!registry.remove_orphaned_claim(&claim).await.unwrap());
    assert!(registry.claim(&host).await.unwrap().is_some());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_meets_a_deletion_leaves_nothing_that_a_sweep_does_not_find() {
    for seed in 0..150_u64 {
        let world = furnished().await;
        let (deleter, claimant) = (world.sibling(), world.sibling());
        for (side, salt) in [(&deleter, 1), (&claimant, 2)] {
            let mut state = seed * 31 + salt;
            side.memory.plan(move |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 33) % 3 == 0).then_some(Fault::Busy)
            });
        }
        let host: Host = "late.example".parse().unwrap();
        let (application, by) = (shop(), "op".to_owned());
        let claim = NewClaim { application, host: host.clone(), wildcard: false, by, names: None };
        let claiming = async {
            // The deletion waits ten seconds for the nodes; the claim comes before, during or after that.
            claimant.registry.clock().sleep(Duration::from_millis(seed * 80)).await;
            claimant.registry.claim_domain(&claim, &[]).await
        };
        let fleet = Fleet::default();
        let (deleted, claimed) = tokio::join!(delete(&deleter.registry, true, &fleet), claiming);
        deleted.unwrap();
        if let Ok(Some(left)) = world.registry.claim(&host).await {
            assert!(claimed.is_err(), "seed {seed}: what stands without an application was never acknowledged");
            world.registry.remove_orphaned_claim(&left).await.unwrap();
        }
        assert!(world.registry.claim(&host).await.unwrap().is_none(), "seed {seed}");
        assert!(world.registry.application(&shop()).await.unwrap().is_none(), "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_over_more_than_two_pages_of_each_kind_leaves_nothing_and_takes_nothing_else() {
    const MANY: usize = 2_500;
    let world = furnished().await;
    for number in 0..MANY {
        for name in ["shop", "shop-preview"] {
            put_raw(&world.memory, &format!("fleets/{name}/cells/{number}"), "{}").await;
            put_raw(&world.memory, &format!("_scafo/deployments/{name}/old-{number}.json"), "{}").await;
        }
    }
    let expected = left(&world);
    assert!(expected.len() > 2 * MANY);
    let theirs = || world.memory.keys("").into_iter().filter(|key| key.contains("shop-preview")).collect::<Vec<_>>();
    let before = theirs();
    let removed = delete(&world.registry, true, &Fleet::default()).await.unwrap();
    assert_eq!(removed, expected);
    assert_eq!(left(&world), Vec::<String>::new());
    assert_eq!(theirs(), before);
}

#[tokio::test(start_paused = true)]
async fn a_deletion_that_waits_reads_no_deploy_twice() {
    const MANY: u64 = 200;
    let world = furnished().await;
    for random in 2..=MANY {
        let finished = DeployRecord { state: DeployState::Deployed, ..deploy(&world, random) };
        world.registry.create_deploy(&finished).await.unwrap();
    }
    let fleet = Fleet { serving: Mutex::new(vec!["a".parse().unwrap()]), ..Fleet::default() };
    let [read, listed] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let counted = [Arc::clone(&read), Arc::clone(&listed)];
    world.memory.plan(move |operation| {
        let of = match operation {
            Operation::Get(key) if key.starts_with("_scafo/deploys/") => &counted[0],
            Operation::List(_) => &counted[1],
            Operation::Get(_) | Operation::Put(..) | Operation::Delete(_) => return None,
        };
        of.fetch_add(1, Ordering::Relaxed);
        None
    });
    let stops = async {
        world.registry.clock().sleep(Duration::from_secs(30)).await;
        fleet.serving.lock().unwrap().clear();
    };
    let (deleted, ()) = tokio::join!(delete(&world.registry, true, &fleet), stops);
    deleted.unwrap();
    assert_eq!(read.load(Ordering::Relaxed), MANY);
    let listed = listed.load(Ordering::Relaxed);
    assert!((40..80).contains(&listed), "two in each of twenty looks, and those of the removal: {listed}");
}

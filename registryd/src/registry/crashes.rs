//! Every call that writes, cut off at each request that it sends, and run again by somebody else.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use scafo_core::record::{DeployState, Fence, PlacementRecord, Replicas, Rest, V1};
use scafo_core::{ApplicationName, DeployId, Problem, ProblemCode, key};
use scafo_store::{Bucket, Fault, MemoryBucket};
use tokio::sync::Notify;

use crate::tls;

use super::{
    Arrival, DrainRequest, Granter, Guard, Intent, Life, NewClaim, Registration, Registry,
    testing::{World, deploy, deployment, key_of, node, put_raw},
};

type Call = for<'a> fn(&'a World) -> BoxFuture<'a, Result<(), Problem>>;

/// The calls, each with the objects that must stand when it succeeded.
const CALLS: &[(&str, Call, &[&str])] = &[
    ("bootstrap", |world| Box::pin(bootstrap(&world.registry)), &["_scafo/meta.json"]),
    ("register", |world| Box::pin(register(&world.registry)), &["_scafo/identities/a.json", "_scafo/nodes/a.json"]),
    ("init", |world| Box::pin(init(&world.registry)), &["_scafo/identities/op.json", "_scafo/operators/op.json"]),
    (
        "publish",
        |world| Box::pin(publish(world)),
        &["_scafo/applications/shop.json", "_scafo/deployments/shop/v1.json"],
    ),
    ("freeze", |world| Box::pin(freeze(&world.registry)), &["_scafo/freeze.json"]),
    ("thaw", |world| Box::pin(thaw(&world.registry)), &[]),
    ("claim", |world| Box::pin(claim(&world.registry, false)), &["_scafo/domains/shop.example.json"]),
    ("cover", |world| Box::pin(claim(&world.registry, true)), &["_scafo/domains/shop.example.json"]),
    ("trust", |world| Box::pin(trust(&world.registry)), &["_scafo/trust/shop.json"]),
    (
        "rotate",
        |world| Box::pin(rotate(&world.registry)),
        &["_scafo/operators/new.json", "_scafo/identities/op.json", "_scafo/identities/new.json"],
    ),
    (
        "revoke",
        |world| Box::pin(revoke(&world.registry)),
        &["_scafo/operators/op.json", "_scafo/identities/second.json"],
    ),
    ("setters", |world| Box::pin(setters(&world.registry)), &["_scafo/applications/shop.json"]),
    ("upgrade", |world| Box::pin(upgrade(&world.registry)), &["_scafo/domains/shop.example.json"]),
    ("release", |world| Box::pin(release(&world.registry)), &["_scafo/applications/shop.json"]),
    ("distrust", |world| Box::pin(distrust(&world.registry)), &[]),
    ("finish", |world| Box::pin(finish(world)), &["_scafo/deploys/shop/shop.0000000000000001.json"]),
    ("drain", |world| Box::pin(drain(&world.registry)), &["_scafo/nodes/a.json"]),
    ("forget", |world| Box::pin(forget(&world.registry)), &["_scafo/identities/a.json"]),
    ("place", |world| Box::pin(place(world)), &["_scafo/placement/shop.json"]),
    ("store a certificate", |world| Box::pin(store_a_certificate(&world.registry)), &["_scafo/tls/objects/a/key"]),
    ("remove a certificate", |world| Box::pin(remove_a_certificate(&world.registry)), &[]),
];

async fn bootstrap(registry: &Registry) -> Result<(), Problem> {
    registry.bootstrap(&"a".parse()?).await.map(drop)
}

async fn register(registry: &Registry) -> Result<(), Problem> {
    registry.register_node(&node("a", 1), Arrival::Joining).await.map(drop)
}

async fn init(registry: &Registry) -> Result<(), Problem> {
    registry.init_operator(&"op".parse()?, &key_of(1), false).await.map(drop)
}

async fn publish(world: &World) -> Result<(), Problem> {
    let record = deploy(world, 1);
    let name = record.application.clone();
    world.registry.create_application(&name).await?;
    world.registry.create_deploy(&record).await?;
    world.registry.record_deployment(&deployment(world, "v1", 1)).await?;
    let id = DeployId::new(&name, 1);
    world.registry.publish(&Intent::new().operation("publish-1"), &name, &"v1".parse()?, &id).await.map(drop)
}

async fn freeze(registry: &Registry) -> Result<(), Problem> {
    registry.freeze("op", None).await.map(drop)
}

async fn thaw(registry: &Registry) -> Result<(), Problem> {
    registry.freeze("op", None).await?;
    registry.unfreeze().await.map(drop)
}

async fn claim(registry: &Registry, wildcard: bool) -> Result<(), Problem> {
    let application = "shop".parse()?;
    registry.create_application(&application).await?;
    let host = "shop.example".parse()?;
    let claim = NewClaim { application, host, wildcard, by: "op".to_owned(), names: None };
    let made = registry.claim_domain(&claim, &[]).await?;
    assert!(made.application.domains.contains(&claim.host));
    assert_eq!(made.application.wildcard_domains.contains(&claim.host), wildcard);
    Ok(())
}

async fn trust(registry: &Registry) -> Result<(), Problem> {
    let rule = serde_json::from_str(r#"{"issuer": "https://a.example", "subjects": ["repo:*"]}"#).unwrap();
    registry.set_trust(&"shop".parse()?, &rule).await.map(drop)
}

/// The whole of a rotation: the old key registers the new one, which revokes it.
async fn rotate(registry: &Registry) -> Result<(), Problem> {
    let (old, new) = ("op".parse()?, "new".parse()?);
    if registry.operator(&new).await?.is_none() {
        let old = Granter::Operator(Box::new(registry.init_operator(&old, &key_of(1), false).await?));
        let asked = Registration {
            id: new,
            public_key: key_of(2),
            role: None,
            supersedes: Some("op".parse()?),
            applications: None,
        };
        registry.register_operator(&old, asked).await?;
    }
    let new = registry.operator(&"new".parse()?).await?.unwrap().record;
    match registry.revoke_operator(&Granter::Operator(Box::new(new)), &"op".parse()?).await {
        Err(problem) if problem.code == ProblemCode::NotFound => Ok(()),
        revoked => revoked,
    }
}

/// A second admin goes, and nobody else with them.
async fn revoke(registry: &Registry) -> Result<(), Problem> {
    let (first, second) = ("op".parse()?, "second".parse()?);
    registry.init_operator(&first, &key_of(1), true).await?;
    registry.init_operator(&second, &key_of(2), true).await?;
    let first = Granter::Operator(Box::new(registry.operator(&first).await?.unwrap().record));
    match registry.revoke_operator(&first, &second).await {
        Err(problem) if problem.code == ProblemCode::NotFound => {}
        revoked => revoked?,
    }
    assert!(registry.operator(&second).await?.is_none());
    assert_eq!(registry.operator(&"op".parse()?).await?.unwrap().record.revoking, None);
    Ok(())
}

async fn setters(registry: &Registry) -> Result<(), Problem> {
    let shop = "shop".parse()?;
    registry.create_application(&shop).await?;
    registry.set_blocked(&shop, true).await?;
    registry.set_retired(&shop, true).await?;
    registry.set_retired(&shop, false).await?;
    registry.set_labels(&shop, &[("plan".to_owned(), "pro".to_owned())].into()).await?;
    registry.set_selector(&shop, Some(&[("region".to_owned(), "eu".to_owned())].into())).await?;
    let record = registry.set_replicas(&shop, Replicas::All).await?;
    assert!(record.blocked && record.retired_at.is_none() && record.replicas == Some(Replicas::All));
    assert!(record.labels.is_some() && record.node_selector.is_some());
    Ok(())
}

async fn upgrade(registry: &Registry) -> Result<(), Problem> {
    let application: ApplicationName = "shop".parse()?;
    registry.create_application(&application).await?;
    for wildcard in [false, true] {
        let host = "shop.example".parse()?;
        let claim = NewClaim { application: application.clone(), host, wildcard, by: "op".to_owned(), names: None };
        registry.claim_domain(&claim, &[]).await?;
    }
    let record = registry.application(&application).await?.unwrap().record;
    assert!(record.domains.len() == 1 && record.domains == record.wildcard_domains);
    assert!(registry.claim(&record.domains[0]).await?.unwrap().record.wildcard);
    Ok(())
}

async fn release(registry: &Registry) -> Result<(), Problem> {
    let (name, host) = ("shop".parse()?, "shop.example".parse()?);
    registry.create_application(&name).await?;
    // What a release that was cut off leaves, a mark at least, is not claimed again.
    if !registry.engine().exists(&key::domain(&host)).await? {
        claim(registry, false).await?;
    }
    match registry.release_domain(&name, &host, &[]).await {
        Err(problem) if problem.code == ProblemCode::NotFound => {}
        released => drop(released?),
    }
    assert!(registry.claim(&host).await?.is_none());
    assert!(registry.application(&name).await?.unwrap().record.domains.is_empty());
    Ok(())
}

async fn distrust(registry: &Registry) -> Result<(), Problem> {
    trust(registry).await?;
    registry.remove_trust(&"shop".parse()?, None).await?;
    assert!(registry.trust(&"shop".parse()?).await?.is_none());
    Ok(())
}

/// A deploy from its acceptance to its end.
async fn finish(world: &World) -> Result<(), Problem> {
    let record = deploy(world, 1);
    world.registry.create_application(&record.application).await?;
    world.registry.create_deploy(&record).await?;
    for state in [DeployState::Uploading, DeployState::Deployed] {
        let moved = world
            .registry
            .update_deploy(&Intent::new(), &record.id, |deploy| {
                deploy.state = state;
                Ok(())
            })
            .await;
        // An earlier run of this came as far or further.
        moved
            .map(drop)
            .or_else(|problem| if problem.code == ProblemCode::CasConflict { Ok(()) } else { Err(problem) })?;
    }
    assert_eq!(world.registry.deploy(&record.id).await?.record.state, DeployState::Deployed);
    Ok(())
}

async fn drain(registry: &Registry) -> Result<(), Problem> {
    register(registry).await?;
    let (id, timeout) = ("a".parse()?, Duration::from_secs(60));
    let request = DrainRequest { by: "op".to_owned(), timeout, force: false };
    assert!(registry.drain_node(&id, &request).await?.leaving);
    assert!(!registry.undrain_node(&id).await?.leaving);
    assert!(registry.drain_node(&id, &request).await?.leaving);
    Ok(())
}

async fn forget(registry: &Registry) -> Result<(), Problem> {
    register(registry).await?;
    let id = "a".parse()?;
    match registry.remove_node(&id, Life::Silent, false).await {
        Err(problem) if problem.code == ProblemCode::NotFound => {}
        removed => removed?,
    }
    assert!(registry.node(&id).await?.is_none());
    Ok(())
}

struct Holds;

#[async_trait]
impl Guard for Holds {
    async fn check(&self) -> Result<(), Problem> {
        Ok(())
    }
}

/// A coordinator places; one that comes after it, under the next fence, decides something else and writes that anew.
async fn place(world: &World) -> Result<(), Problem> {
    let registry = &world.registry;
    let there = registry.placement(&"shop".parse()?).await?;
    let fence = Fence(there.map_or(1, |stored| stored.record.fence.0 + 1));
    let mut record = PlacementRecord {
        v: V1,
        application: "shop".parse()?,
        nodes: vec!["a".parse()?],
        wanted: 1,
        reason: None,
        fence,
        updated_at: registry.clock().wall(),
        rest: Rest::new(),
    };
    registry.put_placement(&Intent::new(), &record, &Holds).await?;
    record.nodes = vec!["b".parse()?];
    registry.put_placement(&Intent::new(), &record, &Holds).await?;
    registry.restamp_placement(&Intent::new(), &record, &Holds).await?;
    let stands = registry.placement(&record.application).await?.unwrap().record;
    assert_eq!((stands.nodes, stands.fence), (record.nodes, fence));
    Ok(())
}

async fn store_a_certificate(registry: &Registry) -> Result<(), Problem> {
    let key = "a/key".parse()?;
    tls::put(registry, &key, b"one").await?;
    tls::put(registry, &key, b"two").await?;
    assert_eq!(&tls::get(registry, &key).await?[..], b"two");
    Ok(())
}

async fn remove_a_certificate(registry: &Registry) -> Result<(), Problem> {
    let key = "a/key".parse()?;
    tls::put(registry, &key, b"one").await?;
    tls::delete(registry, &key).await?;
    assert!(tls::get(registry, &key).await.is_err());
    Ok(())
}

/// Ends `call` at its request number `at`, which `fault` befalls. Answers whether the call came that far.
async fn cut_off(world: &World, call: Call, at: u64, fault: Fault) -> bool {
    let crash = Arc::new(Notify::new());
    let came = Arc::new(AtomicBool::new(false));
    let (trigger, reached) = (Arc::clone(&crash), Arc::clone(&came));
    let mut requests = 0;
    world.memory.plan(move |_| {
        requests += 1;
        (requests == at).then(|| {
            reached.store(true, Ordering::Relaxed);
            trigger.notify_one();
            fault
        })
    });
    tokio::select! {
        biased;
        () = crash.notified() => {}
        // It does not wait after the fault, and was ended by it or went on to its end.
        _ = call(world) => {}
    }
    came.load(Ordering::Relaxed)
}

async fn prepared() -> MemoryBucket {
    let memory = MemoryBucket::new();
    put_raw(&memory, "fleets/shop/deploy/current.json", r#"{"version": "v1"}"#).await;
    memory
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_request_is_repaired_by_running_the_call_again() {
    for (name, call, objects) in CALLS {
        for fault in [Fault::LoseRequest, Fault::LoseAnswer, Fault::HoldBack] {
            let mut at = 1;
            loop {
                let memory = prepared().await;
                let crashed = World::on(memory.sibling());
                let reached = cut_off(&crashed, *call, at, fault).await;
                drop(crashed);
                let again = World::on(memory.sibling());
                let result = call(&again).await;
                assert!(result.is_ok(), "{name}, {fault:?} at request {at}: {result:?}");
                // What the dead process had on its way arrives last of all, and is refused or says the same.
                memory.release_held();
                for object in *objects {
                    assert!(memory.get(object).await.unwrap().is_some(), "{name}, {fault:?} at request {at}: {object}");
                }
                if !reached {
                    break;
                }
                at += 1;
                assert!(at < 200, "{name} never ends");
            }
            assert!(at > 1, "{name} was cut off at least once");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn every_call_can_run_in_a_task_of_its_own() {
    let world = Arc::new(World::on(prepared().await));
    let mut tasks = tokio::task::JoinSet::new();
    let owned = Arc::clone(&world);
    tasks.spawn(async move {
        publish(&owned).await?;
        register(&owned.registry).await?;
        let mut cache = super::Cache::<scafo_core::record::NodeRecord>::default();
        cache.refresh(owned.registry.engine(), super::Read::Moved).await?;
        owned
            .registry
            .update_node(&Intent::new(), &"a".parse()?, |node| {
                node.leaving = true;
                Ok(())
            })
            .await?;
        Ok::<_, Problem>(())
    });
    tasks.join_next().await.unwrap().unwrap().unwrap();
    let name = "shop".parse().unwrap();
    let missing = world.registry.deploy(&DeployId::new(&name, 7)).await.unwrap_err();
    assert_eq!(missing.code, ProblemCode::NotFound);
}

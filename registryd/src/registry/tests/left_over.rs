//! Claims of calls that died before the application listed the host.

use std::sync::Arc;

use scafo_core::{ProblemCode, domain::Host, record::DomainClaim};
use scafo_store::{Bucket as _, Fault, Operation};

use super::domains::{all, applications, check, claim, make};
use crate::registry::testing::{World, put_raw};

/// A claim whose caller dies as it sends its write of a key with `key` in it.
async fn dies(world: &World, application: &str, host: &str, key: &'static str, fault: Fault) {
    let crash = Arc::new(tokio::sync::Notify::new());
    let trigger = Arc::clone(&crash);
    world.memory.plan(move |operation| match operation {
        Operation::Put(put, ..) if put.contains(key) => {
            trigger.notify_one();
            Some(fault)
        }
        _ => None,
    });
    tokio::select! {
        biased;
        () = crash.notified() => {}
        made = make(&world.registry, application, host) => panic!("{made:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_claim_that_comes_again_withdraws_what_died_before_it_was_listed() {
    for (first, second) in [("*.shop.example", "x.shop.example"), ("x.shop.example", "*.shop.example")] {
        let world = World::new();
        applications(&world, &["shop", "other"]).await;
        // Neither saw the other, and both died before they looked again.
        dies(&world.sibling(), "other", second, "applications/other", Fault::LoseRequest).await;
        let left = claim("other", second).host;
        let body = world.memory.get(&format!("_scafo/domains/{left}.json")).await.unwrap().unwrap().body;
        world.memory.delete(&format!("_scafo/domains/{left}.json")).await.unwrap();
        dies(&world.sibling(), "shop", first, "applications/shop", Fault::LoseRequest).await;
        put_raw(&world.memory, &format!("_scafo/domains/{left}.json"), std::str::from_utf8(&body).unwrap()).await;
        for (application, host) in [("other", second), ("shop", first)] {
            let again = make(&world.registry, application, host).await;
            assert_eq!(again.is_err(), application == "other", "{again:?}");
        }
        let (_, claims) = all(&world).await;
        assert_eq!(claims.len(), 1, "{claims:?}");
        check(&world).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_widening_keeps_what_is_listed() {
    let world = World::new();
    applications(&world, &["shop", "other"]).await;
    make(&world.registry, "shop", "shop.example").await.unwrap();
    make(&world.registry, "other", "x.shop.example").await.unwrap();
    let before = all(&world).await;
    assert_eq!(make(&world.registry, "shop", "*.shop.example").await.unwrap_err().code, ProblemCode::ReferenceHeld);
    assert_eq!(all(&world).await, before);
    // A widening that died before it was listed is taken back, the exact claim below it is not.
    let wide = |record: &DomainClaim| DomainClaim { wildcard: true, ..record.clone() };
    let host: Host = "shop.example".parse().unwrap();
    let died = wide(&world.registry.claim(&host).await.unwrap().unwrap().record);
    let body = serde_json::to_string(&died).unwrap();
    put_raw(&world.memory, "_scafo/domains/shop.example.json", &body).await;
    assert_eq!(make(&world.registry, "shop", "*.shop.example").await.unwrap_err().code, ProblemCode::ReferenceHeld);
    assert!(!world.registry.claim(&host).await.unwrap().unwrap().record.wildcard);
    check(&world).await;
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_arrives_after_its_claim_was_withdrawn_lists_nothing() {
    let world = World::new();
    applications(&world, &["shop", "other"]).await;
    let client = world.sibling();
    dies(&client, "other", "x.shop.example", "applications/other", Fault::HoldBack).await;
    // A covering claim stands that is not listed yet, so the call that comes again has to yield.
    let base = DomainClaim {
        host: "shop.example".parse().unwrap(),
        application: "shop".parse().unwrap(),
        wildcard: true,
        ..world.registry.claim(&"x.shop.example".parse().unwrap()).await.unwrap().unwrap().record
    };
    let body = serde_json::to_string(&base).unwrap();
    put_raw(&world.memory, "_scafo/domains/shop.example.json", &body).await;
    let refused = make(&world.registry, "other", "x.shop.example").await.unwrap_err();
    assert_eq!(refused.code, ProblemCode::ReferenceHeld);
    make(&world.registry, "shop", "*.shop.example").await.unwrap();
    client.memory.release_held();
    let (applications, _) = all(&world).await;
    let other = applications.iter().find(|record| record.name.as_str() == "other").unwrap();
    assert!(other.domains.is_empty());
    check(&world).await;
}

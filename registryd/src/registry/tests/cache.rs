//! The cache against a bucket that moves under it and misbehaves.

use std::time::Duration;

use scafo_core::{
    ApplicationName, ProblemCode,
    record::{ApplicationRecord, NodeRecord, PlacementRecord, to_bytes},
};
use scafo_store::{Bucket, Fault, Operation};

use crate::registry::{
    Arrival, Cache, Intent, Read,
    testing::{World, node, put_raw},
};

async fn fill(world: &World, count: usize) {
    for number in 0..count {
        world.registry.create_application(&format!("app-{number}").parse().unwrap()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_cache_reads_only_what_moved() {
    let world = World::new();
    world.memory.set_page_keys(7);
    fill(&world, 20).await;
    let engine = world.registry.engine();
    let mut cache: Cache<ApplicationRecord> = Cache::default();
    assert_eq!(cache.refresh(engine, Read::Moved).await.unwrap().read.len(), 20);
    assert_eq!(cache.iter().count(), 20);
    let before = world.memory.requests();
    assert!(!cache.refresh(engine, Read::Moved).await.unwrap().moved());
    assert_eq!(world.memory.requests() - before, 3, "three pages and no record");

    let app: ApplicationName = "app-3".parse().unwrap();
    world
        .registry
        .update_application(&Intent::new(), &app, |app| {
            app.blocked = true;
            Ok(())
        })
        .await
        .unwrap();
    world.memory.delete("_scafo/applications/app-4.json").await.unwrap();
    let refreshed = cache.refresh(engine, Read::Moved).await.unwrap();
    assert_eq!(refreshed.read, ["_scafo/applications/app-3.json"]);
    assert_eq!(refreshed.dropped, ["_scafo/applications/app-4.json"]);
    assert!(cache.get("_scafo/applications/app-3.json").unwrap().record.blocked);
}

#[tokio::test(start_paused = true)]
async fn a_record_is_filed_under_the_tag_that_the_listing_named() {
    let world = World::new();
    fill(&world, 1).await;
    let engine = world.registry.engine();
    let mut cache: Cache<ApplicationRecord> = Cache::default();
    let listing = engine.bucket().list("_scafo/applications/").await.unwrap();
    // It moves between the listing and the read.
    let app: ApplicationName = "app-0".parse().unwrap();
    world
        .registry
        .update_application(&Intent::new(), &app, |app| {
            app.blocked = true;
            Ok(())
        })
        .await
        .unwrap();
    cache.refresh_from(engine, listing, Read::Moved).await.unwrap();
    let refreshed = cache.refresh(engine, Read::Moved).await.unwrap();
    assert_eq!(refreshed.read.len(), 1, "read once more, because the listing's tag differs");
    assert!(!cache.refresh(engine, Read::Moved).await.unwrap().moved());
}

#[tokio::test(start_paused = true)]
async fn a_record_that_moved_while_it_was_read_and_then_moved_back_is_read_again() {
    let world = World::new();
    let engine = world.registry.engine();
    let mut cache: Cache<NodeRecord> = Cache::default();
    let says = |leaving| String::from_utf8(to_bytes(&NodeRecord { leaving, ..node("a", 1) })).unwrap();
    let key = "_scafo/nodes/a.json";
    put_raw(&world.memory, key, &says(false)).await;
    let listing = engine.bucket().list("_scafo/nodes/").await.unwrap();
    put_raw(&world.memory, key, &says(true)).await;
    cache.refresh_from(engine, listing, Read::Moved).await.unwrap();
    assert!(cache.get(key).unwrap().record.leaving);
    put_raw(&world.memory, key, &says(false)).await;
    cache.refresh(engine, Read::Moved).await.unwrap();
    assert!(!cache.get(key).unwrap().record.leaving, "equal bodies have equal tags");
}

#[tokio::test(start_paused = true)]
async fn one_bad_record_leaves_out_itself_and_is_named() {
    let world = World::new();
    fill(&world, 3).await;
    put_raw(&world.memory, "_scafo/applications/app-1.json", "{\"v\": 2}").await;
    let engine = world.registry.engine();
    let mut cache: Cache<ApplicationRecord> = Cache::default();
    cache.refresh(engine, Read::Moved).await.unwrap();
    assert_eq!(cache.iter().count(), 2);
    let bad: Vec<_> = cache.bad().map(|(key, problem)| (key.to_owned(), problem.code)).collect();
    assert_eq!(bad, [("_scafo/applications/app-1.json".to_owned(), ProblemCode::StoreNonconforming)]);
    let before = world.memory.requests();
    assert!(
        !cache.refresh(engine, Read::Moved).await.unwrap().moved(),
        "a bad record is not read again until it moves"
    );
    assert_eq!(world.memory.requests() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn a_listing_whose_second_page_fails_changes_nothing() {
    let world = World::new();
    fill(&world, 10).await;
    let engine = world.registry.engine();
    let mut cache: Cache<ApplicationRecord> = Cache::default();
    cache.refresh(engine, Read::Moved).await.unwrap();
    world.memory.set_page_keys(4);
    let mut pages = 0;
    world.memory.plan(move |operation| {
        pages += usize::from(matches!(operation, Operation::List(_)));
        (pages == 2).then_some(Fault::LoseAnswer)
    });
    assert_eq!(cache.refresh(engine, Read::Moved).await.unwrap_err().code, ProblemCode::StoreUnavailable);
    assert_eq!(cache.iter().count(), 10);
}

#[tokio::test(start_paused = true)]
async fn a_record_without_an_answer_fails_a_first_refresh_and_is_left_out_in_the_end() {
    let world = World::new();
    fill(&world, 3).await;
    world.memory.plan(|operation| {
        matches!(operation, Operation::Get("_scafo/applications/app-1.json")).then_some(Fault::LoseAnswer)
    });
    let engine = world.registry.engine();
    let mut cache: Cache<ApplicationRecord> = Cache::default();
    for _ in 0..2 {
        assert_eq!(cache.refresh(engine, Read::Moved).await.unwrap_err().code, ProblemCode::StoreUnavailable);
    }
    cache.refresh(engine, Read::Moved).await.unwrap();
    assert_eq!((cache.iter().count(), cache.bad().count()), (2, 1));
    world.memory.plan(|_| None);
    cache.refresh(engine, Read::Moved).await.unwrap();
    assert_eq!((cache.iter().count(), cache.bad().count()), (3, 0));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_was_read_and_gives_no_answer_any_more_stands_and_is_named_in_the_end() {
    const KEY: &str = "_scafo/applications/app-1.json";
    let world = World::new();
    fill(&world, 3).await;
    let (engine, name) = (world.registry.engine(), "app-1".parse().unwrap());
    let mut cache: Cache<ApplicationRecord> = Cache::default();
    cache.refresh(engine, Read::Moved).await.unwrap();
    for blocked in [true, false] {
        world.registry.set_blocked(&name, blocked).await.unwrap();
        world.memory.plan(|operation| (operation == Operation::Get(KEY)).then_some(Fault::LoseAnswer));
        for stale in [true, true, false, false] {
            assert_eq!(cache.refresh(engine, Read::Moved).await.unwrap().stale, vec![KEY; usize::from(stale)]);
            assert_eq!(cache.overdue().map(|(key, _)| key).collect::<Vec<_>>(), vec![KEY; usize::from(!stale)]);
            assert_eq!(cache.get(KEY).unwrap().record.blocked, !blocked, "the old one stands");
        }
        assert_eq!((cache.bad().count(), cache.is_any_silent()), (0, true));
        world.memory.plan(|_| None);
        cache.refresh(engine, Read::Moved).await.unwrap();
        assert_eq!((cache.overdue().count(), cache.is_any_silent()), (0, false));
        assert_eq!(cache.get(KEY).unwrap().record.blocked, blocked);
    }
}

#[tokio::test(start_paused = true)]
async fn what_moved_in_a_refresh_that_failed_is_told_by_the_next() {
    let world = World::new();
    fill(&world, 3).await;
    let engine = world.registry.engine();
    let mut cache: Cache<ApplicationRecord> = Cache::default();
    cache.refresh(engine, Read::Moved).await.unwrap();
    // One record goes, one moves, and a new one gives no answer.
    world.memory.delete("_scafo/applications/app-0.json").await.unwrap();
    let app: ApplicationName = "app-1".parse().unwrap();
    let block = |app: &mut ApplicationRecord| {
        app.blocked = true;
        Ok(())
    };
    world.registry.update_application(&Intent::new(), &app, block).await.unwrap();
    world.registry.create_application(&"app-9".parse().unwrap()).await.unwrap();
    world.memory.plan(|operation| {
        matches!(operation, Operation::Get("_scafo/applications/app-9.json")).then_some(Fault::LoseAnswer)
    });
    cache.refresh(engine, Read::Moved).await.unwrap_err();
    world.memory.plan(|_| None);
    let told = cache.refresh(engine, Read::Moved).await.unwrap();
    assert_eq!(told.dropped, ["_scafo/applications/app-0.json"]);
    assert_eq!(told.read, ["_scafo/applications/app-1.json", "_scafo/applications/app-9.json"]);
    assert!(!cache.refresh(engine, Read::Moved).await.unwrap().moved());
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_can_be_seen_without_reading_the_record() {
    let world = World::new();
    let registry = &world.registry;
    registry.register_node(&node("a", 1), Arrival::Joining).await.unwrap();
    let mut cache: Cache<NodeRecord> = Cache::default();
    cache.refresh(registry.engine(), Read::Moved).await.unwrap();
    let before = cache.listed().next().unwrap().etag.clone();
    let id = "a".parse().unwrap();
    let later = registry.clock().wall().after(Duration::from_secs(30));
    registry
        .update_node(&Intent::new(), &id, |node| {
            node.heartbeat_at = later;
            Ok(())
        })
        .await
        .unwrap();
    let requests = world.memory.requests();
    assert!(!cache.refresh(registry.engine(), Read::New).await.unwrap().moved());
    assert_eq!(world.memory.requests() - requests, 1);
    assert_ne!(cache.listed().next().unwrap().etag, before);
    assert_eq!(cache.refresh(registry.engine(), Read::Moved).await.unwrap().read.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_records_that_only_move_some_are_read_in_turn_and_one_of_another_size_at_once() {
    let world = World::new();
    let registry = &world.registry;
    let ids = ["a", "b", "c", "d", "e"];
    for (number, id) in (1..).zip(ids) {
        registry.register_node(&node(id, number), Arrival::Joining).await.unwrap();
    }
    let beat = async |id: &str, leaves: bool| {
        let later = registry.clock().wall().after(Duration::from_secs(30));
        let change = |node: &mut NodeRecord| {
            node.heartbeat_at = later;
            node.leaving |= leaves;
            Ok(())
        };
        registry.update_node(&Intent::new(), &id.parse().unwrap(), change).await.unwrap();
    };
    let mut cache: Cache<NodeRecord> = Cache::default();
    cache.refresh(registry.engine(), Read::Moved).await.unwrap();
    let mut read = Vec::new();
    for leaver in ["", "", "e"] {
        tokio::time::advance(Duration::from_secs(30)).await;
        for id in ids {
            beat(id, id == leaver).await;
        }
        let refreshed = cache.refresh(registry.engine(), Read::Some(2)).await.unwrap();
        read.push(refreshed.read.iter().map(|key| key["_scafo/nodes/".len()..].to_owned()).collect::<Vec<_>>());
    }
    assert_eq!(read, [vec!["a.json", "b.json"], vec!["c.json", "d.json"], vec!["a.json", "b.json", "e.json"]]);
}

#[tokio::test(start_paused = true)]
async fn an_empty_prefix_is_an_empty_cache() {
    let world = World::new();
    let mut cache: Cache<PlacementRecord> = Cache::default();
    assert!(!cache.refresh(world.registry.engine(), Read::Moved).await.unwrap().moved());
    assert_eq!(cache.iter().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn two_and_a_half_thousand_applications_are_listed_over_three_full_pages() {
    const MANY: usize = 2_500;
    let world = World::new();
    for number in 0..MANY {
        let body = format!(
            r#"{{"v": 1, "name": "app-{number}", "createdAt": "2026-01-01T00:00:00.000Z", "blocked": false,
                "domains": [], "wildcardDomains": []}}"#
        );
        put_raw(&world.memory, &format!("_scafo/applications/app-{number}.json"), &body).await;
    }
    let engine = world.registry.engine();
    let mut cache: Cache<ApplicationRecord> = Cache::default();
    let before = world.memory.requests();
    assert_eq!(cache.refresh(engine, Read::Moved).await.unwrap().read.len(), MANY);
    assert_eq!(world.memory.requests() - before, 3 + MANY as u64, "three pages, and each record once");
    assert_eq!((cache.iter().count(), cache.bad().count()), (MANY, 0));
    assert_eq!(world.registry.application_names().await.unwrap().len(), MANY);
    // One that moves on the last page is found, and it alone is read.
    let last: ApplicationName = "app-999".parse().unwrap();
    world.registry.set_blocked(&last, true).await.unwrap();
    world.registry.flush_hints(Duration::from_secs(60)).await.unwrap();
    let before = world.memory.requests();
    let refreshed = cache.refresh(engine, Read::Moved).await.unwrap();
    assert_eq!(refreshed.read, ["_scafo/applications/app-999.json"]);
    assert_eq!(world.memory.requests() - before, 3 + 1);
    assert!(cache.get("_scafo/applications/app-999.json").unwrap().record.blocked);
}

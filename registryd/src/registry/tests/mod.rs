//! The write engine against a bucket that misbehaves.

mod cache;
mod deletion;
mod domains;
mod histories;
mod left_over;
mod overtaken;
mod silence;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use scafo_core::{
    ApplicationName, Problem, ProblemCode,
    record::{ApplicationRecord, NodeRecord},
};
use scafo_store::{Bucket, Fault, Operation};
use tokio_util::sync::CancellationToken;

use super::{
    Changed, Intent,
    kind::Record as _,
    testing::{World, node, put_raw},
};

const SHOP: &str = "_scafo/applications/shop.json";

fn shop() -> ApplicationName {
    "shop".parse().unwrap()
}

async fn label(world: &World, intent: &Intent, name: &str) -> Result<Changed<ApplicationRecord>, Problem> {
    let mutate = |application: &mut ApplicationRecord| {
        application.labels.get_or_insert_default().insert(name.to_owned(), "set".to_owned());
        Ok(())
    };
    world.registry.update_application(intent, &shop(), mutate).await
}

async fn labels(world: &World) -> BTreeMap<String, String> {
    let stored = world.registry.application(&shop()).await.unwrap();
    stored.and_then(|stored| stored.record.labels).unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_is_recognised_by_the_write_id() {
    let world = World::new();
    world.memory.fail_next_puts(SHOP, [Fault::LoseAnswer]);
    let created = world.registry.create_application(&shop()).await.unwrap();
    assert!(created.written, "the create was ours");
    world.memory.fail_next_puts(SHOP, [Fault::LoseAnswer, Fault::Busy, Fault::LoseAnswer]);
    let changed = label(&world, &Intent::new().once(), "a").await.unwrap();
    assert!(changed.written);
    assert_eq!(labels(&world).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_lost_request_is_sent_again() {
    let world = World::new();
    world.memory.fail_next_puts(SHOP, [Fault::LoseRequest, Fault::LoseRequest]);
    assert!(world.registry.create_application(&shop()).await.unwrap().written);
    world.memory.fail_next_puts(SHOP, [Fault::LoseRequest, Fault::Conflict, Fault::LoseRequest]);
    assert!(label(&world, &Intent::new().once(), "a").await.unwrap().written);
}

#[tokio::test(start_paused = true)]
async fn a_create_answered_409_is_never_taken_for_exists() {
    let world = World::new();
    world.memory.fail_next_puts(SHOP, [Fault::Conflict, Fault::Conflict]);
    assert!(world.registry.create_application(&shop()).await.unwrap().written);
}

#[tokio::test(start_paused = true)]
async fn a_conflict_whose_read_back_fails_too_ends_as_unavailable_not_as_exists() {
    let world = World::new();
    world.memory.plan(|operation| match operation {
        Operation::Put(..) => Some(Fault::Conflict),
        Operation::Get(_) | Operation::Delete(_) | Operation::List(_) => Some(Fault::LoseAnswer),
    });
    let refused = world.registry.create_application(&shop()).await.unwrap_err();
    assert_eq!(refused.code, ProblemCode::StoreUnavailable);
}

#[tokio::test(start_paused = true)]
async fn busy_is_no_lost_compare_and_swap() {
    let world = World::new();
    world.registry.create_application(&shop()).await.unwrap();
    world.memory.fail_next_puts(SHOP, [Fault::Busy, Fault::Busy]);
    let mut runs = 0;
    let mutate = |application: &mut ApplicationRecord| {
        runs += 1;
        application.blocked = true;
        Ok(())
    };
    assert!(world.registry.update_application(&Intent::new(), &shop(), mutate).await.unwrap().written);
    assert_eq!(runs, 1, "the record did not move");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_ends_in_store_unavailable_within_the_budget() {
    let world = World::new();
    world.memory.plan(|_| Some(Fault::LoseRequest));
    let start = world.registry.clock().mono();
    let refused = world.registry.create_application(&shop()).await.unwrap_err();
    assert_eq!(refused.code, ProblemCode::StoreUnavailable);
    assert!(world.registry.clock().mono().since(start) <= Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn an_update_of_a_record_that_was_deleted_does_not_bring_it_back() {
    let world = World::new();
    world.registry.create_application(&shop()).await.unwrap();
    let memory = Arc::new(world.memory.sibling());
    // The delete happens between the read and the write, which the first run of `mutate` is.
    let deleting = Arc::clone(&memory);
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let mut sender = Some(sender);
    let (intent, name) = (Intent::new(), shop());
    let update = world.registry.update_application(&intent, &name, |application| {
        if let Some(sender) = sender.take() {
            sender.send(()).unwrap();
        }
        application.blocked = true;
        Ok(())
    });
    world.memory.fail_next_puts(SHOP, [Fault::Busy]);
    let delete = async {
        receiver.await.unwrap();
        deleting.delete(SHOP).await.unwrap();
    };
    let (update, ()) = tokio::join!(update, delete);
    assert_eq!(update.unwrap_err().code, ProblemCode::NotFound);
    assert_eq!(memory.keys(SHOP), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_comes_again_is_recognised() {
    let world = World::new();
    world.registry.create_application(&shop()).await.unwrap();
    let mut runs = 0;
    for _ in 0..3 {
        let intent = Intent::new().operation("op-7").once();
        let mutate = |application: &mut ApplicationRecord| {
            runs += 1;
            application.blocked = !application.blocked;
            Ok(())
        };
        assert!(world.registry.update_application(&intent, &shop(), mutate).await.unwrap().written);
    }
    assert_eq!(runs, 1);
    assert!(world.registry.application(&shop()).await.unwrap().unwrap().record.blocked);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_read_or_written_once_the_authority_is_gone() {
    let world = World::new();
    world.registry.create_application(&shop()).await.unwrap();
    let authority = CancellationToken::new();
    authority.cancel();
    let before = world.memory.requests();
    let refused = label(&world, &Intent::new().under(authority), "a").await.unwrap_err();
    assert_eq!(refused.code, ProblemCode::LeaseLost);
    assert_eq!(world.memory.requests(), before);

    // And in the middle of waiting for the next try.
    let authority = CancellationToken::new();
    world.memory.plan(|operation| matches!(operation, Operation::Put(..)).then_some(Fault::LoseRequest));
    let intent = Intent::new().under(authority.clone());
    let cancel = async {
        world.registry.clock().sleep(Duration::from_secs(1)).await;
        authority.cancel();
    };
    let (refused, ()) = tokio::join!(label(&world, &intent, "a"), cancel);
    assert_eq!(refused.unwrap_err().code, ProblemCode::LeaseLost);
}

#[tokio::test(start_paused = true)]
async fn an_equal_body_that_came_back_does_not_hide_what_lay_between() {
    // A→B→A, of a kind whose bodies may come back: a first reader still holds the tag of the first A. The tag fits again, and
    // the write it makes is right, because an update is a function of the body alone.
    let world = World::new();
    let engine = world.registry.engine();
    let record = node("a", 1);
    let key = record.key();
    engine.create(&Intent::new(), &record).await.unwrap();
    let leaving = |leaving| {
        move |node: &mut NodeRecord| {
            node.leaving = leaving;
            Ok(())
        }
    };
    let first = engine.try_load::<NodeRecord>(&key).await.unwrap().unwrap();
    engine.update(&Intent::new(), &key, leaving(true)).await.unwrap();
    engine.update(&Intent::new(), &key, leaving(false)).await.unwrap();
    let again = engine.try_load::<NodeRecord>(&key).await.unwrap().unwrap();
    assert_eq!(first.etag, again.etag, "the fake is as awkward as S3");
    assert_ne!(first.write_id, again.write_id, "and the write ids tell the two apart");
    assert_eq!(again.before.len(), 2, "what lay between and the first are remembered");
    assert_eq!(again.before.last(), first.write_id.as_ref());
    assert!(engine.update(&Intent::new(), &key, leaving(true)).await.unwrap().written);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_is_refused_and_left_as_it_is() {
    let world = World::new();
    let junk = "x".repeat(5 << 20);
    for (body, reason) in [
        ("", "EOF"),
        ("{\"v\": 1, \"name\": \"shop\"", "EOF"),
        (r#"{"v": 2, "name": "shop", "createdAt": "2026-01-01T00:00:00.000Z"}"#, "record version 2"),
        (r#"{"v": 1, "name": "other", "createdAt": "2026-01-01T00:00:00.000Z"}"#, "another record"),
        ("<html></html>", "expected value"),
        (junk.as_str(), "5242880 bytes"),
    ] {
        put_raw(&world.memory, SHOP, body).await;
        let refused = label(&world, &Intent::new(), "a").await.unwrap_err();
        assert_eq!(refused.code, ProblemCode::StoreNonconforming, "{refused:?}");
        assert!(refused.detail.contains(reason) && refused.detail.contains(SHOP), "{refused:?}");
        let stands = world.memory.get(SHOP).await.unwrap().unwrap();
        assert_eq!(stands.body, body.as_bytes());
    }
}

//! Certificate storage over a bucket in memory.

use std::{sync::Arc, time::Duration};

use scafo_core::{NodeId, Problem, ProblemCode};
use scafo_store::{Bucket as _, Fault, LIST_KEYS_MAX, MemoryBucket, Operation};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::{
    LockKeeper, LockOwner, Locks, SMALL_BYTES, StorageKey, VALUE_BYTES_MAX, delete, get, get_small, list, put, stat,
    stat_small,
};
use crate::registry::testing::{World, put_raw};

fn key(text: &str) -> StorageKey {
    text.parse().unwrap()
}

async fn stored(keys: &[&str]) -> World {
    let world = World::new();
    for text in keys {
        put(&world.registry, &key(text), text.as_bytes()).await.unwrap();
    }
    world
}

fn code<T: std::fmt::Debug>(outcome: Result<T, Problem>) -> ProblemCode {
    outcome.unwrap_err().code
}

#[tokio::test(start_paused = true)]
async fn bytes_come_back_as_they_went_in() {
    let world = World::new();
    let all: Vec<u8> = (0..=255).collect();
    for value in [&b""[..], b"\xff\xfe\x00", "ä".as_bytes(), &all] {
        put(&world.registry, &key("a/b"), value).await.unwrap();
        assert_eq!(get(&world.registry, &key("a/b")).await.unwrap(), value);
        let there = stat(&world.registry, &key("a/b")).await.unwrap();
        assert_eq!((there.size, there.is_terminal), (value.len() as u64, true));
    }
    assert_eq!(world.memory.keys(""), ["_scafo/tls/objects/a/b"]);
}

#[tokio::test(start_paused = true)]
async fn a_value_over_the_bound_is_refused_and_changes_nothing() {
    let world = stored(&["a"]).await;
    let large = vec![7; VALUE_BYTES_MAX + 1];
    assert_eq!(code(put(&world.registry, &key("a"), &large).await), ProblemCode::ResourceLimit);
    assert_eq!(get(&world.registry, &key("a")).await.unwrap(), "a");
    put(&world.registry, &key("a"), &large[1..]).await.unwrap();
    assert_eq!(get(&world.registry, &key("a")).await.unwrap().len(), VALUE_BYTES_MAX);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_not_small_is_told_from_one_that_is_not_there() {
    let world = stored(&["a"]).await;
    put(&world.registry, &key("large"), &vec![7; SMALL_BYTES]).await.unwrap();
    assert_eq!(get_small(&world.registry, &key("a")).await.unwrap().unwrap(), "a");
    assert_eq!(stat_small(&world.registry, &key("a")).await.unwrap().unwrap().size, 1);
    assert_eq!(get_small(&world.registry, &key("large")).await.unwrap(), None);
    assert_eq!(stat_small(&world.registry, &key("large")).await.unwrap(), None);
    assert_eq!(code(get_small(&world.registry, &key("b")).await), ProblemCode::NotFound);
    assert_eq!(code(stat_small(&world.registry, &key("b")).await), ProblemCode::NotFound);
}

#[tokio::test(start_paused = true)]
async fn keys_are_listed_by_their_segments() {
    let world = stored(&["a", "ab/c", "a/b", "a/b/c", "a/d"]).await;
    put_raw(&world.memory, "_scafo/tls/objects/a/ü", "foreign").await;
    put_raw(&world.memory, "_scafo/tls/objects/a/", "a marker").await;
    for (prefix, recursive, want) in [
        ("a", true, &["a", "a/b", "a/b/c", "a/d"][..]),
        ("a", false, &["a", "a/b", "a/d"]),
        ("a/b", true, &["a/b", "a/b/c"]),
        ("a/b", false, &["a/b", "a/b/c"]),
        ("ab", true, &["ab/c"]),
        ("ab", false, &["ab/c"]),
        ("a/d", true, &["a/d"]),
        ("", true, &["a", "a/b", "a/b/c", "a/d", "ab/c"]),
        ("", false, &["a", "ab"]),
    ] {
        let prefix = (!prefix.is_empty()).then(|| key(prefix));
        let listed = list(&world.registry, prefix.as_ref(), recursive).await.unwrap();
        assert_eq!(listed, want, "{prefix:?} {recursive}");
    }
    assert_eq!(code(list(&world.registry, Some(&key("b")), true).await), ProblemCode::NotFound);
    assert_eq!(code(list(&world.registry, Some(&key("a/b/c/d")), false).await), ProblemCode::NotFound);
    assert_eq!(code(list(&World::new().registry, None, true).await), ProblemCode::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_stat_tells_values_from_mere_prefixes() {
    let world = stored(&["a/b"]).await;
    let value = serde_json::to_value(stat(&world.registry, &key("a/b")).await.unwrap()).unwrap();
    assert_eq!((value["size"].as_u64(), value["isTerminal"].as_bool()), (Some(3), Some(true)));
    let written = world.registry.clock().wall();
    assert_eq!(value["modified"], serde_json::to_value(written).unwrap());
    // A look later changes nothing, another write does.
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(stat(&world.registry, &key("a/b")).await.unwrap().modified, Some(written));
    put(&world.registry, &key("a/b"), b"a/b").await.unwrap();
    let rewritten = world.registry.clock().wall();
    assert!(rewritten > written);
    assert_eq!(stat(&world.registry, &key("a/b")).await.unwrap().modified, Some(rewritten));
    let prefix = serde_json::to_value(stat(&world.registry, &key("a")).await.unwrap()).unwrap();
    assert_eq!(prefix, serde_json::json!({"key": "a", "modified": null, "size": 0, "isTerminal": false}));
    assert_eq!(code(stat(&world.registry, &key("a/b/c")).await), ProblemCode::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_delete_takes_the_key_and_what_is_beneath_it() {
    let world = stored(&["a", "a/b", "a/b/c", "ab"]).await;
    delete(&world.registry, &key("a")).await.unwrap();
    assert_eq!(list(&world.registry, None, true).await.unwrap(), ["ab"]);
    assert_eq!(code(delete(&world.registry, &key("a")).await), ProblemCode::NotFound);
}

#[tokio::test(start_paused = true)]
async fn what_is_broken_is_never_taken_for_absent() {
    let world = stored(&["a"]).await;
    for body in [
        "",
        "<html>",
        "{\"v\": 2}",
        r#"{"v": 1, "value": "!", "size": 1, "modified": "2026-01-01T00:00:00.000Z"}"#,
        r#"{"v": 1, "value": "YQ==", "size": 2, "modified": "2026-01-01T00:00:00.000Z"}"#,
    ] {
        put_raw(&world.memory, "_scafo/tls/objects/x", body).await;
        assert_eq!(code(get(&world.registry, &key("x")).await), ProblemCode::StoreNonconforming, "{body}");
        assert_eq!(code(stat(&world.registry, &key("x")).await), ProblemCode::StoreNonconforming, "{body}");
    }
    world.memory.plan(|_| Some(Fault::LoseRequest));
    assert_eq!(code(get(&world.registry, &key("none")).await), ProblemCode::StoreUnavailable);
    assert_eq!(code(stat(&world.registry, &key("none")).await), ProblemCode::StoreUnavailable);
    assert_eq!(code(list(&world.registry, Some(&key("none")), true).await), ProblemCode::StoreUnavailable);
    assert_eq!(code(delete(&world.registry, &key("none")).await), ProblemCode::StoreUnavailable);
    assert_eq!(code(put(&world.registry, &key("none"), b"x").await), ProblemCode::StoreUnavailable);
}

#[tokio::test(start_paused = true)]
async fn a_put_goes_through_a_store_in_trouble() {
    let world = World::new();
    let object = "_scafo/tls/objects/a";
    world.memory.fail_next_puts(object, [Fault::Busy, Fault::LoseAnswer, Fault::LoseRequest, Fault::Conflict]);
    put(&world.registry, &key("a"), b"x").await.unwrap();
    assert_eq!(get(&world.registry, &key("a")).await.unwrap(), "x");
}

/// A node that keeps locks on a bucket.
struct Node {
    world: World,
    locks: Locks,
    _task: JoinSet<()>,
}

impl Node {
    fn new(id: &str, memory: MemoryBucket) -> Self {
        let world = World::on(memory);
        let id: NodeId = id.parse().unwrap();
        let (keeper, locks) = LockKeeper::new(&world.registry, id);
        let mut task = JoinSet::new();
        task.spawn(keeper.run());
        Self { world, locks, _task: task }
    }

    async fn lock(&self, owner: &str) -> Result<(), Problem> {
        self.locks.lock(key("issue"), LockOwner::parse(owner).unwrap()).await
    }

    async fn unlock(&self, owner: &str) {
        self.locks.unlock(key("issue"), LockOwner::parse(owner).unwrap()).await.unwrap();
    }

    async fn holds(&self) -> bool {
        self.locks.holds(&key("issue")).await
    }
}

fn two() -> (Node, Node) {
    let memory = MemoryBucket::new();
    (Node::new("a", memory.sibling()), Node::new("b", memory))
}

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// Asks every second, as a client does; answers how many seconds that took.
async fn wait_for(node: &Node, owner: &str, limit: u64) -> u64 {
    for waited in 0..limit {
        match node.lock(owner).await {
            Ok(()) => return waited,
            Err(problem) => assert_eq!(problem.code, ProblemCode::CasConflict, "{problem:?}"),
        }
        pass(1).await;
    }
    panic!("not granted within {limit} s");
}

#[tokio::test(start_paused = true)]
async fn a_lock_has_one_holder_and_is_handed_over_at_once() {
    let (a, b) = two();
    a.lock("").await.unwrap();
    assert_eq!(code(b.lock("").await), ProblemCode::CasConflict);
    assert_eq!(code(a.lock("").await), ProblemCode::CasConflict, "without a name nobody can tell who asks again");
    pass(60).await;
    assert_eq!(code(b.lock("").await), ProblemCode::CasConflict, "it is rewritten for as long as it is held");
    a.unlock("").await;
    b.lock("").await.unwrap();
    a.unlock("").await;
    assert!(b.holds().await);
}

#[tokio::test(start_paused = true)]
async fn a_dead_nodes_lock_is_taken_over_after_ten_seconds_of_ones_own_clock() {
    let (a, b) = two();
    a.lock("").await.unwrap();
    drop(a);
    let waited = wait_for(&b, "", 30).await;
    assert!((10..=11).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_dies_at_any_request_about_a_lock_holds_nobody_up_for_long() {
    for fault in [Fault::LoseRequest, Fault::LoseAnswer, Fault::HoldBack] {
        for at in 1.. {
            let memory = MemoryBucket::new();
            let dying = Node::new("a", memory.sibling());
            let crash = Arc::new(Notify::new());
            let (trigger, mut requests) = (Arc::clone(&crash), 0);
            dying.world.memory.plan(move |_| {
                requests += 1;
                (requests == at).then(|| {
                    trigger.notify_one();
                    fault
                })
            });
            let whole = async {
                let _ = dying.lock("").await;
                // Long enough to be rewritten.
                pass(7).await;
                dying.unlock("").await;
                pass(1).await;
            };
            let reached = tokio::select! {
                biased;
                () = crash.notified() => true,
                () = whole => false,
            };
            drop(dying);
            let other = Node::new("b", memory.sibling());
            wait_for(&other, "", 15).await;
            // What the dead one had on its way arrives last of all.
            memory.release_held();
            pass(20).await;
            assert!(other.holds().await, "{fault:?} at request {at}");
            if !reached {
                assert!(at >= 5, "{fault:?}: the lock was taken, rewritten and released");
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_restarted_node_does_not_think_that_it_still_holds() {
    let memory = MemoryBucket::new();
    let a = Node::new("a", memory.sibling());
    a.lock("x").await.unwrap();
    drop(a);
    let again = Node::new("a", memory);
    assert!(!again.holds().await);
    assert_eq!(code(again.lock("x").await), ProblemCode::CasConflict);
    assert!((9..=11).contains(&wait_for(&again, "x", 30).await));
}

#[tokio::test(start_paused = true)]
async fn a_rewrite_that_does_not_clearly_land_ends_the_hold_at_once() {
    for fault in [Fault::LoseRequest, Fault::LoseAnswer, Fault::Busy, Fault::Refuse, Fault::Conflict, Fault::HoldBack] {
        let (a, b) = two();
        a.lock("x").await.unwrap();
        a.world.memory.fail_next_puts("_scafo/tls/locks/issue", [fault]);
        pass(4).await;
        assert!(a.holds().await, "{fault:?}");
        pass(2).await;
        assert!(!a.holds().await, "{fault:?}");
        a.unlock("x").await;
        assert!(wait_for(&b, "y", 30).await <= 11, "{fault:?}");
        a.world.memory.release_held();
        pass(20).await;
        b.lock("y").await.unwrap();
        assert!(b.holds().await, "a late write of the old holder changes nothing: {fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_named_client_keeps_its_lock_by_coming_again_and_loses_it_by_silence() {
    let (a, b) = two();
    a.lock("x").await.unwrap();
    for _ in 0..200 {
        pass(10).await;
        a.lock("x").await.unwrap();
        assert_eq!(code(a.lock("y").await), ProblemCode::CasConflict);
        assert_eq!(code(b.lock("x").await), ProblemCode::CasConflict, "names are of one node's clients");
    }
    let waited = wait_for(&b, "z", 60).await;
    assert!((30..=46).contains(&waited), "{waited}");
    assert!(!a.holds().await);
}

#[tokio::test(start_paused = true)]
async fn a_client_without_a_name_has_fifteen_minutes() {
    let (a, b) = two();
    a.lock("").await.unwrap();
    pass(14 * 60).await;
    assert!(a.holds().await);
    let waited = wait_for(&b, "", 120).await;
    assert!((60..=76).contains(&waited), "{waited}");
}

#[tokio::test(start_paused = true)]
async fn a_release_frees_only_what_is_ones_own() {
    let (a, b) = two();
    a.lock("x").await.unwrap();
    for (node, owner) in [(&a, ""), (&a, "y"), (&b, "x"), (&b, "")] {
        node.unlock(owner).await;
        assert!(a.holds().await);
    }
    a.unlock("x").await;
    a.unlock("x").await;
    b.lock("x").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_release_while_the_lock_is_being_rewritten_is_not_lost() {
    let (a, b) = two();
    a.lock("x").await.unwrap();
    // The release comes between the rewrite and its answer.
    pass(5).await;
    a.unlock("x").await;
    assert!(!a.holds().await);
    b.lock("y").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_gone_before_its_answer_leaves_no_lock() {
    let (a, b) = two();
    {
        let asking = a.lock("");
        tokio::pin!(asking);
        // It is heard, and gone before the bucket has answered.
        assert!(futures_util::poll!(&mut asking).is_pending());
    }
    pass(1).await;
    assert!(!a.holds().await);
    b.lock("").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_in_trouble_is_no_held_lock_and_no_free_one() {
    let (a, b) = two();
    a.world.memory.plan(|_| Some(Fault::LoseRequest));
    assert_eq!(code(a.lock("x").await), ProblemCode::StoreUnavailable);
    a.world.memory.plan(|operation| matches!(operation, Operation::Put(..)).then_some(Fault::LoseAnswer));
    assert_eq!(code(a.lock("x").await), ProblemCode::StoreUnavailable, "it may be there and is not ours");
    a.world.memory.plan(|_| None);
    assert!(!a.holds().await);
    assert!(wait_for(&b, "y", 30).await <= 11);
}

#[tokio::test(start_paused = true)]
async fn a_lock_with_a_time_that_is_none_is_stale_and_one_of_another_version_is_refused() {
    let world = World::new();
    let a = Node::new("a", world.memory.sibling());
    let lock = "_scafo/tls/locks/issue";
    for stale in [r#""released""#, "null", "7", r#""""#] {
        let body = format!(r#"{{"v": 1, "holder": "z", "nonce": "n", "refreshedAt": {stale}}}"#);
        put_raw(&world.memory, lock, &body).await;
        a.lock("x").await.unwrap();
        a.unlock("x").await;
    }
    for bad in ["", "{\"v\": 2}", "[]", r#"{"v": 1}"#] {
        put_raw(&world.memory, lock, bad).await;
        assert_eq!(code(a.lock("x").await), ProblemCode::StoreNonconforming, "{bad}");
        assert_eq!(world.memory.get(lock).await.unwrap().unwrap().body, bad.as_bytes());
    }
}

#[tokio::test(start_paused = true)]
async fn no_two_bodies_of_a_lock_are_equal() {
    let (a, _b) = two();
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        a.lock("x").await.unwrap();
        let body = a.world.memory.get("_scafo/tls/locks/issue").await.unwrap().unwrap().body;
        assert!(seen.insert(body.to_vec()));
        a.unlock("x").await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_counter_under_the_lock_loses_nothing() {
    let memory = MemoryBucket::new();
    let nodes: Vec<Arc<Node>> = ["a", "b"].map(|id| Arc::new(Node::new(id, memory.sibling()))).into();
    let counter = Arc::new(std::sync::Mutex::new(0_u32));
    let mut clients = JoinSet::new();
    for number in 0..100 {
        let (node, counter) = (Arc::clone(&nodes[number % 2]), Arc::clone(&counter));
        clients.spawn(async move {
            let owner = format!("client-{number}");
            wait_for(&node, &owner, 10_000).await;
            let read = *counter.lock().unwrap();
            tokio::time::sleep(Duration::from_millis(u64::try_from(number).unwrap())).await;
            *counter.lock().unwrap() = read + 1;
            node.unlock(&owner).await;
        });
    }
    clients.join_all().await;
    assert_eq!(*counter.lock().unwrap(), 100);
}

#[tokio::test(start_paused = true)]
async fn two_nodes_never_hold_one_lock_whatever_the_store_does() {
    for seed in 0..60_u64 {
        let memory = MemoryBucket::new();
        let nodes: Vec<Node> = ["a", "b", "c"].map(|id| Node::new(id, memory.sibling())).into();
        for (number, node) in (1_u64..).zip(&nodes) {
            let mut state = seed.wrapping_mul(97) + number;
            node.world.memory.plan(move |_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                match (state >> 33) % 30 {
                    0 => Some(Fault::LoseRequest),
                    1 => Some(Fault::LoseAnswer),
                    2 => Some(Fault::Conflict),
                    3 => Some(Fault::HoldBack),
                    _ => None,
                }
            });
        }
        let mut granted = 0;
        for round in 0..300_u64 {
            let node = &nodes[usize::try_from((seed + round * 7) % 3).unwrap()];
            granted += u32::from(node.lock("x").await.is_ok());
            if round % 11 == 3 {
                node.unlock("x").await;
            }
            if round % 17 == 5 {
                memory.release_held();
            }
            let mut holders = 0;
            for node in &nodes {
                holders += u32::from(node.holds().await);
            }
            assert!(holders <= 1, "seed {seed}, round {round}");
            pass(1).await;
        }
        assert!(granted > 5, "seed {seed}: {granted}");
    }
}

#[test]
fn an_owner_is_a_short_visible_text() {
    assert_eq!(LockOwner::parse("").unwrap(), None);
    assert!(LockOwner::parse("3f2a-~!").unwrap().is_some());
    for bad in ["a b", "ä", "a\n", &"x".repeat(129)] {
        assert_eq!(code(LockOwner::parse(bad)), ProblemCode::InvalidInput);
    }
}

#[tokio::test(start_paused = true)]
async fn what_one_level_and_a_stat_tell_does_not_depend_on_how_much_lies_below() {
    let world = World::new();
    for number in 0..=LIST_KEYS_MAX {
        put_raw(&world.memory, &format!("_scafo/tls/objects/many/{}/{number}", number % 2), "{}").await;
    }
    let many = key("many");
    assert_eq!(list(&world.registry, None, false).await.unwrap(), ["many"]);
    assert_eq!(list(&world.registry, Some(&many), false).await.unwrap(), ["many/0", "many/1"]);
    assert_eq!(code(list(&world.registry, Some(&many), true).await), ProblemCode::StoreNonconforming);
    let before = world.memory.requests();
    assert!(!stat(&world.registry, &many).await.unwrap().is_terminal);
    assert_eq!(world.memory.requests() - before, 2, "the key itself, and one page");
    delete(&world.registry, &many).await.unwrap();
    assert_eq!(world.memory.keys(""), Vec::<String>::new());
}

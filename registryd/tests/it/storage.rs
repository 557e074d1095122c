//! Certificate storage, over the socket.

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use scafo_core::problem::ProblemCode;
use scafo_proto::status::to_problem;
use scafo_proto::storage::{DeleteRequest, GetRequest, ListRequest, LockRequest, PutPiece, StatRequest, UnlockRequest};
use scafo_store::{Bucket as _, MemoryBucket};
use tonic::{Response, Status};

use crate::node::Node;

fn code<T: std::fmt::Debug>(answer: Result<Response<T>, Status>) -> ProblemCode {
    to_problem(&answer.unwrap_err()).code
}

async fn put(node: &Node, key: &str, value: &[u8]) -> Result<(), ProblemCode> {
    let pieces: Vec<PutPiece> = scafo_proto::chunk::split(Bytes::copy_from_slice(value))
        .enumerate()
        .map(|(index, (data, _))| PutPiece { key: if index == 0 { key.to_owned() } else { String::new() }, data })
        .collect();
    let answer = node.storage().put(tokio_stream::iter(pieces)).await;
    answer.map(drop).map_err(|status| to_problem(&status).code)
}

async fn get(node: &Node, key: &str) -> Result<Vec<u8>, ProblemCode> {
    let answer = node.storage().get(GetRequest { key: key.to_owned() }).await;
    let mut pieces = answer.map_err(|status| to_problem(&status).code)?.into_inner();
    let first = pieces.message().await.unwrap().unwrap();
    let mut value = first.data.to_vec();
    while let Some(piece) = pieces.message().await.unwrap() {
        assert_eq!(piece.size, 0, "the size stands on the first piece only");
        value.extend_from_slice(&piece.data);
    }
    assert_eq!(first.size, value.len() as u64);
    Ok(value)
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_every_size_go_through_the_socket() {
    let node = Node::start("a", MemoryBucket::new());
    for length in [0, 1, 300_000, 16 << 20] {
        let value: Vec<u8> = (0..length).map(|index: usize| u8::try_from(index % 251).unwrap()).collect();
        put(&node, "acme/x", &value).await.unwrap();
        assert!(get(&node, "acme/x").await.unwrap() == value, "{length}");
    }
    assert_eq!(put(&node, "acme/x", &vec![0; (16 << 20) + 1]).await, Err(ProblemCode::ResourceLimit));
    assert_eq!(put(&node, "../x", b"x").await, Err(ProblemCode::InvalidInput));
    assert_eq!(get(&node, "acme").await, Err(ProblemCode::NotFound));
    let empty = node.storage().put(tokio_stream::iter(Vec::<PutPiece>::new())).await;
    assert_eq!(code(empty), ProblemCode::InvalidInput);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_whose_sender_is_gone_half_way_is_not_stored() {
    let mut node = Node::start("a", MemoryBucket::new());
    put(&node, "acme/x", b"whole").await.unwrap();
    let (sent, begun) = tokio::sync::oneshot::channel();
    let first = PutPiece { key: "acme/x".into(), data: Bytes::from_static(b"ha") };
    let pieces = tokio_stream::iter([first]).chain(stream::once(async move {
        // Asked for only once the first piece has left.
        sent.send(()).unwrap();
        std::future::pending().await
    }));
    let mut storage = node.storage();
    let sending = storage.put(pieces);
    tokio::select! {
        _ = sending => panic!("the sender never comes to its end"),
        begun = begun => begun.unwrap(),
    }
    // The call was dropped. Whatever the daemon makes of that, it has made once it has ended in good order.
    node.stop().await.unwrap();
    let stored = node.memory().get("_scafo/tls/objects/acme/x").await.unwrap().unwrap();
    let envelope: serde_json::Value = serde_json::from_slice(&stored.body).unwrap();
    assert_eq!(envelope["size"], 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_listed_told_and_removed() {
    let node = Node::start("a", MemoryBucket::new());
    let mut storage = node.storage();
    for number in 0..1200 {
        put(&node, &format!("many/{number:04}"), b"x").await.unwrap();
    }
    let list = |prefix: &str| ListRequest { prefix: prefix.to_owned(), recursive: true };
    let mut pieces = storage.list(list("many")).await.unwrap().into_inner();
    let mut keys = Vec::new();
    while let Some(piece) = pieces.message().await.unwrap() {
        keys.extend(piece.keys);
    }
    assert_eq!((keys.len(), keys.first().map(String::as_str)), (1200, Some("many/0000")));
    let stat = storage.stat(StatRequest { key: "many".into() }).await.unwrap().into_inner().stat;
    let stat: serde_json::Value = serde_json::from_slice(&stat).unwrap();
    assert_eq!(stat, serde_json::json!({"key": "many", "modified": null, "size": 0, "isTerminal": false}));
    storage.delete(DeleteRequest { key: "many".into() }).await.unwrap();
    assert_eq!(code(storage.list(list("many")).await), ProblemCode::NotFound);
    assert_eq!(code(storage.list(list("")).await), ProblemCode::NotFound);
    assert_eq!(code(storage.list(list("many/")).await), ProblemCode::InvalidInput);
    assert_eq!(code(storage.stat(StatRequest { key: "many".into() }).await), ProblemCode::NotFound);
    assert_eq!(code(storage.delete(DeleteRequest { key: "many".into() }).await), ProblemCode::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_exclude_each_other_across_nodes() {
    let memory = MemoryBucket::new();
    let second = memory.sibling();
    let (a, b) = (Node::start("a", memory), Node::start("b", second));
    let lock = |owner: &str| LockRequest { name: "issue_cert_x".into(), owner: owner.into() };
    a.storage().lock(lock("one")).await.unwrap();
    a.storage().lock(lock("one")).await.unwrap();
    assert_eq!(code(a.storage().lock(lock("two")).await), ProblemCode::CasConflict);
    assert_eq!(code(b.storage().lock(lock("one")).await), ProblemCode::CasConflict);
    b.storage().unlock(UnlockRequest { name: "issue_cert_x".into(), owner: "one".into() }).await.unwrap();
    a.storage().unlock(UnlockRequest { name: "issue_cert_x".into(), owner: "one".into() }).await.unwrap();
    b.storage().lock(lock("")).await.unwrap();
    assert_eq!(code(a.storage().lock(lock("a b")).await), ProblemCode::InvalidInput);
    assert_eq!(
        code(a.storage().lock(LockRequest { name: "/x".into(), owner: String::new() }).await),
        ProblemCode::InvalidInput
    );
}

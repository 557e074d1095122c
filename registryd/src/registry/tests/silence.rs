//! A store that takes a write, carries it out, and never answers.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use scafo_core::key;
use scafo_core::record::{FreezeRecord, Rest, V1};
use scafo_core::settings::{BucketAccess, Secret};
use scafo_store::S3Bucket;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::registry::{Intent, Registry, SystemClock};

/// The one object that it knows: write id and body of the first PUT.
type Kept = Arc<Mutex<Option<(String, Vec<u8>)>>>;

/// Head and body of one request.
async fn read(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
    let end = loop {
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "the request ends early");
        request.extend_from_slice(&buffer[..read]);
        if let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
    };
    let mut body = request.split_off(end + 4);
    let head = String::from_utf8(request).unwrap().to_ascii_lowercase();
    let length = header(&head, "content-length").map_or(0, |length| length.parse().unwrap());
    while body.len() < length {
        let read = stream.read(&mut buffer).await.unwrap();
        body.extend_from_slice(&buffer[..read]);
    }
    (head, body)
}

fn header(head: &str, name: &str) -> Option<String> {
    head.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(": ")?.to_owned()))
}

/// Answers one connection: the first PUT of a record never, everything else as a store would.
async fn serve(mut stream: TcpStream, kept: Kept) {
    let (head, body) = read(&mut stream).await;
    if head.starts_with("put") && head.contains("/freeze.json") {
        let silent = {
            let mut kept = kept.lock().unwrap();
            let first = kept.is_none();
            kept.get_or_insert((header(&head, "x-amz-meta-scafo-write").unwrap(), body));
            first
        };
        if silent {
            return std::future::pending().await;
        }
        return say(&mut stream, "412 Precondition Failed", b"").await;
    }
    let there = kept.lock().unwrap().clone();
    match there {
        Some((id, body)) if head.starts_with("get") && head.contains("/freeze.json") => {
            say(&mut stream, &format!("200 OK\r\netag: \"one\"\r\nx-amz-meta-scafo-write: {id}"), &body).await;
        }
        _ => say(&mut stream, "200 OK\r\netag: \"hint\"", b"").await,
    }
}

async fn say(stream: &mut TcpStream, head: &str, body: &[u8]) {
    let head = format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body).await.unwrap();
    stream.shutdown().await.unwrap();
}

#[tokio::test]
async fn a_write_that_is_never_answered_ends_at_its_deadline_and_is_settled_by_its_id() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Some(format!("http://{}", listener.local_addr().unwrap()));
    let kept = Kept::default();
    let mut tasks = JoinSet::new();
    let serving = Arc::clone(&kept);
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(serve(stream, Arc::clone(&serving)));
        }
    });
    let bucket = S3Bucket::new(&BucketAccess {
        name: "bucket".to_owned(),
        prefix: String::new(),
        endpoint,
        region: "us-east-1".to_owned(),
        path_style: true,
        access_key_id: "AKIAEXAMPLE".to_owned(),
        secret_access_key: Secret::new("secret"),
        session_token: None,
    });
    let registry = Registry::new(Arc::new(bucket), Arc::new(SystemClock), "test");
    let now = registry.clock().wall();
    let freeze = FreezeRecord { v: V1, frozen_at: now, by: "op".to_owned(), reason: None, rest: Rest::new() };
    let intent = Intent::new().operation("the-write");
    let started = Instant::now();
    let changed = registry.engine().create(&intent, &freeze).await.unwrap();
    assert!(changed.written, "the first try landed: the second one was refused, and the id on the object is ours");
    assert_eq!(changed.stored.write_id.as_deref(), Some("the-write"));
    assert_eq!(registry.engine().try_load::<FreezeRecord>(key::FREEZE).await.unwrap().unwrap().record.by, "op");
    // The deadline of a call is ten seconds; a minute is the most that a busy machine adds.
    assert!(started.elapsed() >= Duration::from_secs(9) && started.elapsed() < Duration::from_secs(60));
}

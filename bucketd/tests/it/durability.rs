use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex},
};

use aws_sdk_s3::Client;
use tokio::{sync::watch, task::JoinSet};

use crate::harness::{BUCKET, Bucketd, bytes, until_body_files};

const WRITERS: u64 = 6;

/// Enough that the kill falls into every stage of some write.
const ACKNOWLEDGED_PER_ROUND: usize = 120;

/// Small ones live in the database, large ones in files.
fn size(number: u64) -> usize {
    if number.is_multiple_of(3) { 150_000 } else { 500 }
}

fn seed(round: u64, writer: u64, number: u64) -> u64 {
    round << 40 | writer << 32 | number
}

/// Writes until the process is gone. Every third write goes over an object that is already there.
async fn write(
    client: Client,
    round: u64,
    writer: u64,
    acknowledged: Arc<Mutex<HashMap<String, u64>>>,
    count: Arc<watch::Sender<usize>>,
) {
    for number in 0.. {
        let key = format!("{round}/{writer}/{}", if number % 3 == 2 { number - 1 } else { number });
        let seed = seed(round, writer, number);
        let put = client.put_object().bucket(BUCKET).key(&key).body(bytes(seed, size(number)).into());
        if put.send().await.is_err() {
            // Of an overwrite that was not answered either outcome is right.
            acknowledged.lock().unwrap().remove(&key);
            return;
        }
        acknowledged.lock().unwrap().insert(key, seed);
        count.send_modify(|count| *count += 1);
    }
}

/// Kills the store while it is written to and answers what it had acknowledged by then.
async fn write_and_kill(dir: &Path, round: u64) -> HashMap<String, u64> {
    let bucketd = Bucketd::start(dir);
    let acknowledged = Arc::new(Mutex::new(HashMap::new()));
    let (count, mut counted) = watch::channel(0);
    let count = Arc::new(count);
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        writers.spawn(write(bucketd.client(), round, writer, Arc::clone(&acknowledged), Arc::clone(&count)));
    }
    counted.wait_for(|count| *count >= ACKNOWLEDGED_PER_ROUND).await.unwrap();
    bucketd.kill();
    while let Some(writer) = writers.join_next().await {
        writer.unwrap();
    }
    Arc::into_inner(acknowledged).unwrap().into_inner().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_keeps_every_acknowledged_put_and_no_litter() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = HashMap::new();
    for round in 0..4 {
        acknowledged.extend(write_and_kill(dir.path(), round).await);
    }
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    assert!(acknowledged.len() > 4 * ACKNOWLEDGED_PER_ROUND / 2);
    for (key, seed) in &acknowledged {
        let get = client.get_object().bucket(BUCKET).key(key).send().await;
        let get = get.unwrap_or_else(|error| panic!("{key} was acknowledged: {error:?}"));
        let body = get.body.collect().await.unwrap().to_vec();
        assert!(body == bytes(*seed, body.len()), "{key} is not what was acknowledged");
    }
    // Whatever else is there is whole, and each body file belongs to an object.
    let mut large = 0;
    let mut pages = client.list_objects_v2().bucket(BUCKET).into_paginator().send();
    while let Some(page) = pages.next().await {
        for object in page.unwrap().contents() {
            let get = client.get_object().bucket(BUCKET).key(object.key().unwrap()).send().await.unwrap();
            let length = get.body.collect().await.unwrap().into_bytes().len();
            assert_eq!(i64::try_from(length).ok(), object.size());
            large += usize::from(length > 64 * 1024);
        }
    }
    until_body_files(dir.path(), large);
}

#[tokio::test]
async fn upload_under_way_survives_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    let upload = client.create_multipart_upload().bucket(BUCKET).key("k").send().await.unwrap().upload_id.unwrap();
    let part = client.upload_part().bucket(BUCKET).key("k").upload_id(&upload).part_number(1);
    part.body(b"part".to_vec().into()).send().await.unwrap();
    bucketd.kill();
    let bucketd = Bucketd::start(dir.path());
    let parts = bucketd.client().list_parts().bucket(BUCKET).key("k").upload_id(&upload).send().await.unwrap();
    assert_eq!(parts.parts().len(), 1);
}

#[test]
fn file_without_an_object_is_swept_at_start() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(Bucketd::start(dir.path()).stop(), Some(0));
    let litter = dir.path().join("bodies").join("0123456789abcdef0123456789abcdef");
    let foreign = dir.path().join("bodies").join("README");
    std::fs::write(&litter, "half").unwrap();
    std::fs::write(&foreign, "not ours").unwrap();
    let bucketd = Bucketd::start(dir.path());
    assert!(!litter.exists());
    assert!(foreign.exists());
    drop(bucketd);
}

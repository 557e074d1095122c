use std::collections::BTreeMap;

use aws_sdk_s3::{Client, primitives::ByteStream};
use tokio::task::JoinSet;

use crate::harness::{BUCKET, Bucketd, refusal, refused};

const RACES: usize = 80;
const RACERS: usize = 50;

/// Who won, and how the others were answered.
#[derive(Debug, Default)]
struct Outcome {
    winners: Vec<(usize, String)>,
    refusals: BTreeMap<(u16, String), usize>,
}

/// All racers put their own body at once, under the same condition.
async fn race(client: &Client, key: &str, over: Option<&str>) -> Outcome {
    let mut racers = JoinSet::new();
    for racer in 0..RACERS {
        let put = client.put_object().bucket(BUCKET).key(key).body(ByteStream::from(body(key, racer)));
        let put = match over {
            Some(etag) => put.if_match(etag),
            None => put.if_none_match("*"),
        };
        racers.spawn(async move { (racer, put.send().await) });
    }
    let mut outcome = Outcome::default();
    while let Some(finished) = racers.join_next().await {
        match finished.unwrap() {
            (racer, Ok(put)) => outcome.winners.push((racer, put.e_tag.unwrap())),
            (_, refused) => *outcome.refusals.entry(refusal(refused)).or_default() += 1,
        }
    }
    outcome
}

fn body(key: &str, racer: usize) -> Vec<u8> {
    format!("{key} by {racer}").into_bytes()
}

/// Exactly one racer won, the others were told so, and what it wrote is what is there.
async fn assert_one_winner(client: &Client, key: &str, outcome: &Outcome) -> String {
    let [(winner, etag)] = outcome.winners.as_slice() else { panic!("{key}: {outcome:?}") };
    assert_eq!(outcome.refusals, BTreeMap::from([(refused(412, "PreconditionFailed"), RACERS - 1)]), "{key}");
    let object = client.get_object().bucket(BUCKET).key(key).send().await.unwrap();
    assert_eq!(object.e_tag.as_ref(), Some(etag), "{key}");
    assert_eq!(object.body.collect().await.unwrap().to_vec(), body(key, *winner), "{key}");
    etag.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_50_parallel_creates_and_updates_one_wins_in_each_of_80_races() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    for number in 0..RACES {
        let key = format!("race/{number}");
        let created = race(&client, &key, None).await;
        let etag = assert_one_winner(&client, &key, &created).await;
        // The bodies of the update must differ from those of the create, or the ETag would come back.
        let seed = client.put_object().bucket(BUCKET).key(&key).if_match(etag).body(key.clone().into_bytes().into());
        let seed = seed.send().await.unwrap().e_tag.unwrap();
        let updated = race(&client, &key, Some(&seed)).await;
        assert_one_winner(&client, &key, &updated).await;
    }
}

#[tokio::test]
async fn conditional_writes_answer_as_s3_does() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    let put = |body: &str| client.put_object().bucket(BUCKET).key("k").body(body.as_bytes().to_vec().into());

    // The start probe of the runtime: create, create again, update, update with what is stale by then, delete.
    let first = put("1").if_none_match("*").send().await.unwrap().e_tag.unwrap();
    assert_eq!(refusal(put("2").if_none_match("*").send().await), refused(412, "PreconditionFailed"));
    let second = put("3").if_match(&first).send().await.unwrap().e_tag.unwrap();
    assert_ne!(first, second);
    assert_eq!(refusal(put("4").if_match(&first).send().await), refused(412, "PreconditionFailed"));
    let read = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert_eq!(read.body.collect().await.unwrap().to_vec(), b"3");

    let delete = || client.delete_object().bucket(BUCKET).key("k");
    assert_eq!(refusal(delete().if_match(&first).send().await), refused(412, "PreconditionFailed"));
    delete().if_match(&second).send().await.unwrap();
    // What is not there is deleted.
    delete().send().await.unwrap();
    assert_eq!(refusal(put("5").if_match(&second).send().await), refused(404, "NoSuchKey"));
    put("6").if_none_match("*").send().await.unwrap();
}

#[tokio::test]
async fn conditional_reads_answer_as_s3_does() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    let etag = client.put_object().bucket(BUCKET).key("k").body(b"x".to_vec().into()).send().await.unwrap();
    let etag = etag.e_tag.unwrap();
    let get = || client.get_object().bucket(BUCKET).key("k");
    get().if_match(&etag).send().await.unwrap();
    assert_eq!(refusal(get().if_match("\"other\"").send().await).0, 412);
    get().if_none_match("\"other\"").send().await.unwrap();
    let unmodified = get().if_none_match(&etag).send().await.unwrap_err();
    let raw = unmodified.raw_response().unwrap();
    assert_eq!((raw.status().as_u16(), raw.headers().get("etag")), (304, Some(etag.as_str())));
    let head = client.head_object().bucket(BUCKET).key("k").if_none_match(&etag).send().await;
    assert_eq!(refusal(head).0, 304);
}

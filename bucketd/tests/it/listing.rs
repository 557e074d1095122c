use aws_sdk_s3::{Client, operation::list_objects_v2::builders::ListObjectsV2FluentBuilder, types::EncodingType};
use tokio::task::JoinSet;

use crate::harness::{BUCKET, Bucketd, refusal, refused};

async fn fill(client: &Client, keys: impl IntoIterator<Item = String>) {
    let mut puts = JoinSet::new();
    for key in keys {
        let put = client.put_object().bucket(BUCKET).key(&key).body(key.into_bytes().into());
        if puts.len() == 32 {
            puts.join_next().await.unwrap().unwrap();
        }
        puts.spawn(async move { drop(put.send().await.unwrap()) });
    }
    while let Some(put) = puts.join_next().await {
        put.unwrap();
    }
}

/// All pages: keys, common prefixes, and how many there were.
async fn pages(list: impl Fn() -> ListObjectsV2FluentBuilder) -> (Vec<String>, Vec<String>, usize) {
    let (mut keys, mut prefixes, mut count) = (Vec::new(), Vec::new(), 0);
    let mut token = None;
    loop {
        let page = list().set_continuation_token(token).send().await.unwrap();
        count += 1;
        keys.extend(page.contents().iter().map(|object| object.key().unwrap().to_owned()));
        prefixes.extend(page.common_prefixes().iter().map(|prefix| prefix.prefix().unwrap().to_owned()));
        let entries = page.contents().len() + page.common_prefixes().len();
        assert_eq!(page.key_count, Some(i32::try_from(entries).unwrap()));
        token = page.next_continuation_token;
        assert_eq!(page.is_truncated, Some(token.is_some()));
        if token.is_none() {
            return (keys, prefixes, count);
        }
    }
}

#[tokio::test]
async fn listing_of_1205_keys_comes_in_sorted_pages() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    let mut expected: Vec<_> = (0..1200).map(|number| format!("n/{number}")).collect();
    expected.extend(["a", "é", "Z", "n", "n0"].map(str::to_owned));
    fill(&client, expected.clone()).await;
    expected.sort();

    let list = || client.list_objects_v2().bucket(BUCKET);
    assert_eq!(pages(list).await, (expected.clone(), vec![], 2));
    assert_eq!(pages(|| list().max_keys(100)).await, (expected.clone(), vec![], 13));
    // More than a page holds is a page.
    assert_eq!(pages(|| list().max_keys(5000)).await.2, 2);
    let below: Vec<_> = expected.iter().filter(|key| key.starts_with("n/11")).cloned().collect();
    assert_eq!(pages(|| list().prefix("n/11")).await, (below, vec![], 1));
    let after: Vec<_> = expected.iter().filter(|key| key.as_str() > "n/998").cloned().collect();
    assert_eq!(pages(|| list().start_after("n/998")).await, (after, vec![], 1));
    let top = ["Z", "a", "n", "n0", "é"].map(str::to_owned).to_vec();
    assert_eq!(pages(|| list().delimiter("/")).await, (top, vec!["n/".to_owned()], 1));
    let none = list().max_keys(0).send().await.unwrap();
    assert_eq!((none.contents().len(), none.is_truncated), (0, Some(false)));
    assert_eq!(refusal(list().continuation_token("!").send().await), refused(400, "InvalidArgument"));
}

#[tokio::test]
async fn common_prefixes_are_paged_like_keys() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    let keys = ["a/1", "a/2", "b", "c/x/1", "c/x/2", "c/y", "d/1"].map(str::to_owned);
    fill(&client, keys).await;
    let list = || client.list_objects_v2().bucket(BUCKET).delimiter("/");
    let expected = (vec!["b".to_owned()], ["a/", "c/", "d/"].map(str::to_owned).to_vec(), 4);
    assert_eq!(pages(|| list().max_keys(1)).await, expected);
    let below = (vec!["c/y".to_owned()], vec!["c/x/".to_owned()], 1);
    assert_eq!(pages(|| list().prefix("c/")).await, below);

    // The first version of the protocol, whose marker may be a common prefix.
    let (mut found, mut marker) = (Vec::new(), None);
    loop {
        let list = client.list_objects().bucket(BUCKET).delimiter("/").max_keys(1).set_marker(marker);
        let page = list.send().await.unwrap();
        found.extend(page.contents().iter().map(|object| object.key().unwrap().to_owned()));
        found.extend(page.common_prefixes().iter().map(|prefix| prefix.prefix().unwrap().to_owned()));
        marker = page.next_marker;
        if marker.is_none() {
            break;
        }
    }
    assert_eq!(found, ["a/", "b", "c/", "d/"]);
}

#[tokio::test]
async fn odd_keys_survive_and_are_encoded_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    let keys = ["a b+c%20&<>\"'", "d/../e", "f//g", "ü/日本", "~x"].map(str::to_owned);
    fill(&client, keys.clone()).await;
    let plain = client.list_objects_v2().bucket(BUCKET).send().await.unwrap();
    let plain: Vec<_> = plain.contents().iter().map(|object| object.key().unwrap().to_owned()).collect();
    let mut sorted = keys.to_vec();
    sorted.sort();
    assert_eq!(plain, sorted);
    for key in &keys {
        let get = client.get_object().bucket(BUCKET).key(key).send().await.unwrap();
        assert_eq!(get.body.collect().await.unwrap().to_vec(), key.as_bytes());
    }
    let encoded = client.list_objects_v2().bucket(BUCKET).prefix("a b").encoding_type(EncodingType::Url);
    let encoded = encoded.send().await.unwrap();
    assert_eq!(encoded.contents()[0].key(), Some("a%20b%2Bc%2520%26%3C%3E%22%27"));
    assert_eq!(encoded.prefix.as_deref(), Some("a%20b"));
}

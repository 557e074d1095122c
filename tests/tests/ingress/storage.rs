//! Certificate storage through two real nodes on one bucket.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use scafo_tests::fleet::Fleet;
use scafo_tests::{Api, wait};

const LIMIT: Duration = Duration::from_secs(120);
const OWNER: &str = "x-scafo-lock-owner";

/// Status of a request without a body, by a lock's owner.
pub(crate) async fn status(api: &Api, method: Method, path: &str, owner: &str) -> u16 {
    let answer = api.ingress_with(method, path).header(OWNER, owner).send().await;
    answer.unwrap_or_else(|error| panic!("{path}: {error}")).status().as_u16()
}

async fn put(api: &Api, key: &str, value: String) {
    let path = format!("/v1/storage/objects/{key}");
    let answer = api.ingress_with(Method::PUT, &path).body(value).send().await.unwrap();
    assert_eq!(answer.status().as_u16(), 204, "{key}");
}

async fn get(api: &Api, key: &str) -> Option<String> {
    let answer = api.ingress(&format!("/v1/storage/objects/{key}")).send().await.unwrap();
    match answer.status().as_u16() {
        200 => Some(answer.text().await.unwrap()),
        404 => None,
        other => panic!("{key}: {other}"),
    }
}

/// Reads a number and writes the next one, both under the lock.
async fn count_on(api: &Api, owner: &str, rounds: usize) {
    const LOCK: &str = "/v1/storage/locks/counting";
    for _ in 0..rounds {
        wait::until("the lock", LIMIT, || async {
            match status(api, Method::POST, LOCK, owner).await {
                204 => Some(()),
                409 => None,
                other => panic!("lock: {other}"),
            }
        })
        .await;
        let before: usize = get(api, "counter").await.unwrap().parse().unwrap();
        put(api, "counter", (before + 1).to_string()).await;
        assert_eq!(status(api, Method::DELETE, LOCK, owner).await, 204);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_excludes_everybody_else_on_every_node() {
    let (owners, rounds) = if crate::long() { (10, 100) } else { (4, 25) };
    let fleet = Fleet::new(&[]).await;
    let (a, b) = (fleet.node("vps-a").await, fleet.node("vps-b").await);
    let apis = [a.api(), b.api()];
    put(&apis[0], "counter", "0".to_owned()).await;
    let counting = (0..owners).map(|owner| {
        let api = &apis[owner % 2];
        async move { count_on(api, &format!("owner-{owner}"), rounds).await }
    });
    join_all(counting).await;
    for api in &apis {
        assert_eq!(get(api, "counter").await, Some((owners * rounds).to_string()));
    }
    a.stop().await;
    b.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_deleted_through_one_node_is_gone_on_the_other_with_all_below_it() {
    let fleet = Fleet::new(&[]).await;
    let (a, b) = (fleet.node("vps-a").await, fleet.node("vps-b").await);
    let (one, other) = (a.api(), b.api());
    for key in ["a", "a/b", "a/b/c", "ab", "ab/c"] {
        put(&one, key, format!("value of {key}")).await;
        assert_eq!(get(&other, key).await, Some(format!("value of {key}")));
    }
    let delete =
        async |api: &Api, key: &str| status(api, Method::DELETE, &format!("/v1/storage/objects/{key}"), "").await;
    assert_eq!(delete(&other, "missing").await, 404);
    assert_eq!(delete(&other, "a").await, 204);
    for (key, there) in [("a", false), ("a/b", false), ("a/b/c", false), ("ab", true), ("ab/c", true)] {
        for api in [&one, &other] {
            assert_eq!(get(api, key).await.is_some(), there, "{key}");
        }
    }
    assert_eq!(delete(&one, "a").await, 404);
    a.stop().await;
    b.stop().await;
}

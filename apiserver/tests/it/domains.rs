//! `/v1/applications/{name}/domains/{host}`.

use http::{Method, StatusCode};
use serde_json::json;

use crate::harness::{Answer, Harness};
use crate::oracle::{application, settle};

async fn send(harness: &Harness, method: Method, host: &str, signer: &str) -> Answer {
    let path = format!("/v1/applications/shop/domains/{host}");
    harness.send(method, &path, &[("authorization", &harness.token(signer))], "").await
}

#[tokio::test]
async fn a_claim_and_a_release_answer_the_record_the_host_and_the_platform_hosts() {
    let harness = Harness::start().await;
    settle(&harness);
    let claimed = send(&harness, Method::POST, "WWW.Shop.Example", "root").await;
    let expected = json!({ "application": application("shop"), "host": "www.shop.example", "platformHosts": ["shop.apps.example"] });
    assert_eq!((claimed.status, claimed.json()), (StatusCode::OK, expected));
    let released = send(&harness, Method::DELETE, "www.shop.example", "root").await;
    assert_eq!(released.json()["platformHosts"], json!([]));
    let asked = harness.registry.world().administered.asked.clone();
    assert_eq!(asked[0], ("claim", "operator root *".to_owned(), json!(["shop", "www.shop.example", false])));
    assert_eq!(asked[1].0, "release");
}

#[tokio::test]
async fn only_1_claims_the_subdomains_and_needs_a_key_that_reaches_them() {
    let harness = Harness::start().await;
    for (query, wildcard) in [
        ("", false),
        ("?wildcard=1", true),
        ("?wildcard=true", false),
        ("?wildcard=01", false),
        ("?wildcard", false),
        ("?wildcard=%31", true),
    ] {
        for (signer, reaches) in [("root", true), ("every", true), ("family", true), ("glob", true), ("team", false)] {
            settle(&harness);
            let answer = send(&harness, Method::POST, &format!("shop.example{query}"), signer).await;
            if wildcard && !reaches {
                assert_eq!(
                    (answer.status.as_u16(), answer.problem().as_str()),
                    (403, "auth-scope"),
                    "{query} {signer}"
                );
                assert!(answer.json()["detail"].as_str().unwrap().contains("shop-*"));
                assert!(harness.registry.world().administered.asked.is_empty());
            } else {
                assert_eq!(answer.status, StatusCode::OK, "{query} {signer}");
                let asked = harness.registry.world().administered.asked[0].2.clone();
                assert_eq!(asked, json!(["shop", "shop.example", wildcard]), "{query} {signer}");
            }
        }
    }
    settle(&harness);
    let answer = send(&harness, Method::DELETE, "shop.example?wildcard=1", "team").await;
    assert_eq!(answer.status, StatusCode::OK, "releasing needs no more");
}

#[tokio::test]
async fn a_host_that_breaks_the_claim_rule_is_invalid_input_that_names_the_rule() {
    let harness = Harness::start().await;
    settle(&harness);
    let (long_label, long_host) = (format!("{}.de", "a".repeat(64)), format!("{}de", "abc.".repeat(63)));
    for (host, rule) in [
        ("m%C3%BCnchen.de", "a-z, 0-9"),
        ("example.com.", "trailing dot"),
        ("ex_ample.com", "underscore"),
        ("1.2.3.4", "all digits"),
        ("example.123", "all digits"),
        ("a..b", "1 to 63"),
        ("-a.b", "hyphen"),
        ("%2a.shop.example", "wildcard"),
        ("*.shop.example", "wildcard"),
        ("shop.example:443", "port"),
        ("localhost", "two labels"),
        ("a.b%2Fc", "path"),
        ("a.%ff", "a-z, 0-9"),
        ("a.b%00", "a-z, 0-9"),
        (&long_label, "1 to 63"),
        (&long_host, "253"),
    ] {
        for method in [Method::POST, Method::DELETE] {
            let answer = send(&harness, method, host, "root").await;
            assert_eq!((answer.status.as_u16(), answer.problem().as_str()), (400, "invalid-input"), "{host}");
            let detail = answer.json()["detail"].as_str().unwrap().to_owned();
            assert!(detail.contains(rule), "{host}: {detail}");
        }
    }
    assert!(harness.registry.world().administered.asked.is_empty());
    for good in ["xn--mnchen-3ya.de", "EXAMPLE.com", "a-b.c1"] {
        assert_eq!(send(&harness, Method::POST, good, "root").await.status, StatusCode::OK, "{good}");
    }
}

//! Every route and every kind of caller.

use std::collections::BTreeSet;

use http::Method;
use scafo_apiserver::surface::{ROUTES, Route};

use crate::harness::{Answer, Harness};
use crate::oracle::{Class, Row, TABLE, Who, ask, outcome, settle, welcome};

fn of(row: &Row) -> &'static Route {
    ROUTES.iter().find(|route| route.path == row.path && route.method().as_str() == row.method).unwrap()
}

#[test]
fn the_router_has_the_routes_of_the_specification_and_no_other() {
    let specified: BTreeSet<_> = TABLE.iter().map(|row| (row.path, row.method.to_owned())).collect();
    let built: BTreeSet<_> = ROUTES.iter().map(|route| (route.path, route.method().to_string())).collect();
    assert_eq!(built, specified);
    assert_eq!(built.len(), ROUTES.len(), "no route twice");
}

#[tokio::test]
async fn every_route_answers_every_kind_of_caller_as_specified_and_asks_nothing_for_a_refused_one() {
    let harness = Harness::start().await;
    let (mut rows, mut wrong) = (0, Vec::new());
    for row in &TABLE {
        for who in Who::ALL {
            settle(&harness);
            let answer = ask(&harness, row, row.request, who).await;
            let (status, code) = outcome(&answer);
            let expected = who.expected(row);
            if (status, code.as_str()) != expected {
                wrong.push(format!("{} {} by {who:?}: {status} {code}, not {expected:?}", row.method, row.request));
            }
            let documented = of(row).refusals().iter().any(|known| known.as_str() == code);
            assert!(status < 400 || documented, "{} {} does not document {code}", row.method, row.path);
            if status >= 400 {
                let world = harness.registry.world();
                let asked: Vec<_> = world.administered.asked.iter().filter(|(call, ..)| *call != "trust").collect();
                assert!(asked.is_empty() && world.prepared.is_empty(), "{} by {who:?}: {asked:?}", row.request);
            }
            rows += 1;
        }
    }
    assert!(wrong.is_empty(), "{} of {rows}: {wrong:#?}", wrong.len());
    assert!(rows >= 400, "{rows}");
}

#[tokio::test]
async fn head_answers_as_get_without_a_body() {
    let harness = Harness::start().await;
    for row in TABLE.iter().filter(|row| row.method == "GET") {
        settle(&harness);
        let who = welcome(row.class);
        let get = ask(&harness, row, row.request, who).await;
        let head = ask(&harness, &Row { method: "HEAD", ..*row }, row.request, who).await;
        assert_eq!((head.status, head.body.len()), (get.status, 0), "{}", row.request);
        assert_eq!(head.headers.get("content-type"), get.headers.get("content-type"), "{}", row.request);
        assert_eq!(head.headers.get("content-length"), get.headers.get("content-length"), "{}", row.request);
    }
}

#[tokio::test]
async fn every_other_method_is_405_and_allow_names_those_there_are() {
    let harness = Harness::start().await;
    for row in &TABLE {
        let mut there: BTreeSet<String> =
            TABLE.iter().filter(|other| other.path == row.path).map(|other| other.method.to_owned()).collect();
        if there.contains("GET") {
            there.insert("HEAD".to_owned());
        }
        for method in
            [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS]
        {
            if there.contains(method.as_str()) {
                continue;
            }
            let answer = harness.send(method.clone(), row.request, &[], "").await;
            assert_eq!(answer.status.as_u16(), 405, "{method} {}", row.request);
            let allow = answer.headers["allow"].to_str().unwrap().split(',').map(|name| name.trim().to_owned());
            assert_eq!(allow.collect::<BTreeSet<_>>(), there, "{method} {}", row.request);
            if method != Method::HEAD {
                assert_eq!(answer.problem(), "method-not-allowed");
            }
        }
    }
}

#[tokio::test]
async fn what_refuses_a_caller_does_not_say_what_its_key_reaches() {
    let harness = Harness::start().await;
    for row in TABLE.iter().filter(|row| row.path.contains("{name}")) {
        for who in [Who::Near, Who::Other, Who::Lead] {
            settle(&harness);
            let answer = ask(&harness, row, row.request, who).await;
            let text = String::from_utf8(answer.body.to_vec()).unwrap();
            assert_eq!(answer.status.as_u16(), 403, "{} by {who:?}", row.request);
            assert!(!text.contains("blog") && !text.contains("shops") && !text.contains("shop-*"), "{text}");
        }
    }
}

#[tokio::test]
async fn the_scope_is_checked_before_the_tier() {
    let harness = Harness::start().await;
    for row in TABLE.iter().filter(|row| row.class == Class::AdminOf) {
        let detail =
            async |who| ask(&harness, row, row.request, who).await.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail(Who::Other).await.contains("does not reach"), "{}", row.request);
        assert!(detail(Who::Team).await.contains("only an admin key"), "{}", row.request);
    }
    for row in TABLE.iter().filter(|row| row.class == Class::Admin) {
        let answer = ask(&harness, row, row.request, Who::Team).await;
        assert!(answer.json()["detail"].as_str().unwrap().contains("the fleet makes about itself"));
    }
}

/// What an answer tells: everything but what is random in it.
fn told(answer: &Answer) -> (u16, Vec<(String, String)>, bytes::Bytes) {
    let mut headers: Vec<(String, String)> = answer
        .headers
        .iter()
        .filter(|(name, _)| !["x-request-id", "date", "location"].contains(&name.as_str()))
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    headers.sort();
    // The id of a new deploy.
    let body = if answer.status.as_u16() == 202 { bytes::Bytes::new() } else { answer.body.clone() };
    (answer.status.as_u16(), headers, body)
}

#[tokio::test]
async fn an_operator_cannot_tell_worlds_apart_that_differ_in_another_tenant() {
    let at = "2026-04-01T12:30:00.000Z";
    let process = serde_json::json!({ "application": "blog", "state": "ready", "since": at, "port": 1, "internalPort": 2,
                                      "restarts": 0, "adopted": false });
    let placement = serde_json::json!({ "application": "blog", "nodes": ["n1"], "fence": 1, "here": true });
    for who in [Who::Team, Who::Family, Who::Glob] {
        let mut seen = Vec::new();
        for there in [true, false] {
            let harness = Harness::start().await;
            let mut all = Vec::new();
            for row in TABLE.iter().filter(|row| row.class != Class::Ingress) {
                for request in [row.request.to_owned(), row.request.replace("shop", "blog")] {
                    settle(&harness);
                    if there {
                        let mut world = harness.registry.world();
                        world.state["processes"] = serde_json::json!([process]);
                        world.state["placements"] = serde_json::json!([placement]);
                    } else {
                        let mut world = harness.registry.world();
                        world.applications = serde_json::json!([crate::oracle::application("shop")]);
                        world.administered.applications.remove("blog");
                    }
                    let answer = ask(&harness, row, &request, who).await;
                    all.push((row.method, request, told(&answer)));
                }
            }
            seen.push(all);
        }
        for (one, other) in seen[0].iter().zip(&seen[1]) {
            assert_eq!(one, other, "{who:?}");
        }
    }
}

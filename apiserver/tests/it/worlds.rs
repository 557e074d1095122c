//! Every route in worlds where something is not as it should be, for a caller in good standing.

use http::Method;
use scafo_apiserver::surface::ROUTES;
use scafo_core::problem::{Problem, ProblemCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::harness::Harness;
use crate::oracle::{Class, Payload, Row, TABLE, Who, ask, outcome, settle, welcome};

fn scoped() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().filter(|row| row.path.contains("{name}"))
}

/// Routes that ask the registry's administration or its storage.
fn asking() -> impl Iterator<Item = &'static Row> {
    let elsewhere = ["/v1/state", "/v1/applications", "/v1/applications/{name}/deploys", "/v1/deploys/{id}"];
    TABLE.iter().filter(move |row| {
        row.class != Class::Open && !elsewhere.contains(&row.path) && !row.path.starts_with("/v1/ingress")
    })
}

#[tokio::test]
async fn what_is_no_application_name_is_an_invalid_slug() {
    let harness = Harness::start().await;
    settle(&harness);
    let long = "a".repeat(64);
    for row in scoped() {
        for bad in ["No", "a_b", "-a", "a-", "a.b", "%ff", "%00", "a%2Fb", "..%2f", "%20", &long] {
            let request = row.request.replacen("shop", bad, 1);
            let answer = ask(&harness, row, &request, Who::Root).await;
            assert_eq!(outcome(&answer), (400, "invalid-slug".to_owned()), "{} {request}", row.method);
            let stranger = ask(&harness, row, &request, Who::Nobody).await;
            assert_eq!(outcome(&stranger), (401, "auth-invalid".to_owned()), "{} {request}", row.method);
        }
    }
    assert!(harness.registry.world().administered.asked.is_empty());
}

#[tokio::test]
async fn a_missing_application_is_not_found_on_every_route_but_its_first_deploy() {
    let harness = Harness::start().await;
    for row in scoped().filter(|row| row.class != Class::Deployer) {
        settle(&harness);
        harness.registry.world().administered.applications.clear();
        let answer = ask(&harness, row, row.request, Who::Root).await;
        assert_eq!(outcome(&answer), (404, "not-found".to_owned()), "{} {}", row.method, row.request);
    }
}

#[tokio::test]
async fn a_refusal_of_the_registry_is_passed_on_with_its_code_title_and_detail() {
    let harness = Harness::start().await;
    for row in asking() {
        let route =
            ROUTES.iter().find(|route| route.path == row.path && route.method().as_str() == row.method).unwrap();
        for code in route.refusals() {
            // The first two are said in the API's own words.
            if matches!(code, ProblemCode::Internal | ProblemCode::AuthInvalid | ProblemCode::Draining) {
                continue;
            }
            settle(&harness);
            let problem = Problem::new(code, "as the test wants it").titled("A title");
            harness.registry.world().refuse = Some(problem.clone());
            let answer = ask(&harness, row, row.request, welcome(row.class)).await;
            assert_eq!(outcome(&answer), (code.status(), code.as_str().to_owned()), "{} {}", row.method, row.request);
            let document = answer.json();
            assert_eq!((&document["title"], &document["detail"]), (&"A title".into(), &"as the test wants it".into()));
        }
    }
}

#[tokio::test]
async fn a_registry_that_is_killed_in_the_middle_of_a_call_is_asked_again() {
    let harness = Harness::start().await;
    for row in asking().filter(|row| row.class != Class::Ingress) {
        settle(&harness);
        harness.registry.world().lose_answers = 2;
        let answer = ask(&harness, row, row.request, Who::Root).await;
        assert_eq!(outcome(&answer), (row.status, String::new()), "{} {}", row.method, row.request);
        assert_eq!(harness.registry.world().administered.asked.len(), 3, "{} {}", row.method, row.request);
    }
}

#[tokio::test]
async fn a_defect_shows_a_request_id_and_no_cause() {
    let harness = Harness::start().await;
    for row in asking() {
        settle(&harness);
        harness.registry.world().refuse = Some(Problem::new(ProblemCode::Internal, "secret"));
        let answer = ask(&harness, row, row.request, welcome(row.class)).await;
        assert_eq!(outcome(&answer), (500, "internal".to_owned()), "{} {}", row.method, row.request);
        let text = String::from_utf8(answer.body.to_vec()).unwrap();
        assert!(text.contains(answer.headers["x-request-id"].to_str().unwrap()) && !text.contains("secret"), "{text}");
    }
}

fn taking_json() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().filter(|row| matches!(row.payload, Payload::Json(_)))
}

async fn send(harness: &Harness, row: &Row, body: impl Into<bytes::Bytes>) -> (u16, String) {
    settle(harness);
    let token = harness.token("root");
    let method: Method = row.method.parse().unwrap();
    outcome(&harness.send(method, row.request, &[("authorization", &token)], body).await)
}

#[tokio::test]
async fn a_body_that_is_no_object_of_the_right_shape_is_invalid_input() {
    let harness = Harness::start().await;
    let deep = format!("{{\"x\":{}1{}}}", "[".repeat(30_000), "]".repeat(30_000));
    let bad = [
        "null",
        "[]",
        "1",
        "\"x\"",
        "{",
        "{}}",
        "\u{feff}{}",
        "labels=1",
        &deep,
        r#"{"x":1,"x":2}"#,
        r#"{"labels":null,"selector":1,"replicas":null,"reason":null,"id":null}"#,
        r#"{"labels":{"a":1},"selector":{"a":null},"replicas":0,"reason":1,"id":""}"#,
        r#"{"labels":["a"],"selector":[],"replicas":1.5,"reason":["a"],"id":"Op"}"#,
        r#"{"labels":"a","selector":"","replicas":"1","reason":{},"id":"a","publicKey":{"kty":"OKP","crv":"Ed25519","x":""}}"#,
    ];
    for row in taking_json() {
        for body in bad {
            let got = send(&harness, row, body.to_owned()).await;
            assert_eq!(got, (400, "invalid-input".to_owned()), "{} {body}", row.request);
            assert!(harness.registry.world().administered.asked.is_empty());
        }
        if row.path != "/v1/fleet/freeze" {
            for body in ["", "{}"] {
                assert_eq!(
                    send(&harness, row, body).await,
                    (400, "invalid-input".to_owned()),
                    "{} {body}",
                    row.request
                );
            }
        }
    }
}

#[tokio::test]
async fn a_body_may_have_65536_bytes_and_not_one_more() {
    let harness = Harness::start().await;
    for row in taking_json() {
        let Payload::Json(good) = row.payload else { unreachable!() };
        let padded = |length: usize| good.to_owned() + &" ".repeat(length - good.len());
        assert_eq!(send(&harness, row, padded(65536)).await, (200, String::new()), "{}", row.request);
        assert_eq!(send(&harness, row, padded(65537)).await, (413, "resource-limit".to_owned()), "{}", row.request);
        assert!(harness.registry.world().administered.asked.is_empty());
    }
}

#[tokio::test]
async fn a_body_that_grows_past_the_bound_is_refused_while_it_still_comes() {
    let harness = Harness::start().await;
    settle(&harness);
    for row in taking_json() {
        let mut stream = TcpStream::connect(harness.address).await.unwrap();
        let head = format!(
            "{} {} HTTP/1.1\r\nhost: x\r\nauthorization: {}\r\ntransfer-encoding: chunked\r\n\r\n",
            row.method,
            row.request,
            harness.token("root")
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        for _ in 0..5 {
            stream.write_all(format!("4000\r\n{}\r\n", " ".repeat(0x4000)).as_bytes()).await.unwrap();
        }
        // The body never ends; the answer comes all the same.
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 413", "{}", row.request);
    }
    assert!(harness.registry.world().administered.asked.is_empty());
}

#[tokio::test]
async fn who_may_not_is_told_so_before_the_body_is_looked_at() {
    let harness = Harness::start().await;
    settle(&harness);
    for row in taking_json().filter(|row| row.class != Class::Operator) {
        let token = harness.token("other");
        let method: Method = row.method.parse().unwrap();
        let headers = [("authorization", token.as_str())];
        let answer = harness.send(method, row.request, &headers, vec![b' '; 70_000]).await;
        assert_eq!(outcome(&answer), (403, "auth-scope".to_owned()), "{}", row.request);
    }
}

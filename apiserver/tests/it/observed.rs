//! What the API says of itself: the events of decisions, a log without secrets, the figures, and the refusals of what never became
//! a request.

use std::io;
use std::sync::{Arc, LazyLock, Mutex};

use http::{Method, StatusCode};
use scafo_apiserver::surface::ROUTES;
use scafo_apiserver::{metrics, server};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tracing::Dispatch;
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::EnvFilter;

use crate::harness::{Harness, INGRESS_TOKEN, project, spawn};
use crate::oracle::{Class, TABLE, Who, ask, outcome, settle};
use crate::workloads::{DEPLOYS, Fleet};

/// The log of this test's thread, on which everything of the API runs too.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// While there is one subscriber only, an event's first thread decides whether anybody wants it, and that may be the thread of another
/// test, which has none. This one takes nothing.
static ANOTHER: LazyLock<Dispatch> = LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));

impl Log {
    fn listen(filter: &str) -> (Self, DefaultGuard) {
        LazyLock::force(&ANOTHER);
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_env_filter(EnvFilter::new(filter))
            .with_writer(move || writer.clone())
            .finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The fields of what was written since the last call.
    fn take(&self) -> Vec<Value> {
        let text = String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap();
        let line = |line: &str| serde_json::from_str::<Value>(line).unwrap()["fields"].clone();
        text.lines().map(line).collect()
    }
}

#[tokio::test]
async fn every_deciding_route_leaves_one_event_with_actor_subject_outcome_and_request_for_everybody_who_is_known() {
    let harness = Harness::start().await;
    let (log, _guard) = Log::listen("scafo::audit=info");
    let mut rows = 0;
    for row in &TABLE {
        let route = ROUTES.iter().find(|route| route.path == row.path && route.method() == row.method).unwrap();
        let decides = row.method != "GET" && !matches!(row.class, Class::Open | Class::Ingress);
        assert_eq!(route.decides(), decides, "{} {}", row.method, row.path);
        for who in Who::ALL {
            settle(&harness);
            log.take();
            let answer = ask(&harness, row, row.request, who).await;
            let events = log.take();
            let Some(signer) = who.signer().filter(|_| decides) else {
                assert!(events.is_empty(), "{} {} by {who:?}: {events:?}", row.method, row.request);
                continue;
            };
            let (_, code) = outcome(&answer);
            let path: Vec<&str> = row.request.split(['/', '?']).collect();
            let part = |name: &str| {
                let at = row.path.split('/').position(|part| part == name);
                at.map_or("", |at| path[at])
            };
            let subject = match (part("{host}"), part("{id}")) {
                // It stands in the body, which is read only when the caller may.
                ("", "") if row.path == "/v1/operators" && code.is_empty() => "op-9f3c",
                ("", id) => id,
                (host, _) => host,
            };
            let expected = json!([{
                "message": "administrative action", "request": answer.headers["x-request-id"].to_str().unwrap(),
                "kind": if who == Who::Node { "node" } else { "operator" }, "actor": signer,
                "method": row.method, "route": row.path, "application": part("{name}"), "subject": subject,
                "outcome": if code.is_empty() { "done" } else { code.as_str() },
            }]);
            assert_eq!(json!(events), expected, "{} {} by {who:?}", row.method, row.request);
            rows += 1;
        }
    }
    assert_eq!(rows, 15 * 9, "deciding routes, and callers whose tokens hold up");
}

#[tokio::test]
async fn a_job_leaves_its_event_whatever_the_policy_says_of_it_and_a_token_that_nobody_vouches_for_leaves_none() {
    let fleet = Fleet::start().await;
    let (log, _guard) = Log::listen("scafo::audit=info");
    let subject = |subject: &str| fleet.bearer(|claims| claims["sub"] = json!(subject));
    let (main, other) = ("repo:acme/shop:ref:refs/heads/main", "repo:acme/other:ref:refs/heads/main");
    let stranger = fleet.bearer(|claims| claims["iss"] = json!("http://127.0.0.1:1"));
    let over = fleet.bearer(|claims| claims["exp"] = json!(1));
    for (path, token, event) in [
        (DEPLOYS, subject(main), Some((main, "done"))),
        (DEPLOYS, subject(other), Some((other, "trust-mismatch"))),
        ("/v1/applications/shop/domains/shop.example", subject(other), Some((other, "trust-mismatch"))),
        (DEPLOYS, stranger, None),
        (DEPLOYS, over, None),
    ] {
        fleet.deploy(path, &token).await;
        let events: Vec<_> =
            log.take().iter().map(|event| json!([event["kind"], event["actor"], event["outcome"]])).collect();
        let expected = event.map(|(subject, outcome)| json!(["workload", format!("oidc:{subject}"), outcome]));
        assert_eq!(events, Vec::from_iter(expected), "{path}");
    }
}

#[tokio::test]
async fn an_action_whose_caller_hangs_up_leaves_its_event_too() {
    let harness = Harness::start().await;
    settle(&harness);
    harness.registry.world().mute_labels = true;
    let (log, _guard) = Log::listen("scafo::audit=info");
    let (token, body) = (harness.token("root"), r#"{"labels":{"a":"b"}}"#);
    let request = format!(
        "POST /v1/applications/shop/labels HTTP/1.1\r\nhost: x\r\nauthorization: {token}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(harness.address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let asked = || harness.registry.world().administered.asked.iter().any(|(call, ..)| *call == "labels");
    while !asked() {
        tokio::task::yield_now().await;
    }
    assert_eq!(log.take(), Vec::<Value>::new());
    drop(stream);
    while log.text().is_empty() {
        tokio::task::yield_now().await;
    }
    let events = log.take();
    assert_eq!((events.len(), &events[0]["actor"], &events[0]["outcome"]), (1, &json!("root"), &json!("cut-off")));
}

#[tokio::test]
async fn the_access_log_has_one_line_for_each_request_and_no_secret() {
    let harness = Harness::start().await;
    settle(&harness);
    let (log, _guard) = Log::listen("info,scafo_apiserver=trace,scafo=trace,scafo::access=trace");
    let (good, stolen) = (harness.token("root"), "Bearer eyJhbGciOiJFZERTQSJ9.c3RvbGVu.c2lnbmF0dXJl");
    let query = "/v1/ingress/routes?prefer=hunter2-in-the-query";
    let ingress = format!("Bearer {INGRESS_TOKEN}");
    let requests: [(Method, &str, &str, &str); 6] = [
        (Method::GET, "/v1/state", &good, ""),
        (Method::GET, "/v1/state", stolen, ""),
        (Method::GET, query, &ingress, ""),
        (Method::GET, query, "Bearer another-secret-token", ""),
        (Method::PUT, "/v1/storage/objects/key", &ingress, "-----BEGIN PRIVATE KEY-----"),
        (
            Method::POST,
            "/v1/applications/shop/labels",
            &harness.token("root"),
            r#"{"labels":{"a":"hunter2-in-the-body"}}"#,
        ),
    ];
    let mut answers = Vec::new();
    for (method, path, authorization, body) in &requests {
        let headers =
            [("authorization", *authorization), ("x-odd", "hunter2-in-a-header"), ("cookie", "hunter2-cookie")];
        answers.push(harness.send(method.clone(), path, &headers, (*body).to_owned()).await);
    }
    let text = log.text();
    let token = good.trim_start_matches("Bearer ");
    let (payload, signature) = (token.split('.').nth(1).unwrap(), token.split('.').nth(2).unwrap());
    for secret in
        [payload, signature, "c3RvbGVu", "c2lnbmF0dXJl", INGRESS_TOKEN, "another-secret", "PRIVATE KEY", "hunter2"]
    {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (answer, (method, path, ..)) in answers.iter().zip(&requests) {
        let id = answer.headers["x-request-id"].to_str().unwrap();
        let of: Vec<_> =
            lines.iter().filter(|line| line["target"] == "scafo::access" && line["fields"]["id"] == id).collect();
        assert_eq!(of.len(), 1, "{method} {path}: {of:?}");
        let fields = &of[0]["fields"];
        assert_eq!(fields["status"], answer.status.as_u16());
        assert_eq!((&fields["method"], &fields["path"]), (&json!(method.as_str()), &json!(path.split('?').next())));
    }
}

/// What the metrics listener answers.
async fn scrape(harness: &Harness) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    assert!(metrics::is_local(&listener));
    let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
    let serving = spawn(server::serve(vec![listener], metrics::router(&harness.app()), stop.clone()));
    let answer = harness.client().get(format!("http://{address}/metrics").parse().unwrap()).await.unwrap();
    let content_type = answer.headers()["content-type"].to_str().unwrap();
    assert_eq!(content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
    let elsewhere = harness.client().get(format!("http://{address}/v1/state").parse().unwrap()).await.unwrap();
    assert_eq!(elsewhere.status(), StatusCode::NOT_FOUND, "the API is not there");
    stop.cancel();
    serving.await.unwrap();
    String::from_utf8(body.to_vec()).unwrap()
}

fn value(text: &str, sample: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.strip_prefix(sample).is_some_and(|rest| rest.starts_with(' ')))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[tokio::test]
async fn the_metrics_count_what_happened_by_names_that_no_caller_chooses() {
    let harness = Harness::start().await;
    settle(&harness);
    for _ in 0..3 {
        harness.get("/v1/applications/shop", &harness.token("root")).await;
    }
    harness.get("/v1/applications/shop", "Bearer nonsense").await;
    harness.get("/v1/applications/missing-by-the-thousand", &harness.token("root")).await;
    harness.get("/somewhere/else", "").await;
    harness.send("BREW".parse().unwrap(), "/v1/state", &[], "").await;
    harness.send(Method::DELETE, "/v1/storage/objects/", &[("authorization", "Bearer an-ingress-token")], "").await;
    harness.send(Method::POST, "/v1/applications/shop/block", &[("authorization", &harness.token("team"))], "").await;
    assert_eq!(harness.deploy("shop", "team", project()).await.status, StatusCode::ACCEPTED);
    harness.until_staged(0).await;
    harness.deploy("shop", "team", "").await;

    let text = scrape(&harness).await;
    let requests = |method: &str, route: &str, status: u16| {
        value(&text, &format!(r#"scafo_http_requests_total{{method="{method}",route="{route}",status="{status}"}}"#))
    };
    let application = "/v1/applications/{name}";
    for (method, route, status, count) in [
        ("GET", application, 200, 3.0),
        ("GET", application, 401, 1.0),
        ("GET", application, 404, 1.0),
        ("GET", "none", 404, 1.0),
        ("DELETE", "/v1/storage/objects/{*key}", 400, 1.0),
        ("POST", "/v1/applications/{name}/block", 403, 1.0),
        ("POST", "/v1/applications/{name}/deploys", 202, 1.0),
        ("POST", "/v1/applications/{name}/deploys", 400, 1.0),
    ] {
        assert_eq!(requests(method, route, status), Some(count), "{method} {route} {status}\n{text}");
    }
    let timed = format!(r#"scafo_http_request_duration_seconds_count{{method="GET",route="{application}"}}"#);
    assert_eq!(value(&text, &timed), Some(5.0), "{text}");
    for (sample, count) in [
        (r#"scafo_admin_actions_total{method="POST",route="/v1/applications/{name}/block",outcome="auth-scope"}"#, 1.0),
        (r#"scafo_deploy_uploads_total{outcome="done"}"#, 1.0),
        (r#"scafo_deploy_uploads_total{outcome="invalid-input"}"#, 1.0),
        (r#"scafo_deploys_total{outcome="deployed"}"#, 1.0),
        (r#"scafo_deploy_queue{of="used"}"#, 0.0),
        (r#"scafo_deploy_queue{of="limit"}"#, 16.0),
        (r#"scafo_deploy_staged_bytes{of="used"}"#, 0.0),
        // Four reads, one block, two deploys.
        ("scafo_used_tokens", 7.0),
        ("scafo_http_requests_open", 0.0),
        (r#"scafo_log_lines_dropped_total{process="apiserver"}"#, 0.0),
        (r#"scafo_up{process="apiserver"}"#, 1.0),
        (r#"scafo_up{process="registryd"}"#, 0.0),
    ] {
        assert_eq!(value(&text, sample), Some(count), "{sample}\n{text}");
    }
    for foreign in ["missing-by-the-thousand", "somewhere", "BREW", "nonsense", INGRESS_TOKEN, "team"] {
        assert!(!text.contains(foreign), "{foreign} in {text}");
    }
    assert!(text.ends_with("# EOF\n"));
}

/// Sends `head` and reads to the end of the answer.
async fn raw(stream: &mut TcpStream, head: &str) -> (u16, Value) {
    // The server may close before all of it is sent.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let text = String::from_utf8(answer).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text}"));
    assert!(head.contains("content-type: application/problem+json") && head.contains("x-request-id: "), "{head}");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap())
}

#[tokio::test]
async fn what_never_became_a_request_is_refused_with_a_document_too() {
    let harness = Harness::start().await;
    let long = format!("GET / HTTP/1.1\r\nhost: x\r\nx-long: {}\r\n\r\n", "a".repeat(100_000));
    for (head, status, title) in [
        (long.as_str(), 431, "Request Header Fields Too Large"),
        ("GET / HTTP/1.1\r\nbad header\r\n\r\n", 400, "Bad Request"),
        ("\u{1}\r\n\r\n", 400, "Bad Request"),
    ] {
        let mut stream = TcpStream::connect(harness.address).await.unwrap();
        let (answered, document) = raw(&mut stream, head).await;
        assert_eq!(answered, status);
        let expected = (json!("about:blank"), json!(title), json!(status));
        assert_eq!(
            (&document["type"], &document["title"], &document["status"]),
            (&expected.0, &expected.1, &expected.2)
        );
    }
    let text = scrape(&harness).await;
    assert_eq!(value(&text, r#"scafo_http_unread_total{status="431"}"#), Some(1.0));
    assert_eq!(value(&text, r#"scafo_http_unread_total{status="400"}"#), Some(2.0));
    assert_eq!(harness.send(Method::GET, "/.well-known/scafo/health", &[], "").await.status, StatusCode::OK);
}

#[tokio::test]
async fn bytes_of_an_answer_are_never_taken_for_a_refusal_and_one_after_it_still_is() {
    let harness = Harness::start().await;
    settle(&harness);
    let words = "HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\n\r\n".repeat(8000);
    harness.registry.world().stored.objects.insert("a/b".to_owned(), words.clone().into());
    let mut stream = TcpStream::connect(harness.address).await.unwrap();
    let get =
        format!("GET /v1/storage/objects/a/b HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {INGRESS_TOKEN}\r\n\r\n");
    stream.write_all(get.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(words.as_bytes()) {
        let mut piece = [0; 16 * 1024];
        let read = stream.read(&mut piece).await.unwrap();
        assert!(read > 0, "{}", String::from_utf8_lossy(&answer[..answer.len().min(500)]));
        answer.extend_from_slice(&piece[..read]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n"));
    let (status, document) = raw(&mut stream, "GET / HTTP/1.1\r\nbad header\r\n\r\n").await;
    assert_eq!((status, &document["type"]), (400, &json!("about:blank")));
}

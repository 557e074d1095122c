//! What a whole node says of itself: metrics that a reader of OpenMetrics takes, traces that a collector gets, and observations in
//! its bucket.

// Code of tests: a panic is how it says what is wrong.
#![allow(clippy::panic, clippy::unwrap_used)]

mod collector;
mod observations;

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use collector::{Authority, Collector, Span};
use reqwest::Method;
use scafo_tests::load::client;
use scafo_tests::stores::tools;
use scafo_tests::{Node, Project, wait};
use serde_json::Value;
use tempfile::TempDir;

/// What people read about the figures.
const DOCUMENT: &str = include_str!("../../../docs/observations.md");
const LIMIT: Duration = Duration::from_secs(120);

/// Reads OpenMetrics text from standard input as strictly as its own library does, and prints each sample with its family's type.
const READER: &str = "
import json, sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
samples = []
for family in text_string_to_metric_families(sys.stdin.read()):
    for sample in family.samples:
        samples.append([family.type, sample.name, sample.labels, sample.value])
json.dump(samples, sys.stdout)
";

/// One scrape, read by another's library.
struct Scrape(Vec<(String, String, BTreeMap<String, String>, f64)>);

impl Scrape {
    async fn of(node: &Node) -> Self {
        let about = std::fs::read(node.state().join("node.json")).unwrap();
        let about: Value = serde_json::from_slice(&about).unwrap();
        let answer = client().get(about["metrics"].as_str().unwrap()).send().await.unwrap();
        let content_type = answer.headers()["content-type"].to_str().unwrap().to_owned();
        assert_eq!(content_type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
        Self::read(&answer.text().await.unwrap())
    }

    fn read(text: &str) -> Self {
        let mut reader = Command::new(tools::find("python"))
            .args(["-c", READER])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        reader.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = reader.wait_with_output().unwrap();
        assert!(output.status.success(), "{}\n{text}", String::from_utf8_lossy(&output.stderr));
        Self(serde_json::from_slice(&output.stdout).unwrap())
    }

    /// The sum of the samples of this name that have these labels.
    fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has =
            |of: &BTreeMap<String, String>| labels.iter().all(|(k, v)| of.get(*k).is_some_and(|found| found == v));
        self.0.iter().filter(|(_, found, of, _)| found == name && has(of)).map(|(.., value)| value).sum()
    }
}

fn state(dir: &TempDir) -> std::path::PathBuf {
    dir.path().join("state")
}

#[tokio::test]
async fn one_scrape_of_a_node_shows_what_all_its_processes_count_and_a_strict_reader_takes_it() {
    let dir = TempDir::new().unwrap();
    let node = Node::start_in(&state(&dir), &[("SCAFO_OBSERVE_METRICS_LISTEN", "127.0.0.1:0")]).await;
    node.deploy(Project::answering("shop", "hello").path()).await;
    for _ in 0..3 {
        assert_eq!(node.api().get("/v1/applications/shop").await.unwrap().0, 200);
    }
    assert!(node.api().ingress("/v1/ingress/routes").send().await.unwrap().status().is_success());
    assert_eq!(node.get("shop", "/").await.unwrap().0, 200);
    assert_eq!(node.get("nobody", "/").await.unwrap().0, 404);
    // The apiserver looks at what became of a deploy now and then; whoever polls may see its end sooner.
    wait::until("the end of the deploy is counted", LIMIT, || async {
        (Scrape::of(&node).await.sum("scafo_deploys_total", &[("outcome", "deployed")]) >= 1.0).then_some(())
    })
    .await;
    // All of them answer, so that what one of them counts is not among what is new later.
    let before = until_it_shows(&node, &UP).await;
    node.kill_daemon("scafo-routerd").await;
    // A new process says each of these as soon as it has done it once, and until then none or less.
    let scrape = until_it_shows(&node, &[&UP[..], &MEMORY[..], &COUNTED[..]].concat()).await;
    for process in ["supervisor", "bucketd", "registryd", "routerd", "apiserver", "ingressd"] {
        assert!(scrape.sum("scafo_process_age_seconds", &[("process", process)]) >= 0.0);
    }
    assert_eq!(scrape.sum("scafo_applications_unplaced", &[]), 0.0);
    each_figure_is_documented(&scrape);
    // Nothing but the time and the new process adds a series: labels are bounded.
    assert!(scrape.0.len() <= before.0.len() + 50, "{} after {}", scrape.0.len(), before.0.len());
    node.stop().await;
}

fn each_figure_is_documented(scrape: &Scrape) {
    for (_, name, ..) in &scrape.0 {
        let family =
            ["_total", "_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
        let family = family.trim_start_matches("scafo_");
        assert!(DOCUMENT.contains(&format!("`{family}`")) || family == "up", "{family} is in no document");
    }
}

/// A name, labels, and how much there is of it at least.
type Sample = (&'static str, &'static [(&'static str, &'static str)], f64);

const UP: [Sample; 6] = [
    ("scafo_up", &[("process", "supervisor")], 1.0),
    ("scafo_up", &[("process", "bucketd")], 1.0),
    ("scafo_up", &[("process", "apiserver")], 1.0),
    ("scafo_up", &[("process", "registryd")], 1.0),
    ("scafo_up", &[("process", "routerd")], 1.0),
    ("scafo_up", &[("process", "ingressd")], 1.0),
];

const MEMORY: [Sample; 7] = [
    ("scafo_process_memory_bytes", &[("process", "supervisor")], 1e6),
    ("scafo_process_memory_bytes", &[("process", "bucketd")], 1e6),
    ("scafo_process_memory_bytes", &[("process", "registryd")], 1e6),
    ("scafo_process_memory_bytes", &[("process", "routerd")], 1e6),
    ("scafo_process_memory_bytes", &[("process", "apiserver")], 1e6),
    ("scafo_process_memory_bytes", &[("process", "ingressd")], 1e6),
    ("scafo_process_memory_bytes", &[("process", "application")], 1e6),
];

const COUNTED: [Sample; 37] = [
    ("scafo_http_requests_total", &[("route", "/v1/applications/{name}"), ("status", "200")], 3.0),
    ("scafo_http_request_duration_seconds_count", &[("route", "/v1/ingress/routes")], 1.0),
    ("scafo_deploys_total", &[("outcome", "deployed")], 1.0),
    ("scafo_coordinator", &[], 1.0),
    ("scafo_coordinator_fence", &[], 1.0),
    ("scafo_bucket_requests_total", &[("operation", "put"), ("outcome", "written")], 3.0),
    ("scafo_bucket_request_duration_seconds_count", &[("operation", "get")], 1.0),
    ("scafo_reconcile_passes_total", &[("outcome", "done")], 1.0),
    ("scafo_reconcile_pass_duration_seconds_count", &[], 1.0),
    ("scafo_snapshot_timestamp_seconds", &[], 1.7e9),
    ("scafo_applications", &[], 1.0),
    ("scafo_applications_placed", &[], 1.0),
    ("scafo_application_ready", &[("application", "shop")], 1.0),
    ("scafo_application_processes", &[("state", "ready")], 1.0),
    ("scafo_nodes", &[("live", "yes")], 1.0),
    ("scafo_routing_renders_total", &[], 1.0),
    ("scafo_routing_routes", &[], 1.0),
    ("scafo_process_starts_total", &[("process", "routerd")], 2.0),
    ("scafo_ingress_requests_total", &[("outcome", "forwarded"), ("status", "2xx")], 1.0),
    ("scafo_ingress_requests_total", &[("outcome", "unknown_host"), ("status", "4xx")], 1.0),
    ("scafo_ingress_request_duration_seconds_count", &[], 2.0),
    ("scafo_ingress_polls_total", &[("fleet", "0"), ("outcome", "fresh")], 1.0),
    ("scafo_ingress_polls_total", &[("fleet", "0"), ("outcome", "unchanged")], 1.0),
    ("scafo_ingress_document_timestamp_seconds", &[("fleet", "0")], 1.7e9),
    ("scafo_ingress_hosts", &[], 2.0),
    ("scafo_ingress_connections", &[("of", "limit")], 16.0),
    ("scafo_ingress_requests_open", &[("of", "limit")], 16.0),
    ("scafo_ingress_tunnels", &[("of", "limit")], 16.0),
    ("scafo_bucketd_requests_total", &[("operation", "put"), ("outcome", "done")], 3.0),
    ("scafo_bucketd_requests_total", &[("operation", "put"), ("outcome", "refused")], 1.0),
    ("scafo_bucketd_requests_total", &[("operation", "list"), ("outcome", "done")], 1.0),
    ("scafo_bucketd_request_duration_seconds_count", &[("operation", "get")], 1.0),
    ("scafo_bucketd_answers_total", &[("status", "412")], 1.0),
    ("scafo_bucketd_received_bytes_total", &[], 1000.0),
    ("scafo_bucketd_sent_bytes_total", &[], 1000.0),
    ("scafo_bucketd_connections", &[("of", "used")], 1.0),
    ("scafo_bucketd_connections", &[("of", "limit")], 1.0),
];

/// The first scrape that has all of these.
async fn until_it_shows(node: &Node, samples: &[Sample]) -> Scrape {
    let started = Instant::now();
    loop {
        let scrape = Scrape::of(node).await;
        let less: Vec<_> = samples.iter().filter(|(name, labels, least)| scrape.sum(name, labels) < *least).collect();
        if less.is_empty() {
            return scrape;
        }
        assert!(started.elapsed() < LIMIT, "within {LIMIT:?} there is less than {less:?}\n{:?}", scrape.0);
        wait::moment().await;
    }
}

#[tokio::test]
async fn metrics_on_an_address_that_others_reach_are_refused_at_the_start() {
    let dir = TempDir::new().unwrap();
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:7402"] {
        let refused = Node::try_start_in(&state(&dir), &[("SCAFO_OBSERVE_METRICS_LISTEN", address)]).await;
        let text = refused.err().unwrap();
        assert!(text.contains("observe.metricsListen") && text.contains("loopback"), "{text}");
    }
}

#[tokio::test]
async fn a_value_of_certificate_storage_may_be_as_long_as_the_node_says() {
    let dir = TempDir::new().unwrap();
    let node = Node::start_in(&state(&dir), &[("SCAFO_STORAGE_VALUE_BYTES", "20MiB")]).await;
    let put = async |bytes: usize| {
        let value = vec![7_u8; bytes];
        let request = node.api().ingress_with(Method::PUT, "/v1/storage/objects/large").body(value);
        request.timeout(LIMIT).send().await.unwrap().status().as_u16()
    };
    assert_eq!(put(20 << 20).await, 204);
    assert_eq!(put((20 << 20) + 1).await, 413);
    let answer = node.api().ingress("/v1/storage/objects/large").timeout(LIMIT).send().await.unwrap();
    assert_eq!(answer.bytes().await.unwrap(), vec![7_u8; 20 << 20]);
    node.stop().await;
}

fn named<'a>(spans: &'a [Span], service: &str, name: &str) -> Option<&'a Span> {
    spans.iter().find(|span| span.service == service && span.name == name)
}

/// Every value that is somebody's secret on this node.
fn secrets(node: &Node) -> Vec<String> {
    let mut secrets = vec![std::fs::read_to_string(&node.dev.ingress_token_file).unwrap().trim().to_owned()];
    let key = std::fs::read_to_string(&node.dev.operator_key).unwrap();
    secrets.extend(key.lines().filter(|line| !line.starts_with("-----")).map(str::to_owned));
    let bucket = std::fs::read(node.state().join("bucket.json")).unwrap();
    let bucket: Value = serde_json::from_slice(&bucket).unwrap();
    secrets.extend(["accessKeyId", "secretAccessKey"].map(|name| bucket[name].as_str().unwrap().to_owned()));
    assert!(secrets.iter().all(|secret| secret.len() >= 8), "{}", secrets.len());
    secrets
}

// The collector answers within its time whatever this test is busy with.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_one_trace_through_the_processes_and_a_collector_that_fails_costs_nothing_but_its_spans() {
    const GIVEN: (&str, &str) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let dir = TempDir::new().unwrap();
    let collector = Collector::start().await;
    let endpoint = format!("http://{}", collector.address);
    let settings = [("SCAFO_OBSERVE_OTLP", endpoint.as_str()), ("SCAFO_OBSERVE_METRICS_LISTEN", "127.0.0.1:0")];
    let node = Node::start_in(&state(&dir), &settings).await;
    node.deploy(Project::answering("shop", "hello").path()).await;
    let token = node.api().token();
    // Whether it is recorded is not the caller's to say: the flag is not set.
    let traceparent = format!("00-{}-{}-00", GIVEN.0, GIVEN.1);
    for request in
        [node.api().with_token(Method::GET, "/v1/applications/shop", &token), node.api().ingress("/v1/ingress/routes")]
    {
        let answer = request.header("traceparent", &traceparent).send().await.unwrap();
        assert!(answer.status().is_success());
    }

    let call = "scafo.registry.v1.Administration/GetApplication";
    let spans = wait::until("the spans of the trace", LIMIT, || async {
        let spans = collector.of(GIVEN.0);
        let there = named(&spans, "scafo-registryd", call).is_some()
            && named(&spans, "scafo-routerd", "scafo.router.v1.Router/GetRouting").is_some()
            && named(&spans, "scafo-apiserver", "GET /v1/applications/{name}").is_some()
            && spans.iter().any(|span| span.name == "bucket get");
        there.then_some(spans)
    })
    .await;
    let request = named(&spans, "scafo-apiserver", "GET /v1/applications/{name}").unwrap();
    assert_eq!(request.parent, GIVEN.1);
    assert_eq!(request.attributes["http.response.status_code"], "200");
    assert_eq!(request.attributes["scafo.caller"], node.dev.operator_id);
    assert_eq!(named(&spans, "scafo-registryd", call).unwrap().parent, request.id);
    let calls: Vec<&str> = spans.iter().filter(|span| span.parent == request.id).map(|span| span.id.as_str()).collect();
    assert!(spans.iter().any(|span| span.name == "bucket get" && calls.contains(&span.parent.as_str())), "{spans:?}");

    a_deploy_is_one_trace(&collector).await;
    let told = collector.text();
    for secret in secrets(&node).iter().chain([&token]) {
        assert!(!told.contains(secret), "a secret of the node is in a span");
    }
    // They count as sent once the collector's answer has come, which is after the collector has them.
    until_it_shows(&node, &[("scafo_spans_sent_total", &[("process", "registryd")], 1.0)]).await;

    let thirty = async || {
        let started = Instant::now();
        for _ in 0..30 {
            assert_eq!(node.api().get("/v1/applications/shop").await.unwrap().0, 200);
        }
        started.elapsed()
    };
    let before = thirty().await;
    collector.fall_silent();
    println!("thirty requests: {before:?} with a collector, {:?} while it is mute", thirty().await);
    wait::until("spans are dropped and counted", LIMIT, || async {
        let scrape = Scrape::of(&node).await;
        let dropped =
            |process| scrape.sum("scafo_spans_dropped_total", &[("process", process), ("reason", "not_taken")]);
        (dropped("apiserver") > 0.0 && dropped("registryd") > 0.0).then_some(())
    })
    .await;
    node.stop().await;
}

/// It goes on after its request was answered, and in the registry, in the same trace.
async fn a_deploy_is_one_trace(collector: &Collector) {
    wait::until("the spans of the deploy", LIMIT, || async {
        let all = collector.spans();
        let upload = named(&all, "scafo-apiserver", "POST /v1/applications/{name}/deploys")?;
        let of = collector.of(&upload.trace);
        let deploy = named(&of, "scafo-apiserver", "deploy").filter(|deploy| deploy.parent == upload.id)?;
        let published = named(&of, "scafo-registryd", "scafo.registry.v1.Registry/PublishDeploy")?;
        let work = named(&of, "scafo-registryd", "publication")?;
        // It began within one of the calls that offered it, and each part of it is below it, down to the bucket.
        let offers = of.iter().filter(|span| span.name == published.name && span.parent == deploy.id);
        let parts = [
            "taking it on",
            "waiting for its turn",
            "running `celld deploy`",
            "publishing",
            "waiting until it is served",
        ];
        let below = |part: &&str| named(&of, "scafo-registryd", part).is_some_and(|part| part.parent == work.id);
        let publishing = named(&of, "scafo-registryd", "publishing")?;
        let writes = of.iter().any(|span| span.name == "bucket put" && span.parent == publishing.id);
        assert_eq!(work.attributes["scafo.application"], "shop");
        assert_eq!(work.attributes["scafo.outcome"], "deployed");
        let whole = offers.into_iter().any(|offer| offer.id == work.parent) && parts.iter().all(below) && writes;
        (published.parent == deploy.id && whole).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_collector_behind_tls_gets_spans_when_its_authority_is_trusted_and_else_it_is_named_and_costs_only_spans() {
    let dir = TempDir::new().unwrap();
    let (trusted, other) = (Authority::named("trusted"), Authority::named("another"));
    let file = dir.path().join("authority.pem");
    std::fs::write(&file, trusted.pem()).unwrap();
    for (authority, is_trusted) in [(&trusted, true), (&other, false)] {
        let collector = Collector::behind_tls(authority).await;
        let endpoint = format!("https://{}", collector.address);
        let settings = [
            ("SCAFO_OBSERVE_OTLP", endpoint.as_str()),
            ("SCAFO_OBSERVE_METRICS_LISTEN", "127.0.0.1:0"),
            ("SSL_CERT_FILE", file.to_str().unwrap()),
        ];
        let state = dir.path().join(if is_trusted { "trusting" } else { "distrusting" });
        let node = Node::start_in(&state, &settings).await;
        assert_eq!(node.api().get("/v1/applications").await.unwrap().0, 200);
        assert!(node.api().ingress("/v1/ingress/routes").send().await.unwrap().status().is_success());
        let warning = "the collector of `observe.otlp` takes no spans";
        if is_trusted {
            wait::until("spans of three processes", LIMIT, || async {
                let spans = collector.spans();
                let told = |service: &str| spans.iter().any(|span| span.service == service);
                ["scafo-apiserver", "scafo-registryd", "scafo-routerd"].into_iter().all(told).then_some(())
            })
            .await;
            assert!(!node.log().contains(warning), "{}", node.log());
        } else {
            wait::until("the spans are dropped and counted", LIMIT, || async {
                let scrape = Scrape::of(&node).await;
                (scrape.sum("scafo_spans_dropped_total", &[("process", "apiserver"), ("reason", "not_taken")]) > 0.0)
                    .then_some(())
            })
            .await;
            // A line of a daemon takes its way through the supervisor.
            let said = wait::until("the log names it", LIMIT, || async {
                let log = node.log();
                let said: Vec<String> = log.lines().filter(|line| line.contains(warning)).map(str::to_owned).collect();
                (!said.is_empty()).then_some(said)
            })
            .await;
            assert!(said.iter().all(|line| line.contains("UnknownIssuer")), "{said:?}");
            assert!(collector.spans().is_empty());
            assert_eq!(node.api().get("/v1/applications").await.unwrap().0, 200, "everything else goes on");
        }
        node.stop().await;
    }
}

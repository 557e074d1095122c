//! The observations of a whole node: in its bucket as Parquet, and back out of it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use reqwest::Method;
use scafo_core::key::prefix::OBSERVE;
use scafo_core::observation::ObservationKey;
use scafo_core::settings::{BucketAccess, Secret};
use scafo_store::{Bucket as _, PutOptions, S3Bucket};
use scafo_tests::node::{both, run, scafo};
use scafo_tests::stores::tools;
use scafo_tests::{Node, Project, wait};
use serde_json::Value;
use tempfile::TempDir;

use super::{LIMIT, secrets, state};

/// Reads a Parquet file from standard input, and prints what it is and its rows.
const READER: &str = "
import json, sys
import pyarrow as pa, pyarrow.parquet as pq
file = pq.ParquetFile(pa.BufferReader(sys.stdin.buffer.read()))
meta = file.metadata
groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
codecs = {g.column(c).compression for g in groups for c in range(g.num_columns)}
rows = [dict(row, time=row['time'].isoformat(), labels=dict(row['labels'])) for row in file.read().to_pylist()]
json.dump({'codecs': sorted(codecs), 'types': {f.name: str(f.type) for f in file.schema_arrow}, 'rows': rows}, sys.stdout)
";

/// The embedded bucket of a node, as its own daemons reach it.
fn access(node: &Node) -> BucketAccess {
    let kept = std::fs::read(node.state().join("bucket.json")).unwrap();
    let kept: Value = serde_json::from_slice(&kept).unwrap();
    let text = |name: &str| kept[name].as_str().unwrap().to_owned();
    BucketAccess {
        name: "scafo".to_owned(),
        prefix: String::new(),
        endpoint: Some(format!("http://127.0.0.1:{}", kept["port"])),
        region: "us-east-1".to_owned(),
        path_style: true,
        access_key_id: text("accessKeyId"),
        secret_access_key: Secret::new(text("secretAccessKey")),
        session_token: None,
    }
}

fn pyarrow(bytes: &[u8]) -> Value {
    let mut reader = Command::new(tools::find("python"))
        .args(["-c", READER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    reader.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = reader.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// `scafo ARGS --json` on that node.
async fn json(node: &Node, args: &[&str]) -> Value {
    let output = node.scafo(args.iter().chain(&["--json"])).await;
    assert!(output.status.success(), "{}", both(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn series<'a>(metrics: &'a Value, labels: &[(&str, &str)]) -> Option<&'a Value> {
    let has = |series: &&Value| labels.iter().all(|(name, value)| series["labels"][name] == *value);
    metrics["series"].as_array().unwrap().iter().find(has)
}

#[tokio::test]
async fn what_a_node_measures_and_traces_is_read_back_by_its_command_line_and_by_another_reader() {
    const GIVEN: (&str, &str) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
    let dir = TempDir::new().unwrap();
    let node = Node::start_in(&state(&dir), &[("SCAFO_OBSERVE_FLUSH", "1s")]).await;
    node.deploy(Project::answering("shop", "hello").path()).await;
    let token = node.api().token();
    let traceparent = format!("00-{}-{}-01", GIVEN.0, GIVEN.1);
    for request in
        [node.api().with_token(Method::GET, "/v1/applications/shop", &token), node.api().ingress("/v1/ingress/routes")]
    {
        assert!(request.header("traceparent", &traceparent).send().await.unwrap().status().is_success());
    }

    let trace = wait::until("the trace in the bucket", LIMIT, || async {
        let traces = json(&node, &["traces", "--trace", &GIVEN.0[..12]]).await;
        let spans = traces["traces"][0]["spans"].as_array().cloned().unwrap_or_default();
        let has =
            |process: &str, name: &str| spans.iter().any(|span| span["process"] == process && span["name"] == name);
        let whole = has("apiserver", "GET /v1/applications/{name}")
            && has("registryd", "scafo.registry.v1.Administration/GetApplication")
            && has("registryd", "bucket get")
            && has("routerd", "scafo.router.v1.Router/GetRouting");
        whole.then_some(spans)
    })
    .await;
    let request = trace.iter().find(|span| span["name"] == "GET /v1/applications/{name}").unwrap();
    assert_eq!((&request["parent"], &request["failed"]), (&GIVEN.1.into(), &false.into()));
    assert_eq!(request["attributes"]["http.response.status_code"], "200");
    assert_eq!(request["attributes"]["scafo.application"], "shop");
    let call = trace.iter().find(|span| span["name"] == "scafo.registry.v1.Administration/GetApplication").unwrap();
    assert_eq!(call["parent"], request["id"]);

    // Of every process, and as the listener for metrics spells it.
    let wanted: [(&str, &[(&str, &str)]); 7] = [
        ("scafo_http_requests_total", &[("route", "/v1/applications/{name}"), ("status", "200")]),
        ("scafo_routing_renders_total", &[]),
        ("scafo_bucket_requests_total", &[("operation", "put"), ("outcome", "written")]),
        ("scafo_process_memory_bytes", &[("process", "bucketd")]),
        ("scafo_application_ready", &[("application", "shop")]),
        ("scafo_ingress_polls_total", &[("fleet", "0"), ("outcome", "unchanged")]),
        ("scafo_bucketd_requests_total", &[("operation", "put"), ("outcome", "done")]),
    ];
    for (name, labels) in wanted {
        wait::until(name, LIMIT, || async {
            let metrics = json(&node, &["metrics", "--name", name]).await;
            let found = series(&metrics, labels)?;
            (found["last"].as_f64()? >= 1.0 && !found["points"].as_array()?.is_empty()).then_some(())
        })
        .await;
    }
    let of_shop = json(&node, &["metrics", "--application", "shop"]).await;
    let all = of_shop["series"].as_array().unwrap();
    assert!(!all.is_empty() && all.iter().all(|series| series["labels"]["application"] == "shop"), "{of_shop}");
    let traces = both(&node.scafo(["traces", "--app", "shop", "--name", "POST"]).await);
    assert!(traces.contains("POST /v1/applications/{name}/deploys") && traces.contains("202"), "{traces}");

    another_library_reads_it(&node, &token).await;
    what_is_no_observation_is_named(&node).await;
    the_bucket_alone_gives(&node, GIVEN.0, trace.len()).await;
    node.stop().await;
}

/// Every file in the bucket, read by pyarrow.
async fn another_library_reads_it(node: &Node, token: &str) {
    let bucket = S3Bucket::new(&access(node));
    let mut kinds = (0, 0);
    let mut bytes = 0;
    let listing = bucket.list(OBSERVE).await.unwrap();
    for listed in &listing.entries {
        let key: ObservationKey = listed.key.parse().unwrap();
        assert_eq!(key.node().as_str(), node.dev.node);
        let body = bucket.get(&listed.key).await.unwrap().unwrap().body;
        bytes += body.len();
        let read = pyarrow(&body);
        assert_eq!(read["codecs"], serde_json::json!(["ZSTD"]));
        assert_eq!(read["types"]["time"], "timestamp[us, tz=UTC]");
        assert!(read["types"]["labels"].as_str().unwrap().starts_with("map<string, string"), "{}", read["types"]);
        let text = read["rows"].to_string();
        for secret in secrets(node).iter().chain([&token.to_owned()]) {
            assert!(!text.contains(secret), "a secret of the node is in an observation");
        }
        for row in read["rows"].as_array().unwrap() {
            assert_eq!(row["node"], node.dev.node.as_str());
            match row["kind"].as_str().unwrap() {
                "metric" => kinds.0 += usize::from(row["value"].is_f64() && row["trace"].is_null()),
                "span" => kinds.1 += usize::from(row["value"].is_null() && row["trace"].as_str().unwrap().len() == 32),
                other => panic!("a row of kind {other}"),
            }
        }
    }
    println!("{} files, {bytes} bytes, {} samples, {} spans", listing.entries.len(), kinds.0, kinds.1);
    assert!(kinds.0 > 100 && kinds.1 > 10, "{kinds:?}");
}

/// Foreign and damaged objects beside the observations; the rest is read.
async fn what_is_no_observation_is_named(node: &Node) {
    let bucket = S3Bucket::new(&access(node));
    let listing = bucket.list(OBSERVE).await.unwrap();
    let hour = listing.entries.last().unwrap().key.rsplit_once('/').unwrap().0.to_owned();
    let broken = listing.entries.last().unwrap().key.replace(".parquet", "9.parquet");
    for (key, body) in
        [(format!("{hour}/notes.txt"), "mine"), (format!("{hour}/1-0.parquet"), "old"), (broken.clone(), "PAR1")]
    {
        bucket.put(&key, body.into(), PutOptions::default()).await.unwrap();
    }
    let output = node.scafo(["metrics", "--name", "scafo_coordinator"]).await;
    let text = both(&output);
    assert!(output.status.success() && text.contains("scafo_coordinator_fence"), "{text}");
    for named in [&broken, &format!("{hour}/notes.txt"), &format!("{hour}/1-0.parquet")] {
        assert!(text.contains(&format!("{named} is left out")), "{named}: {text}");
    }
}

/// Without the node, from the bucket itself.
async fn the_bucket_alone_gives(node: &Node, trace: &str, spans: usize) {
    let BucketAccess { name, endpoint, access_key_id, secret_access_key, .. } = access(node);
    let direct = run(scafo()
        .args(["traces", "--trace", trace, "--bucket", &name, "--bucket-endpoint", &endpoint.unwrap(), "--json"])
        .env("AWS_ACCESS_KEY_ID", access_key_id)
        .env("AWS_SECRET_ACCESS_KEY", secret_access_key.expose()))
    .await;
    assert!(direct.status.success(), "{}", both(&direct));
    let direct: Value = serde_json::from_slice(&direct.stdout).unwrap();
    assert_eq!(direct["traces"][0]["trace"], trace);
    assert!(direct["traces"][0]["spans"].as_array().unwrap().len() >= spans);
}

#[tokio::test]
async fn a_stop_flushes_and_a_killed_registry_loses_only_what_was_not_flushed() {
    let dir = TempDir::new().unwrap();
    let rarely = [("SCAFO_OBSERVE_FLUSH", "1h")];
    let node = Node::start_in(&state(&dir), &rarely).await;
    assert_eq!(node.api().get("/v1/applications").await.unwrap().0, 200);
    assert_eq!(json(&node, &["traces"]).await["read"]["of"], 0, "no flush was due");
    node.stop().await;
    let node = Node::start_in(&state(&dir), &rarely).await;
    let traces = json(&node, &["traces", "--name", "GET /v1/applications"]).await;
    assert_eq!(traces["traces"].as_array().unwrap().len(), 1, "{traces}");
    node.kill_daemon("scafo-registryd").await;
    let again = wait::until("the registry is there again", LIMIT, || async {
        let output = node.scafo(["traces", "--json", "--name", "GET /v1/applications"]).await;
        output.status.success().then(|| serde_json::from_slice::<Value>(&output.stdout).unwrap())
    })
    .await;
    assert_eq!(again["traces"], traces["traces"]);
    node.stop().await;
}

#[tokio::test]
async fn observations_that_are_switched_off_are_not_recorded() {
    let dir = TempDir::new().unwrap();
    let off = [("SCAFO_OBSERVE_FLUSH", "0"), ("SCAFO_OBSERVE_METRICS_LISTEN", "127.0.0.1:0")];
    let node = Node::start_in(&state(&dir), &off).await;
    assert_eq!(node.api().get("/v1/applications").await.unwrap().0, 200);
    let output = node.scafo(["metrics"]).await;
    let text = both(&output);
    assert!(output.status.success() && text.contains("no observations were found"), "{text}");
    let scrape = super::Scrape::of(&node).await;
    assert_eq!(scrape.sum("scafo_spans_observed_total", &[]), 0.0);
    assert_eq!(scrape.sum("scafo_observation_flushes_total", &[]), 0.0);
    let bucket = S3Bucket::new(&access(&node));
    node.kill_daemon("scafo-apiserver").await;
    assert!(bucket.list(OBSERVE).await.unwrap().entries.is_empty());
    node.stop().await;
}

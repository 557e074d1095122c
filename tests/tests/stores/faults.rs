//! Each fault of the proxy does what it is called, seen from the client, from the store, and in the log.

use std::process::Stdio;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nix::sys::signal::Signal;
use scafo_core::settings::BucketAccess;
use scafo_store::{Bucket, Condition, ListRequest, Put, PutOptions, S3Bucket};
use scafo_tests::fault_proxy::{Conditional, Cut, Fault, Nth, Operation, Reply, Rule};
use scafo_tests::stores::Store;
use scafo_tests::{process, wait};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::{Bench, put, stands};

const LIMIT: Duration = Duration::from_secs(60);

fn name(put: &Put) -> &'static str {
    match put {
        Put::Written(_) => "written",
        Put::Refused => "refused",
        Put::Gone => "gone",
        Put::Conflict => "conflict",
        Put::Busy => "busy",
        Put::Unknown(_) => "unknown",
    }
}

/// Fault, what the client is told, whether the write landed, what the log says that the client saw.
const WRITES: [(Fault, &str, bool, Option<u16>); 12] = [
    (Fault::DropRequest, "unknown", false, None),
    (Fault::DropAnswer, "unknown", true, None),
    (Fault::Answer(Reply::ConditionalRequestConflict), "conflict", false, Some(409)),
    (Fault::Answer(Reply::OperationAborted), "busy", false, Some(409)),
    (Fault::Answer(Reply::PreconditionFailed), "refused", false, Some(412)),
    (Fault::Answer(Reply::TooManyRequests), "busy", false, Some(429)),
    (Fault::Answer(Reply::InternalError), "unknown", false, Some(500)),
    (Fault::Answer(Reply::SlowDown), "busy", false, Some(503)),
    (Fault::Answer(Reply::ServiceUnavailable), "unknown", false, Some(503)),
    (Fault::Mask(Reply::InternalError), "unknown", true, Some(500)),
    (Fault::Mask(Reply::PreconditionFailed), "refused", true, Some(412)),
    (Fault::DelayRequest { by_ms: 1 }, "written", true, Some(200)),
];

#[tokio::test]
async fn a_fault_tells_the_client_one_thing_and_does_another() {
    let bench = Bench::start().await;
    for (number, (fault, told, lands, status)) in WRITES.into_iter().enumerate() {
        let key = format!("k{number}.");
        bench.proxy.push(Rule::new(fault).on([Operation::Put]).conditional(Conditional::Create).under(&*key));
        let outcome = put(&bench.bucket, &key, "body", Condition::Absent).await;
        assert_eq!(name(&outcome), told, "{fault:?}: {outcome:?}");
        assert_eq!(stands(&bench.store, &key).await.is_some(), lands, "{fault:?}");
        let log = bench.proxy.take_log();
        let [exchange] = log.as_slice() else { panic!("{fault:?}: {log:?}") };
        assert_eq!(exchange.told, status, "{fault:?}");
        assert_eq!(exchange.store, lands.then_some(200), "{fault:?}");
        assert_eq!(exchange.faults, [fault]);
        assert!(exchange.ended.is_some());
    }
}

#[tokio::test]
async fn what_nothing_befalls_passes_as_it_came() {
    let bench = Bench::start().await;
    let body = Bytes::from(vec![7; 3 << 20]);
    let options = PutOptions {
        condition: Condition::Absent,
        metadata: [("scafo-write".to_owned(), "w1".to_owned())].into(),
        content_type: Some("application/json".to_owned()),
    };
    assert!(matches!(bench.bucket.put("a b/ü+", body.clone(), options).await, Ok(Put::Written(_))));
    let object = bench.bucket.get("a b/ü+").await.unwrap().unwrap();
    assert_eq!(object.body, body);
    assert_eq!(object.head.metadata["scafo-write"], "w1");
    assert_eq!(bench.bucket.get_range("a b/ü+", 1..3).await.unwrap().unwrap(), body.slice(1..3));
    assert_eq!(bench.bucket.get("nothing").await.unwrap().map(|_| ()), None);
    let log = bench.proxy.log();
    assert_eq!(log.len(), 4);
    assert_eq!(log[0].asked.key, "a b/ü+");
    assert_eq!(log[0].asked.write_id.as_deref(), Some("w1"));
    assert_eq!(log.iter().map(|exchange| exchange.told).collect::<Vec<_>>(), [200, 200, 206, 404].map(Some));
}

#[tokio::test]
async fn a_write_that_lands_late_lands_after_its_client_gave_up() {
    let bench = Bench::start().await;
    bench.proxy.push(Rule::new(Fault::LandLate { after_ms: 200 }).on([Operation::Put]).nth(Nth::Only(1)));
    let started = Instant::now();
    let outcome = put(&bench.bucket, "k", "late", Condition::Absent).await;
    assert_eq!(name(&outcome), "unknown");
    wait::until("the write", LIMIT, || async { stands(&bench.store, "k").await }).await;
    assert!(started.elapsed() >= Duration::from_millis(200));
    // Held back once more, it meets what was written meanwhile, and its condition does not hold.
    bench.proxy.push(Rule::new(Fault::LandLate { after_ms: 50 }).under("other").nth(Nth::Only(1)));
    put(&bench.bucket, "other", "first", Condition::Absent).await;
    let second = put(&bench.bucket, "other", "second", Condition::Absent).await;
    let status = wait::until("its end", LIMIT, || async {
        bench.proxy.log().into_iter().find(|exchange| exchange.asked.key == "other")?.store
    })
    .await;
    // Either may come first, and then the other one is refused.
    assert_eq!(status == 412, name(&second) == "written", "{status} {second:?}");
}

#[tokio::test]
async fn a_torn_answer_is_no_answer() {
    let bench = Bench::start().await;
    put(&bench.bucket, "k", &"x".repeat(100_000), Condition::None).await;
    bench.proxy.push(Rule::new(Fault::TearAnswer).nth(Nth::First(2)));
    let error = bench.bucket.get("k").await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    let error = bench.bucket.list("").await.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
    assert_eq!(bench.bucket.get("k").await.unwrap().unwrap().body.len(), 100_000);
}

#[tokio::test]
async fn pages_are_cut_and_later_pages_fail_alone() {
    let bench = Bench::start().await;
    for key in ["a", "b", "c"] {
        put(&bench.bucket, key, key, Condition::None).await;
    }
    let request = ListRequest { limit: 2, ..ListRequest::of("") };
    bench.proxy.push(Rule::new(Fault::CutListing(Cut::LaterPages)).nth(Nth::Only(1)));
    let page = bench.bucket.list_page(request).await.unwrap();
    assert_eq!((page.entries.len(), page.next), (2, None));
    bench.proxy.push(Rule::new(Fault::Answer(Reply::InternalError)).on([Operation::List]).later_pages());
    let page = bench.bucket.list_page(request).await.unwrap();
    let token = page.next.unwrap();
    let second = bench.bucket.list_page(ListRequest { token: Some(&token), ..request }).await;
    assert!(second.unwrap_err().is_transient());
}

#[tokio::test]
async fn a_clock_can_be_off_for_one_answer() {
    let bench = Bench::start().await;
    put(&bench.bucket, "k", "x", Condition::None).await;
    let right = bench.bucket.head("k").await.unwrap().unwrap().date.unwrap();
    bench.proxy.push(Rule::new(Fault::ShiftDate { by_s: 3_600 }).nth(Nth::Only(1)));
    let shifted = bench.bucket.head("k").await.unwrap().unwrap().date.unwrap();
    let ahead_s = shifted.as_seconds() - right.as_seconds();
    // The second answer came a moment later.
    assert!((3_600..=3_660).contains(&ahead_s), "{ahead_s}");
    // Nothing that follows is signed by that clock, which the store would refuse.
    let written = put(&bench.bucket, "k", "y", Condition::None).await;
    assert!(matches!(written, Put::Written(_)), "{written:?}");
    assert_eq!(stands(&bench.store, "k").await.as_deref(), Some("y"));
}

#[tokio::test]
async fn a_client_that_leaves_takes_nothing_back() {
    let bench = Bench::start().await;
    bench.proxy.push(Rule::new(Fault::DelayRequest { by_ms: 100 }).nth(Nth::Only(1)));
    let leaves = put(&bench.bucket, "k", "x", Condition::Absent);
    let came = wait::until("the request", LIMIT, || async { (!bench.proxy.log().is_empty()).then_some(()) });
    tokio::select! {
        biased;
        () = came => {}
        outcome = leaves => panic!("answered too early: {outcome:?}"),
    }
    wait::until("the write", LIMIT, || async { stands(&bench.store, "k").await }).await;
}

/// The same proxy as a process of its own, led by lines of JSON.
#[tokio::test]
async fn the_command_does_what_its_script_and_its_input_say() {
    let store = Store::bucketd().await;
    let script = store.dir().join("script");
    let rule = r#"{"push": {"fault": {"answer": "slowDown"}, "on": ["put"], "nth": {"only": 1}}}"#;
    std::fs::write(&script, format!("{rule}\n\n")).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_scafo-fault-proxy"))
        .args(["--upstream", store.access().endpoint.as_deref().unwrap(), "--script"])
        .arg(&script)
        .env("AWS_ACCESS_KEY_ID", &store.access().access_key_id)
        .env("AWS_SECRET_ACCESS_KEY", store.access().secret_access_key.expose())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = timeout(LIMIT, lines.next_line()).await.unwrap().unwrap().unwrap();
    let endpoint = line.strip_prefix("listening on ").unwrap().to_owned();
    let bucket = S3Bucket::new(&BucketAccess { endpoint: Some(endpoint), ..store.access().clone() });
    assert_eq!(name(&put(&bucket, "k", "1", Condition::None).await), "busy");
    assert_eq!(name(&put(&bucket, "k", "2", Condition::None).await), "written");
    // Commands are carried out in order, so the counts come when the lie is told.
    let lie = r#"{"play": {"lies": ["ignoresIfNoneMatch"]}}"#;
    input.write_all(format!("{lie}\nnonsense\n\"counts\"\n").as_bytes()).await.unwrap();
    let line = timeout(LIMIT, lines.next_line()).await.unwrap().unwrap().unwrap();
    let counts: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(counts, serde_json::json!({"requests": 2, "faulty": 1, "reached": 1, "cut": 0}));
    assert_eq!(name(&put(&bucket, "k", "3", Condition::Absent).await), "written");
    process::signal(child.id().unwrap(), Signal::SIGTERM);
    let status = timeout(LIMIT, child.wait()).await.unwrap().unwrap();
    assert!(status.success(), "{status}");
}

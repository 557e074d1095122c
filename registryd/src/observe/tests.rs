//! Files, flushes, and finding them again.

mod flushes;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use scafo_core::key::prefix::OBSERVE;
use scafo_core::observation::ObservationKey;
use scafo_core::{NodeId, ProblemCode, Timestamp};
use scafo_store::{Bucket, Fault, MemoryBucket, Operation, PutOptions};

use super::file::{FileError, decode, decode_within, encode};
use super::pages::Budget;
use super::read::{Choice, Chosen, Found, Got, InBucket, NODES_MAX, Source as _, choose, read};
use super::rows::{Contents, Labels, Point, Span};

const NOW: i64 = 1_800_000_000_000;
const MINUTE: i64 = 60_000;

/// A span that began at that time.
pub(crate) fn span(at_us: i64) -> Span {
    Span {
        at_us,
        process: "apiserver".to_owned(),
        name: "GET /v1/applications/{name}".to_owned(),
        kind: "server".to_owned(),
        labels: vec![("http.route".to_owned(), "/v1/applications/{name}".to_owned())],
        trace: format!("{at_us:032x}"),
        id: format!("{at_us:016x}"),
        parent: (at_us % 2 == 1).then(|| format!("{:016x}", at_us + 1)),
        took_us: 1500,
        failed: at_us % 3 == 0,
    }
}

fn node(id: &str) -> NodeId {
    id.parse().unwrap()
}

fn point(name: &str, labels: &[(&str, &str)], value: f64) -> Point {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Point { at_us: 1, process: "registryd".to_owned(), name: name.to_owned(), kind: "gauge".to_owned(), labels, value }
}

fn labels() -> impl Strategy<Value = Labels> {
    proptest::collection::vec(("\\PC{0,8}", "\\PC{0,8}"), 0..4)
}

fn contents() -> impl Strategy<Value = Contents> {
    let text = || "\\PC{0,12}";
    let point = (any::<i64>(), text(), text(), text(), labels(), proptest::num::f64::NORMAL)
        .prop_map(|(at_us, process, name, kind, labels, value)| Point { at_us, process, name, kind, labels, value });
    let span = (any::<i64>(), text(), labels(), proptest::option::of(text()), any::<i64>(), any::<bool>()).prop_map(
        |(at_us, name, labels, parent, took_us, failed)| Span {
            name,
            labels,
            parent,
            took_us,
            failed,
            ..span(at_us % 1000)
        },
    );
    (proptest::collection::vec(point, 0..20), proptest::collection::vec(span, 0..20))
        .prop_map(|(points, spans)| Contents { points, spans })
}

proptest! {
    #[test]
    fn a_file_says_what_was_written(contents in contents()) {
        let bytes = encode(&node("a"), &contents).unwrap();
        prop_assert_eq!(decode(bytes).unwrap(), contents);
    }

    #[test]
    fn a_damaged_file_is_an_error_and_never_a_panic(at in 0_usize..4000, byte: u8, cut in 0_usize..4000) {
        let spans = (0..20).map(span).collect();
        let points = (0..20).map(|n| point("scafo_ready", &[("application", "shop")], f64::from(n))).collect();
        let whole = encode(&node("a"), &Contents { points, spans }).unwrap().to_vec();
        let mut changed = whole.clone();
        let at = at % changed.len();
        changed[at] ^= byte | 1;
        // It may be read as something else, since not every byte is protected; it does not end the reader.
        let _ = decode(changed.into());
        let cut = cut % whole.len();
        prop_assert!(decode(whole[..cut].to_vec().into()).is_err());
    }
}

#[test]
fn what_is_no_observation_is_named_as_that() {
    assert!(matches!(decode(Bytes::from_static(b"notes")), Err(FileError::Damaged(_))));
    assert!(matches!(decode(Bytes::new()), Err(FileError::Damaged(_))));
    assert!(matches!(decode(vec![0; (16 << 20) + 1].into()), Err(FileError::TooLarge)));
    let schema = "message other { required int64 time; }";
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).unwrap());
    let mut writer = parquet::file::writer::SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<parquet::data_type::Int64Type>().write_batch(&[1], None, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    let foreign = decode(writer.into_inner().unwrap().into()).unwrap_err();
    assert!(matches!(foreign, FileError::Foreign(_)), "{foreign}");
}

#[test]
fn a_small_file_whose_rows_name_one_long_text_is_refused_before_it_is_unfolded() {
    let name = "x".repeat(1 << 20);
    let contents = Contents { points: vec![point(&name, &[], 1.0); 80], spans: Vec::new() };
    let bytes = encode(&node("a"), &contents).unwrap();
    assert!(bytes.len() < 100_000, "the text is there once, and compressed: {}", bytes.len());
    assert!(matches!(decode(bytes), Err(FileError::TooLarge)));
}

#[test]
fn a_row_with_more_labels_than_are_read_is_refused() {
    let labels: Vec<(&str, &str)> = vec![("a", "b"); 10_000];
    let bytes = encode(&node("a"), &Contents { points: vec![point("x", &labels, 1.0)], spans: Vec::new() }).unwrap();
    assert!(decode_within(bytes.clone(), &Budget::new(1 << 20, 30_000)).is_ok());
    assert!(matches!(decode_within(bytes.clone(), &Budget::new(1 << 20, 15_000)), Err(FileError::TooLarge)));
    assert!(matches!(decode_within(bytes, &Budget::new(10_000, 30_000)), Err(FileError::TooLarge)));
}

/// Seven days of three nodes, a file a minute each, all with the same content.
async fn a_week(memory: &MemoryBucket, body: &Bytes) {
    memory.set_now(Timestamp::from_millis(NOW));
    for id in ["a", "b", "c"] {
        for minute in 0..7 * 1440 {
            let key = ObservationKey::new(node(id), Timestamp::from_millis(NOW - minute * MINUTE - 1), 0).unwrap();
            memory.put(&key.to_string(), body.clone(), PutOptions::default()).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_day_out_of_a_week_of_three_nodes_is_found_with_few_requests_and_read_within_bounds() {
    let memory = Arc::new(MemoryBucket::new());
    let points = (0..200).map(|n| point("scafo_one", &[("n", &n.to_string())], 1.0)).collect();
    let body = encode(&node("a"), &Contents { points, spans: Vec::new() }).unwrap();
    a_week(&memory, &body).await;
    let odd = format!("{OBSERVE}a/2027/01/15/06/{}-1.parquet", NOW - 600_000);
    memory.put(&odd, body.clone(), PutOptions::default()).await.unwrap();
    let source = InBucket(Arc::clone(&memory) as Arc<dyn Bucket>);
    let day = Duration::from_hours(24);
    let before = memory.requests();
    let found = source.find(None, day).await.unwrap();
    let listings = memory.requests() - before;
    assert_eq!((found.keys.len(), found.cut), (3 * 1440, false));
    assert_eq!(found.odd.len(), 1, "a key whose hour is not that of its stamp is refused");
    assert_eq!(listings, 1 + 3 * 2, "the nodes, and a page for each thousand files of each");
    let chosen = choose(&found.keys, 600, Choice::Spread).keys;
    let before = memory.requests();
    let mut read_files = 0;
    let mut nodes: BTreeMap<NodeId, (i64, i64)> = BTreeMap::new();
    read(&source, chosen, |key, got| {
        assert!(matches!(&got, Got::Contents(contents) if contents.points.len() == 200), "{got:?}");
        read_files += 1;
        let at = key.at().as_millis();
        nodes.entry(key.node().clone()).and_modify(|span| span.1 = at).or_insert((at, at));
        true
    })
    .await
    .unwrap();
    println!("a day of three nodes: {listings} listings, {} reads", memory.requests() - before);
    assert_eq!((read_files, memory.requests() - before), (600, 600));
    assert!(nodes.len() == 3 && nodes.values().all(|(first, last)| last - first > 1438 * MINUTE), "{nodes:?}");
    let of_one = source.find(Some(&node("b")), Duration::from_hours(1)).await.unwrap();
    assert!(of_one.keys.len() == 60 && of_one.keys.iter().all(|key| key.node().as_str() == "b"));
}

#[tokio::test]
async fn files_that_are_damaged_foreign_or_gone_are_passed_over_by_name() {
    let memory = Arc::new(MemoryBucket::new());
    let good = encode(&node("a"), &Contents { points: vec![point("x", &[], 1.0)], spans: Vec::new() }).unwrap();
    let key = |minute: i64| ObservationKey::new(node("a"), Timestamp::from_millis(NOW + minute * MINUTE), 0).unwrap();
    for (minute, body) in
        [(0, good.clone()), (1, Bytes::from_static(b"PAR1 no PAR1")), (2, Bytes::from(vec![0; 17 << 20])), (3, good)]
    {
        memory.put(&key(minute).to_string(), body, PutOptions::default()).await.unwrap();
    }
    let source = InBucket(Arc::clone(&memory) as Arc<dyn Bucket>);
    let mut told = Vec::new();
    read(&source, vec![key(0), key(1), key(2), key(9), key(3)], |key, got| {
        let what = match got {
            Got::Contents(_) => "read",
            Got::Gone => "gone",
            Got::Unreadable(_) => "unreadable",
        };
        told.push(((key.at().as_millis() - NOW) / MINUTE, what));
        true
    })
    .await
    .unwrap();
    assert_eq!(told, [(0, "read"), (1, "unreadable"), (2, "unreadable"), (9, "gone"), (3, "read")]);
}

/// A bucket with a file a minute of one node, so many.
async fn minutes(count: i64) -> (Arc<MemoryBucket>, Vec<ObservationKey>) {
    let memory = Arc::new(MemoryBucket::new());
    memory.set_now(Timestamp::from_millis(NOW));
    let body = encode(&node("a"), &Contents { points: vec![point("x", &[], 1.0)], spans: Vec::new() }).unwrap();
    let key = |minute| ObservationKey::new(node("a"), Timestamp::from_millis(NOW - minute * MINUTE), 0).unwrap();
    let keys: Vec<ObservationKey> = (0..count).rev().map(key).collect();
    for key in &keys {
        memory.put(&key.to_string(), body.clone(), PutOptions::default()).await.unwrap();
    }
    (memory, keys)
}

#[tokio::test(start_paused = true)]
async fn a_busy_bucket_is_asked_again_for_each_page_and_file() {
    let (memory, keys) = minutes(50).await;
    let mut asked: BTreeMap<String, u32> = BTreeMap::new();
    memory.plan(move |operation| {
        let tries = asked.entry(format!("{operation:?}")).and_modify(|tries| *tries += 1).or_insert(1);
        (*tries <= 2).then_some(if *tries == 1 { Fault::Busy } else { Fault::LoseAnswer })
    });
    let source = InBucket(memory as Arc<dyn Bucket>);
    let found = source.find(None, Duration::from_hours(1)).await.unwrap();
    assert_eq!(found.keys, keys);
    let mut count = 0;
    read(&source, found.keys, |_, got| {
        assert!(matches!(got, Got::Contents(_)), "{got:?}");
        count += 1;
        true
    })
    .await
    .unwrap();
    assert_eq!(count, 50);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_stays_silent_is_one_that_cannot_be_read_and_a_bucket_that_does_ends_the_reading() {
    let (memory, keys) = minutes(50).await;
    let silent = keys[20].to_string();
    memory.plan(move |operation| (operation == Operation::Get(&silent)).then_some(Fault::LoseAnswer));
    let source = InBucket(Arc::clone(&memory) as Arc<dyn Bucket>);
    let mut unreadable = Vec::new();
    let mut count = 0;
    let mut handle = |key: &ObservationKey, got: Got| {
        count += 1;
        if !matches!(got, Got::Contents(_)) {
            unreadable.push(key.clone());
        }
        true
    };
    read(&source, keys.clone(), &mut handle).await.unwrap();
    assert_eq!((count, unreadable), (50, vec![keys[20].clone()]));
    memory.plan(|_| Some(Fault::Busy));
    let away = read(&source, keys, |_, _| true).await.unwrap_err();
    assert_eq!(away.code, ProblemCode::StoreUnavailable);
}

#[test]
fn of_too_many_files_the_newest_or_an_even_choice_is_read() {
    let key = |id: &str, minute: i64| {
        ObservationKey::new(node(id), Timestamp::from_millis(NOW + minute * MINUTE), 0).unwrap()
    };
    let mut keys: Vec<ObservationKey> = (0..100).flat_map(|minute| [key("a", minute), key("b", minute)]).collect();
    keys.push(key("c", 50));
    keys.sort();
    assert_eq!(choose(&keys, 201, Choice::Spread).keys, keys);
    let newest = choose(&keys, 4, Choice::Newest).keys;
    assert_eq!(newest, [key("a", 98), key("b", 98), key("a", 99), key("b", 99)]);
    for limit in [1, 2, 3, 4, 5, 6, 7, 50, 150, 200] {
        let Chosen { keys: chosen, nodes_left_out } = choose(&keys, limit, Choice::Spread);
        assert!(chosen.len() <= limit && chosen.windows(2).all(|pair| pair[0] < pair[1]), "{limit}: {}", chosen.len());
        assert!(chosen.contains(&key("a", 99)), "{limit}: something is read, and how it is now: {chosen:?}");
        let nodes: std::collections::BTreeSet<&NodeId> = chosen.iter().map(ObservationKey::node).collect();
        assert_eq!((nodes.len(), nodes_left_out), ((limit / 2).clamp(1, 3), 3 - (limit / 2).clamp(1, 3)), "{limit}");
        if limit >= 2 {
            assert!(chosen.contains(&key("a", 0)), "{limit}: what it grew from: {chosen:?}");
        }
        if limit >= 6 {
            assert!([key("b", 0), key("b", 99), key("c", 50)].iter().all(|key| chosen.contains(key)), "{limit}");
        }
    }
    assert_eq!(choose(&keys, 0, Choice::Spread).keys, []);
    assert_eq!(choose(&[], 0, Choice::Newest).keys, []);
    assert_eq!(Found::default().keys, []);
}

#[tokio::test]
async fn of_more_files_than_a_look_knows_each_node_gives_its_newest() {
    let memory = Arc::new(MemoryBucket::new());
    memory.set_now(Timestamp::from_millis(NOW));
    // Each node has 125 of the 50,000. The first wrote more often of late, and the last is within its share.
    let at = |node: &str, minutes: i64| {
        ObservationKey::new(node.parse().unwrap(), Timestamp::from_millis(NOW - minutes * MINUTE), 0).unwrap()
    };
    let nodes: Vec<String> = (0..400).map(|number| format!("n{number:03}")).collect();
    for name in &nodes {
        let old = (100..400).map(|step| step * 10);
        let minutes: Vec<i64> = match name.as_str() {
            "n000" => (0..200).chain(old).collect(),
            "n399" => vec![5000, 10],
            _ => old.chain([10, 20]).collect(),
        };
        for minutes in minutes {
            memory.put(&at(name, minutes).to_string(), Bytes::new(), PutOptions::default()).await.unwrap();
        }
    }
    let before = memory.requests();
    let source = InBucket(Arc::clone(&memory) as Arc<dyn Bucket>);
    let found = source.find(None, Duration::from_hours(24 * 7)).await.unwrap();
    let requests = memory.requests() - before;
    assert!(found.cut && found.keys.len() <= 50_000 && found.nodes_left_out == 0, "{}", found.keys.len());
    let mut of: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for key in &found.keys {
        of.entry(key.node().as_str()).or_default().push((NOW - key.at().as_millis()) / MINUTE);
    }
    assert_eq!(of.len(), 400, "each node is looked at");
    assert_eq!(of["n399"], [5000, 10]);
    for (name, minutes) in &of {
        let newest = if *name == "n000" { 0 } else { 10 };
        assert_eq!(minutes.last(), Some(&newest), "{name}");
        assert!(minutes.len() <= 125, "{name}");
    }
    println!("400 nodes, {} files: {requests} requests", found.keys.len());
    assert!(requests < 400 * 6, "{requests}");
}

#[tokio::test]
async fn of_more_nodes_than_a_look_knows_the_first_are_looked_at_and_the_number_of_the_others_is_told() {
    let memory = Arc::new(MemoryBucket::new());
    memory.set_now(Timestamp::from_millis(NOW));
    for number in 0..NODES_MAX + 3 {
        let key = ObservationKey::new(node(&format!("n{number:04}")), Timestamp::from_millis(NOW - MINUTE), 0).unwrap();
        memory.put(&key.to_string(), Bytes::new(), PutOptions::default()).await.unwrap();
    }
    let source = InBucket(Arc::clone(&memory) as Arc<dyn Bucket>);
    let found = source.find(None, Duration::from_hours(1)).await.unwrap();
    let mut nodes: Vec<&str> = found.keys.iter().map(|key| key.node().as_str()).collect();
    nodes.sort_unstable();
    assert_eq!((nodes.len(), nodes[0], nodes[NODES_MAX - 1]), (2000, "n0000", "n1999"));
    assert_eq!((found.nodes_left_out, found.cut), (3, false));
    let one = source.find(Some(&node("n2002")), Duration::from_hours(1)).await.unwrap();
    assert_eq!((one.keys.len(), one.nodes_left_out), (1, 0), "who is asked for by name is never one of them");
}

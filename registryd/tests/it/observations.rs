//! What is handed in at the desk of a whole daemon, in its bucket and back out of it.

use scafo_core::ProblemCode;
use scafo_core::key::CHANGES;
use scafo_core::key::prefix::OBSERVE;
use scafo_core::observation::ObservationKey;
use scafo_core::settings::Millis;
use scafo_proto::chunk::Assembly;
use scafo_proto::observe::observations_client::ObservationsClient;
use scafo_proto::observe::recorder_client::RecorderClient;
use scafo_proto::observe::{
    Attribute, ListObservationsRequest, MetricsChunk, ReadObservationRequest, RecordRequest, Span,
};
use scafo_proto::status::to_problem;
use scafo_registryd::observe::file::decode;
use scafo_registryd::observe::read::Found;
use scafo_registryd::observe::rows::{Contents, Point};
use scafo_store::{Bucket as _, MemoryBucket, PutOptions};
use tonic::Streaming;

use crate::node::{Node, until};

fn node(memory: MemoryBucket, flush_ms: u64) -> Node {
    Node::start_with("a", memory, |settings| settings.observe_flush = Some(Millis(flush_ms)))
}

fn span(id: u8) -> Span {
    Span {
        trace: vec![1; 16].into(),
        id: vec![id; 8].into(),
        parent: Vec::new().into(),
        name: "GET /v1/applications/{name}".to_owned(),
        kind: "server".to_owned(),
        began_us: 7,
        took_us: 9,
        failed: true,
        attributes: vec![Attribute { key: "scafo.application".to_owned(), value: "shop".to_owned() }],
    }
}

fn told(process: &str, metrics: &str, spans: Vec<Span>) -> RecordRequest {
    RecordRequest { process: process.to_owned(), measured_at_ms: 5, metrics: metrics.to_owned().into(), spans }
}

async fn hand_in(node: &Node, messages: Vec<RecordRequest>) -> Result<(), ProblemCode> {
    let mut desk = RecorderClient::new(node.api_channel());
    let answer = desk.record(tokio_stream::iter(messages)).await;
    answer.map(|_| ()).map_err(|status| to_problem(&status).code)
}

/// Everything in the bucket.
async fn written(store: &MemoryBucket) -> Contents {
    let mut all = Contents::default();
    for key in store.keys(OBSERVE) {
        let key: ObservationKey = key.parse().unwrap();
        let body = store.get(&key.to_string()).await.unwrap().unwrap().body;
        let contents = decode(body).unwrap();
        all.points.extend(contents.points);
        all.spans.extend(contents.spans);
    }
    all
}

async fn whole(mut pieces: Streaming<MetricsChunk>) -> Vec<u8> {
    let mut assembly = Assembly::default();
    while let Some(piece) = pieces.message().await.unwrap() {
        assembly.push(&piece.data).unwrap();
    }
    assembly.take().to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_processes_hand_in_is_flushed_past_the_change_hint() {
    let memory = MemoryBucket::new();
    let store = memory.sibling();
    let node = node(memory, 1_000);
    until(|| async { node.state().await.ok() }).await;
    // A text in two pieces, and spans, of which one has an id that is none.
    let odd = Span { id: vec![0; 3].into(), ..span(2) };
    let messages = vec![
        told("apiserver", "# TYPE scafo_x counter\nscafo_x_total{a=\"", Vec::new()),
        told("apiserver", "b\"} 4\n", vec![span(1), odd]),
    ];
    hand_in(&node, messages).await.unwrap();
    // Its own figures begin with what it has done once.
    let own = |contents: &Contents| {
        let pass = |point: &Point| point.process == "registryd" && point.name == "scafo_reconcile_passes_total";
        contents.points.iter().any(pass)
    };
    let first = until(|| async {
        let contents = written(&store).await;
        (!contents.spans.is_empty() && own(&contents)).then_some(contents)
    })
    .await;
    let point = first.points.iter().find(|point| point.name == "scafo_x_total").unwrap();
    assert_eq!((point.value, point.at_us, point.label("a")), (4.0, 5_000, Some("b")));
    assert_eq!((point.process.as_str(), point.kind.as_str()), ("apiserver", "counter"));
    assert_eq!(first.spans.len(), 1);
    let found = &first.spans[0];
    assert_eq!((found.id.as_str(), found.parent.as_deref()), ("0101010101010101", None));
    assert_eq!((found.took_us, found.failed, found.label("scafo.application")), (9, true, Some("shop")));

    assert_eq!(hand_in(&node, vec![told("celld", "", vec![span(3)])]).await, Err(ProblemCode::InvalidInput));
    // A node that arrives is hinted; once that is over, flushes do not move the hint.
    let hint = || async { store.get(CHANGES).await.unwrap().map(|object| object.head.etag) };
    until(|| async {
        let (before, flushed) = (hint().await, store.keys(OBSERVE).len());
        until(|| async { (store.keys(OBSERVE).len() > flushed + 1).then_some(()) }).await;
        (hint().await == before).then_some(())
    })
    .await;
    assert_eq!(written(&store).await.spans.len(), 1, "each span is written once, and a stranger's never");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_of_the_node_finds_observations_and_nothing_else() {
    let memory = MemoryBucket::new();
    let store = memory.sibling();
    let mut node = node(memory, 3_600_000);
    until(|| async { node.state().await.ok() }).await;
    hand_in(&node, vec![told("routerd", "", vec![span(1)])]).await.unwrap();
    assert!(store.keys(OBSERVE).is_empty(), "no flush is due");
    node.stop().await.unwrap();
    assert_eq!(written(&store).await.spans.len(), 1, "a stop flushes");
    let key: ObservationKey = store.keys(OBSERVE)[0].parse().unwrap();
    store.put(&format!("{OBSERVE}a/README"), "mine".into(), PutOptions::default()).await.unwrap();

    let node = Node::start("b", store.sibling());
    until(|| async { node.state().await.ok() }).await;
    let mut door = ObservationsClient::new(node.admin_channel());
    let mut list = async |of: &str| {
        let request = ListObservationsRequest { node: of.to_owned(), within_ms: 3_600_000 };
        let found = door.list_observations(request).await.unwrap().into_inner();
        serde_json::from_slice::<Found>(&whole(found).await).unwrap()
    };
    assert_eq!(list("").await.keys, std::slice::from_ref(&key));
    assert_eq!(list("a").await.keys, std::slice::from_ref(&key));
    assert_eq!(list("b").await, Found::default());
    let mut door = ObservationsClient::new(node.admin_channel());
    let request = |key: String| ReadObservationRequest { key };
    let body = whole(door.read_observation(request(key.to_string())).await.unwrap().into_inner()).await;
    assert_eq!(decode(body.into()).unwrap().spans.len(), 1);
    let gone = ObservationKey::new("a".parse().unwrap(), key.at(), 99).unwrap().to_string();
    for (asked, code) in [
        (gone, ProblemCode::NotFound),
        ("_scafo/meta.json".to_owned(), ProblemCode::InvalidInput),
        (format!("{OBSERVE}a/README"), ProblemCode::InvalidInput),
    ] {
        let refused = door.read_observation(request(asked)).await.unwrap_err();
        assert_eq!(to_problem(&refused).code, code);
    }
    let mut api = ObservationsClient::new(node.api_channel());
    let refused = api.read_observation(request(key.to_string())).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented, "the API's processes have no way to them");
    // Nothing is recorded here, and whoever hands something in need not know.
    hand_in(&node, vec![told("apiserver", "x 1\n", vec![span(4)])]).await.unwrap();
}

//! Spans for a node's observations, in a process of its own: what they are kept by is one for each process.

use scafo_telemetry::trace::{Finished, Kept, SPANS, is_on};

fn work(spans: usize) {
    for _ in 0..spans {
        let span = tracing::info_span!(target: SPANS, "request", otel.name = "GET /v1/x", otel.kind = "server",
            scafo.application = "shop", otel.status_code = tracing::field::Empty);
        span.record("otel.status_code", "ERROR");
        span.in_scope(|| tracing::info_span!(target: SPANS, "call"));
    }
}

#[test]
fn a_process_keeps_so_many_spans_between_two_flushes_and_counts_the_others() {
    scafo_telemetry::log::init("test");
    work(1);
    assert!(!is_on(), "nobody takes them yet");
    let mut kept = Kept::begin().expect("the first of this process");
    assert!(Kept::begin().is_none(), "there is one for each process");
    let mut spans: Vec<Finished> = Vec::new();
    for _ in 0..5 {
        work(500);
        kept.waiting(&mut spans);
    }
    assert_eq!((spans.len(), is_on()), (4096, false), "the budget is used up, and spans are not begun any more");
    // Of the last piece of work the call inside is not looked at when the request is not begun.
    let passed_over = Kept::counts().dropped_full;
    assert_eq!(passed_over, 5000 - 4096, "each of them is counted");
    let (call, request) = (&spans[0], &spans[1]);
    assert_eq!(
        (request.name.as_str(), request.kind, request.failed, request.parent),
        ("GET /v1/x", "server", true, None)
    );
    assert!(request.attributes.contains(&("scafo.application".to_owned(), "shop".to_owned())), "{request:?}");
    assert_eq!(
        (call.name.as_str(), call.kind, call.failed, call.parent),
        ("call", "internal", false, Some(request.id))
    );
    assert_eq!(call.trace, request.trace);

    kept.renew();
    work(1);
    spans.clear();
    kept.waiting(&mut spans);
    assert_eq!(spans.len(), 2, "after a flush there is room again");
    // More at once than wait for a reader.
    kept.renew();
    work(1500);
    kept.waiting(&mut spans);
    assert_eq!(spans.len(), 2 + 2048);
    assert_eq!(Kept::counts().dropped_full - passed_over, 3000 - 2048);
    drop(kept);
    work(1);
    assert!(!is_on(), "nobody takes them any more");
    assert_eq!(Kept::counts().dropped_full - passed_over, 3000 - 2048, "and nobody misses them");
}

//! The probe and the conformance suite against every store that there is, straight and through an honest proxy.

use scafo_store::{Bucket, MemoryBucket, conformance, probe};
use scafo_tests::fault_proxy::{Character, Fault, Nth, Operation, Reply, Rule, TagForm, TagForms};
use scafo_tests::stores::Store;

use crate::support::Bench;

async fn conforms(bucket: &dyn Bucket) {
    probe(bucket).await.unwrap_or_else(|error| panic!("the probe: {error} {:?}", error.cause()));
    conformance::run(bucket).await.unwrap_or_else(|violation| panic!("the suite: {violation}"));
}

#[tokio::test]
async fn the_memory_store_conforms() {
    conforms(&MemoryBucket::new()).await;
}

#[tokio::test]
async fn bucketd_conforms() {
    conforms(&Store::bucketd().await.bucket()).await;
}

#[tokio::test]
async fn seaweedfs_conforms() {
    conforms(&Store::seaweedfs().await.bucket()).await;
}

#[tokio::test]
async fn moto_conforms() {
    conforms(&Store::moto().await.bucket()).await;
}

/// What the suite asks of a store it must also get through one that is slow, spells its tags without quotes, and answers a
/// third of the racers that they are in each other's way.
#[tokio::test]
async fn a_slow_store_with_bare_tags_conforms() {
    let bench = Bench::start().await;
    let bare = Some(TagForm::Bare);
    bench
        .proxy
        .play(Character { tags: TagForms { answers: bare, listings: bare, takes: bare }, ..Character::honest() });
    bench.proxy.push(Rule::new(Fault::DelayRequest { by_ms: 3 }).percent(20));
    bench.proxy.push(Rule::new(Fault::DelayAnswer { by_ms: 3 }).percent(20));
    for reply in [Reply::ConditionalRequestConflict, Reply::OperationAborted, Reply::SlowDown] {
        let rule = Rule::new(Fault::Answer(reply)).on([Operation::Put]).about("/race-");
        // The update that all racers start from comes first and is not to fail.
        bench.proxy.push(rule.nth(Nth::Each(9)));
    }
    conforms(&bench.bucket).await;
    assert!(bench.proxy.counts().faulty > 100, "{:?}", bench.proxy.counts());
}

#[tokio::test]
async fn the_probe_passes_whatever_befalls_every_third_write() {
    let bench = Bench::start().await;
    for fault in [
        Fault::DropRequest,
        Fault::DropAnswer,
        Fault::LandLate { after_ms: 10 },
        Fault::Answer(Reply::ConditionalRequestConflict),
        Fault::Answer(Reply::OperationAborted),
        Fault::Answer(Reply::TooManyRequests),
        Fault::Answer(Reply::SlowDown),
        Fault::Answer(Reply::InternalError),
        Fault::Mask(Reply::InternalError),
        Fault::Mask(Reply::ServiceUnavailable),
    ] {
        bench.proxy.calm();
        bench.proxy.push(Rule::new(fault).on([Operation::Put]).nth(Nth::Each(3)));
        let before = bench.proxy.counts().faulty;
        probe(&bench.bucket).await.unwrap_or_else(|error| panic!("{fault:?}: {error} {:?}", error.cause()));
        assert!(bench.proxy.counts().faulty > before + 2, "{fault:?}");
    }
}

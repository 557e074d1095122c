//! Stores that lie are found out before the first record is written.

use scafo_core::ProblemCode;
use scafo_store::{
    Condition, Put, TITLE_CONDITIONS, TITLE_ETAGS, TITLE_LISTING, TITLE_METADATA, TITLE_RANGES, conformance,
};
use scafo_tests::fault_proxy::{
    Character, Cut, Fault, Lie, Nth, Operation, Reply, Rule, TagForm, TagForms, WriteLimit,
};

use scafo_tests::stores::Store;

use crate::support::{Bench, keys, long, put};

const LIES: [(Lie, &str); 11] = [
    (Lie::IgnoresIfNoneMatch, TITLE_CONDITIONS),
    (Lie::IgnoresIfMatch, TITLE_CONDITIONS),
    (Lie::CreatesOnIfMatch, TITLE_CONDITIONS),
    (Lie::IgnoresRange, TITLE_RANGES),
    (Lie::CoarseETags { window_ms: 60_000 }, TITLE_CONDITIONS),
    // Its tags are refused before they can be compared.
    (Lie::ListsOtherETags, TITLE_CONDITIONS),
    (Lie::ListsNoETags, TITLE_ETAGS),
    (Lie::AnswersNoETags, TITLE_ETAGS),
    (Lie::CutsListings(Cut::LaterPages), TITLE_LISTING),
    (Lie::CutsListings(Cut::SecondHalf), TITLE_LISTING),
    (Lie::LosesMetadata, TITLE_METADATA),
];

async fn lies_are_found_out_and_honesty_is_not(store: Store) {
    let bench = Bench::on(store).await;
    let registry = bench.registry();
    let node = "a".parse().unwrap();
    for (lie, title) in LIES {
        bench.proxy.play(Character::lying(lie));
        let problem = registry.bootstrap(&node).await.unwrap_err();
        assert_eq!(problem.code, ProblemCode::StoreNonconforming, "{lie:?}: {problem:?}");
        assert_eq!(problem.title.as_deref(), Some(title), "{lie:?}: {problem:?}");
        for exchange in bench.proxy.take_log() {
            let writes = matches!(exchange.asked.operation, Operation::Put | Operation::Other);
            let probes = exchange.asked.key.starts_with("_scafo/probe/");
            assert!(!writes || probes, "{lie:?}: {exchange:?}");
        }
    }
    bench.proxy.play(Character::honest());
    registry.bootstrap(&node).await.unwrap();
    let records: Vec<String> = keys(&bench.store).await.into_iter().filter(|key| !key.contains("/probe/")).collect();
    assert_eq!(records, [scafo_core::key::META]);
}

#[tokio::test]
async fn every_lying_store_is_refused_before_the_first_record_and_an_honest_one_is_not() {
    lies_are_found_out_and_honesty_is_not(Store::bucketd().await).await;
}

/// The store behind the lie makes no difference, except in what it costs: not in every run.
#[tokio::test]
async fn every_lie_is_found_out_before_other_stores_too() {
    lies_are_found_out_and_honesty_is_not(Store::moto().await).await;
    if long() {
        lies_are_found_out_and_honesty_is_not(Store::seaweedfs().await).await;
    }
}

#[tokio::test]
async fn the_suite_finds_every_lie() {
    let bench = Bench::start().await;
    for (lie, _) in LIES {
        // These come late in the suite, after thousands of keys and large bodies.
        let late = matches!(lie, Lie::IgnoresRange | Lie::CutsListings(Cut::LaterPages));
        if late && !long() {
            continue;
        }
        bench.proxy.play(Character::lying(lie));
        assert!(conformance::run(&bench.bucket).await.is_err(), "{lie:?}");
    }
}

/// Field cases A06: whatever a store does with the quotes of a tag works throughout, or is refused at the start.
#[tokio::test]
async fn quotes_work_throughout_or_are_refused_by_name() {
    let bench = Bench::start().await;
    let node = "a".parse().unwrap();
    let forms = [None, Some(TagForm::Quoted), Some(TagForm::Bare)];
    for answers in forms {
        for listings in forms {
            for takes in forms {
                let tags = TagForms { answers, listings, takes };
                bench.proxy.play(Character { tags, ..Character::honest() });
                // A process asks a store what it is once.
                let registry = bench.registry();
                registry.bootstrap(&node).await.unwrap_or_else(|problem| panic!("{tags:?}: {problem:?}"));
                let key = format!("form-{answers:?}-{listings:?}-{takes:?}");
                let bucket = registry.bucket();
                let Put::Written(etag) = put(&**bucket, &key, "1", Condition::Absent).await else { panic!("{tags:?}") };
                let second = put(&**bucket, &key, "2", Condition::Matches(etag.clone())).await;
                assert!(matches!(second, Put::Written(_)), "{tags:?}: {second:?}");
                let stale = put(&**bucket, &key, "3", Condition::Matches(etag)).await;
                assert_eq!(stale, Put::Refused, "{tags:?}");
                let listed = bucket.list(&key).await.unwrap().entries.remove(0).etag;
                let third = put(&**bucket, &key, "4", Condition::Matches(listed)).await;
                assert!(matches!(third, Put::Written(_)), "{tags:?}: {third:?}");
            }
        }
    }
}

/// A store that takes one write a second for each key is slow, not wrong.
#[tokio::test]
async fn a_store_that_limits_writes_is_no_liar() {
    for answer in [Reply::TooManyRequests, Reply::SlowDown, Reply::OperationAborted] {
        let bench = Bench::start().await;
        let write_limit = Some(WriteLimit { every_ms: 300, answer });
        bench.proxy.play(Character { write_limit, ..Character::honest() });
        bench.registry().bootstrap(&"a".parse().unwrap()).await.unwrap_or_else(|problem| panic!("{problem:?}"));
    }
}

/// Field cases A10, A14 and A16, and an endpoint that is no store: what the operator reads says what to do.
#[tokio::test]
async fn what_a_store_says_at_the_start_is_passed_on_with_the_next_step() {
    let bench = Bench::start().await;
    let registry = bench.registry();
    let node = "a".parse().unwrap();
    for (reply, operation, code, words) in [
        (Reply::NoSuchKey, Operation::Put, ProblemCode::StoreNonconforming, "creates are broken"),
        (Reply::RequestTimeTooSkewed, Operation::Get, ProblemCode::StoreUnavailable, "clock"),
        (Reply::OtherRegion, Operation::Get, ProblemCode::StoreUnavailable, "eu-central-1"),
        (Reply::AccessDenied, Operation::Get, ProblemCode::StoreUnavailable, "credentials"),
        (Reply::WebPage, Operation::List, ProblemCode::StoreNonconforming, "bucket.endpoint"),
    ] {
        bench.proxy.calm();
        bench.proxy.push(Rule::new(Fault::Answer(reply)).on([operation]));
        let problem = registry.bootstrap(&node).await.unwrap_err();
        assert_eq!(problem.code, code, "{reply:?}: {problem:?}");
        assert!(problem.detail.contains(words), "{reply:?}: {problem:?}");
    }
    bench.proxy.calm();
    bench.proxy.play(Character { clock_s: -1_200, ..Character::honest() });
    bench.proxy.push(Rule::new(Fault::Answer(Reply::RequestTimeTooSkewed)).nth(Nth::Each(1)));
    let problem = registry.bootstrap(&node).await.unwrap_err();
    // One way or the other round a second, the distance is named.
    assert!(["1199 s", "1200 s", "1201 s"].iter().any(|far| problem.detail.contains(far)), "{problem:?}");
    assert_eq!(keys(&bench.store).await, Vec::<String>::new());
}

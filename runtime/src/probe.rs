//! Does the bucket honour conditions? celld asks at every start and in `diagnose`, with a key of its own each time.

use bytes::Bytes;
use scafo_store::{Bucket, Condition, ETag, Put, PutOptions};

use crate::failure::Outcome;
use crate::{Failure, failure::Context};

/// What the probe found, if it found no violation.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Every answer was the right one.
    Honoured,
    /// An answer did not come or said nothing. A node starts anyway.
    Unclear(String),
}

/// Creates, creates again, updates, updates with the stale tag, deletes.
///
/// # Errors
/// A condition that the store ignored: leases and pointers would be lost on it.
pub(crate) async fn conditional_writes(bucket: &dyn Bucket, tag: &str) -> Outcome<Verdict> {
    let nanos = jiff::Timestamp::now().as_nanosecond();
    let key = format!("probe/cas-{nanos}-{tag}-{}", hex::encode(rand::random::<[u8; 8]>()));
    let outcome = steps(bucket, &key).await;
    // Debris does no harm, and a credential may not be allowed to delete.
    if let Err(error) = bucket.delete(&key).await {
        tracing::debug!(%error, key, "the probe's object stays behind");
    }
    outcome
}

async fn steps(bucket: &dyn Bucket, key: &str) -> Outcome<Verdict> {
    let first = match put(bucket, key, "1", Condition::Absent).await? {
        Put::Written(etag) => etag,
        other => return Ok(unclear("creating an object", &other)),
    };
    if let Some(verdict) = refused(bucket, key, Condition::Absent, "a second create").await? {
        return Ok(verdict);
    }
    let second = match put(bucket, key, "2", Condition::Matches(first.clone())).await? {
        Put::Written(etag) => etag,
        Put::Refused | Put::Gone => {
            return Err(Failure::new("the bucket refuses an update with the right ETag: celld needs If-Match"));
        }
        other @ (Put::Conflict | Put::Busy | Put::Unknown(_)) => return Ok(unclear("an update", &other)),
    };
    if same(&first, &second) {
        return Err(Failure::new("the bucket gives two bodies one ETag: celld needs ETags that differ"));
    }
    let stale = refused(bucket, key, Condition::Matches(first), "an update with a stale ETag").await?;
    Ok(stale.unwrap_or(Verdict::Honoured))
}

fn same(first: &ETag, second: &ETag) -> bool {
    first == second
}

/// `None` if the store refused as it must.
async fn refused(bucket: &dyn Bucket, key: &str, condition: Condition, what: &str) -> Outcome<Option<Verdict>> {
    match put(bucket, key, "3", condition).await? {
        Put::Refused | Put::Gone | Put::Conflict => Ok(None),
        Put::Written(_) => {
            Err(Failure::new(format!("the bucket accepts {what}: it ignores conditions, so no fleet can live on it")))
        }
        other @ (Put::Busy | Put::Unknown(_)) => Ok(Some(unclear(what, &other))),
    }
}

async fn put(bucket: &dyn Bucket, key: &str, body: &'static str, condition: Condition) -> Outcome<Put> {
    let options = PutOptions { condition, ..PutOptions::default() };
    bucket.put(key, Bytes::from_static(body.as_bytes()), options).await.context(|| "probe conditional writes".into())
}

fn unclear(what: &str, answer: &Put) -> Verdict {
    Verdict::Unclear(format!("{what} was answered with {answer:?}"))
}

#[cfg(test)]
mod tests {
    use scafo_store::{Fault, Lie, MemoryBucket};

    use super::*;

    #[tokio::test]
    async fn a_store_that_honours_conditions_passes_and_nothing_stays_behind() {
        let bucket = MemoryBucket::new();
        assert_eq!(conditional_writes(&bucket, "test").await.unwrap(), Verdict::Honoured);
        assert!(bucket.keys("probe/").is_empty());
    }

    #[tokio::test]
    async fn a_store_that_lies_is_found_out() {
        for lie in [Lie::IgnoresIfNoneMatch, Lie::IgnoresIfMatch, Lie::CoarseTags] {
            let bucket = MemoryBucket::lying(lie);
            assert!(conditional_writes(&bucket, "test").await.is_err(), "{lie:?}");
        }
    }

    #[tokio::test]
    async fn a_lost_answer_is_no_violation() {
        let bucket = MemoryBucket::new();
        bucket.plan(|_| Some(Fault::LoseAnswer));
        assert!(matches!(conditional_writes(&bucket, "test").await.unwrap(), Verdict::Unclear(_)));
    }
}

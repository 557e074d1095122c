//! What every store behind scafo has to do, as one suite for all of them: the in-memory bucket, our embedded store, and
//! other people's. It needs more requests than the [probe](crate::probe) and finds more.

use std::{collections::BTreeSet, ops::Range};

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, future::join_all, stream};

use crate::{Bucket, Condition, ETag, Error, ListRequest, Listed, Put, PutOptions};

/// Competitors for one key in a race.
const RACERS: usize = 50;
/// More keys than one page of S3 holds, and no multiple of it.
const MANY: usize = 1205;
/// Requests at once while many objects are made.
const AT_ONCE: usize = 16;

/// A rule that the store breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: {seen}")]
pub struct Violation {
    /// The rule, as a sentence that should be true.
    pub rule: &'static str,
    /// What was seen instead.
    pub seen: String,
}

/// Runs every check on objects under a fresh prefix and removes them. Takes some 1,500 requests.
///
/// # Errors
/// The first rule that does not hold.
pub async fn run(bucket: &dyn Bucket) -> Result<(), Violation> {
    let suite = Suite { bucket, root: format!("conformance/{:016x}/", rand::random::<u64>()) };
    let result = suite.all().await;
    let swept = suite.sweep().await;
    result.and(swept)
}

struct Suite<'a> {
    bucket: &'a dyn Bucket,
    root: String,
}

type Checked = Result<(), Violation>;

impl Suite<'_> {
    async fn all(&self) -> Checked {
        self.absent_objects().await?;
        self.conditional_creates().await?;
        self.conditional_updates().await?;
        self.equal_bodies().await?;
        self.heads().await?;
        self.bodies().await?;
        self.ranges().await?;
        self.odd_keys().await?;
        self.race(&Condition::Absent, "create").await?;
        self.race_of_updates().await?;
        self.listings().await?;
        self.folded_listings().await?;
        self.deletes().await
    }

    async fn absent_objects(&self) -> Checked {
        let rule = "what is not there reads as nothing and may be deleted";
        let key = self.key("absent");
        expect(rule, self.get(rule, &key).await?.is_none(), "GET found an object")?;
        expect(rule, tried(rule, self.bucket.head(&key).await)?.is_none(), "HEAD found an object")?;
        expect(rule, tried(rule, self.bucket.get_range(&key, 0..1).await)?.is_none(), "a ranged GET found an object")?;
        tried(rule, self.bucket.delete(&key).await)?;
        expect(rule, tried(rule, self.bucket.list(&key).await)?.entries.is_empty(), "a listing found an object")
    }

    async fn conditional_creates(&self) -> Checked {
        let rule = "a conditional create succeeds once";
        let key = self.key("create");
        self.written(rule, &key, "one", Condition::Absent).await?;
        self.refused(rule, &key, "two", Condition::Absent).await?;
        self.stands(rule, &key, b"one").await?;
        let rule = "a key can be created again after its deletion";
        tried(rule, self.bucket.delete(&key).await)?;
        self.written(rule, &key, "three", Condition::Absent).await?;
        self.stands(rule, &key, b"three").await
    }

    async fn conditional_updates(&self) -> Checked {
        let rule = "a conditional update succeeds only over the body that it names";
        let key = self.key("update");
        let first = self.written(rule, &key, "one", Condition::None).await?;
        let second = self.written(rule, &key, "two", Condition::Matches(first.clone())).await?;
        self.refused(rule, &key, "stale", Condition::Matches(first)).await?;
        self.stands(rule, &key, b"two").await?;
        self.written(rule, &key, "three", Condition::Matches(second.clone())).await?;
        self.refused(rule, &key, "stale", Condition::Matches(second)).await?;
        let rule = "an update without a condition always succeeds";
        let fourth = self.written(rule, &key, "four", Condition::None).await?;
        let rule = "a conditional update of nothing creates nothing";
        let missing = self.key("update-missing");
        self.refused(rule, &missing, "x", Condition::Matches(fourth.clone())).await?;
        expect(rule, self.get(rule, &missing).await?.is_none(), "it created the object")?;
        tried(rule, self.bucket.delete(&key).await)?;
        self.refused(rule, &key, "five", Condition::Matches(fourth)).await?;
        expect(rule, self.get(rule, &key).await?.is_none(), "it brought a deleted object back")
    }

    async fn equal_bodies(&self) -> Checked {
        let rule = "a tag names the body that stands now";
        let key = self.key("equal");
        let first = self.written(rule, &key, "A", Condition::Absent).await?;
        let second = self.written(rule, &key, "B", Condition::Matches(first.clone())).await?;
        expect(rule, first != second, "two bodies have one tag")?;
        let third = self.written(rule, &key, "A", Condition::Matches(second.clone())).await?;
        // Whether the tag of A came back is the store's affair. That of B must not hold in either case.
        self.refused(rule, &key, "C", Condition::Matches(second)).await?;
        self.written(rule, &key, "C", Condition::Matches(third)).await.map(|_| ())
    }

    async fn heads(&self) -> Checked {
        let rule = "PUT, GET, HEAD and listing tell the same of an object";
        let key = self.key("head");
        let metadata = [("scafo-write", "0123abcd"), ("sha256", "ff00")];
        let options = PutOptions {
            condition: Condition::Absent,
            metadata: metadata.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            content_type: Some("application/json".to_owned()),
        };
        let put = tried(rule, self.bucket.put(&key, Bytes::from_static(b"{}"), options.clone()).await)?;
        let Put::Written(etag) = put else { return violated(rule, format!("PUT ended as {put:?}")) };
        let Some(object) = self.get(rule, &key).await? else { return violated(rule, "GET found nothing") };
        let Some(head) = tried(rule, self.bucket.head(&key).await)? else {
            return violated(rule, "HEAD found nothing");
        };
        let Some(listed) = self.listed(rule, &key).await? else { return violated(rule, "the listing has no such key") };
        for (source, tag) in [("GET", &object.head.etag), ("HEAD", &head.etag), ("the listing", &listed.etag)] {
            expect(rule, *tag == etag, format!("{source} gives {tag}, PUT gave {etag}"))?;
        }
        for (source, size) in [("GET", object.head.size), ("HEAD", head.size), ("the listing", listed.size)] {
            expect(rule, size == 2, format!("{source} gives {size} bytes of 2"))?;
        }
        for (source, given) in [("GET", &object.head), ("HEAD", &head)] {
            expect(rule, given.metadata == options.metadata, format!("{source} gives metadata {:?}", given.metadata))?;
            expect(
                rule,
                given.content_type == options.content_type,
                format!("{source} gives {:?}", given.content_type),
            )?;
        }
        let rule = "a listing tells an object's age by one clock";
        let (Some(date), Some(modified)) = (listed.date, listed.last_modified) else {
            return violated(rule, "Date or LastModified is missing");
        };
        let age_ms = date.as_millis() - modified.as_millis();
        expect(rule, (-2_000..60_000).contains(&age_ms), format!("a new object is {age_ms} ms old"))
    }

    async fn bodies(&self) -> Checked {
        let rule = "a body of any size comes back as it was put";
        // Empty, around the usual limits of inlining and chunking, and above the usual one of multipart.
        for size in [0, 1, (64 << 10) - 1, (64 << 10) + 1, 6 << 20] {
            let key = self.key(&format!("body-{size}"));
            let body = Bytes::from((0..size).map(|at: usize| (at % 251).to_le_bytes()[0]).collect::<Vec<u8>>());
            let etag = self.put_bytes(rule, &key, body.clone(), Condition::Absent).await?;
            let Some(object) = self.get(rule, &key).await? else {
                return violated(rule, format!("{size} bytes are gone"));
            };
            expect(rule, object.body == body, format!("{size} bytes came back as {} others", object.body.len()))?;
            expect(rule, object.head.etag == etag, format!("{size} bytes have another tag in GET than in PUT"))?;
            self.put_bytes(rule, &key, Bytes::from_static(b"short"), Condition::Matches(etag)).await?;
            self.stands(rule, &key, b"short").await?;
        }
        Ok(())
    }

    async fn ranges(&self) -> Checked {
        let rule = "a ranged read gives exactly the bytes asked for";
        let key = self.key("range");
        self.written(rule, &key, "0123456789", Condition::Absent).await?;
        let rows: [(Range<u64>, &[u8]); 5] =
            [(0..1, b"0"), (0..10, b"0123456789"), (3..7, b"3456"), (9..10, b"9"), (8..100, b"89")];
        for (range, want) in rows {
            let got = tried(rule, self.bucket.get_range(&key, range.clone()).await)?;
            expect(rule, got.as_deref() == Some(want), format!("bytes {range:?} came as {got:?}"))?;
        }
        let behind = self.bucket.get_range(&key, 10..20).await;
        expect(rule, matches!(behind, Err(Error::Rejected { .. })), format!("bytes behind the end came as {behind:?}"))
    }

    async fn odd_keys(&self) -> Checked {
        let rule = "every key that scafo and its runtimes use is kept as it is";
        let names = ["a b", "a+b", "100%", "ü", "x=y&z", "~'()!*", "a:b@c", "deep/er/key", "dot./.hidden", "%2F"];
        for name in names {
            let key = self.key(&format!("odd/{name}"));
            self.written(rule, &key, name, Condition::Absent).await?;
            self.refused(rule, &key, "again", Condition::Absent).await?;
            self.stands(rule, &key, name.as_bytes()).await?;
            expect(rule, self.listed(rule, &key).await?.is_some(), format!("the listing does not give {name:?} back"))?;
        }
        let listing = tried(rule, self.bucket.list(&self.key("odd/")).await)?;
        let found: BTreeSet<String> = listing.entries.into_iter().map(|listed| listed.key).collect();
        let want: BTreeSet<String> = names.iter().map(|name| self.key(&format!("odd/{name}"))).collect();
        expect(rule, found == want, format!("listed are {found:?}"))
    }

    async fn race_of_updates(&self) -> Checked {
        let etag =
            self.written("an object can be written", &self.key("race-update"), "start", Condition::Absent).await?;
        self.race(&Condition::Matches(etag), "update").await
    }

    async fn race(&self, condition: &Condition, kind: &str) -> Checked {
        let rule = "of many conditional writes at once exactly one succeeds";
        let key = self.key(&format!("race-{kind}"));
        let puts = join_all((0..RACERS).map(|racer| {
            let options = PutOptions { condition: condition.clone(), ..PutOptions::default() };
            self.bucket.put(&key, Bytes::from(format!("racer {racer}")), options)
        }))
        .await;
        let (mut winners, mut doubtful) = (Vec::new(), Vec::new());
        for (racer, put) in puts.into_iter().enumerate() {
            match tried(rule, put)? {
                Put::Written(etag) => winners.push((racer, etag)),
                Put::Refused | Put::Conflict | Put::Busy => {}
                // A store that lets so many wait for one lock may let one wait for longer than its client does.
                Put::Unknown(_) => doubtful.push(racer),
                Put::Gone => return violated(rule, "a racer was told that there is nothing to overwrite"),
            }
        }
        if winners.is_empty() {
            let body = self.get(rule, &key).await?.map(|object| object.body);
            let of = |racer: &usize| body.as_ref().is_some_and(|body| body[..] == *format!("racer {racer}").as_bytes());
            return expect(rule, doubtful.iter().any(of), format!("none of {RACERS} parallel {kind}s succeeded"));
        }
        let [(winner, etag)] = winners.as_slice() else {
            return violated(rule, format!("{} of {RACERS} parallel {kind}s succeeded", winners.len()));
        };
        self.stands(rule, &key, format!("racer {winner}").as_bytes()).await?;
        let head = tried(rule, self.bucket.head(&key).await)?;
        expect(rule, head.is_some_and(|head| head.etag == *etag), "the tag is not the winner's")
    }

    async fn listings(&self) -> Checked {
        let rule = "a listing has every key once, in order, over as many pages as it takes";
        let names: Vec<String> = (0..MANY).map(|number| self.key(&format!("many/{number:05}"))).collect();
        stream::iter(&names)
            .map(|key| self.put_bytes(rule, key, Bytes::from(key.clone()), Condition::Absent))
            .buffer_unordered(AT_ONCE)
            .try_for_each(|_| async { Ok(()) })
            .await?;
        // A neighbour that a prefix without its separator would take in.
        self.written(rule, &self.key("many2"), "x", Condition::Absent).await?;
        let listing = tried(rule, self.bucket.list(&self.key("many/")).await)?;
        let found: Vec<String> = listing.entries.into_iter().map(|listed| listed.key).collect();
        expect(rule, found == names, format!("{} keys of {MANY}, sorted: {}", found.len(), found.is_sorted()))?;

        let rule = "a page holds what was asked for, from behind the key that was named";
        let prefix = self.key("many/");
        let request = ListRequest { limit: 7, start_after: Some(&names[99]), ..ListRequest::of(&prefix) };
        let page = tried(rule, self.bucket.list_page(request).await)?;
        let found: Vec<&String> = page.entries.iter().map(|listed| &listed.key).collect();
        expect(rule, found == names[100..107].iter().collect::<Vec<_>>(), format!("the page has {found:?}"))?;
        expect(rule, page.next.is_some(), "the page does not say that there is more")?;
        let request = ListRequest { token: page.next.as_ref(), ..request };
        let page = tried(rule, self.bucket.list_page(request).await)?;
        let found: Vec<&String> = page.entries.iter().map(|listed| &listed.key).collect();
        expect(rule, found == names[107..114].iter().collect::<Vec<_>>(), format!("the next page has {found:?}"))
    }

    async fn folded_listings(&self) -> Checked {
        let rule = "a delimited listing folds what lies deeper";
        for name in ["folded/a", "folded/b/1", "folded/b/2", "folded/c/d/e", "folded/z"] {
            self.written(rule, &self.key(name), name, Condition::Absent).await?;
        }
        let prefix = self.key("folded/");
        let listing = tried(rule, self.bucket.list_delimited(&prefix).await)?;
        let keys: Vec<&str> = listing.entries.iter().map(|listed| listed.key.as_str()).collect();
        expect(rule, keys == [self.key("folded/a"), self.key("folded/z")], format!("keys {keys:?}"))?;
        let want = [self.key("folded/b/"), self.key("folded/c/")];
        expect(rule, listing.prefixes == want, format!("prefixes {:?}", listing.prefixes))?;
        let mut found = 0;
        let mut token = None;
        for _ in 0..5 {
            let request = ListRequest { delimited: true, limit: 1, token: token.as_ref(), ..ListRequest::of(&prefix) };
            let page = tried(rule, self.bucket.list_page(request).await)?;
            found += page.entries.len() + page.prefixes.len();
            let Some(next) = page.next else { break };
            token = Some(next);
        }
        expect(rule, found == 4, format!("pages of one give {found} entries of 4"))
    }

    async fn deletes(&self) -> Checked {
        let rule = "a batch delete removes what it names, there or not";
        let prefix = self.key("many/");
        let mut keys: Vec<String> =
            tried(rule, self.bucket.list(&prefix).await)?.entries.into_iter().map(|listed| listed.key).collect();
        keys.push(self.key("many/not-there"));
        let Some(kept) = keys.iter().position(|key| key.ends_with("00042")).map(|at| keys.remove(at)) else {
            return violated(rule, "an object is missing before the delete");
        };
        tried(rule, self.bucket.delete_many(&keys).await)?;
        let left = tried(rule, self.bucket.list(&prefix).await)?.entries;
        expect(
            rule,
            left.len() == 1 && left[0].key == kept,
            format!("{} objects are left instead of one", left.len()),
        )?;
        tried(rule, self.bucket.delete(&kept).await)?;
        expect(rule, self.get(rule, &kept).await?.is_none(), "a deleted object can still be read")
    }

    async fn sweep(&self) -> Checked {
        let rule = "the suite leaves nothing behind";
        let listing = tried(rule, self.bucket.list(&self.root).await)?;
        let keys: Vec<String> = listing.entries.into_iter().map(|listed| listed.key).collect();
        tried(rule, self.bucket.delete_many(&keys).await)?;
        let left = tried(rule, self.bucket.list(&self.root).await)?.entries.len();
        expect(rule, left == 0, format!("{left} objects cannot be removed"))
    }

    async fn written(&self, rule: &'static str, key: &str, body: &str, on: Condition) -> Result<ETag, Violation> {
        self.put_bytes(rule, key, Bytes::from(body.to_owned()), on).await
    }

    async fn put_bytes(&self, rule: &'static str, key: &str, body: Bytes, on: Condition) -> Result<ETag, Violation> {
        let what = format!("PUT of {key:?} with {on:?}");
        let options = PutOptions { condition: on, ..PutOptions::default() };
        match tried(rule, self.bucket.put(key, body, options).await)? {
            Put::Written(etag) => Ok(etag),
            put => violated(rule, format!("{what} ended as {put:?}")),
        }
    }

    async fn refused(&self, rule: &'static str, key: &str, body: &str, on: Condition) -> Checked {
        let what = format!("PUT of {key:?} with {on:?}");
        let options = PutOptions { condition: on, ..PutOptions::default() };
        match tried(rule, self.bucket.put(key, Bytes::from(body.to_owned()), options).await)? {
            Put::Refused | Put::Gone => Ok(()),
            put => violated(rule, format!("{what} ended as {put:?}")),
        }
    }

    async fn stands(&self, rule: &'static str, key: &str, body: &[u8]) -> Checked {
        let there = self.get(rule, key).await?;
        expect(rule, there.is_some_and(|object| &object.body[..] == body), format!("{key:?} has another body"))
    }

    async fn get(&self, rule: &'static str, key: &str) -> Result<Option<crate::Object>, Violation> {
        tried(rule, self.bucket.get(key).await)
    }

    async fn listed(&self, rule: &'static str, key: &str) -> Result<Option<Listed>, Violation> {
        let listing = tried(rule, self.bucket.list(key).await)?;
        Ok(listing.entries.into_iter().find(|listed| listed.key == key))
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.root)
    }
}

fn tried<T>(rule: &'static str, result: Result<T, Error>) -> Result<T, Violation> {
    result.map_err(|error| {
        let cause = error.cause().map(|cause| format!(" ({cause})")).unwrap_or_default();
        Violation { rule, seen: format!("{error}{cause}") }
    })
}

fn expect(rule: &'static str, holds: bool, otherwise: impl Into<String>) -> Checked {
    if holds { Ok(()) } else { violated(rule, otherwise) }
}

fn violated<T>(rule: &'static str, seen: impl Into<String>) -> Result<T, Violation> {
    Err(Violation { rule, seen: seen.into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Lie, MemoryBucket};

    #[tokio::test]
    async fn the_memory_bucket_conforms() {
        let bucket = MemoryBucket::new();
        assert_eq!(run(&bucket).await, Ok(()));
        assert_eq!(bucket.keys(""), Vec::<String>::new());
    }

    #[tokio::test]
    async fn the_suite_finds_every_lie() {
        for lie in [
            Lie::IgnoresIfNoneMatch,
            Lie::IgnoresIfMatch,
            Lie::CreatesOnIfMatch,
            Lie::CoarseTags,
            Lie::IgnoresRange,
            Lie::CutsListings,
            Lie::ListsOtherTags,
            Lie::LosesMetadata,
        ] {
            assert!(run(&MemoryBucket::lying(lie)).await.is_err(), "{lie:?}");
        }
    }
}

//! What a node asks of its store before it writes the first record. A store that fails here would lose writes later.

use std::time::Duration;

use bytes::Bytes;

use crate::{
    Bucket, Condition, ETag, ETagForm, Error, ListRequest, Put, PutOptions, TITLE_CONDITIONS, TITLE_ETAGS,
    TITLE_LISTING, TITLE_METADATA, TITLE_RANGES,
};

/// Where the probe's objects are; they are deleted afterwards.
const ROOT: &str = "_scafo/probe/";
/// Name of the write id in user metadata.
const META: &str = "scafo-write";
/// How often one step is tried when the store gives no clear answer. The pauses between them add up to 3 s: some stores
/// take one write per second and key.
const TRIES: u32 = 6;
/// The first pause; each next one is twice as long.
const PAUSE: Duration = Duration::from_millis(100);

/// Proves that the store does what scafo builds on: conditional creates and updates and their refusals, ranged reads, user
/// metadata, and whole listings with the tags of GET and PUT. Finds out the form in which the store takes tags and sets it.
///
/// # Errors
/// [`Error::Nonconforming`] with the title of the first broken rule, or what the store did to us.
pub async fn probe(bucket: &dyn Bucket) -> Result<(), Error> {
    let root = format!("{ROOT}{:016x}/", rand::random::<u64>());
    let result = Probe { bucket, root: &root }.run().await;
    // Best effort: what stays behind is a few bytes under a name that nothing reads.
    let keys: Vec<String> = ["a", "b", "c", "missing"].iter().map(|name| format!("{root}{name}")).collect();
    let swept = patiently(|| bucket.delete_many(&keys)).await;
    result.and(swept)
}

struct Probe<'a> {
    bucket: &'a dyn Bucket,
    root: &'a str,
}

impl Probe<'_> {
    async fn run(&self) -> Result<(), Error> {
        self.creates().await?;
        self.updates().await?;
        self.reads_ranges().await?;
        self.lists().await
    }

    async fn creates(&self) -> Result<(), Error> {
        self.written("a", "one", Condition::Absent, "a conditional create").await?;
        self.refused("a", "two", Condition::Absent, "a second conditional create").await?;
        self.stands("a", "one", "a refused create").await?;
        let head = self.head("a").await?;
        match head.1.as_deref() {
            Some("probe-a-one") => Ok(()),
            _ => Err(Error::nonconforming(
                TITLE_METADATA,
                "an object came back without the metadata it was written with",
            )),
        }
    }

    async fn updates(&self) -> Result<(), Error> {
        let first = self.learn_form().await?;
        // Two updates in quick succession: a tag made from the time of a write would be the same for both.
        let second = self.written("a", "three", Condition::Matches(first.clone()), "a conditional update").await?;
        let third =
            self.written("a", "four", Condition::Matches(second.clone()), "a second conditional update").await?;
        if first == second || second == third {
            return Err(Error::nonconforming(TITLE_CONDITIONS, "two bodies have the same ETag"));
        }
        self.refused("a", "stale", Condition::Matches(second), "an update over a newer body").await?;
        self.stands("a", "four", "a refused update").await?;
        self.refused("missing", "x", Condition::Matches(third), "an update of a missing object").await?;
        let missing = self.key("missing");
        match patiently(|| self.bucket.head(&missing)).await? {
            None => Ok(()),
            Some(_) => Err(Error::nonconforming(TITLE_CONDITIONS, "an update of a missing object created it")),
        }
    }

    /// Tries the tag of PUT, GET and listing in each form, until one form is taken wherever the tag came from.
    async fn learn_form(&self) -> Result<ETag, Error> {
        'form: for form in [ETagForm::AsGiven, ETagForm::Quoted, ETagForm::Unquoted] {
            self.bucket.use_etag_form(form);
            let mut tag = self.head("a").await?.0;
            for source in ["get", "put", "list"] {
                if source == "list" {
                    tag = self.listed_tag("a").await?;
                }
                let body = format!("{form:?}-{source}");
                match self.put("a", &body, Condition::Matches(tag)).await? {
                    Put::Written(etag) => tag = etag,
                    Put::Refused | Put::Gone => continue 'form,
                    // It takes no writes now, which says nothing about the tag.
                    put @ (Put::Conflict | Put::Busy | Put::Unknown(_)) => return Err(self.undecided("a", put)),
                }
            }
            return Ok(tag);
        }
        self.bucket.use_etag_form(ETagForm::AsGiven);
        Err(Error::nonconforming(
            TITLE_CONDITIONS,
            "an update with the current ETag was refused, with and without quotes",
        ))
    }

    async fn reads_ranges(&self) -> Result<(), Error> {
        let key = self.key("a");
        match patiently(|| self.bucket.get_range(&key, 1..3)).await? {
            Some(bytes) if &bytes[..] == b"ou" => Ok(()),
            _ => Err(Error::nonconforming(TITLE_RANGES, "a ranged read was answered with other bytes")),
        }
    }

    async fn lists(&self) -> Result<(), Error> {
        self.written("b", "b", Condition::Absent, "a conditional create").await?;
        self.written("c", "c", Condition::Absent, "a conditional create").await?;
        // Pages of two make the shortest listing that has to go on.
        let mut found = Vec::new();
        let mut token = None;
        loop {
            let request = ListRequest { limit: 2, token: token.as_ref(), ..ListRequest::of(self.root) };
            let page = patiently(|| self.bucket.list_page(request)).await?;
            found.extend(page.entries);
            match page.next {
                Some(next) if found.len() < 3 && token.as_ref() != Some(&next) => token = Some(next),
                Some(_) | None => break,
            }
        }
        let keys: Vec<&str> = found.iter().map(|listed| listed.key.as_str()).collect();
        if keys != ["a", "b", "c"].map(|name| self.key(name)) {
            return Err(Error::nonconforming(
                TITLE_LISTING,
                format!("of three objects a listing in pages of two has {}", keys.len()),
            ));
        }
        for (name, listed) in ["a", "b", "c"].into_iter().zip(&found) {
            if listed.etag != self.head(name).await?.0 {
                return Err(Error::nonconforming(TITLE_ETAGS, "a listing names other ETags than GET and PUT"));
            }
        }
        Ok(())
    }

    async fn listed_tag(&self, name: &str) -> Result<ETag, Error> {
        let key = self.key(name);
        let listing = patiently(|| self.bucket.list(self.root)).await?;
        match listing.entries.into_iter().find(|listed| listed.key == key) {
            Some(listed) => Ok(listed.etag),
            None => Err(Error::nonconforming(TITLE_LISTING, "an object that was just written is not listed")),
        }
    }

    async fn head(&self, name: &str) -> Result<(ETag, Option<String>), Error> {
        let key = self.key(name);
        match patiently(|| self.bucket.get(&key)).await? {
            Some(object) => Ok((object.head.etag, object.head.metadata.get(META).cloned())),
            None => Err(Error::nonconforming(TITLE_CONDITIONS, "an object that was just written cannot be read")),
        }
    }

    async fn stands(&self, name: &str, body: &str, after: &str) -> Result<(), Error> {
        let key = self.key(name);
        match patiently(|| self.bucket.get(&key)).await? {
            Some(object) if &object.body[..] == body.as_bytes() => Ok(()),
            Some(_) | None => Err(Error::nonconforming(TITLE_CONDITIONS, format!("{after} changed the object"))),
        }
    }

    async fn written(&self, name: &str, body: &str, condition: Condition, what: &str) -> Result<ETag, Error> {
        match self.put(name, body, condition).await? {
            Put::Written(etag) => Ok(etag),
            Put::Refused | Put::Gone => Err(Error::nonconforming(TITLE_CONDITIONS, format!("{what} was refused"))),
            put @ (Put::Conflict | Put::Busy | Put::Unknown(_)) => Err(self.undecided(name, put)),
        }
    }

    async fn refused(&self, name: &str, body: &str, condition: Condition, what: &str) -> Result<(), Error> {
        match self.put(name, body, condition).await? {
            Put::Refused | Put::Gone | Put::Conflict => Ok(()),
            Put::Written(_) => Err(Error::nonconforming(TITLE_CONDITIONS, format!("{what} was not refused"))),
            put @ (Put::Busy | Put::Unknown(_)) => Err(self.undecided(name, put)),
        }
    }

    /// A PUT that is tried again while the store gives no clear answer. A refusal after an unknown outcome may be the work of
    /// the try before; the write id tells.
    async fn put(&self, name: &str, body: &str, condition: Condition) -> Result<Put, Error> {
        let id = format!("probe-{name}-{body}");
        let mut doubtful = false;
        let mut last = Put::Busy;
        for attempt in 0..TRIES {
            if attempt > 0 {
                tokio::time::sleep(PAUSE * (1 << (attempt - 1))).await;
            }
            let metadata = [(META.to_owned(), id.clone())].into();
            let options = PutOptions { condition: condition.clone(), metadata, content_type: None };
            last = self.bucket.put(&self.key(name), Bytes::from(body.to_owned()), options).await?;
            match &last {
                Put::Written(_) | Put::Gone => return Ok(last),
                Put::Refused if doubtful => {
                    let (etag, written_by) = self.head(name).await?;
                    return Ok(if written_by.as_deref() == Some(&id) { Put::Written(etag) } else { Put::Refused });
                }
                Put::Refused => return Ok(last),
                Put::Unknown(_) => doubtful = true,
                Put::Conflict | Put::Busy => {}
            }
        }
        Ok(last)
    }

    fn undecided(&self, name: &str, put: Put) -> Error {
        let key = self.key(name);
        match put {
            Put::Unknown(cause) => Error::Unavailable { operation: "put", key, cause },
            Put::Written(_) | Put::Refused | Put::Gone | Put::Conflict | Put::Busy => {
                Error::Busy { operation: "put", key }
            }
        }
    }

    fn key(&self, name: &str) -> String {
        format!("{}{name}", self.root)
    }
}

/// A read, or a sweep, that is tried again while the store gives no answer: one hiccup must not cost a node its start.
async fn patiently<T, F: Future<Output = Result<T, Error>>>(read: impl Fn() -> F) -> Result<T, Error> {
    let mut tries = 1;
    loop {
        match read().await {
            Err(error) if error.is_transient() && tries < TRIES => {
                tokio::time::sleep(PAUSE * (1 << (tries - 1))).await;
                tries += 1;
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, Lie, MemoryBucket};

    async fn verdict(bucket: &MemoryBucket) -> String {
        match probe(bucket).await {
            Ok(()) => "good".to_owned(),
            Err(Error::Nonconforming { title, .. }) => title.to_owned(),
            Err(error) => panic!("{error}"),
        }
    }

    #[tokio::test]
    async fn a_good_store_passes_and_is_left_as_it_was() {
        let bucket = MemoryBucket::new();
        assert_eq!(verdict(&bucket).await, "good");
        assert_eq!(bucket.keys(""), Vec::<String>::new());
    }

    #[tokio::test]
    async fn every_lie_is_found_out_by_its_title() {
        for (lie, title) in [
            (Lie::IgnoresIfNoneMatch, TITLE_CONDITIONS),
            (Lie::IgnoresIfMatch, TITLE_CONDITIONS),
            (Lie::CreatesOnIfMatch, TITLE_CONDITIONS),
            (Lie::CoarseTags, TITLE_CONDITIONS),
            (Lie::IgnoresRange, TITLE_RANGES),
            (Lie::CutsListings, TITLE_LISTING),
            // Its tags are refused before they can be compared.
            (Lie::ListsOtherTags, TITLE_CONDITIONS),
            (Lie::LosesMetadata, TITLE_METADATA),
            (Lie::WantsBareTags, "good"),
        ] {
            assert_eq!(verdict(&MemoryBucket::lying(lie)).await, title, "{lie:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_read_without_an_answer_is_tried_again_and_not_for_ever() {
        for fault in [Fault::LoseRequest, Fault::LoseAnswer, Fault::Busy] {
            for position in 0..16 {
                let bucket = MemoryBucket::new();
                let mut reads = 0;
                bucket.plan(move |operation| {
                    let (crate::Operation::Get(_) | crate::Operation::List(_)) = operation else { return None };
                    reads += 1;
                    (reads == position + 1).then_some(fault)
                });
                assert_eq!(verdict(&bucket).await, "good", "{fault:?} at read {position}");
            }
            let silent = MemoryBucket::new();
            silent.plan(move |operation| match operation {
                crate::Operation::Get(_) | crate::Operation::List(_) => Some(fault),
                crate::Operation::Put(..) | crate::Operation::Delete(_) => None,
            });
            assert!(probe(&silent).await.unwrap_err().is_transient(), "{fault:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_stops_taking_writes_is_away_and_no_liar() {
        for fault in [Fault::LoseAnswer, Fault::LoseRequest, Fault::Busy, Fault::Conflict] {
            for position in 0..8 {
                let bucket = MemoryBucket::new();
                let mut puts = 0;
                bucket.plan(move |operation| {
                    let crate::Operation::Put(..) = operation else { return None };
                    puts += 1;
                    (puts > position).then_some(fault)
                });
                if let Err(error) = probe(&bucket).await {
                    assert!(error.is_transient(), "{fault:?} from write {position} on: {error}");
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lost_answers_and_a_busy_store_are_not_taken_for_lies() {
        for fault in [Fault::LoseAnswer, Fault::LoseRequest, Fault::Busy, Fault::Conflict] {
            for position in 0..12 {
                let bucket = MemoryBucket::new();
                let mut puts = 0;
                bucket.plan(move |operation| {
                    let crate::Operation::Put(..) = operation else { return None };
                    puts += 1;
                    (puts == position + 1).then_some(fault)
                });
                assert_eq!(verdict(&bucket).await, "good", "{fault:?} at write {position}");
            }
        }
    }
}

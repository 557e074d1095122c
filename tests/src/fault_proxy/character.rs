//! What kind of store the proxy plays: an honest one with quirks, or one that lies.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use http::header::{self, HeaderMap, HeaderValue};
use serde::Deserialize;

use super::asked::{Asked, Operation};
use super::listing::{self, Cut};
use super::reply::Reply;
use super::tag::{self, TagForm};

/// Keys that are remembered before those whose time is over are forgotten: more than any test writes.
const KEYS_MAX: usize = 100_000;

/// A promise that the store breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Lie {
    /// Overwrites on `If-None-Match: *`.
    IgnoresIfNoneMatch,
    /// Overwrites, or creates, on any `If-Match`.
    IgnoresIfMatch,
    /// Creates on `If-Match` of a missing key; refuses a stale one.
    CreatesOnIfMatch,
    /// Answers a ranged read with the whole object.
    IgnoresRange,
    /// One tag for all bodies of a key that were written within this time of the first of them.
    CoarseETags {
        /// In milliseconds.
        window_ms: u64,
    },
    /// Lists tags that no other answer gives.
    ListsOtherETags,
    /// Lists no tags.
    ListsNoETags,
    /// Answers writes and reads without a tag.
    AnswersNoETags,
    /// Listings lack something.
    CutsListings(Cut),
    /// Forgets user metadata.
    LosesMetadata,
}

/// At most one write in this time for each key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WriteLimit {
    /// In milliseconds.
    pub every_ms: u64,
    /// What a write too early is answered with.
    pub answer: Reply,
}

/// In which form tags come and go; `None` leaves them as the store has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TagForms {
    /// In answers to PUT, GET and HEAD.
    pub answers: Option<TagForm>,
    /// In listings.
    pub listings: Option<TagForm>,
    /// The only form that is taken in `If-Match`; the other one never holds.
    pub takes: Option<TagForm>,
}

/// Everything that makes a store what it is, beyond what goes wrong by [rules](super::Rule).
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub struct Character {
    /// What it does not keep.
    pub lies: HashSet<Lie>,
    /// How it spells tags.
    pub tags: TagForms,
    /// How much it takes.
    pub write_limit: Option<WriteLimit>,
    /// How far its clock is off, in seconds.
    pub clock_s: i64,
}

impl Character {
    /// A store that keeps every promise.
    pub fn honest() -> Self {
        Self::default()
    }

    /// A store with one lie.
    pub fn lying(lie: Lie) -> Self {
        Self { lies: [lie].into(), ..Self::default() }
    }

    fn lies(&self, lie: Lie) -> bool {
        self.lies.contains(&lie)
    }

    fn coarse(&self) -> Option<Duration> {
        self.lies.iter().find_map(|lie| match lie {
            Lie::CoarseETags { window_ms } => Some(Duration::from_millis(*window_ms)),
            Lie::IgnoresIfNoneMatch
            | Lie::IgnoresIfMatch
            | Lie::CreatesOnIfMatch
            | Lie::IgnoresRange
            | Lie::ListsOtherETags
            | Lie::ListsNoETags
            | Lie::AnswersNoETags
            | Lie::CutsListings(_)
            | Lie::LosesMetadata => None,
        })
    }

    /// Whether it has to be known if the key is there before the request can be played.
    pub(super) fn looks_first(&self, headers: &HeaderMap) -> bool {
        self.lies(Lie::CreatesOnIfMatch) && headers.contains_key(header::IF_MATCH)
    }

    fn cut(&self) -> impl Iterator<Item = Cut> {
        [Cut::LaterPages, Cut::SecondHalf].into_iter().filter(|cut| self.lies(Lie::CutsListings(*cut)))
    }
}

/// A character with what it remembers.
#[derive(Debug, Default)]
pub(super) struct Played {
    character: Character,
    written: HashMap<String, Instant>,
    coarse: HashMap<String, Coarse>,
    minted: u64,
}

#[derive(Debug)]
struct Coarse {
    tag: String,
    /// The true tag of the body that stands now.
    stands: String,
    since: Instant,
}

/// What becomes of the headers of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turned {
    /// Nothing: the signature still holds.
    Kept,
    /// Changed: to be signed anew.
    Changed,
    /// Not to be passed on at all.
    Refused(Reply),
}

impl Played {
    pub(super) fn new(character: Character) -> Self {
        Self { character, ..Self::default() }
    }

    pub(super) const fn character(&self) -> &Character {
        &self.character
    }

    /// Whether this write comes too early, as the store would say it.
    pub(super) fn limited(&mut self, asked: &Asked, now: Instant) -> Option<Reply> {
        let limit = self.character.write_limit.filter(|_| asked.writes())?;
        let last = self.written.get(&asked.key);
        if last.is_some_and(|last| now.duration_since(*last) < Duration::from_millis(limit.every_ms)) {
            return Some(limit.answer);
        }
        if self.written.len() >= KEYS_MAX {
            self.written.retain(|_, last| now.duration_since(*last) < Duration::from_millis(limit.every_ms));
        }
        self.written.insert(asked.key.clone(), now);
        None
    }

    /// Changes a request as the store would misread it. `there`: whether the key is, where that was looked up.
    pub(super) fn turn_request(&self, asked: &Asked, headers: &mut HeaderMap, there: Option<bool>) -> Turned {
        let mut turned = Turned::Kept;
        let mut drop = |name: header::HeaderName, when: bool| {
            if when && headers.remove(&name).is_some() {
                turned = Turned::Changed;
            }
        };
        drop(header::IF_NONE_MATCH, self.character.lies(Lie::IgnoresIfNoneMatch));
        drop(header::IF_MATCH, self.character.lies(Lie::IgnoresIfMatch) || there == Some(false));
        drop(header::RANGE, self.character.lies(Lie::IgnoresRange));
        match headers.get(header::IF_MATCH).and_then(|given| given.to_str().ok()).map(str::to_owned) {
            None => turned,
            Some(given) => match self.true_tag(asked, &given) {
                Some(tag) if tag == given => turned,
                Some(tag) => match HeaderValue::from_str(&tag) {
                    Ok(tag) => {
                        headers.insert(header::IF_MATCH, tag);
                        Turned::Changed
                    }
                    Err(_) => Turned::Refused(Reply::PreconditionFailed),
                },
                None => Turned::Refused(Reply::PreconditionFailed),
            },
        }
    }

    /// The tag to ask the true store for, or `None` if the one that was given never holds.
    fn true_tag(&self, asked: &Asked, given: &str) -> Option<String> {
        if self.character.tags.takes.is_some_and(|form| form != TagForm::of(given)) {
            return None;
        }
        if self.character.tags == TagForms::default() && self.character.coarse().is_none() {
            return Some(given.to_owned());
        }
        let opaque = match self.coarse.get(&asked.key) {
            Some(coarse) if coarse.tag == tag::opaque(given) => &coarse.stands,
            Some(_) => return None,
            None => tag::opaque(given),
        };
        Some(TagForm::Quoted.render(opaque))
    }

    /// Changes the head of an answer.
    pub(super) fn turn_answer(&mut self, asked: &Asked, headers: &mut HeaderMap, now: Instant) {
        if self.character.lies(Lie::LosesMetadata) {
            let names = headers.keys().filter(|name| name.as_str().starts_with("x-amz-meta-"));
            for name in names.cloned().collect::<Vec<_>>() {
                headers.remove(name);
            }
        }
        let Some(given) = headers.get(header::ETAG).and_then(|tag| tag.to_str().ok()).map(str::to_owned) else {
            return;
        };
        if self.character.lies(Lie::AnswersNoETags) {
            headers.remove(header::ETAG);
            return;
        }
        let told = self.told(asked, tag::opaque(&given), now);
        let form = self.character.tags.answers.unwrap_or(TagForm::of(&given));
        if let Ok(tag) = HeaderValue::from_str(&form.render(&told)) {
            headers.insert(header::ETAG, tag);
        }
    }

    /// What the store calls the body with this true tag.
    fn told(&mut self, asked: &Asked, stands: &str, now: Instant) -> String {
        let Some(window) = self.character.coarse() else { return stands.to_owned() };
        if asked.operation == Operation::Put {
            let fresh = self.coarse.get(&asked.key).is_none_or(|coarse| now.duration_since(coarse.since) >= window);
            if fresh {
                if self.coarse.len() >= KEYS_MAX {
                    self.coarse.retain(|_, coarse| now.duration_since(coarse.since) < window);
                }
                self.minted += 1;
                let coarse = Coarse { tag: format!("{:032x}", self.minted), stands: String::new(), since: now };
                self.coarse.insert(asked.key.clone(), coarse);
            }
        }
        match self.coarse.get_mut(&asked.key) {
            Some(coarse) => {
                stands.clone_into(&mut coarse.stands);
                coarse.tag.clone()
            }
            None => stands.to_owned(),
        }
    }

    /// Whether answers to this have to be held whole to be changed.
    pub(super) fn changes_body(&self, asked: &Asked) -> bool {
        asked.operation == Operation::List && self.character != Character::honest()
    }

    /// Changes a page of a listing.
    pub(super) fn turn_page(&self, page: &str) -> String {
        let character = &self.character;
        let form = character.tags.listings.unwrap_or(TagForm::Quoted);
        let page = listing::map_tags(page, form, |key, tag| {
            if character.lies(Lie::ListsNoETags) {
                return None;
            }
            if character.lies(Lie::ListsOtherETags) {
                return Some(format!("{tag}-listed"));
            }
            Some(self.coarse.get(key).map_or(tag, |coarse| &coarse.tag).to_owned())
        });
        character.cut().fold(page, |page, cut| listing::cut(&page, cut))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_str(value).unwrap())).collect()
    }

    fn put(key: &str) -> Asked {
        Asked { operation: Operation::Put, key: key.to_owned(), ..Asked::default() }
    }

    #[test]
    fn an_honest_store_changes_nothing() {
        let mut store = Played::new(Character::honest());
        let mut given = headers(&[("if-match", "\"t\""), ("range", "bytes=0-1"), ("x-amz-meta-a", "b")]);
        let before = given.clone();
        assert_eq!(store.turn_request(&put("k"), &mut given, None), Turned::Kept);
        store.turn_answer(&put("k"), &mut given, Instant::now());
        assert_eq!(given, before);
        assert_eq!(store.limited(&put("k"), Instant::now()), None);
    }

    #[test]
    fn a_lie_takes_out_what_it_ignores() {
        for (lie, there, name) in [
            (Lie::IgnoresIfNoneMatch, None, "if-none-match"),
            (Lie::IgnoresIfMatch, None, "if-match"),
            (Lie::CreatesOnIfMatch, Some(false), "if-match"),
            (Lie::IgnoresRange, None, "range"),
        ] {
            let store = Played::new(Character::lying(lie));
            let mut given = headers(&[(name, "x")]);
            assert_eq!(store.turn_request(&put("k"), &mut given, there), Turned::Changed, "{lie:?}");
            assert!(given.is_empty(), "{lie:?}");
        }
        let store = Played::new(Character::lying(Lie::CreatesOnIfMatch));
        let mut given = headers(&[("if-match", "x")]);
        assert_eq!(store.turn_request(&put("k"), &mut given, Some(true)), Turned::Kept);
    }

    #[test]
    fn a_coarse_tag_stands_for_every_body_of_its_window() {
        let mut store = Played::new(Character::lying(Lie::CoarseETags { window_ms: 1_000 }));
        let start = Instant::now();
        let mut tell = |tag: &str, after_ms| {
            let mut answer = headers(&[("etag", tag)]);
            store.turn_answer(&put("k"), &mut answer, start + Duration::from_millis(after_ms));
            answer[header::ETAG].to_str().unwrap().to_owned()
        };
        let (first, second, third) = (tell("\"1\"", 0), tell("\"2\"", 900), tell("\"3\"", 1_000));
        assert_eq!(first, second);
        assert_ne!(second, third);
        let mut current = headers(&[("if-match", &third)]);
        assert_eq!(store.turn_request(&put("k"), &mut current, None), Turned::Changed);
        assert_eq!(current[header::IF_MATCH], "\"3\"");
        let mut stale = headers(&[("if-match", &first)]);
        assert_eq!(store.turn_request(&put("k"), &mut stale, None), Turned::Refused(Reply::PreconditionFailed));
    }

    #[test]
    fn tags_come_and_go_in_the_form_that_was_set() {
        let tags = TagForms { answers: Some(TagForm::Bare), listings: None, takes: Some(TagForm::Bare) };
        let mut store = Played::new(Character { tags, ..Character::honest() });
        let mut answer = headers(&[("etag", "\"t\"")]);
        store.turn_answer(&put("k"), &mut answer, Instant::now());
        assert_eq!(answer[header::ETAG], "t");
        let mut quoted = headers(&[("if-match", "\"t\"")]);
        assert_eq!(store.turn_request(&put("k"), &mut quoted, None), Turned::Refused(Reply::PreconditionFailed));
        let mut bare = headers(&[("if-match", "t")]);
        assert_eq!(store.turn_request(&put("k"), &mut bare, None), Turned::Changed);
        assert_eq!(bare[header::IF_MATCH], "\"t\"");
    }

    #[test]
    fn a_second_write_of_a_key_is_too_early_and_one_of_another_is_not() {
        let write_limit = Some(WriteLimit { every_ms: 1_000, answer: Reply::TooManyRequests });
        let mut store = Played::new(Character { write_limit, ..Character::honest() });
        let start = Instant::now();
        let get = Asked { operation: Operation::Get, ..put("a") };
        for (asked, after_ms, too_early) in [
            (put("a"), 0, false),
            (get, 1, false),
            (put("a"), 999, true),
            (put("b"), 999, false),
            (put("a"), 1_000, false),
            (put("a"), 1_001, true),
        ] {
            let answer = store.limited(&asked, start + Duration::from_millis(after_ms));
            assert_eq!(answer.is_some(), too_early, "{asked:?} after {after_ms} ms");
        }
    }
}

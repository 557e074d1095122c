//! Listings: a walk over the keys of a bucket in the order of their UTF-8 bytes, in which all keys of one common prefix cost one
//! step.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use rusqlite::{Connection, params};

use super::{
    error::StoreError,
    rows::{BucketId, from_integer},
    types::{ETag, Millis, ObjectKey},
};

/// The most entries of one page in S3.
pub const MAX_KEYS: usize = 1000;

/// Greater than every key, since no UTF-8 text has this byte.
const AFTER_ALL: &[u8] = &[0xff];

/// What to list.
#[derive(Debug, Clone)]
pub struct ListQuery {
    /// Only keys that begin with this.
    pub prefix: String,
    /// Keys with this text after the prefix are rolled up into one common prefix that ends with it. Never empty.
    pub delimiter: Option<String>,
    /// Where to go on.
    pub after: Position,
    /// The most entries (objects and common prefixes), at most [`MAX_KEYS`].
    pub max: usize,
}

/// A place between two entries of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Position {
    /// Before the first.
    Start,
    /// After this key, which need not exist.
    AfterKey(String),
    /// After every key with this prefix.
    AfterGroup(String),
}

impl Position {
    /// The position as an opaque token.
    #[must_use]
    pub fn to_token(&self) -> String {
        let text = match self {
            Self::Start => "s".to_owned(),
            Self::AfterKey(key) => format!("k{key}"),
            Self::AfterGroup(prefix) => format!("g{prefix}"),
        };
        URL_SAFE_NO_PAD.encode(text)
    }

    /// Reads a token of [`Position::to_token`].
    ///
    /// # Errors
    /// [`StoreError::InvalidArgument`] for anything else.
    pub fn from_token(token: &str) -> Result<Self, StoreError> {
        let bad = || StoreError::InvalidArgument("the continuation token is not one of this store".into());
        let text =
            URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| String::from_utf8(bytes).ok()).ok_or_else(bad)?;
        match text.split_at_checked(1) {
            Some(("s", "")) => Ok(Self::Start),
            Some(("k", key)) => Ok(Self::AfterKey(key.to_owned())),
            Some(("g", prefix)) => Ok(Self::AfterGroup(prefix.to_owned())),
            Some(_) | None => Err(bad()),
        }
    }

    /// The least key that may follow.
    fn bound(&self) -> Vec<u8> {
        match self {
            Self::Start => Vec::new(),
            // The least text greater than `key` is `key` with a zero byte.
            Self::AfterKey(key) => [key.as_bytes(), &[0]].concat(),
            Self::AfterGroup(prefix) => after_prefix(prefix.as_bytes()),
        }
    }
}

/// One object of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: ObjectKey,
    /// Its ETag.
    pub etag: ETag,
    /// Bytes of the body.
    pub size: u64,
    /// When it was written.
    pub modified: Millis,
}

/// One page.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListPage {
    /// Objects in order.
    pub objects: Vec<Listed>,
    /// Common prefixes in order.
    pub prefixes: Vec<String>,
    /// Where the next page begins, when there is one.
    pub next: Option<Position>,
}

/// The least byte string that is greater than every string with this prefix.
fn after_prefix(prefix: &[u8]) -> Vec<u8> {
    let mut bound = prefix.to_vec();
    match bound.last_mut() {
        // Bytes of UTF-8 stay below 0xf5.
        Some(last) => *last += 1,
        None => bound.extend_from_slice(AFTER_ALL),
    }
    bound
}

/// The common prefix that the key is rolled up into, if any.
fn group_of<'key>(key: &'key str, query: &ListQuery) -> Option<&'key str> {
    let delimiter = query.delimiter.as_deref()?;
    let rest = key.get(query.prefix.len()..)?;
    let at = rest.find(delimiter)?;
    key.get(..query.prefix.len() + at + delimiter.len())
}

/// Reads one page.
pub(super) fn page(conn: &Connection, bucket: BucketId, query: &ListQuery) -> Result<ListPage, StoreError> {
    let mut page = ListPage::default();
    let max = query.max.min(MAX_KEYS);
    if max == 0 {
        return Ok(page);
    }
    let end = if query.prefix.is_empty() { AFTER_ALL.to_vec() } else { after_prefix(query.prefix.as_bytes()) };
    let mut from = query.after.bound().max(query.prefix.as_bytes().to_vec());
    let mut last = query.after.clone();
    let mut statement = conn.prepare_cached(
        "SELECT key, etag, size, modified_ms FROM object WHERE bucket = ?1 AND key >= ?2 AND key < ?3 ORDER BY key",
    )?;
    'seek: loop {
        let mut rows = statement.query(params![bucket.0, from, end])?;
        while let Some(row) = rows.next()? {
            if page.objects.len() + page.prefixes.len() == max {
                page.next = Some(last);
                return Ok(page);
            }
            let key = ObjectKey::from_database(row.get(0)?)?;
            if let Some(group) = group_of(key.as_str(), query) {
                from = after_prefix(group.as_bytes());
                last = Position::AfterGroup(group.to_owned());
                page.prefixes.push(group.to_owned());
                continue 'seek;
            }
            last = Position::AfterKey(key.as_str().to_owned());
            let (etag, size, modified) = (ETag(row.get(1)?), from_integer(row.get(2)?)?, Millis(row.get(3)?));
            page.objects.push(Listed { key, etag, size, modified });
        }
        return Ok(page);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What a page must be, said the slow way: over all keys at once.
    fn expected(keys: &[String], query: &ListQuery) -> Vec<String> {
        let mut entries = Vec::new();
        for key in keys {
            let after = match &query.after {
                Position::Start => true,
                Position::AfterKey(last) => key > last,
                Position::AfterGroup(prefix) => key > prefix && !key.starts_with(prefix.as_str()),
            };
            if !after || !key.starts_with(&query.prefix) {
                continue;
            }
            let entry = group_of(key, query).unwrap_or(key).to_owned();
            if entries.last() != Some(&entry) {
                entries.push(entry);
            }
        }
        entries
    }

    fn database(keys: &[String]) -> Connection {
        let dir = tempfile::tempdir().unwrap();
        let conn = super::super::schema::open_writer(dir.path(), std::path::Path::new(":memory:")).unwrap();
        for key in keys {
            conn.execute("INSERT INTO object VALUES (1, ?1, 'e', 0, 0, '{}', 1)", [key.as_bytes()]).unwrap();
        }
        conn
    }

    fn entries(page: &ListPage) -> Vec<String> {
        let mut entries: Vec<_> = page.objects.iter().map(|object| object.key.as_str().to_owned()).collect();
        entries.extend(page.prefixes.iter().cloned());
        entries.sort();
        entries
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn pages_of_any_size_add_up_to_the_whole_listing(
            keys in prop::collection::btree_set("[ab/é]{1,6}", 0..40),
            prefix in "[ab/é]{0,2}",
            delimiter in prop::option::of("[/b]"),
            start in prop::option::of("[ab/]{1,3}"),
            max in 1_usize..5,
        ) {
            let keys: Vec<_> = keys.into_iter().collect();
            let conn = database(&keys);
            let after = start.map_or(Position::Start, Position::AfterKey);
            let mut query = ListQuery { prefix, delimiter, after, max };
            let expected = expected(&keys, &query);
            let mut found = Vec::new();
            loop {
                let page = page(&conn, BucketId(1), &query).unwrap();
                let entries = entries(&page);
                prop_assert!(entries.len() <= max);
                found.extend(entries);
                let Some(next) = page.next else { break };
                query.after = Position::from_token(&next.to_token()).unwrap();
            }
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn foreign_token_is_refused() {
        for token in ["", "!", "eA", &URL_SAFE_NO_PAD.encode([0x6b, 0xff])] {
            assert!(matches!(Position::from_token(token), Err(StoreError::InvalidArgument(_))), "{token}");
        }
    }
}

//! Values of certificate storage, each in a JSON envelope. Whoever writes last wins, and what is read is one whole write,
//! never a part of one.

use std::collections::BTreeSet;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use scafo_core::{
    Problem, ProblemCode, Timestamp,
    key::prefix,
    record::{Rest, V1, to_bytes},
};
use scafo_store::{LIST_KEYS_MAX, OBJECT_BYTES_MAX, Walk};
use serde::{Deserialize, Serialize};

use super::StorageKey;
use crate::registry::{Intent, Registry};

/// Largest value that any node may allow (`storage.valueBytes`): with its envelope it fits the largest object of the bucket, so
/// that every node reads what another one took.
pub const VALUE_BYTES_MAX: usize = 40 << 20;

/// What most values fit, and the envelope of those that are read as such: a chain with its key has some 10 KiB.
pub(crate) const SMALL_BYTES: usize = 256 << 10;

#[derive(Debug, Serialize, Deserialize)]
struct Envelope {
    v: V1,
    /// Base64 with padding (RFC 4648 §4).
    value: String,
    size: u64,
    modified: Timestamp,
    #[serde(flatten)]
    rest: Rest,
}

/// What there is at a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stat {
    /// The key as it was asked about.
    pub key: String,
    /// When the value was written; `null` for a key that only has keys beneath it.
    pub modified: Option<Timestamp>,
    /// Bytes of the value; 0 without one.
    pub size: u64,
    /// Whether it has a value.
    pub is_terminal: bool,
}

/// Keeps a value.
///
/// # Errors
/// `resource-limit` beyond [`VALUE_BYTES_MAX`]; store errors, after which it is safe to put it again.
pub async fn put(registry: &Registry, key: &StorageKey, value: &[u8]) -> Result<(), Problem> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(too_large(VALUE_BYTES_MAX));
    }
    let envelope = Envelope {
        v: V1,
        value: STANDARD.encode(value),
        size: value.len() as u64,
        modified: registry.clock().wall(),
        rest: Rest::new(),
    };
    registry.engine().overwrite(&Intent::new(), &key.object(), to_bytes(&envelope).into()).await
}

/// The value at a key.
///
/// # Errors
/// `not-found`; `store-nonconforming` for an object that is no envelope; store errors.
pub async fn get(registry: &Registry, key: &StorageKey) -> Result<Bytes, Problem> {
    let (value, _) = open(registry, key, OBJECT_BYTES_MAX).await?.ok_or_else(|| absent(key))?;
    Ok(value)
}

/// As [`get`], holding no more than [`SMALL_BYTES`]; `None` for a value that is larger.
///
/// # Errors
/// As [`get`].
pub(crate) async fn get_small(registry: &Registry, key: &StorageKey) -> Result<Option<Bytes>, Problem> {
    let Some(opened) = unless_larger(open(registry, key, SMALL_BYTES as u64).await)? else { return Ok(None) };
    let (value, _) = opened.ok_or_else(|| absent(key))?;
    Ok(Some(value))
}

/// What there is at a key.
///
/// # Errors
/// As [`get`].
pub async fn stat(registry: &Registry, key: &StorageKey) -> Result<Stat, Problem> {
    stat_of(registry, key, open(registry, key, OBJECT_BYTES_MAX).await?).await
}

/// As [`stat`], holding no more than [`SMALL_BYTES`]; `None` for a value that is larger.
///
/// # Errors
/// As [`get`].
pub(crate) async fn stat_small(registry: &Registry, key: &StorageKey) -> Result<Option<Stat>, Problem> {
    match unless_larger(open(registry, key, SMALL_BYTES as u64).await)? {
        Some(opened) => stat_of(registry, key, opened).await.map(Some),
        None => Ok(None),
    }
}

async fn stat_of(registry: &Registry, key: &StorageKey, opened: Option<Opened>) -> Result<Stat, Problem> {
    let name = key.to_string();
    if let Some((value, modified)) = opened {
        return Ok(Stat { key: name, modified: Some(modified), size: value.len() as u64, is_terminal: true });
    }
    // Only what is a key, as a listing sees it; the first one tells.
    let (beneath, mut walk) = (key.beneath(), Walk::default());
    loop {
        let page = registry.engine().page(&mut walk, &beneath).await?;
        if page.entries.iter().any(|listed| StorageKey::of_object(&listed.key).is_some()) {
            return Ok(Stat { key: name, modified: None, size: 0, is_terminal: false });
        }
        if page.next.is_none() {
            return Err(absent(key));
        }
    }
}

/// Removes a key and everything beneath it.
///
/// # Errors
/// `not-found` where there is nothing; store errors, after which a repeat goes on.
pub async fn delete(registry: &Registry, key: &StorageKey) -> Result<(), Problem> {
    let engine = registry.engine();
    let (beneath, mut walk) = (key.beneath(), Walk::default());
    let mut found = false;
    loop {
        let page = engine.page(&mut walk, &beneath).await?;
        let keys: Vec<String> = page.entries.into_iter().map(|listed| listed.key).collect();
        found |= !keys.is_empty();
        engine.delete_many(&Intent::new(), &keys).await?;
        if page.next.is_none() {
            break;
        }
    }
    if engine.exists(&key.object()).await? {
        engine.delete(&Intent::new(), &key.object()).await?;
        found = true;
    }
    if found { Ok(()) } else { Err(absent(key)) }
}

/// Keys at or under a prefix, sorted: everything, or the immediate children once each. `None` lists from the root.
///
/// # Errors
/// `not-found` where there is none; `store-nonconforming` for more than [`LIST_KEYS_MAX`] keys; store errors, which are never
/// mistaken for that.
pub async fn list(registry: &Registry, key: Option<&StorageKey>, recursive: bool) -> Result<Vec<String>, Problem> {
    let engine = registry.engine();
    let beneath = key.map_or_else(|| prefix::TLS_OBJECTS.to_owned(), StorageKey::beneath);
    // Whole even for one level: stores that keep directories go on naming those in which nothing is left.
    let (mut keys, mut walk) = (BTreeSet::new(), Walk::default());
    loop {
        let page = engine.page(&mut walk, &beneath).await?;
        let all = page.entries.iter().filter(|listed| StorageKey::of_object(&listed.key).is_some());
        keys.extend(all.filter_map(|listed| child(&listed.key, &beneath, recursive)));
        if keys.len() > LIST_KEYS_MAX {
            let detail =
                format!("there are more than {LIST_KEYS_MAX} keys, which is the most of one answer: ask for a part");
            return Err(Problem::new(ProblemCode::StoreNonconforming, detail));
        }
        if page.next.is_none() {
            break;
        }
    }
    if let Some(key) = key
        && engine.exists(&key.object()).await?
    {
        keys.insert(key.to_string());
    }
    if keys.is_empty() {
        let detail = match key {
            Some(key) => format!("there is nothing at or under `{key}`"),
            None => "nothing is stored yet".to_owned(),
        };
        return Err(Problem::new(ProblemCode::NotFound, detail));
    }
    Ok(keys.into_iter().collect())
}

/// What a listing of `beneath` names an object by: its key, or that of the immediate child that it is or lies under.
fn child(object: &str, beneath: &str, recursive: bool) -> Option<String> {
    let rest = object.strip_prefix(beneath)?;
    let end = if recursive { None } else { rest.find('/') };
    let whole = end.map_or(object, |end| &object[..beneath.len() + end]);
    whole.strip_prefix(prefix::TLS_OBJECTS).map(str::to_owned)
}

pub(crate) fn too_large(limit: usize) -> Problem {
    let detail = format!("the value has more than the {limit} bytes that this node takes (`storage.valueBytes`)");
    Problem::new(ProblemCode::ResourceLimit, detail)
}

/// A value, and when it was written.
type Opened = (Bytes, Timestamp);

/// `None` for an object that is larger than was to be read.
fn unless_larger<T>(outcome: Result<T, Problem>) -> Result<Option<T>, Problem> {
    match outcome {
        Err(problem) if problem.title() == scafo_store::TITLE_TOO_LARGE => Ok(None),
        outcome => outcome.map(Some),
    }
}

async fn open(registry: &Registry, key: &StorageKey, limit: u64) -> Result<Option<Opened>, Problem> {
    let object = key.object();
    let Some(object) = registry.engine().try_get(&object, limit).await? else { return Ok(None) };
    let broken = |why: String| {
        let detail = format!("`{}` is no value of certificate storage: remove it or put it anew", key.object());
        Problem::new(ProblemCode::StoreNonconforming, detail).because(why)
    };
    let envelope: Envelope = serde_json::from_slice(&object.body).map_err(|error| broken(error.to_string()))?;
    let value = STANDARD.decode(&envelope.value).map_err(|error| broken(error.to_string()))?;
    if value.len() as u64 != envelope.size {
        return Err(broken("its size is another one".to_owned()));
    }
    Ok(Some((value.into(), envelope.modified)))
}

fn absent(key: &StorageKey) -> Problem {
    Problem::new(ProblemCode::NotFound, format!("there is nothing at `{key}`"))
}

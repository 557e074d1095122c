//! Finding observations again: which files there are, which of them are read, and what they say.
//!
//! Everything is bounded: listings by their keys and pages, files by their number and length, requests by how many are under way. A
//! week of a large fleet is never read whole by accident, and whoever asks is told what was left out. Where something has to be, it is
//! the oldest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use scafo_core::key::prefix::OBSERVE;
use scafo_core::observation::ObservationKey;
use scafo_core::{NodeId, Problem, ProblemCode, Timestamp};
use scafo_store::{Bucket, Error, ListRequest, PAGE_KEYS_MAX};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::file::{FILE_BYTES_MAX, decode};
use super::rows::Contents;

/// Files that one look knows of: a day of thirty nodes. Nodes share them evenly.
pub const KEYS_MAX: usize = 50_000;
/// Nodes that one look knows of, the first by name.
pub const NODES_MAX: usize = 2000;
/// How often a node is listed anew from a later time, when its files since then are more than its share.
const TRIES_MAX: u32 = 12;
/// Foreign keys that are named.
const ODD_MAX: usize = 100;
/// Requests under way at once.
const AT_ONCE: usize = 16;
/// How long a bucket that is busy or silent is asked again for one thing; the last try may take longer. What is asked through a node has to be
/// told within its deadline.
const PATIENCE: Duration = Duration::from_secs(10);
/// The first pause before another try lies below this one, the next below twice as much, and none beyond the second one.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(2);
/// Files that may stay silent before it is the bucket that is away.
const SILENT_MAX: usize = 16;

/// Which files there are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// By time, then by node.
    pub keys: Vec<ObservationKey>,
    /// Keys among them that name no observation, and why; the first of them.
    pub odd: Vec<(String, String)>,
    /// Whether there is more than a look may know of; what is missing is older than what was found of its node.
    pub cut: bool,
    /// Nodes that were not looked at.
    #[serde(default)]
    pub nodes_left_out: usize,
}

/// Where observations are read from.
#[async_trait]
pub trait Source: Send + Sync {
    /// What was flushed within this time, of one node or of all.
    ///
    /// # Errors
    /// Those of the bucket.
    async fn find(&self, node: Option<&NodeId>, within: Duration) -> Result<Found, Problem>;

    /// A file; `None` when it is gone.
    ///
    /// # Errors
    /// Those of the bucket.
    async fn get(&self, key: &ObservationKey) -> Result<Option<Bytes>, Problem>;
}

/// The bucket itself.
#[derive(Debug, Clone)]
pub struct InBucket(pub Arc<dyn Bucket>);

#[async_trait]
impl Source for InBucket {
    async fn find(&self, node: Option<&NodeId>, within: Duration) -> Result<Found, Problem> {
        // By the store's clock, which is the same for whoever asks.
        let nodes = patiently(|| self.0.list_delimited(OBSERVE)).await?;
        let now = nodes.date.unwrap_or_else(|| Timestamp::from_system(SystemTime::now()));
        let since = Timestamp::from_millis(
            now.as_millis().saturating_sub(i64::try_from(within.as_millis()).unwrap_or(i64::MAX)),
        );
        let of = |prefix: &String| prefix.strip_prefix(OBSERVE)?.strip_suffix('/')?.parse::<NodeId>().ok();
        let asked = |found: &NodeId| node.is_none_or(|node| node == found);
        let mut nodes: Vec<NodeId> = nodes.prefixes.iter().filter_map(of).filter(asked).collect();
        let nodes_left_out = nodes.len().saturating_sub(NODES_MAX);
        nodes.truncate(NODES_MAX);
        let share = KEYS_MAX / nodes.len().max(1);
        let look = |node: NodeId| {
            let bucket = &*self.0;
            async move { Look::new(bucket, node, share).newest(since, now).await }
        };
        let mut looks = stream::iter(nodes).map(look).buffered(AT_ONCE);
        let mut found = Found { nodes_left_out, ..Found::default() };
        while let Some(of_node) = looks.next().await {
            let of_node = of_node?;
            found.keys.extend(of_node.keys);
            found.odd.extend(of_node.odd);
            found.odd.truncate(ODD_MAX);
            found.cut |= of_node.cut;
        }
        found.keys.sort();
        Ok(found)
    }

    async fn get(&self, key: &ObservationKey) -> Result<Option<Bytes>, Problem> {
        let key = key.to_string();
        match patiently(|| self.0.get_bounded(&key, FILE_BYTES_MAX)).await {
            Ok(object) => Ok(object.map(|object| object.body)),
            // As one that is no file of ours, it is found out by its content: nothing.
            Err(Error::TooLarge { .. }) => Ok(Some(Bytes::new())),
            Err(error) => Err(error.into()),
        }
    }
}

/// A read that is tried again while the bucket is busy or gives no answer: of many at once one is easily turned away.
async fn patiently<T, F: Future<Output = Result<T, Error>>>(read: impl Fn() -> F) -> Result<T, Error> {
    let until = Instant::now() + PATIENCE;
    let mut bound = PAUSE;
    loop {
        match read().await {
            Err(error) if error.is_transient() => {
                // Anywhere below the bound, so that those that were turned away together do not come back together.
                let wait = bound.mul_f64(rand::random());
                bound = (bound * 2).min(PAUSE_MAX);
                if Instant::now() + wait >= until {
                    return Err(error);
                }
                tokio::time::sleep(wait).await;
            }
            outcome => return outcome,
        }
    }
}

/// The look at one node.
struct Look<'a> {
    bucket: &'a dyn Bucket,
    node: NodeId,
    /// Files that it may know of.
    share: usize,
    /// Pages that it may still ask for.
    pages: usize,
}

impl<'a> Look<'a> {
    fn new(bucket: &'a dyn Bucket, node: NodeId, share: usize) -> Self {
        // What its share takes, six times: the listings that are given up, and objects that are none of ours.
        let pages = 6 * share.div_ceil(usize::from(PAGE_KEYS_MAX)) + TRIES_MAX as usize;
        Self { bucket, node, share, pages }
    }

    /// The files since then; when they are more than the share, the newest of them.
    async fn newest(mut self, since: Timestamp, now: Timestamp) -> Result<Found, Problem> {
        let mut from = since;
        let mut tries = 0;
        let mut cut = false;
        loop {
            let Listed { keys, odd, more } = self.list(from).await?;
            tries += 1;
            cut |= more;
            if !more || tries >= TRIES_MAX || self.pages == 0 {
                return Ok(Found { keys, odd, cut, nodes_left_out: 0 });
            }
            from = later(from, keys.last().map(ObservationKey::at), now);
        }
    }

    /// Keys sort by time, so that a listing begins where the time does: a page for each thousand files.
    async fn list(&mut self, from: Timestamp) -> Result<Listed, Problem> {
        let prefix = ObservationKey::of_node(&self.node);
        // All stamps of that hour from then on sort behind it.
        let behind = format!("{}{}", ObservationKey::behind(&self.node, from), from.as_millis().max(0));
        let mut listed = Listed::default();
        let mut token = None;
        while self.pages > 0 {
            self.pages -= 1;
            let room = self.share.saturating_add(1).saturating_sub(listed.keys.len());
            let limit = u16::try_from(room).map_or(PAGE_KEYS_MAX, |room| room.clamp(1, PAGE_KEYS_MAX));
            // Where a page ended says it all: the two do not go together.
            let start_after = token.is_none().then_some(behind.as_str());
            let request = ListRequest { start_after, token: token.as_ref(), limit, ..ListRequest::of(&prefix) };
            let page = patiently(|| self.bucket.list_page(request)).await?;
            for entry in page.entries {
                listed.take(entry.key, from);
            }
            if listed.keys.len() > self.share {
                listed.keys.truncate(self.share);
                listed.more = true;
                return Ok(listed);
            }
            match page.next {
                Some(next) => token = Some(next),
                None => return Ok(listed),
            }
        }
        listed.more = true;
        Ok(listed)
    }
}

/// Where a listing begins next that ended at `end` and not with the newest: so much before now as it came along, less a little, since
/// files are not written evenly. Half to an eighth of the time before is left, so that a burst long ago does not hide the rest.
fn later(from: Timestamp, end: Option<Timestamp>, now: Timestamp) -> Timestamp {
    let whole = now.as_millis().saturating_sub(from.as_millis()).max(0);
    let came = end.map_or(whole, |end| end.as_millis().saturating_sub(from.as_millis()));
    let left = (came - came / 16).clamp(whole / 8, whole / 2);
    Timestamp::from_millis(now.as_millis().saturating_sub(left))
}

/// What a listing gave.
#[derive(Default)]
struct Listed {
    keys: Vec<ObservationKey>,
    odd: Vec<(String, String)>,
    /// Whether it goes on behind.
    more: bool,
}

impl Listed {
    fn take(&mut self, key: String, from: Timestamp) {
        match key.parse::<ObservationKey>() {
            Ok(key) if key.at() < from => {}
            Ok(key) => self.keys.push(key),
            Err(_) if self.odd.len() >= ODD_MAX => {}
            Err(why) => self.odd.push((key, why.to_string())),
        }
    }
}

/// Which files are read when they are more than may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Evenly over the time, with the first and the last of each node: for figures that are sums.
    Spread,
    /// The newest: for what happens once.
    Newest,
}

/// What is read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chosen {
    /// Oldest first.
    pub keys: Vec<ObservationKey>,
    /// Nodes of which nothing is read, because the first and the last file of each are more than may be.
    pub nodes_left_out: usize,
}

/// The files to read: at most `limit` of them, and one at least if there is one and may be.
#[must_use]
pub fn choose(keys: &[ObservationKey], limit: usize, choice: Choice) -> Chosen {
    if keys.len() <= limit {
        return Chosen { keys: keys.to_vec(), nodes_left_out: 0 };
    }
    match choice {
        Choice::Newest => Chosen { keys: keys[keys.len() - limit..].to_vec(), nodes_left_out: 0 },
        Choice::Spread => {
            let mut nodes: BTreeMap<&NodeId, Vec<&ObservationKey>> = BTreeMap::new();
            for key in keys {
                nodes.entry(key.node()).or_default().push(key);
            }
            // Two of each, or there is nothing to compare; a limit of one is one.
            let each = (limit / nodes.len()).max(limit.min(2));
            let fit = limit.checked_div(each).unwrap_or(0);
            let mut chosen: Vec<ObservationKey> =
                nodes.values().take(fit).flat_map(|of| spread(of, each)).cloned().collect();
            chosen.sort();
            Chosen { keys: chosen, nodes_left_out: nodes.len().saturating_sub(fit) }
        }
    }
}

fn spread<'a>(keys: &[&'a ObservationKey], limit: usize) -> Vec<&'a ObservationKey> {
    let last = keys.len() - 1;
    match limit {
        _ if keys.len() <= limit => keys.to_vec(),
        0 => Vec::new(),
        1 => vec![keys[last]],
        _ => (0..limit).map(|index| keys[index * last / (limit - 1)]).collect(),
    }
}

/// What became of reading a file.
#[derive(Debug)]
pub enum Got {
    /// What it says.
    Contents(Contents),
    /// It is gone: its time was over.
    Gone,
    /// It cannot be read, and why.
    Unreadable(String),
}

/// Reads files one after the other, `handle` in their order, with some requests under way at once. `handle` says whether it wants
/// another one.
///
/// # Errors
/// Those of the source. A file that cannot be read is none, nor is one that the bucket does not give, as long as there are few.
pub async fn read(
    source: &dyn Source,
    keys: Vec<ObservationKey>,
    mut handle: impl FnMut(&ObservationKey, Got) -> bool,
) -> Result<(), Problem> {
    let fetch = |key: ObservationKey| async move {
        let body = source.get(&key).await;
        (key, body)
    };
    let mut files = stream::iter(keys).map(fetch).buffered(AT_ONCE);
    let mut silent = 0;
    while let Some((key, body)) = files.next().await {
        // Unfolded one after the other: what waits is as small as the files are.
        let got = match body.map(|body| body.map(decode)) {
            Ok(Some(Ok(contents))) => Got::Contents(contents),
            Ok(Some(Err(error))) => Got::Unreadable(error.to_string()),
            Ok(None) => Got::Gone,
            Err(problem) if problem.code == ProblemCode::StoreUnavailable && silent < SILENT_MAX => {
                silent += 1;
                Got::Unreadable(problem.to_string())
            }
            Err(problem) => return Err(problem),
        };
        if !handle(&key, got) {
            break;
        }
    }
    Ok(())
}

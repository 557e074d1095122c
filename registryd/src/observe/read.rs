//! Finding observations again: which files there are, which of them are read, and what they say.
//!
//! Everything is bounded: listings by their pages, files by their number and length, requests by how many are under way. A week of
//! a large fleet is never read whole by accident, and whoever asks is told what was left out.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use scafo_core::key::prefix::OBSERVE;
use scafo_core::observation::ObservationKey;
use scafo_core::{NodeId, Problem, ProblemCode, Timestamp};
use scafo_store::{Bucket, Error, ListRequest};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::file::{FILE_BYTES_MAX, decode};
use super::rows::Contents;

/// Files that one look knows of: a day of thirty nodes.
pub const KEYS_MAX: usize = 50_000;
/// Pages of one look, foreign objects included: they are passed over, and a bucket full of them keeps nobody long.
const PAGES_MAX: usize = 200;
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
    /// Whether there is more than a look may know of.
    pub cut: bool,
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
        let nodes: Vec<NodeId> = nodes.prefixes.iter().filter_map(of).filter(asked).collect();
        let mut look = Look { since, found: Found::default(), pages: 0 };
        for node in &nodes {
            look.at(&*self.0, node).await?;
        }
        look.found.keys.sort();
        Ok(look.found)
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

struct Look {
    since: Timestamp,
    found: Found,
    pages: usize,
}

impl Look {
    /// Keys sort by time, so that a listing begins where the time does: a page for each thousand files.
    async fn at(&mut self, bucket: &dyn Bucket, node: &NodeId) -> Result<(), Problem> {
        let prefix = ObservationKey::of_node(node);
        let behind = ObservationKey::behind(node, self.since);
        let mut token = None;
        loop {
            if self.found.keys.len() >= KEYS_MAX || self.pages >= PAGES_MAX {
                self.found.cut = true;
                return Ok(());
            }
            self.pages += 1;
            // Where a page ended says it all: the two do not go together.
            let start_after = token.is_none().then_some(behind.as_str());
            let request = ListRequest { start_after, token: token.as_ref(), ..ListRequest::of(&prefix) };
            let page = patiently(|| bucket.list_page(request)).await?;
            for listed in page.entries {
                self.take(listed.key);
            }
            match page.next {
                Some(next) => token = Some(next),
                None => return Ok(()),
            }
        }
    }

    fn take(&mut self, key: String) {
        match key.parse::<ObservationKey>() {
            Ok(key) if key.at() < self.since => {}
            Ok(key) => self.found.keys.push(key),
            Err(_) if self.found.odd.len() >= ODD_MAX => {}
            Err(why) => self.found.odd.push((key, why.to_string())),
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

/// The files to read, oldest first: at most `limit` of them.
#[must_use]
pub fn choose(keys: &[ObservationKey], limit: usize, choice: Choice) -> Vec<ObservationKey> {
    if keys.len() <= limit {
        return keys.to_vec();
    }
    match choice {
        Choice::Newest => keys[keys.len() - limit..].to_vec(),
        Choice::Spread => {
            let mut nodes: BTreeMap<&NodeId, Vec<&ObservationKey>> = BTreeMap::new();
            for key in keys {
                nodes.entry(key.node()).or_default().push(key);
            }
            let each = limit / nodes.len();
            let mut chosen: Vec<ObservationKey> = nodes.values().flat_map(|of| spread(of, each)).cloned().collect();
            chosen.sort();
            chosen
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

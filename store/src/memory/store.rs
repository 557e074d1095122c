//! The objects behind every handle, and the lies that they can be told with.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Included, Unbounded},
};

use bytes::Bytes;
use scafo_core::Timestamp;
use sha2::{Digest, Sha256};

use super::Lie;
use crate::{
    Condition, ETag, ETagForm, Head, ListRequest, Listed, Object, PAGE_KEYS_MAX, Page, PageToken, Put, PutOptions,
};

#[derive(Debug)]
pub(super) struct Store {
    objects: BTreeMap<String, Stored>,
    pub(super) held: Vec<Write>,
    pub(super) now: Option<Timestamp>,
    pub(super) page_keys: u16,
    pub(super) lie: Option<Lie>,
}

#[derive(Debug)]
pub(super) struct Write {
    pub(super) key: String,
    pub(super) body: Bytes,
    pub(super) options: PutOptions,
    pub(super) form: ETagForm,
}

#[derive(Debug)]
struct Stored {
    body: Bytes,
    etag: ETag,
    metadata: BTreeMap<String, String>,
    content_type: Option<String>,
    last_modified: Timestamp,
}

impl Default for Store {
    fn default() -> Self {
        Self { objects: BTreeMap::new(), held: Vec::new(), now: None, page_keys: PAGE_KEYS_MAX, lie: None }
    }
}

impl Store {
    fn now(&self) -> Timestamp {
        self.now.unwrap_or_else(|| Timestamp::from_system(std::time::SystemTime::now()))
    }

    /// Whole seconds, as HTTP's dates are.
    fn date(&self) -> Timestamp {
        Timestamp::from_millis(self.now().as_seconds() * 1000)
    }

    pub(super) fn write(&mut self, write: Write) -> Put {
        let there = self.objects.get(&write.key);
        match (&write.options.condition, there) {
            (Condition::Absent, Some(_)) if self.lie != Some(Lie::IgnoresIfNoneMatch) => return Put::Refused,
            (Condition::Matches(_), None) if self.lie != Some(Lie::CreatesOnIfMatch) => return Put::Gone,
            (Condition::Matches(etag), Some(_))
                if self.lie == Some(Lie::WantsBareTags) && etag.render(write.form).contains('"') =>
            {
                return Put::Refused;
            }
            (Condition::Matches(etag), Some(stored))
                if *etag != stored.etag && self.lie != Some(Lie::IgnoresIfMatch) =>
            {
                return Put::Refused;
            }
            (Condition::None | Condition::Absent | Condition::Matches(_), _) => {}
        }
        let etag = match self.lie {
            Some(Lie::CoarseTags) => tag_of(write.key.as_bytes()),
            _ => tag_of(&write.body),
        };
        let metadata = match self.lie {
            Some(Lie::LosesMetadata) => BTreeMap::new(),
            _ => write.options.metadata,
        };
        let last_modified = self.date();
        let content_type = write.options.content_type;
        let stored = Stored { body: write.body, etag: etag.clone(), metadata, content_type, last_modified };
        self.objects.insert(write.key, stored);
        Put::Written(etag)
    }

    pub(super) fn get(&self, key: &str) -> Option<Object> {
        let stored = self.objects.get(key)?;
        let head = Head {
            etag: stored.etag.clone(),
            size: stored.body.len() as u64,
            metadata: stored.metadata.clone(),
            content_type: stored.content_type.clone(),
            last_modified: Some(stored.last_modified),
            date: Some(self.date()),
        };
        Some(Object { body: stored.body.clone(), head })
    }

    pub(super) fn delete(&mut self, key: &str) {
        self.objects.remove(key);
    }

    pub(super) fn keys(&self, prefix: &str) -> Vec<String> {
        self.objects.keys().filter(|key| key.starts_with(prefix)).cloned().collect()
    }

    pub(super) fn page(&self, request: ListRequest<'_>) -> Page {
        let date = Some(self.date());
        let mut page = Page { date, ..Page::default() };
        let limit = usize::from(request.limit.clamp(1, self.page_keys));
        let after = request.token.map(|token| token.0.as_str()).max(request.start_after).unwrap_or_default();
        let mut last = String::new();
        // What sorts before the prefix is skipped, not looked at: listing one kind costs nothing of what others hold.
        let from = if after < request.prefix { Included(request.prefix) } else { Excluded(after) };
        for (key, stored) in self.objects.range::<str, _>((from, Unbounded)) {
            // Keys that start with it stand together, right from there on.
            let Some(rest) = key.strip_prefix(request.prefix) else { break };
            let folded = request
                .delimited
                .then(|| rest.find('/'))
                .flatten()
                .map(|slash| key[..=request.prefix.len() + slash].to_owned());
            // Everything below a folded prefix is one entry, also where the last page ended inside it.
            if folded
                .as_ref()
                .is_some_and(|folded| page.prefixes.last() == Some(folded) || after.starts_with(folded.as_str()))
            {
                last.clone_from(key);
                continue;
            }
            if page.entries.len() + page.prefixes.len() == limit {
                page.next = (self.lie != Some(Lie::CutsListings)).then_some(PageToken(last));
                return page;
            }
            last.clone_from(key);
            match folded {
                Some(folded) => page.prefixes.push(folded),
                None => page.entries.push(self.listed(key, stored, date)),
            }
        }
        page
    }

    fn listed(&self, key: &str, stored: &Stored, date: Option<Timestamp>) -> Listed {
        let etag = match self.lie {
            Some(Lie::ListsOtherTags) => tag_of(key.as_bytes()),
            _ => stored.etag.clone(),
        };
        Listed {
            key: key.to_owned(),
            etag,
            size: stored.body.len() as u64,
            last_modified: Some(stored.last_modified),
            date,
        }
    }
}

fn tag_of(body: &[u8]) -> ETag {
    // As long as an MD5, which is what most stores use.
    let hash = hex::encode(&Sha256::digest(body)[..16]);
    ETag::parse(&format!("\"{hash}\"")).expect("thirty-two hexadecimal digits are not empty")
}

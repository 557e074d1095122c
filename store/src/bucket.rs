//! The trait: what scafo asks of a store, and the outcomes that a caller has to tell apart.

use std::{collections::BTreeMap, fmt, ops::Range};

use async_trait::async_trait;
use bytes::Bytes;
use scafo_core::Timestamp;

use crate::{Cause, ETag, ETagForm, Error};

/// The most bytes that one [`Bucket::get`] takes: twice the largest single body that scafo or its stand-in runtime
/// writes in one PUT (25 MiB for an asset), rounded up to a power of two.
pub const OBJECT_BYTES_MAX: u64 = 64 << 20;

/// The most keys of one page, which is S3's own limit.
pub const PAGE_KEYS_MAX: u16 = 1000;

/// The most keys that [`Bucket::list`] holds in memory: ten applications' worth of deploys for each of 10,000
/// applications, at some 200 bytes each.
pub const LIST_KEYS_MAX: usize = 100_000;

/// An object store with conditional writes. Keys are relative to the configured prefix.
///
/// Every call ends within a deadline of the implementation. Dropping a write's future leaves it unknown whether the write
/// is done, exactly as a lost answer does.
#[async_trait]
pub trait Bucket: Send + Sync + fmt::Debug {
    /// The object, or `None` if there is none.
    ///
    /// # Errors
    /// [`Error::TooLarge`] beyond `limit` bytes, else whatever the store did to us.
    async fn get_bounded(&self, key: &str, limit: u64) -> Result<Option<Object>, Error>;

    /// The object, at most [`OBJECT_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// As [`Bucket::get_bounded`].
    async fn get(&self, key: &str) -> Result<Option<Object>, Error> {
        self.get_bounded(key, OBJECT_BYTES_MAX).await
    }

    /// Everything about the object but its body.
    ///
    /// # Errors
    /// Whatever the store did to us.
    async fn head(&self, key: &str) -> Result<Option<Head>, Error>;

    /// The bytes `range` of the object; fewer where it ends before. A range that starts at or behind the end is
    /// [`Error::Rejected`].
    ///
    /// # Errors
    /// [`Error::Nonconforming`] if the store answers with other bytes than were asked for.
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Bytes>, Error>;

    /// One PUT, never multipart.
    ///
    /// # Errors
    /// Only if this try certainly wrote nothing and trying again as it is makes no sense.
    async fn put(&self, key: &str, body: Bytes, options: PutOptions) -> Result<Put, Error>;

    /// Removes the object; removing what is not there succeeds.
    ///
    /// # Errors
    /// Whatever the store did to us. The object may be gone all the same.
    async fn delete(&self, key: &str) -> Result<(), Error>;

    /// Removes all `keys`, in batches where the store has them.
    ///
    /// # Errors
    /// As [`Bucket::delete`]; some may be gone.
    async fn delete_many(&self, keys: &[String]) -> Result<(), Error>;

    /// One page of a listing, sorted by the keys' UTF-8 bytes.
    ///
    /// # Errors
    /// [`Error::Nonconforming`] for a key without an ETag, or a page that says it is cut and not where.
    async fn list_page(&self, request: ListRequest<'_>) -> Result<Page, Error>;

    /// Every object under `prefix`, all pages or none.
    ///
    /// # Errors
    /// As [`Bucket::list_page`], and [`Error::TooLarge`] beyond [`LIST_KEYS_MAX`] keys.
    async fn list(&self, prefix: &str) -> Result<Listing, Error> {
        all_pages(self, ListRequest::of(prefix)).await
    }

    /// As [`Bucket::list`], with the keys below a further `/` folded into [`Listing::prefixes`].
    ///
    /// # Errors
    /// As [`Bucket::list`].
    async fn list_delimited(&self, prefix: &str) -> Result<Listing, Error> {
        all_pages(self, ListRequest { delimited: true, ..ListRequest::of(prefix) }).await
    }

    /// Sends tags in this form from now on. The probe finds out which one a store takes.
    fn use_etag_form(&self, form: ETagForm);

    /// Requests that left for the store since this bucket was made.
    fn requests(&self) -> u64;
}

/// Under which condition a PUT takes place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Condition {
    /// Whatever is there.
    #[default]
    None,
    /// Only if there is nothing (`If-None-Match: *`).
    Absent,
    /// Only over the body with this tag (`If-Match`).
    Matches(ETag),
}

/// What goes along with a body.
#[derive(Debug, Clone, Default)]
pub struct PutOptions {
    /// Under which condition.
    pub condition: Condition,
    /// User metadata: lower-case names, printable ASCII values, 2 KiB in all (S3's limit).
    pub metadata: BTreeMap<String, String>,
    /// `content-type`; the store's default where there is none.
    pub content_type: Option<String>,
}

/// The outcome of a PUT.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Put {
    /// Done; the tag of the new body.
    Written(ETag),
    /// 412: the condition did not hold *when the store looked*, which may have been after an earlier try of ours landed.
    Refused,
    /// 404 on If-Match: there is nothing to overwrite.
    Gone,
    /// 409 `ConditionalRequestConflict`: another write was in flight; there may be an object or none.
    Conflict,
    /// 409 `OperationAborted`, 429, 503 `SlowDown`: not done, try later. Says nothing about the condition.
    Busy,
    /// No answer, a broken one, or a 5xx: it may be done, or may still be done later.
    Unknown(Cause),
}

/// An object with its body.
#[derive(Debug, Clone)]
pub struct Object {
    /// The bytes.
    pub body: Bytes,
    /// Everything else.
    pub head: Head,
}

/// What a store knows about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Head {
    /// The tag of this body.
    pub etag: ETag,
    /// Bytes.
    pub size: u64,
    /// User metadata, names in lower case.
    pub metadata: BTreeMap<String, String>,
    /// The stored `content-type`.
    pub content_type: Option<String>,
    /// When it was written, by the store's clock (whole seconds in many stores).
    pub last_modified: Option<Timestamp>,
    /// The `Date` of this answer, by the store's clock.
    pub date: Option<Timestamp>,
}

/// One page to ask for.
#[derive(Debug, Clone, Copy)]
pub struct ListRequest<'a> {
    /// Keys that start with this.
    pub prefix: &'a str,
    /// Fold what lies below a further `/`.
    pub delimited: bool,
    /// Only keys behind this one.
    pub start_after: Option<&'a str>,
    /// Where the page before ended.
    pub token: Option<&'a PageToken>,
    /// Keys on the page: 1 to [`PAGE_KEYS_MAX`].
    pub limit: u16,
}

impl<'a> ListRequest<'a> {
    /// A full page of everything under `prefix`.
    #[must_use]
    pub const fn of(prefix: &'a str) -> Self {
        Self { prefix, delimited: false, start_after: None, token: None, limit: PAGE_KEYS_MAX }
    }
}

/// Where a page ended, in the store's own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageToken(pub(crate) String);

/// An object as a listing names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Relative to the configured prefix.
    pub key: String,
    /// The tag, in the same form as in GET and PUT.
    pub etag: ETag,
    /// Bytes.
    pub size: u64,
    /// When it was written, by the store's clock.
    pub last_modified: Option<Timestamp>,
    /// The `Date` of the very answer that named it, by the same clock: the difference is the object's age.
    pub date: Option<Timestamp>,
}

/// One page of a listing.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// The objects.
    pub entries: Vec<Listed>,
    /// Folded prefixes, each with its trailing `/`.
    pub prefixes: Vec<String>,
    /// Where to go on, if there is more.
    pub next: Option<PageToken>,
    /// The `Date` of this answer.
    pub date: Option<Timestamp>,
}

/// A whole listing.
#[derive(Debug, Clone, Default)]
pub struct Listing {
    /// The objects, sorted by the store.
    pub entries: Vec<Listed>,
    /// Folded prefixes, each with its trailing `/`.
    pub prefixes: Vec<String>,
    /// The `Date` of the last page.
    pub date: Option<Timestamp>,
}

/// A listing one page at a time, of which nothing is kept: for who goes through more than is to be held in memory.
#[derive(Debug, Default)]
pub struct Walk {
    token: Option<PageToken>,
}

impl Walk {
    /// The next page. After the last one, whose [`Page::next`] is none, the next call begins anew; so it does after a failure,
    /// except that a store which gave no answer is asked for the same page again. What is written meanwhile may be in it or not, as
    /// with any listing of several pages.
    ///
    /// # Errors
    /// As [`Bucket::list_page`]; [`Error::Nonconforming`] for a page that says it is followed by itself.
    pub async fn next<B: Bucket + ?Sized>(&mut self, bucket: &B, first: ListRequest<'_>) -> Result<Page, Error> {
        let token = self.token.take();
        let page = match bucket.list_page(ListRequest { token: token.as_ref(), ..first }).await {
            Ok(page) => page,
            Err(error) => {
                if error.is_transient() {
                    self.token = token;
                }
                return Err(error);
            }
        };
        if page.next.is_some() && page.next == token {
            return Err(Error::nonconforming(
                crate::TITLE_LISTING,
                format!("the listing of `{}` gives the same page token twice", first.prefix),
            ));
        }
        self.token.clone_from(&page.next);
        Ok(page)
    }
}

async fn all_pages<B: Bucket + ?Sized>(bucket: &B, first: ListRequest<'_>) -> Result<Listing, Error> {
    let (mut all, mut walk) = (Listing::default(), Walk::default());
    loop {
        let page = walk.next(bucket, first).await?;
        all.entries.extend(page.entries);
        all.prefixes.extend(page.prefixes);
        all.date = page.date.or(all.date);
        let held = all.entries.len() + all.prefixes.len();
        if held > LIST_KEYS_MAX {
            return Err(Error::TooLarge {
                key: first.prefix.to_owned(),
                size: held as u64,
                limit: LIST_KEYS_MAX as u64,
            });
        }
        if page.next.is_none() {
            return Ok(all);
        }
    }
}

//! The bucket: one small trait in scafo's words, and two implementations that pass one conformance suite.
//!
//! The trait tells apart what the world does to a conditional write: written, refused, busy, in conflict, gone, or
//! *unknown*. Unknown is an outcome, not an error to retry here: only the caller knows what its write meant. Nothing in this
//! crate retries, interprets a body, or knows a record of scafo.

mod bucket;
pub mod conformance;
mod error;
mod etag;
mod memory;
mod probe;
mod s3;

pub use bucket::{
    Bucket, Condition, Head, LIST_KEYS_MAX, ListRequest, Listed, Listing, OBJECT_BYTES_MAX, Object, PAGE_KEYS_MAX,
    Page, PageToken, Put, PutOptions, Walk,
};
pub use error::{
    Cause, Error, TITLE_CONDITIONS, TITLE_ETAGS, TITLE_LISTING, TITLE_METADATA, TITLE_RANGES, TITLE_TOO_LARGE,
};
pub use etag::{ETag, ETagForm};
pub use memory::{Fault, Lie, MemoryBucket, Operation};
pub use probe::probe;
pub use s3::S3Bucket;

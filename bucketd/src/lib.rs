//! scafo-bucketd: the embedded S3 store of a node that has no bucket.
//!
//! [`Store`] keeps the objects, [`serve`] puts the S3 protocol in front of it. Whoever uses a bucket uses this one through the same
//! client as any other, so that nothing else in scafo knows it.
//!
//! Kept true: what was answered is on the disk; a conditional write has one winner; every request is signed with the one pair of
//! credentials, but for the health route. Refused: a second process on the same directory.

#![forbid(unsafe_code)]

mod figures;
mod s3;
mod server;
pub mod store;

pub use self::{
    figures::Figures,
    server::{Credentials, HEALTH_PATH, ServeError, serve},
    store::Store,
};

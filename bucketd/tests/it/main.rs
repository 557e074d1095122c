//! scafo-bucketd as others meet it: a process behind a socket, driven by the AWS SDK.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "all of this is test code; clippy exempts only the test functions"
)]

mod auth;
mod conditions;
mod conformance;
mod durability;
mod full_disk;
mod harness;
mod listing;
mod multipart;
mod objects;
mod process;

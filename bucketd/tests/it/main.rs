//! scafo-bucketd as others meet it: a process behind a socket, driven by the AWS SDK.

mod auth;
mod conditions;
mod durability;
mod full_disk;
mod harness;
mod listing;
mod multipart;
mod objects;
mod process;

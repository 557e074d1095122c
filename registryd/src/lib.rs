//! Owns the bucket: every record of the registry, and everything that is decided from them.

pub mod registry;

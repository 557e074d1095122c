//! What TLS terminators keep in the bucket: values under keys of their own, and locks on what only one of them may do.

mod key;
mod lock;
mod locks;
mod objects;
#[cfg(test)]
mod tests;

pub use key::StorageKey;
pub use lock::LockOwner;
pub use locks::{LockKeeper, Locks};
pub(crate) use objects::{SMALL_BYTES, get_small, stat_small, too_large};
pub use objects::{Stat, VALUE_BYTES_MAX, delete, get, list, put, stat};

//! Records of the fleet as a whole.

use serde::{Deserialize, Serialize};

use super::{Rest, V1};
use crate::id::NodeId;
use crate::time::Timestamp;

/// A fencing token. It only ever grows for the life of a bucket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub u64);

impl Fence {
    /// The next one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// Who a bucket belongs to. Written once, by the first node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RegistryMeta {
    /// Record version.
    pub v: V1,
    /// When.
    pub created_at: Timestamp,
    /// By which node.
    pub created_by: NodeId,
    /// Random; local state belongs to one installation.
    pub installation: String,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// The fleet's deploy freeze. Its absence means that deploys are taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FreezeRecord {
    /// Record version.
    pub v: V1,
    /// Since when.
    pub frozen_at: Timestamp,
    /// By which operator.
    pub by: String,
    /// One line of at most 200 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// Says that the registry moved. A hint and never authority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeHint {
    /// Record version.
    pub v: V1,
    /// Random, new with each change.
    pub token: String,
    /// When.
    pub at: Timestamp,
    /// By whom.
    pub by: String,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// Who coordinates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CoordinatorLease {
    /// Record version.
    pub v: V1,
    /// The holder.
    pub node: NodeId,
    /// Its fencing token.
    pub fence: Fence,
    /// Lifetime without a renewal, in milliseconds.
    pub ttl_ms: u64,
    /// When the holder took it.
    pub acquired_at: Timestamp,
    /// When it renewed it last, by its own clock. No decision rests on it.
    pub renewed_at: Timestamp,
    /// Random, new with each write: equal bytes would have equal ETags.
    pub nonce: String,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

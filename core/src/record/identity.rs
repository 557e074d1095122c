//! Who may act, and the names that stay reserved.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Rest, V1};
use crate::id::OperatorId;
use crate::scope::ApplicationScope;
use crate::time::Timestamp;
use crate::token::PublicKey;

/// First claim on an id, kept for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IdentityReservation {
    /// Record version.
    pub v: V1,
    /// The id.
    pub id: String,
    /// What it is.
    pub kind: IdentityKind,
    /// Whose it is.
    pub public_key: PublicKey,
    /// Since when.
    pub reserved_at: Timestamp,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// What an id stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum IdentityKind {
    /// A node.
    Node,
    /// An operator key.
    Operator,
}

/// An operator key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OperatorRecord {
    /// Record version.
    pub v: V1,
    /// Its id.
    pub id: OperatorId,
    /// The key.
    pub public_key: PublicKey,
    /// Its tier.
    pub role: Role,
    /// What it reaches.
    pub applications: ApplicationScope,
    /// The key that it replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supersedes: Option<OperatorId>,
    /// When it was registered.
    pub created_at: Timestamp,
    /// By whom; absent for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_by: Option<String>,
    /// A revocation is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoking: Option<Value>,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// The tier of an operator key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The whole installation.
    Admin,
    /// The applications of its scope.
    Operator,
}

//! Deploys and the deployments that they make.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Rest, V1};
use crate::id::{ApplicationName, DeployId, DeploymentVersion, NodeId};
use crate::problem::ProblemCode;
use crate::time::Timestamp;

/// Where code came from, as the caller of the deploy said. All four are there and none is empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "SourceFields")]
pub struct Source {
    /// For example `github`.
    pub provider: String,
    /// The repository.
    pub repo: String,
    /// The branch or tag.
    pub r#ref: String,
    /// The commit.
    pub commit: String,
}

#[derive(Deserialize)]
struct SourceFields {
    provider: String,
    repo: String,
    r#ref: String,
    commit: String,
}

impl TryFrom<SourceFields> for Source {
    type Error = &'static str;

    fn try_from(fields: SourceFields) -> Result<Self, &'static str> {
        let SourceFields { provider, repo, r#ref, commit } = fields;
        if [&provider, &repo, &r#ref, &commit].iter().any(|field| field.is_empty()) {
            return Err("`provider`, `repo`, `ref` and `commit` must not be empty");
        }
        Ok(Self { provider, repo, r#ref, commit })
    }
}

/// The artifact that a deploy uploaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    /// SHA-256 of the bytes that were received, in lower-case hexadecimal.
    pub sha256: String,
    /// Their number.
    pub bytes: u64,
}

/// One thing that celld served or serves. Created, read and listed, never updated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeploymentRecord {
    /// Record version.
    pub v: V1,
    /// Which application.
    pub application: ApplicationName,
    /// The version that celld gave.
    pub version: DeploymentVersion,
    /// The deploy that published it first.
    pub deploy: DeployId,
    /// The node that ran it.
    pub node: NodeId,
    /// Who deployed.
    pub by: String,
    /// Version of the runtime that published.
    pub celld_version: String,
    /// Where the code came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Verified OIDC provenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oidc: Option<Value>,
    /// What was uploaded.
    pub artifact: Artifact,
    /// When.
    pub created_at: Timestamp,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

/// One deploy, from acceptance to its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeployRecord {
    /// Record version.
    pub v: V1,
    /// Its id.
    pub id: DeployId,
    /// Which application.
    pub application: ApplicationName,
    /// Where it is.
    pub state: DeployState,
    /// The node that accepted it.
    pub node: NodeId,
    /// Who deployed.
    pub by: String,
    /// When it was accepted.
    pub accepted_at: Timestamp,
    /// When the application that it is for was made: one of the same name that is made later is another one. Absent in records
    /// of earlier builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub application_since: Option<Timestamp>,
    /// Whether what forbids deploys was looked for once more while this record was there already. Until then its caller was told
    /// of nothing, and nothing is published. Absent in records of earlier builds, see [`DeployRecord::is_admitted`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admitted: Option<bool>,
    /// When it moved last.
    pub moved_at: Timestamp,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    /// What it produced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deployment: Option<DeploymentVersion>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<ProblemCode>,
    /// Why it failed, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// Where the code came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Verified OIDC provenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oidc: Option<Value>,
    /// What was uploaded; absent until it has arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact: Option<Artifact>,
    /// Version of the runtime that publishes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub celld_version: Option<String>,
    /// Unknown members.
    #[serde(flatten)]
    pub rest: Rest,
}

impl DeployRecord {
    /// Whether its caller may have been told of it. An earlier build, which noted nothing, told of what it had filed, and a deploy
    /// that somebody was told of is not taken back.
    pub fn is_admitted(&self) -> bool {
        self.admitted != Some(false)
    }
}

/// Where a deploy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeployState {
    /// A node has taken it on.
    Accepted,
    /// Its artifact is there and is being published.
    Uploading,
    /// It is served. Final.
    Deployed,
    /// It is not. Final.
    Failed,
}

impl DeployState {
    /// Whether it never moves again.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Deployed | Self::Failed)
    }

    /// As records spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Uploading => "uploading",
            Self::Deployed => "deployed",
            Self::Failed => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deploys_state_is_spelled_in_one_way() {
        for state in [DeployState::Accepted, DeployState::Uploading, DeployState::Deployed, DeployState::Failed] {
            assert_eq!(serde_json::to_value(state).unwrap(), state.as_str());
        }
    }
}

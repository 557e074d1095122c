//! Failures as callers see them: RFC 9457 problem documents with a code from one table.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What went wrong, in terms of what the caller should do about it. The only place that pairs a code with a status and a
/// title.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProblemCode {
    /// The request is malformed.
    InvalidInput,
    /// The text is no application name.
    InvalidSlug,
    /// The token does not hold up, whatever the cause.
    AuthInvalid,
    /// The caller is known and may not do this.
    AuthScope,
    /// A workload token holds up, but the trust policy does not admit it.
    TrustMismatch,
    /// There is no such thing.
    NotFound,
    /// There is such a route, but not with this method (RFC 9110 §15.5.6).
    MethodNotAllowed,
    /// A deadline of the deploy ran out.
    DeployTimeout,
    /// The record moved underneath the write.
    CasConflict,
    /// Something else holds on to it.
    ReferenceHeld,
    /// It never changes once it is written.
    Immutable,
    /// The authority for the write is gone.
    LeaseLost,
    /// An admin has stopped the application.
    ApplicationBlocked,
    /// An admin has frozen the fleet's deploys.
    DeploysFrozen,
    /// Two versions of celld that may not meet.
    VersionSkew,
    /// This node cannot do that.
    CapabilityMissing,
    /// A bound on size or number was passed.
    ResourceLimit,
    /// The deploy queue is full; try again in a second.
    DeployOverloaded,
    /// Not now: starting, stopping, or nobody coordinates.
    Draining,
    /// The bucket does not answer.
    StoreUnavailable,
    /// The bucket does not do what scafo needs of one.
    StoreNonconforming,
    /// A defect of scafo.
    Internal,
    /// `celld deploy` ended badly. On records only.
    PublishFailed,
}

impl ProblemCode {
    /// Every code, in the order of the table.
    pub const ALL: [Self; 23] = [
        Self::InvalidInput,
        Self::InvalidSlug,
        Self::AuthInvalid,
        Self::AuthScope,
        Self::TrustMismatch,
        Self::NotFound,
        Self::MethodNotAllowed,
        Self::DeployTimeout,
        Self::CasConflict,
        Self::ReferenceHeld,
        Self::Immutable,
        Self::LeaseLost,
        Self::ApplicationBlocked,
        Self::DeploysFrozen,
        Self::VersionSkew,
        Self::CapabilityMissing,
        Self::ResourceLimit,
        Self::DeployOverloaded,
        Self::Draining,
        Self::StoreUnavailable,
        Self::StoreNonconforming,
        Self::Internal,
        Self::PublishFailed,
    ];

    const fn row(self) -> (&'static str, u16, &'static str) {
        match self {
            Self::InvalidInput => ("invalid-input", 400, "Malformed request"),
            Self::InvalidSlug => ("invalid-slug", 400, "Not a valid name"),
            Self::AuthInvalid => ("auth-invalid", 401, "Authentication required"),
            Self::AuthScope => ("auth-scope", 403, "Outside the caller's scope"),
            Self::TrustMismatch => ("trust-mismatch", 403, "The trust policy does not admit this token"),
            Self::NotFound => ("not-found", 404, "Not found"),
            Self::MethodNotAllowed => ("method-not-allowed", 405, "Method not allowed"),
            Self::DeployTimeout => ("deploy-timeout", 408, "The deploy ran out of time"),
            Self::CasConflict => ("cas-conflict", 409, "The record moved underneath the write"),
            Self::ReferenceHeld => ("reference-held", 409, "Still held"),
            Self::Immutable => ("immutable", 409, "Never changes once written"),
            Self::LeaseLost => ("lease-lost", 409, "The authority for this write is gone"),
            Self::ApplicationBlocked => ("application-blocked", 409, "The application is blocked"),
            Self::DeploysFrozen => ("deploys-frozen", 409, "Deploys are frozen"),
            Self::VersionSkew => ("version-skew", 409, "Celld versions that may not meet"),
            Self::CapabilityMissing => ("capability-missing", 409, "This node cannot do that"),
            Self::ResourceLimit => ("resource-limit", 413, "Too large"),
            Self::DeployOverloaded => ("deploy-overloaded", 429, "The deploy queue is full"),
            Self::Draining => ("draining", 503, "Not now"),
            Self::StoreUnavailable => ("store-unavailable", 503, "The bucket does not answer"),
            Self::StoreNonconforming => ("store-nonconforming", 502, "The bucket does not do what scafo needs"),
            Self::Internal => ("internal", 500, "A defect of scafo"),
            Self::PublishFailed => ("publish-failed", 500, "The deployment could not be published"),
        }
    }

    /// The code as it is spelled in `urn:scafo:<code>` and in records.
    pub const fn as_str(self) -> &'static str {
        self.row().0
    }

    /// The HTTP status that it is answered with.
    pub const fn status(self) -> u16 {
        self.row().1
    }

    /// The title for a problem that has none of its own.
    pub const fn title(self) -> &'static str {
        self.row().2
    }

    /// The code with this spelling; `None` for one that this build does not know.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == text)
    }
}

impl fmt::Display for ProblemCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for ProblemCode {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for ProblemCode {
    /// A code that this build does not know reads as [`ProblemCode::Internal`]: two versions run during every upgrade.
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Ok(Self::parse(&text).unwrap_or(Self::Internal))
    }
}

/// A failure that a caller may see. `detail` holds nothing secret; what only the log may hold is in `cause`, which no
/// serialiser and no `Display` shows.
#[derive(Clone, thiserror::Error)]
#[error("{}", .detail)]
pub struct Problem {
    /// Which failure.
    pub code: ProblemCode,
    /// The title, when it is not the code's own.
    pub title: Option<String>,
    /// What happened, where, and what to do next.
    pub detail: String,
    /// For the log only.
    pub cause: Option<Cause>,
}

/// Text for the log of the process that handles the failure. It does not cross a process boundary.
#[derive(Clone)]
pub struct Cause(String);

impl Problem {
    /// A problem with the code's own title.
    pub fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        Self { code, title: None, detail: detail.into(), cause: None }
    }

    /// The same with another title.
    #[must_use]
    pub fn titled(mut self, title: impl Into<String>) -> Self {
        self.title = Some(title.into());
        self
    }

    /// The same with a cause for the log.
    #[must_use]
    pub fn because(mut self, cause: impl fmt::Display) -> Self {
        self.cause = Some(Cause(cause.to_string()));
        self
    }

    /// The title that the caller reads.
    pub fn title(&self) -> &str {
        self.title.as_deref().unwrap_or(self.code.title())
    }

    /// The RFC 9457 document.
    pub fn document(&self) -> ProblemDocument {
        ProblemDocument {
            r#type: format!("urn:scafo:{}", self.code),
            title: self.title().to_owned(),
            status: self.code.status(),
            detail: self.detail.clone(),
        }
    }
}

impl fmt::Debug for Problem {
    /// Shows the cause: `Debug` is for logs and test failures.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.code, self.title(), self.detail)?;
        match &self.cause {
            Some(Cause(cause)) => write!(f, " ({cause})"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The body of a refusal, `application/problem+json` (RFC 9457 §3).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemDocument {
    /// `urn:scafo:<code>`.
    pub r#type: String,
    /// Short, the same for every problem of the kind.
    pub title: String,
    /// Equal to the status of the answer.
    pub status: u16,
    /// This occurrence.
    pub detail: String,
}

impl ProblemDocument {
    /// The media type of such a body.
    pub const CONTENT_TYPE: &'static str = "application/problem+json";

    /// The problem that it describes; a type that this build does not know is `internal`.
    pub fn into_problem(self) -> Problem {
        let code = self.r#type.strip_prefix("urn:scafo:").and_then(ProblemCode::parse).unwrap_or(ProblemCode::Internal);
        Problem { code, title: Some(self.title), detail: self.detail, cause: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_spelling_of_its_own_and_reads_back() {
        for code in ProblemCode::ALL {
            assert_eq!(ProblemCode::parse(code.as_str()), Some(code));
            assert!((400..600).contains(&code.status()));
        }
        assert_eq!(ProblemCode::parse("no-such-code"), None);
    }

    #[test]
    fn a_cause_stays_out_of_what_the_caller_reads() {
        let problem = Problem::new(ProblemCode::Internal, "request 7").because("password=hunter2");
        let document = serde_json::to_string(&problem.document()).unwrap();
        assert!(!document.contains("hunter2") && !problem.to_string().contains("hunter2"));
        assert!(format!("{problem:?}").contains("hunter2"));
    }
}

//! Workload tokens: OpenID Connect tokens that CI systems sign for their jobs, admitted by an application's trust policy.
//!
//! The policy decides before anything is fetched: only issuers that it names, by exactly the text of `iss`, are ever asked for
//! keys. Then the answers are:
//!
//! | the token | answer |
//! | --- | --- |
//! | is malformed, over, of an algorithm that is not allowed, or for another audience | `auth-invalid` |
//! | names an issuer that the policy does not name | `trust-mismatch` |
//! | cannot be verified, because its issuer does not answer or does not publish its key | `auth-invalid` |
//! | is not signed by its issuer | `auth-invalid` |
//! | holds up, and no rule for its audience admits its subject | `trust-mismatch` |
//!
//! A token of an issuer that is not named cannot be verified, since nothing may be fetched for it. It is `trust-mismatch` all
//! the same, once everything about it that needs no key is right: this is the one refusal that a CI job can act on, and the
//! usual cause is a policy that is missing or names another issuer. What a stranger learns by making such tokens up is whether
//! an application, which need not exist, trusts an issuer that he has to guess.
//!
//! Unlike the tokens of nodes and operators, a workload token may be used again while it lives: its job did not sign it and
//! cannot sign another.

mod algorithm;
mod cache;
mod claim;
mod fetch;
mod issuers;
mod jwks;
mod policies;
mod provenance;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use scafo_core::id::ApplicationName;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::record::{TrustPolicy, TrustRule};
use scafo_core::time::Timestamp;
use scafo_telemetry::metrics::{Counter, Family};
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::claim::{Refusal, Unverified};
use self::fetch::{Fetcher, REQUEST};
use self::issuers::Issuers;
use super::refused;
use crate::clock::Clock;
use crate::figures::Outcome;

pub(super) use self::claim::is_workload;
pub(super) use self::policies::Policies;

/// Characters of a token's own words that a refusal repeats to its holder.
const SHOWN: usize = 200;

/// A verified workload that the policy of one application admits.
#[derive(Debug, Clone)]
pub(crate) struct Workload {
    /// The application that it may deploy, and nothing else.
    pub(crate) application: ApplicationName,
    /// `oidc:` and its subject, as it stands in records; at most 256 bytes.
    pub(crate) by: String,
    /// What its token said about where it comes from.
    pub(crate) provenance: Value,
}

/// Why a token does not get in.
#[derive(Debug)]
pub(crate) struct Turned {
    pub(crate) problem: Problem,
    /// Who it is, as in [`Workload::by`], when the token itself holds up and no rule admits its subject.
    pub(crate) by: Option<String>,
}

impl From<Problem> for Turned {
    /// Nobody knows whose it is.
    fn from(problem: Problem) -> Self {
        Self { problem, by: None }
    }
}

/// A token that could be good, as far as that can be told without a policy and a key.
#[derive(Debug)]
pub(super) struct Claim<'a>(Unverified<'a>);

impl<'a> Claim<'a> {
    /// # Errors
    /// `auth-invalid`.
    pub(super) fn read(token: &'a str, now: Timestamp) -> Result<Self, Problem> {
        Unverified::parse(token, now).map(Self).map_err(refused)
    }
}

/// Decides about workload tokens.
pub(super) struct Workloads {
    issuers: Issuers,
}

impl Workloads {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self::with(Fetcher::new(REQUEST), clock)
    }

    fn with(fetcher: Fetcher, clock: Arc<dyn Clock>) -> Self {
        Self { issuers: Issuers::new(fetcher, clock) }
    }

    /// Questions to issuers so far, by outcome.
    pub(super) fn fetches(&self) -> Family<Outcome, Counter> {
        self.issuers.fetches()
    }

    /// Decides about one token for `application`, whose policy is given; one without a policy admits nobody.
    ///
    /// # Errors
    /// `auth-invalid` and `trust-mismatch`, as in the table above.
    pub(super) async fn admit(
        &self,
        Claim(token): Claim<'_>,
        application: &ApplicationName,
        policy: Option<&TrustPolicy>,
    ) -> Result<Workload, Turned> {
        let rules = match rules_for(&token, policy) {
            Rules::OtherIssuer => return Err(issuer_not_admitted(application, token.issuer()).into()),
            Rules::OtherAudience => return Err(refused(Refusal::Audience).into()),
            Rules::These(rules) => rules,
        };
        let keys = self.issuers.keys(token.issuer(), token.kid()).await.map_err(refused)?;
        let claims = token.verify(&keys).map_err(refused)?;
        let by = provenance::by(&claims);
        if !rules.iter().any(|rule| rule.admits_subject(&claims.subject)) {
            return Err(Turned { problem: subject_not_admitted(application, &claims.subject), by: Some(by) });
        }
        Ok(Workload { application: application.clone(), by, provenance: provenance::of(&claims) })
    }
}

/// The part of a policy that concerns a token.
enum Rules<'p> {
    /// It does not name the issuer.
    OtherIssuer,
    /// It names the issuer, with other audiences only.
    OtherAudience,
    /// At least one; the subject has to match one of them.
    These(Vec<&'p TrustRule>),
}

fn rules_for<'p>(token: &Unverified<'_>, policy: Option<&'p TrustPolicy>) -> Rules<'p> {
    let rules = policy.map(|policy| policy.rules.as_slice()).unwrap_or_default();
    let mut rules: Vec<_> = rules.iter().filter(|rule| rule.issuer == token.issuer()).collect();
    if rules.is_empty() {
        return Rules::OtherIssuer;
    }
    rules.retain(|rule| token.is_for(&rule.audience));
    if rules.is_empty() { Rules::OtherAudience } else { Rules::These(rules) }
}

fn issuer_not_admitted(application: &ApplicationName, issuer: &str) -> Problem {
    let detail = format!(
        "the trust policy of `{application}` does not name the issuer {} of this token; an admin can add it with `scafo trust \
         set {application} --issuer … --subject …`",
        shown(issuer)
    );
    Problem::new(ProblemCode::TrustMismatch, detail)
}

fn subject_not_admitted(application: &ApplicationName, subject: &str) -> Problem {
    let detail = format!(
        "this token is genuine, and the trust policy of `{application}` does not admit its subject {}; an admin can add a \
         pattern for it with `scafo trust set {application} --issuer … --subject …`",
        shown(subject)
    );
    Problem::new(ProblemCode::TrustMismatch, detail)
}

/// Reads a JSON object. Our types would read an array of their members too, which nobody means.
fn object<T: DeserializeOwned>(json: &[u8]) -> Option<T> {
    json.trim_ascii_start().starts_with(b"{").then(|| serde_json::from_slice(json).ok())?
}

/// The token's own words, back to who sent them, escaped and cut.
fn shown(text: &str) -> String {
    let cut: String = text.chars().take(SHOWN).collect();
    let more = if cut.len() < text.len() { "…" } else { "" };
    format!("{cut:?}{more}")
}

//! One request to a node's API with an operator's key, and what to say when it is refused.

use std::time::Duration;

use reqwest::Method;
use scafo_core::ProblemCode;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::TargetArgs;
use crate::client::{ANSWER, CallError};
use crate::error::Outcome;
use crate::keys::Signer;
use crate::output::Output;
use crate::target::Target;

/// A node and a key.
pub(super) struct Remote {
    target: Target,
    signer: Signer,
}

/// What is asked.
pub(super) struct Ask<'a> {
    /// What is said when it is refused, such as "the application was not retired".
    pub(super) otherwise: &'a str,
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) content: Option<Value>,
    /// The next step after a refusal, where it is not the usual one.
    pub(super) hints: &'a [(ProblemCode, &'a str)],
    pub(super) deadline: Duration,
}

/// What the usual next step says of projects and is not meant here.
const TOO_LARGE: &str = "say it shorter: a node reads at most `api.jsonBytes` of a request";

impl<'a> Ask<'a> {
    /// A request without a body.
    pub(super) const fn new(method: Method, path: String, otherwise: &'a str) -> Self {
        Self { otherwise, method, path, content: None, hints: &[], deadline: ANSWER }
    }

    /// With this body.
    pub(super) fn with(self, content: Value) -> Self {
        Self { content: Some(content), ..self }
    }

    /// With other next steps.
    pub(super) fn hinting(self, hints: &'a [(ProblemCode, &'a str)]) -> Self {
        Self { hints, ..self }
    }
}

impl Remote {
    /// Finds the node and reads the key.
    ///
    /// # Errors
    /// Those of finding them.
    pub(super) fn find(args: &TargetArgs, output: Output) -> Outcome<Self> {
        let target = Target::find(args, output)?;
        let signer = target.signer()?;
        Ok(Self { target, signer })
    }

    /// The same node with another key.
    pub(super) const fn with_key(target: Target, signer: Signer) -> Self {
        Self { target, signer }
    }

    /// The key.
    pub(super) const fn signer(&self) -> &Signer {
        &self.signer
    }

    /// Asks.
    ///
    /// # Errors
    /// Why there is no answer, with the next step.
    pub(super) async fn ask<T: DeserializeOwned>(&self, ask: Ask<'_>) -> Outcome<T> {
        self.answer(&self.signer, &ask).await.map_err(|error| self.explain(error, &ask))
    }

    /// Asks with a key that is given; what went wrong is for the caller to judge.
    pub(super) async fn answer<T: DeserializeOwned>(&self, signer: &Signer, ask: &Ask<'_>) -> Result<T, CallError> {
        let method = ask.method.clone();
        self.target.client.ask(method, &ask.path, ask.content.as_ref(), ask.deadline, signer).await
    }

    /// The failure of a command that asked.
    pub(super) fn explain(&self, error: CallError, ask: &Ask<'_>) -> crate::error::Failure {
        let code = match &error {
            CallError::Refused { problem, .. } => Some(problem.code),
            CallError::Unreachable(_) | CallError::Broken(_) | CallError::Foreign(_) => None,
        };
        let failure = error.into_failure(ask.otherwise, self.target.client.api());
        let own = ask.hints.iter().find(|(of, _)| Some(*of) == code).map(|(_, hint)| *hint);
        match own.or_else(|| (code == Some(ProblemCode::ResourceLimit)).then_some(TOO_LARGE)) {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

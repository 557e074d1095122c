//! One request to a node's API with an operator's key, or the same asked of the bucket itself, and what to say when it is refused.

use std::time::Duration;

use reqwest::Method;
use scafo_core::{OperatorId, Problem, ProblemCode};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::args::{FleetArgs, TargetArgs};
use crate::client::{ANSWER, CallError};
use crate::commands::direct::Direct;
use crate::error::{Failure, Outcome};
use crate::keys::Signer;
use crate::output::Output;
use crate::target::Target;

/// Who is asked.
pub(super) struct Remote(Place);

enum Place {
    Node { target: Box<Target>, signer: Box<Signer> },
    Bucket(Direct),
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
    /// Finds the node and reads the key, or opens the bucket.
    ///
    /// # Errors
    /// Those of finding them.
    pub(super) async fn find(args: &FleetArgs, output: Output) -> Outcome<Self> {
        let TargetArgs { url, context, key, operator, .. } = &args.target;
        let node = url.is_some() || context.is_some() || key.is_some() || operator.is_some();
        if node && args.bucket.bucket.is_some() {
            return Err(Failure::usage("--bucket asks no node and needs no key")
                .hint("leave it out, or --url, --context, --key and --operator"));
        }
        if let Some(direct) = Direct::find(&args.bucket, output).await? {
            return Ok(Self(Place::Bucket(direct)));
        }
        let target = Target::find(&args.target, output)?;
        let signer = target.signer()?;
        Ok(Self::with_key(target, signer))
    }

    /// A node with a key that was read already.
    pub(super) fn with_key(target: Target, signer: Signer) -> Self {
        Self(Place::Node { target: Box::new(target), signer: Box::new(signer) })
    }

    /// Whose key it is; nobody's where the bucket is asked.
    pub(super) fn id(&self) -> Option<&OperatorId> {
        match &self.0 {
            Place::Node { signer, .. } => Some(signer.id()),
            Place::Bucket(_) => None,
        }
    }

    /// Asks.
    ///
    /// # Errors
    /// Why there is no answer, with the next step.
    pub(super) async fn ask<T: DeserializeOwned>(&self, ask: Ask<'_>) -> Outcome<T> {
        self.answer(&ask).await.map_err(|error| self.explain(error, &ask))
    }

    /// Asks; what went wrong is for the caller to judge.
    pub(super) async fn answer<T: DeserializeOwned>(&self, ask: &Ask<'_>) -> Result<T, CallError> {
        match &self.0 {
            Place::Node { signer, .. } => self.answer_as(signer, ask).await,
            Place::Bucket(direct) => {
                let answer = direct.answer(&ask.method, &ask.path, ask.content.as_ref()).await;
                let answer = answer.and_then(|answer| {
                    let unknown = |error| Problem::new(ProblemCode::Internal, "no answer to this").because(error);
                    serde_json::from_value(answer).map_err(unknown)
                });
                answer.map_err(|problem| CallError::Refused {
                    status: problem.code.status(),
                    problem,
                    retry_after: None,
                })
            }
        }
    }

    /// The same of a node with another key.
    pub(super) async fn answer_as<T: DeserializeOwned>(&self, signer: &Signer, ask: &Ask<'_>) -> Result<T, CallError> {
        match &self.0 {
            Place::Node { target, .. } => {
                target.client.ask(ask.method.clone(), &ask.path, ask.content.as_ref(), ask.deadline, signer).await
            }
            Place::Bucket(_) => Err(CallError::Foreign("a bucket knows no keys".to_owned())),
        }
    }

    /// The failure of a command that asked.
    pub(super) fn explain(&self, error: CallError, ask: &Ask<'_>) -> Failure {
        let code = match &error {
            CallError::Refused { problem, .. } => Some(problem.code),
            CallError::Unreachable(_) | CallError::Broken(_) | CallError::Foreign(_) => None,
        };
        let failure = match (&self.0, error) {
            (Place::Node { target, .. }, error) => error.into_failure(ask.otherwise, target.client.api()),
            (Place::Bucket(_), CallError::Refused { problem, .. }) => Failure::refused(ask.otherwise, &problem),
            (Place::Bucket(_), error) => Failure::new(format!("{}: {error:?}", ask.otherwise)),
        };
        let own = ask.hints.iter().find(|(of, _)| Some(*of) == code).map(|(_, hint)| *hint);
        match own.or_else(|| (code == Some(ProblemCode::ResourceLimit)).then_some(TOO_LARGE)) {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

//! How a command ends when it does not end well: what happened, and the next step.

use std::error::Error;
use std::fmt;
use std::process::ExitCode;

use scafo_core::{Problem, ProblemCode};

/// The result of a command.
pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Why a command ended early.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was refused or failed.
    Failed(Report),
    /// The command line asks for something that makes no sense.
    Usage(Report),
    /// Whoever read standard output has seen enough. That is success.
    PipeClosed,
}

/// What is said about a failure.
#[derive(Debug)]
pub(crate) struct Report {
    message: String,
    hint: Option<String>,
    exit: u8,
}

/// Exit status of what was refused or failed.
const FAILED: u8 = 1;
/// Exit status of a command line that makes no sense; clap's own is the same.
const USAGE: u8 = 2;

impl Failure {
    /// A failure with this message. Further lines of it are details.
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self::Failed(Report { message: message.into(), hint: None, exit: FAILED })
    }

    /// A command line that makes no sense.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage(Report { message: message.into(), hint: None, exit: USAGE })
    }

    /// A failure with the chain of causes below it.
    pub(crate) fn because(message: impl fmt::Display, cause: &dyn Error) -> Self {
        Self::new(format!("{message}: {}", chain(cause)))
    }

    /// The same with a next step.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        if let Self::Failed(report) | Self::Usage(report) = &mut self {
            report.hint = Some(hint.into());
        }
        self
    }

    /// The same with an exit status of its own.
    #[must_use]
    pub(crate) fn exits(mut self, code: u8) -> Self {
        if let Self::Failed(report) | Self::Usage(report) = &mut self {
            report.exit = code;
        }
        self
    }

    /// What a node answered, with the next step that belongs to its code unless there is a better one.
    pub(crate) fn refused(what: impl fmt::Display, problem: &Problem) -> Self {
        let failure = Self::new(format!("{what}: {} ({})\n{}", problem.title(), problem.code, problem.detail));
        match next_step(problem.code) {
            Some(step) => failure.hint(step),
            None => failure,
        }
    }

    /// The exit status that it ends with.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Failed(report) | Self::Usage(report) => ExitCode::from(report.exit),
            Self::PipeClosed => ExitCode::SUCCESS,
        }
    }

    /// What is said about it; nothing when it is success.
    pub(crate) fn report(&self) -> Option<&Report> {
        match self {
            Self::Failed(report) | Self::Usage(report) => Some(report),
            Self::PipeClosed => None,
        }
    }
}

impl Report {
    /// What happened.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// What to do next.
    pub(crate) fn next(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

/// The errors below one another, each said once.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        let said = cause.to_string();
        // Some libraries repeat the cause in their own text.
        if !text.ends_with(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        below = cause.source();
    }
    text
}

/// What to do about a refusal, where that is the same for every command. Every code is named, so that a new one gets its
/// line here.
pub(crate) const fn next_step(code: ProblemCode) -> Option<&'static str> {
    match code {
        ProblemCode::AuthInvalid => Some(
            "check that --key and --operator name a key that this fleet knows, and that this machine's clock is right",
        ),
        ProblemCode::AuthScope => Some("use a key that reaches the application, or ask an admin of the fleet for one"),
        ProblemCode::TrustMismatch => Some("ask an admin of the fleet to admit this workload with `scafo trust set`"),
        ProblemCode::DeployTimeout => Some("look at `scafo status`, then deploy again; it is safe to repeat"),
        ProblemCode::CasConflict | ProblemCode::LeaseLost => Some("run it again; it is safe to repeat"),
        ProblemCode::ApplicationBlocked => Some("an admin has to unblock the application first"),
        ProblemCode::DeploysFrozen => Some("deploy again when an admin has lifted the freeze"),
        ProblemCode::VersionSkew => Some("bring the nodes that are named to one version of celld"),
        ProblemCode::CapabilityMissing => Some("install celld on this node or set `celld.path`, then restart the node"),
        ProblemCode::ResourceLimit => {
            Some("make it smaller, or make more room on the node: the message names what was reached")
        }
        ProblemCode::DeployOverloaded | ProblemCode::Draining => Some("try again in a moment"),
        ProblemCode::StoreUnavailable => {
            Some("check that the node reaches its bucket (`scafo status`), then try again")
        }
        ProblemCode::StoreNonconforming => Some("use a store with conditional writes"),
        // What is served meanwhile stands in the message, since it depends on how far the deploy came.
        ProblemCode::PublishFailed => Some("correct what the message names and deploy again"),
        ProblemCode::Internal => Some("look into the node's log; a request id in the message is in the log too"),
        ProblemCode::InvalidInput
        | ProblemCode::InvalidSlug
        | ProblemCode::NotFound
        | ProblemCode::MethodNotAllowed
        | ProblemCode::ReferenceHeld
        | ProblemCode::Immutable => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_happened_and_the_next_step() {
        let failure =
            Failure::refused("the deploy was refused", &Problem::new(ProblemCode::DeploysFrozen, "until noon"));
        let report = failure.report().unwrap();
        assert_eq!(report.message(), "the deploy was refused: Deploys are frozen (deploys-frozen)\nuntil noon");
        assert!(report.next().is_some_and(|step| step.contains("lifted")));
    }

    #[test]
    fn a_cause_is_said_once() {
        let inner = std::io::Error::other("no space");
        let outer = std::io::Error::other(inner);
        assert_eq!(chain(&outer), "no space");
    }

    #[test]
    fn a_closed_pipe_is_success_and_says_nothing() {
        assert!(Failure::PipeClosed.report().is_none());
        assert_eq!(format!("{:?}", Failure::PipeClosed.exit_code()), format!("{:?}", ExitCode::SUCCESS));
    }
}

//! What has no route in the API: asked of the registry of a node on this machine, through its admin socket, or of the bucket
//! itself.

use std::path::Path;

use scafo_core::{Problem, ProblemCode};
use scafo_proto::registry::{Caller, caller};
use scafo_proto::status::to_problem;
use scafo_proto::transport::{self, Try};
use serde::de::DeserializeOwned;
use tonic::Status;
use tonic::transport::Channel;

use crate::args::RegistryArgs;
use crate::commands::direct::Direct;
use crate::error::{Failure, Outcome};
use crate::output::Output;
use crate::target;

/// Who is asked.
pub(super) enum Place {
    /// The registry of a node.
    Node(Registry),
    /// The records themselves.
    Bucket(Direct),
}

impl Place {
    /// The registry of the node that runs there, or the bucket that is named.
    ///
    /// # Errors
    /// When none runs there, or the bucket cannot be used.
    pub(super) async fn find(args: &RegistryArgs, output: Output) -> Outcome<Self> {
        if let Some(direct) = Direct::find(&args.bucket, output).await? {
            return Ok(Self::Bucket(direct));
        }
        let node = target::running(&target::local_state_dir(args.local.state_dir.as_deref()))?;
        Ok(Self::Node(Registry::at(&node.admin_socket)))
    }

    /// The bucket, where `what` is done on it alone.
    ///
    /// # Errors
    /// When a node is asked.
    pub(super) fn bucket(self, what: &str) -> Outcome<Direct> {
        match self {
            Self::Bucket(direct) => Ok(direct),
            Self::Node(_) => Err(Failure::usage(format!("{what} in the bucket itself"))
                .hint("name it with --bucket, and --bucket-endpoint where it is not at AWS")),
        }
    }
}

/// A registry on this machine.
pub(super) struct Registry(Channel);

impl Registry {
    /// The registry behind an admin socket.
    pub(super) fn at(admin_socket: &Path) -> Self {
        Self(transport::channel(admin_socket))
    }

    /// Makes a call, again while the registry restarts: each may be repeated under its operation.
    ///
    /// # Errors
    /// The registry's refusal.
    pub(super) async fn call<T, F>(&self, call: impl Fn(Channel, Try) -> F) -> Result<T, Problem>
    where
        F: Future<Output = Result<T, Status>>,
    {
        let answer = transport::read_again(transport::STORE, |left| call(self.0.clone(), left)).await;
        answer.map_err(|status| to_problem(&status))
    }
}

/// On whose behalf: the registry knows who is behind its admin socket.
#[expect(clippy::unnecessary_wraps, reason = "every request has it as an optional message")]
pub(super) fn me() -> Option<Caller> {
    Some(Caller { kind: caller::Kind::Local.into(), id: String::new(), applications: Vec::new() })
}

/// Reads what the registry answered.
///
/// # Errors
/// `internal`: it is of another version.
pub(super) fn decode<T: DeserializeOwned>(answer: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(answer).map_err(|error| {
        Problem::new(ProblemCode::Internal, "the node answered something else; is it of another version?")
            .because(error)
    })
}

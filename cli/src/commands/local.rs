//! What the registry of a node on this machine is asked directly, through its admin socket: what has no route in the API.

use std::path::Path;

use scafo_core::{Problem, ProblemCode};
use scafo_proto::registry::{Caller, caller};
use scafo_proto::status::to_problem;
use scafo_proto::transport::{self, Try};
use serde::de::DeserializeOwned;
use tonic::Status;
use tonic::transport::Channel;

use crate::args::LocalArgs;
use crate::error::Outcome;
use crate::target;

/// A registry on this machine.
pub(super) struct Registry(Channel);

impl Registry {
    /// The registry of the node that runs there.
    ///
    /// # Errors
    /// When none runs there.
    pub(super) fn find(args: &LocalArgs) -> Outcome<Self> {
        let node = target::running(&target::local_state_dir(args.state_dir.as_deref()))?;
        Ok(Self::at(&node.admin_socket))
    }

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

//! The gRPC services: thin translations between messages and what the parts of the daemon do.
//!
//! Every call ends within a deadline. A failure is logged here, once, with its cause, which does not cross to the caller.
//! Every call that changes something may be repeated: it is recognised by its operation, or does nothing the second time.

mod admin;
mod administration;
mod deletion;
mod keys;
pub(crate) mod observe;
mod operations;
mod registry;
mod state;
mod storage;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use scafo_core::{Problem, ProblemCode};
use scafo_proto::registry::Chunk;
use scafo_proto::status::to_status;
use scafo_proto::transport::STORE;
use tokio::sync::watch;
use tonic::{Response, Status};

pub(crate) use admin::AdminService;
pub(crate) use administration::{AdministrationService, Door};
pub(crate) use deletion::UnderWay;
pub(crate) use observe::{ObservationsService, RecorderService};
pub(crate) use operations::Operations;
pub(crate) use registry::RegistryService;
pub(crate) use state::faults;
pub(crate) use storage::StorageService;

use crate::daemon::{Core, Phase};

/// How long a call waits for a daemon that is just starting: a restart beside a bucket that answers takes less, and the
/// caller would only come again.
const STARTING: Duration = Duration::from_secs(3);

/// A document in pieces.
pub(crate) type Chunks = Pin<Box<dyn futures_util::Stream<Item = Result<Chunk, Status>> + Send>>;

/// The daemon's parts, once it has registered.
async fn ready(phase: &watch::Receiver<Phase>) -> Result<Arc<Core>, Problem> {
    let mut phase = phase.clone();
    let ready = phase.wait_for(|phase| matches!(phase, Phase::Ready(_)));
    let _ = tokio::time::timeout(STARTING, ready).await;
    let now = phase.borrow().clone();
    match now {
        Phase::Ready(core) => Ok(core),
        Phase::Starting(problem) => Err(problem),
    }
}

/// Runs one call to its answer.
async fn answer<T>(
    call: &'static str,
    work: impl Future<Output = Result<T, Problem>> + Send,
) -> Result<Response<T>, Status> {
    answer_within(STORE, call, work).await
}

/// As [`answer`], with a deadline of its own.
async fn answer_within<T>(
    limit: Duration,
    call: &'static str,
    work: impl Future<Output = Result<T, Problem>> + Send,
) -> Result<Response<T>, Status> {
    let outcome = match tokio::time::timeout(limit, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(Problem::new(ProblemCode::StoreUnavailable, "the bucket took too long to answer; try again")),
    };
    outcome.map(Response::new).map_err(|problem| {
        log(call, &problem);
        to_status(&problem)
    })
}

/// What is the caller's to set right is no news for the operator.
fn log(call: &'static str, problem: &Problem) {
    match problem.code {
        ProblemCode::Internal => tracing::error!(call, ?problem, "a call failed"),
        ProblemCode::StoreUnavailable | ProblemCode::StoreNonconforming => {
            tracing::warn!(call, ?problem, "a call failed");
        }
        _ => tracing::debug!(call, ?problem, "a call was refused"),
    }
}

fn json<T: serde::Serialize>(value: &T) -> Bytes {
    serde_json::to_vec(value)
        .map(Bytes::from)
        .expect("records and views hold nothing that JSON cannot: keys are strings")
}

/// Reads a JSON member of a message; the other side is ours, so what does not parse is a defect.
fn parsed<T: serde::de::DeserializeOwned>(what: &'static str, bytes: &[u8]) -> Result<T, Problem> {
    serde_json::from_slice(bytes).map_err(|error| {
        Problem::new(ProblemCode::InvalidInput, format!("{what} in a call between two parts of this node is malformed"))
            .because(error)
    })
}

fn chunks(document: Bytes) -> Chunks {
    let pieces = scafo_proto::chunk::split(document);
    Box::pin(futures_util::stream::iter(pieces.map(|(data, _)| Ok(Chunk { data }))))
}

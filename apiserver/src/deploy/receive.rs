//! Receiving an artifact: streamed to a file, bounded in bytes and time, hashed on the way, synchronised at the end.

use std::path::Path;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use scafo_core::problem::{Problem, ProblemCode};
use scafo_core::record::Artifact;
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncWriteExt as _, BufWriter};
use tokio::time::Instant;

use super::capacity::Slot;
use super::{overloaded, unstaged};

/// How long a sender may be silent. It bounds what a sender that went away without a word holds.
const SILENCE: Duration = Duration::from_secs(60);
/// Bytes gathered for one write: few enough to be cheap, enough to keep the disk busy.
const BUFFER: usize = 256 * 1024;

/// What one artifact may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) bytes: u64,
    pub(super) within: Duration,
}

/// Receives `body` into a new file at `path`. When it fails the file is left for its owner to remove.
///
/// # Errors
/// `invalid-input` without a body, `resource-limit`, `deploy-timeout`, `deploy-overloaded`, or a failure of the disk.
pub(super) async fn receive(
    body: Body,
    announced: Option<u64>,
    path: &Path,
    limits: Limits,
    slot: &mut Slot,
) -> Result<Artifact, Problem> {
    if announced == Some(0) || body.is_end_stream() {
        return Err(missing());
    }
    if announced.is_some_and(|bytes| bytes > limits.bytes) {
        return Err(too_large(limits.bytes));
    }
    let file =
        tokio::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).await.map_err(unstaged)?;
    let mut file = BufWriter::with_capacity(BUFFER, file);
    let mut digest = Sha256::new();
    let mut bytes = 0u64;
    let mut body = body;
    let until = Instant::now() + limits.within;
    while let Some(data) = next(&mut body, until).await? {
        bytes += data.len() as u64;
        if bytes > limits.bytes {
            return Err(too_large(limits.bytes));
        }
        if !slot.grow_to(bytes) {
            return Err(overloaded());
        }
        digest.update(&data);
        file.write_all(&data).await.map_err(unstaged)?;
    }
    if bytes == 0 {
        return Err(missing());
    }
    file.flush().await.map_err(unstaged)?;
    file.into_inner().sync_all().await.map_err(unstaged)?;
    Ok(Artifact { sha256: hex::encode(digest.finalize()), bytes })
}

/// The next piece of the body; `None` at its end.
async fn next(body: &mut Body, until: Instant) -> Result<Option<Bytes>, Problem> {
    loop {
        let silent_at = Instant::now() + SILENCE;
        let frame = tokio::time::timeout_at(until.min(silent_at), body.frame()).await;
        let frame = frame.map_err(|_| if until <= silent_at { too_slow() } else { silent() })?;
        match frame.transpose() {
            Ok(None) => return Ok(None),
            Ok(Some(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
            Err(error) => {
                return Err(Problem::new(
                    ProblemCode::InvalidInput,
                    "the artifact ended before it was whole; nothing was deployed, send it again",
                )
                .because(error));
            }
        }
    }
}

fn missing() -> Problem {
    Problem::new(ProblemCode::InvalidInput, "the request has no body: the artifact is the raw body of the request")
}

fn too_large(limit: u64) -> Problem {
    Problem::new(
        ProblemCode::ResourceLimit,
        format!("the artifact is larger than the {limit} bytes that this node takes (`deploy.artifactBytes`)"),
    )
    .titled("The artifact is too large")
}

fn silent() -> Problem {
    let detail =
        format!("nothing of the artifact arrived for {} s; nothing was deployed, send it again", SILENCE.as_secs());
    Problem::new(ProblemCode::DeployTimeout, detail)
}

fn too_slow() -> Problem {
    Problem::new(
        ProblemCode::DeployTimeout,
        "the artifact did not arrive in time (`deploy.receiveTimeout`); nothing was deployed, send it again",
    )
}

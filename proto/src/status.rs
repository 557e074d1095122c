//! Failures across gRPC: a [`Problem`] goes over as a [`Status`] and comes out equal, less its cause.

use scafo_core::problem::{Problem, ProblemCode, ProblemDocument};
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// Where the problem document travels in a status.
const KEY: &str = "scafo-problem-bin";

/// The status that carries `problem`. Its cause stays behind: log it before.
pub fn to_status(problem: &Problem) -> Status {
    let mut status = Status::new(grpc_code(problem.code), problem.detail.clone());
    let document = serde_json::to_vec(&problem.document()).expect("strings and an integer always serialise");
    status.metadata_mut().insert_bin(KEY, MetadataValue::from_bytes(&document));
    status
}

/// The problem that `status` carries. A status that a process of ours did not make is the transport's: the process is away
/// (`draining`, worth another try) or something is broken (`internal`).
pub fn to_problem(status: &Status) -> Problem {
    let carried = status.metadata().get_bin(KEY).and_then(|value| value.to_bytes().ok());
    if let Some(document) = carried.and_then(|bytes| serde_json::from_slice::<ProblemDocument>(&bytes).ok()) {
        return document.into_problem();
    }
    if is_transport(status) {
        return Problem::new(ProblemCode::Draining, "a part of this node is starting again; try once more in a moment")
            .because(status);
    }
    Problem::new(ProblemCode::Internal, "two parts of this node do not understand each other").because(status)
}

/// Whether the call may not have reached a living process: it is away, hangs, or ended in the middle. An answer that is cut inside a
/// message reads as `Internal`, and so does a stream that is reset for most reasons; a connection that is given up because many calls
/// on it were, as `ResourceExhausted` (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md#errors>).
pub fn is_transport(status: &Status) -> bool {
    let ours = status.metadata().get_bin(KEY).is_some();
    let away = matches!(
        status.code(),
        Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Unknown
            | Code::Internal
            | Code::ResourceExhausted
    );
    !ours && away
}

const fn grpc_code(code: ProblemCode) -> Code {
    match code {
        ProblemCode::InvalidInput | ProblemCode::InvalidSlug | ProblemCode::MethodNotAllowed => Code::InvalidArgument,
        ProblemCode::AuthInvalid => Code::Unauthenticated,
        ProblemCode::AuthScope | ProblemCode::TrustMismatch => Code::PermissionDenied,
        ProblemCode::NotFound => Code::NotFound,
        ProblemCode::DeployTimeout => Code::DeadlineExceeded,
        ProblemCode::CasConflict | ProblemCode::LeaseLost => Code::Aborted,
        ProblemCode::ReferenceHeld
        | ProblemCode::Immutable
        | ProblemCode::ApplicationBlocked
        | ProblemCode::DeploysFrozen
        | ProblemCode::VersionSkew
        | ProblemCode::CapabilityMissing
        | ProblemCode::PublishFailed => Code::FailedPrecondition,
        ProblemCode::ResourceLimit | ProblemCode::DeployOverloaded => Code::ResourceExhausted,
        ProblemCode::Draining | ProblemCode::StoreUnavailable => Code::Unavailable,
        ProblemCode::StoreNonconforming | ProblemCode::Internal => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_comes_out_of_a_status_as_it_went_in() {
        for code in ProblemCode::ALL {
            let sent = Problem::new(code, "über alles: \"x\"\n").titled("A title of its own");
            let status = to_status(&sent);
            let received = to_problem(&status);
            assert_eq!(received.document(), sent.document());
            assert!(!is_transport(&status));
        }
    }

    #[test]
    fn a_process_that_is_away_is_draining_and_never_an_authentication_failure() {
        assert_eq!(to_problem(&Status::unavailable("connection refused")).code, ProblemCode::Draining);
        assert_eq!(to_problem(&Status::internal("Unexpected EOF decoding stream.")).code, ProblemCode::Draining);
        assert_eq!(to_problem(&Status::resource_exhausted("too_many_resets")).code, ProblemCode::Draining);
        assert_eq!(to_problem(&Status::unauthenticated("?")).code, ProblemCode::Internal);
    }
}

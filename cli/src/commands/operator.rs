//! `scafo operator`: the keys that may operate the fleet.

use std::path::{Path, PathBuf};

use scafo_core::record::OperatorRecord;
use scafo_core::{OperatorId, Problem};
use scafo_proto::registry::InitOperatorRequest;
use scafo_proto::registry::admin_client::AdminClient;
use scafo_proto::status::to_problem;
use scafo_proto::transport;
use serde::Serialize;

use crate::args::OperatorInitArgs;
use crate::error::{Failure, Outcome};
use crate::keys::{self, Signer};
use crate::output::Output;
use crate::target;

/// What is printed about a new operator.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    operator: OperatorRecord,
    key: PathBuf,
}

/// What to do when the fleet has operators already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Existing {
    /// Be refused.
    Respect,
    /// Add one all the same.
    AddBeside,
}

/// `scafo operator init`
pub(super) async fn init(args: OperatorInitArgs, output: Output) -> Outcome {
    let node = target::running(&target::local_state_dir(args.state_dir.as_deref()))?;
    let (signer, key) = key_for(args.id)?;
    let existing = if args.force { Existing::AddBeside } else { Existing::Respect };
    let operator = register(&node.admin_socket, &signer, existing).await.map_err(|problem| {
        // The key stays: whether the registry took it may be unknown, and a repetition uses it.
        Failure::refused("the operator was not registered", &problem).hint(next_step(&problem, &key))
    })?;
    let made = Made { operator, key };
    output.data(&made, || format!("{}\n", made.operator.id))?;
    output.say(&format!("{} may administer this fleet; its key is kept in {}", made.operator.id, made.key.display()));
    Ok(())
}

fn next_step(problem: &Problem, key: &Path) -> String {
    use scafo_core::ProblemCode;
    match problem.code {
        ProblemCode::ReferenceHeld => {
            "use a key that the fleet knows; when all of them are lost, repeat this with --force".to_owned()
        }
        _ => format!("run it again; the key that was made is kept in {} and will be used", key.display()),
    }
}

/// The key that is there under this id, or a new one. It is on disk before the fleet hears of it: a registered key that nobody
/// holds would be an operator for ever.
fn key_for(id: Option<OperatorId>) -> Outcome<(Signer, PathBuf)> {
    let Some(directory) = keys::directory() else {
        return Err(
            Failure::new("there is no place for the key: neither XDG_CONFIG_HOME nor HOME is set").hint("set HOME")
        );
    };
    keys::private_directory(&directory)?;
    if let Some(id) = &id {
        let path = directory.join(format!("{id}.pem"));
        if path.exists() {
            return Ok((Signer::read(&path, Some(id.clone()))?, path));
        }
    }
    let made = Signer::generate("op");
    let signer = match id {
        Some(id) => made.called(id),
        None => made,
    };
    let path = directory.join(format!("{}.pem", signer.id()));
    signer.write(&path)?;
    Ok((signer, path))
}

/// Registers a key as an admin through the node's admin socket.
///
/// # Errors
/// `reference-held` when the fleet has operators and that is to be respected, or another key has this id.
pub(super) async fn register(
    admin_socket: &Path,
    signer: &Signer,
    existing: Existing,
) -> Result<OperatorRecord, Problem> {
    let request = InitOperatorRequest {
        id: signer.id().to_string(),
        public_key: serde_json::to_vec(&signer.public_key()).expect("a key of three strings always serialises").into(),
        force: existing == Existing::AddBeside,
    };
    let client = AdminClient::new(transport::channel(admin_socket));
    // Safe to make again: the same key under the same id is one operator.
    let answer = transport::read_again(transport::STORE, |left| {
        let (mut client, request) = (client.clone(), request.clone());
        async move { client.init_operator(transport::within(left, request)).await }
    });
    let answer = answer.await.map_err(|status| to_problem(&status))?;
    serde_json::from_slice(&answer.into_inner().operator).map_err(|error| {
        Problem::new(
            scafo_core::ProblemCode::Internal,
            "the node answered something that is no operator; is it of another version?",
        )
        .because(error)
    })
}

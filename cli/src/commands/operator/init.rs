//! `scafo operator init`: the first admin key, through the registry of a node on this machine or in the bucket itself.

use std::path::{Path, PathBuf};

use scafo_core::record::OperatorRecord;
use scafo_core::{OperatorId, Problem, ProblemCode};
use scafo_proto::registry::admin_client::AdminClient;
use scafo_proto::registry::administration_client::AdministrationClient;
use scafo_proto::registry::{InitOperatorRequest, ListOperatorsRequest};
use scafo_proto::{chunk, transport};
use serde::Serialize;

use super::{Operators, was_not_done};
use crate::args::OperatorInitArgs;
use crate::commands::local::{Place, Registry, decode, me};
use crate::error::{Failure, Outcome};
use crate::files;
use crate::keys::{self, Signer, Whose};
use crate::output::Output;

/// What is printed about a new operator.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Made {
    operator: OperatorRecord,
    key: PathBuf,
}

/// What to do when the fleet has operators already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum Existing {
    /// Be refused.
    Respect,
    /// Add one all the same.
    AddBeside,
}

/// `scafo operator init`
pub(super) async fn init(args: OperatorInitArgs, output: Output) -> Outcome {
    let place = Place::find(&args.local, output).await?;
    let KeyFile { signer, path, origin } = key_for(args.id)?;
    let existing = if args.force { Existing::AddBeside } else { Existing::Respect };
    let registered = match &place {
        Place::Node(registry) => register_through(registry, &signer, existing).await,
        Place::Bucket(direct) => {
            let force = existing == Existing::AddBeside;
            let made = direct.registry().init_operator(signer.id(), &signer.public_key(), force).await;
            direct.hinted(made).await
        }
    };
    let operator = match registered {
        Ok(operator) => operator,
        Err(problem) => {
            if origin == Origin::Made && was_not_done(&problem) {
                // Nobody knows this key; lying around, it would only be mistaken for one that works.
                let _ = std::fs::remove_file(&path);
            }
            let hint = next_step(&problem, signer.id());
            return Err(Failure::refused("the operator was not registered", &problem).hint(hint));
        }
    };
    let made = Made { operator, key: path };
    output.data(&made, || format!("{}\n", made.operator.id))?;
    output.say(&format!("{} may administer this fleet; its key is kept in {}", made.operator.id, made.key.display()));
    Ok(())
}

fn next_step(problem: &Problem, id: &OperatorId) -> String {
    if problem.code == ProblemCode::ReferenceHeld {
        return "use a key that the fleet knows; when all of them are lost, repeat this with --force".to_owned();
    }
    if was_not_done(problem) {
        return "give another id with --id".to_owned();
    }
    format!("run it again with --id {id}: the key is kept, and using it twice makes one operator")
}

/// A key and where it is kept.
struct KeyFile {
    signer: Signer,
    path: PathBuf,
    origin: Origin,
}

/// Where the key comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// This command made it.
    Made,
    /// It was there.
    Found,
}

/// The key that is there under this id, or a new one. It is on disk before the fleet hears of it: a registered key that nobody
/// holds would be an operator for ever.
fn key_for(id: Option<OperatorId>) -> Outcome<KeyFile> {
    let directory = keys::directory().ok_or_else(files::homeless)?;
    keys::private_directory(&directory)?;
    let signer = match id {
        None => Signer::generate("op"),
        Some(id) => {
            let path = directory.join(format!("{id}.pem"));
            if path.exists() {
                return Ok(KeyFile { signer: Signer::read(&path, &Whose::Given(id))?, path, origin: Origin::Found });
            }
            Signer::generate("op").called(id)
        }
    };
    let path = directory.join(format!("{}.pem", signer.id()));
    signer.write(&path)?;
    Ok(KeyFile { signer, path, origin: Origin::Made })
}

/// Registers a key as an admin through the node's admin socket.
///
/// # Errors
/// `reference-held` when the fleet has operators and that is to be respected, or another key has this id.
pub(in crate::commands) async fn register(
    admin_socket: &Path,
    signer: &Signer,
    existing: Existing,
) -> Result<OperatorRecord, Problem> {
    register_through(&Registry::at(admin_socket), signer, existing).await
}

async fn register_through(registry: &Registry, signer: &Signer, existing: Existing) -> Result<OperatorRecord, Problem> {
    let request = InitOperatorRequest {
        id: signer.id().to_string(),
        public_key: serde_json::to_vec(&signer.public_key()).expect("a key of three strings always serialises").into(),
        force: existing == Existing::AddBeside,
    };
    // Safe to make again: the same key under the same id is one operator.
    let answer = registry.call(|channel, left| {
        let request = transport::within(left, request.clone());
        async move { AdminClient::new(channel).init_operator(request).await }
    });
    answer.await.and_then(|reply| decode(&reply.into_inner().operator))
}

/// Whether the fleet knows a key under its id, whatever it may do.
///
/// # Errors
/// Those of asking the registry.
pub(in crate::commands) async fn is_registered(admin_socket: &Path, signer: &Signer) -> Result<bool, Problem> {
    let registry = Registry::at(admin_socket);
    let document = registry.call(|channel, left| async move {
        let request = transport::within(left, ListOperatorsRequest { caller: me() });
        Ok(chunk::collect(AdministrationClient::new(channel).list_operators(request).await?.into_inner()).await)
    });
    let Operators { operators, .. } = document.await.and_then(|document| document).and_then(|json| decode(&json))?;
    let key = signer.public_key();
    Ok(operators.iter().any(|operator| operator.id == *signer.id() && operator.public_key == key))
}

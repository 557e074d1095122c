//! `scafo operator rotate`: a new key in the place of one's own.
//!
//! The order makes it safe to stop anywhere: the new key is on disk before the fleet hears of it, the fleet accepts it before it
//! takes the file over, and it has the file before the old one is revoked. Each step may be repeated.

use std::path::PathBuf;

use reqwest::Method;
use scafo_core::record::OperatorRecord;
use scafo_core::{OperatorId, ProblemCode};
use serde::Serialize;
use serde_json::json;

use super::{LAST_ONE, Operators, Registered, Removed, listing, revocation, was_not_done};
use crate::args::OperatorRotateArgs;
use crate::client::CallError;
use crate::commands::remote::{Ask, Remote};
use crate::error::{Failure, Outcome};
use crate::keys::rotation::{Next, Rotation};
use crate::keys::{Signer, Whose};
use crate::output::Output;
use crate::target::Target;

/// What is printed.
#[derive(Debug, Serialize)]
struct Rotated {
    operator: OperatorRecord,
    replaced: OperatorId,
    key: PathBuf,
}

/// `scafo operator rotate`
pub(super) async fn rotate(args: OperatorRotateArgs, output: Output) -> Outcome {
    let target = Target::find(&args.target, output)?;
    let whose = target.whose().clone();
    let rotation = Rotation::begin(&target.key_file()?, &whose)?;
    let remote = Remote::with_key(target, rotation.current().clone());
    let rotated = match unfinished(&remote, rotation.current().id()).await? {
        Some((operator, replaced)) => {
            revoke(&remote, rotation.current(), &replaced).await?;
            output.say("an earlier rotation had not come to its end; it has now");
            Rotated { operator, replaced, key: rotation.path().to_owned() }
        }
        None => replace(&remote, &rotation).await?,
    };
    output.data(&rotated, || format!("{}\n", rotated.operator.id))?;
    let Rotated { operator, replaced, key } = &rotated;
    output.say(&format!("{} replaces {replaced}; its key is in {}, where the old one was", operator.id, key.display()));
    if matches!(&whose, Whose::Given(given) if given == replaced) {
        output.warn(&format!("{replaced} is no id of a key any more: --operator and SCAFO_OPERATOR can be left out"));
    }
    Ok(())
}

/// The key's own record and the one that it was to replace, when that is still there.
async fn unfinished(remote: &Remote, id: &OperatorId) -> Outcome<Option<(OperatorRecord, OperatorId)>> {
    let Operators { mut operators, .. } = remote.ask(listing("the key was not rotated")).await?;
    let own = operators.iter().position(|operator| operator.id == *id);
    let Some(own) = own.map(|at| operators.swap_remove(at)) else {
        return Err(Failure::new(format!("the fleet does not list the key {id}"))
            .hint("see `scafo operator list`, and name the key with --key and --operator"));
    };
    let old = own.supersedes.clone().filter(|old| operators.iter().any(|operator| operator.id == *old));
    Ok(old.map(|old| (own, old)))
}

/// The whole way from one key to the next.
async fn replace(remote: &Remote, rotation: &Rotation) -> Outcome<Rotated> {
    let old = rotation.current();
    let Next { signer: next, found } = rotation.next()?;
    let ask = Ask::new(Method::POST, "/v1/operators".to_owned(), "the new key was not registered").with(json!({
        "id": next.id(), "publicKey": next.public_key(), "supersedes": old.id(),
    }));
    let registered: Registered = match remote.answer_as(old, &ask).await {
        Ok(registered) => registered,
        Err(error) => {
            if !found && matches!(&error, CallError::Refused { problem, .. } if was_not_done(problem)) {
                rotation.discard();
            }
            return Err(remote.explain(error, &ask));
        }
    };
    // Before the old key is given up, the new one has shown that it works.
    let trial = listing("the new key does not work yet; the old one stays");
    remote.answer_as::<Operators>(&next, &trial).await.map_err(|error| {
        remote.explain(error, &trial).hint("run it again: the new key is kept, and it goes on from there")
    })?;
    rotation.switch(&next)?;
    revoke(remote, &next, old.id()).await?;
    Ok(Rotated { operator: registered.operator, replaced: old.id().clone(), key: rotation.path().to_owned() })
}

/// Takes the old key away with the new one.
async fn revoke(remote: &Remote, signer: &Signer, old: &OperatorId) -> Outcome {
    let ask = revocation(old, "the new key is in place, but the old one was not revoked").hinting(&[LAST_ONE]);
    let mut outcome = remote.answer_as::<Removed>(signer, &ask).await;
    if outcome.as_ref().is_err_and(may_have_happened) {
        // Told to run it again, somebody would only replace the new key.
        outcome = remote.answer_as(signer, &ask).await;
    }
    match outcome {
        Ok(_) => Ok(()),
        // It was revoked by a try whose answer was lost, or by somebody else.
        Err(CallError::Refused { problem, .. }) if problem.code == ProblemCode::NotFound => Ok(()),
        Err(error) => Err(remote.explain(error, &ask)),
    }
}

fn may_have_happened(error: &CallError) -> bool {
    match error {
        CallError::Refused { problem, .. } => !was_not_done(problem),
        CallError::Broken(_) => true,
        CallError::Unreachable(_) | CallError::Foreign(_) => false,
    }
}

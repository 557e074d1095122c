//! `scafo operator add`: a key beside one's own.

use std::path::{Path, PathBuf};

use reqwest::Method;
use scafo_core::record::{OperatorRecord, Role};
use scafo_core::scope::ApplicationScope;
use scafo_core::token::PublicKey;
use scafo_core::{OperatorId, ProblemCode};
use serde::Serialize;
use serde_json::json;

use super::{NOT_YOURS, Registered, was_not_done};
use crate::args::OperatorAddArgs;
use crate::client::CallError;
use crate::commands::remote::{Ask, Remote};
use crate::error::{Failure, Outcome};
use crate::keys::{self, Signer, Whose};
use crate::output::Output;

/// What is printed about a new operator.
#[derive(Debug, Serialize)]
struct Added {
    operator: OperatorRecord,
    /// Where its private key is, if it was made here.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<PathBuf>,
}

/// The key to register.
struct NewKey {
    id: OperatorId,
    public: PublicKey,
    /// The file with the private half that this command wrote.
    made: Option<PathBuf>,
}

/// `scafo operator add`
pub(super) async fn add(args: OperatorAddArgs, output: Output) -> Outcome {
    let reach = ApplicationScope::try_from(args.applications)
        .map_err(|problem| Failure::usage(format!("--applications: {}", problem.detail)))?;
    // Whoever registers has to be there before a key is made.
    let remote = Remote::find(&args.target, output).await?;
    let new = match (&args.public_key, &args.key_out) {
        (Some(file), _) => public_key(file, args.id)?,
        (None, Some(file)) => private_key(file, args.id)?,
        (None, None) => return Err(Failure::usage("give --public-key FILE or --key-out FILE")),
    };
    let ask = Ask::new(Method::POST, "/v1/operators".to_owned(), "the operator was not registered").with(json!({
        "id": new.id, "publicKey": new.public, "role": Role::from(args.role), "applications": reach,
    }));
    let taken = format!("the id `{}` belongs to another key, now or before: give another one", new.id);
    let hints = [NOT_YOURS, (ProblemCode::ReferenceHeld, taken.as_str())];
    let ask = ask.hinting(&hints);
    let answer: Registered = match remote.answer(&ask).await {
        Ok(answer) => answer,
        Err(error) => {
            if let (CallError::Refused { problem, .. }, Some(made)) = (&error, &new.made)
                && was_not_done(problem)
            {
                // Nobody knows this key; lying around, it would only be mistaken for one that works.
                let _ = std::fs::remove_file(made);
            }
            return Err(remote.explain(error, &ask));
        }
    };
    let added = Added { operator: answer.operator, key: args.key_out };
    output.data(&added, || format!("{}\n", added.operator.id))?;
    if let Some(key) = &added.key {
        output.say(&format!("hand {} over and delete it here: whoever has it is {}", key.display(), added.operator.id));
    }
    Ok(())
}

/// A key that somebody sent.
fn public_key(file: &Path, id: Option<OperatorId>) -> Outcome<NewKey> {
    let public = keys::read_public(file)?;
    let id = id.unwrap_or_else(|| keys::id_for(&public));
    Ok(NewKey { id, public, made: None })
}

/// A key that is made here, or was by this command when it did not come to its end. It is on disk before the fleet hears of it.
fn private_key(file: &Path, id: Option<OperatorId>) -> Outcome<NewKey> {
    if file.exists() {
        let there = Signer::read(file, &id.map_or(Whose::Unsaid, Whose::Given))?;
        return Ok(NewKey { id: there.id().clone(), public: there.public_key(), made: None });
    }
    let made = Signer::generate("op");
    let made = match id {
        Some(id) => made.called(id),
        None => made,
    };
    made.write_with_id(file)?;
    Ok(NewKey { id: made.id().clone(), public: made.public_key(), made: Some(file.to_owned()) })
}

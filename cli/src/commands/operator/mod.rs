//! `scafo operator`: the keys that may operate the fleet.

mod add;
mod init;
mod rotate;

use reqwest::Method;
use scafo_core::record::{OperatorRecord, Role};
use scafo_core::{OperatorId, Problem, ProblemCode};
use serde::{Deserialize, Serialize};

pub(super) use self::init::{Existing, is_registered, register};
use crate::args::{OperatorCommand, OperatorListArgs, OperatorRevokeArgs};
use crate::commands::remote::{Ask, Remote};
use crate::error::Outcome;
use crate::output::{Output, table};

/// Answer of `GET /v1/operators`.
#[derive(Debug, Serialize, Deserialize)]
struct Operators {
    operators: Vec<OperatorRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scoped: Option<bool>,
}

/// Answer of `POST /v1/operators`.
#[derive(Debug, Deserialize)]
struct Registered {
    operator: OperatorRecord,
}

/// Answer of `DELETE /v1/operators/:id`.
#[derive(Debug, Serialize, Deserialize)]
struct Removed {
    removed: OperatorId,
}

const LAST_ONE: (ProblemCode, &str) = (
    ProblemCode::ReferenceHeld,
    "register another key first: `scafo operator add ID --role admin --applications '*' …`",
);
const NOT_YOURS: (ProblemCode, &str) = (ProblemCode::AuthScope, "use an admin's key, or ask an admin of the fleet");

/// `scafo operator …`
pub(super) async fn run(command: OperatorCommand, output: Output) -> Outcome {
    match command {
        OperatorCommand::Init(args) => init::init(args, output).await,
        OperatorCommand::Add(args) => add::add(args, output).await,
        OperatorCommand::List(args) => list(args, output).await,
        OperatorCommand::Rotate(args) => rotate::rotate(args, output).await,
        OperatorCommand::Revoke(args) => revoke(args, output).await,
    }
}

async fn list(args: OperatorListArgs, output: Output) -> Outcome {
    let remote = Remote::find(&args.target, output).await?;
    let answer: Operators = remote.ask(listing("cannot list the operators")).await?;
    output.data(&answer, || render(&answer.operators, remote.id()))?;
    if answer.scoped == Some(true) {
        output.say("only an admin's key sees all");
    }
    Ok(())
}

async fn revoke(args: OperatorRevokeArgs, output: Output) -> Outcome {
    let remote = Remote::find(&args.target, output).await?;
    let hints = [
        LAST_ONE,
        NOT_YOURS,
        (ProblemCode::InvalidInput, "your own key is replaced by `scafo operator rotate`"),
        (ProblemCode::NotFound, "`scafo operator list` shows which there are; it may be revoked already"),
    ];
    let answer: Removed = remote.ask(revocation(&args.id, "the key was not revoked").hinting(&hints)).await?;
    output.data(&answer, || format!("{}\n", answer.removed))?;
    output.say(&format!("{} is revoked; nodes may accept it for up to 60 seconds more", answer.removed));
    Ok(())
}

fn listing(otherwise: &str) -> Ask<'_> {
    Ask::new(Method::GET, "/v1/operators".to_owned(), otherwise)
}

fn revocation<'a>(id: &OperatorId, otherwise: &'a str) -> Ask<'a> {
    Ask::new(Method::DELETE, format!("/v1/operators/{id}"), otherwise)
}

/// Whether the fleet said no. Everything else may have happened all the same.
const fn was_not_done(problem: &Problem) -> bool {
    problem.code.status() < 500
}

fn render(operators: &[OperatorRecord], own: Option<&OperatorId>) -> String {
    let row = |operator: &OperatorRecord| {
        let mark = if Some(&operator.id) == own { " *" } else { "" };
        let reach: Vec<String> = operator.applications.clone().into();
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        vec![
            format!("{}{mark}", operator.id),
            spelled(operator.role).to_owned(),
            reach.join(" "),
            or_none(operator.supersedes.as_ref().map(ToString::to_string)),
            or_none(operator.created_by.clone()),
            operator.created_at.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = operators.iter().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    table(&["ID", "ROLE", "APPLICATIONS", "REPLACES", "BY", "CREATED"], &rows)
}

const fn spelled(role: Role) -> &'static str {
    match role {
        Role::Admin => "admin",
        Role::Operator => "operator",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_as_a_table_with_a_mark_at_ones_own() {
        let key =
            serde_json::json!({ "kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo" });
        let at = "2026-04-01T12:30:00.000Z";
        let answer: Operators = serde_json::from_value(serde_json::json!({ "operators": [
            { "v": 1, "id": "ci", "publicKey": key, "role": "operator", "applications": ["shop", "shop-*"],
              "createdAt": at, "createdBy": "ops" },
            { "v": 1, "id": "ops", "publicKey": key, "role": "admin", "applications": ["*"], "supersedes": "old",
              "createdAt": at },
        ]}))
        .unwrap();
        insta::assert_snapshot!(render(&answer.operators, Some(&"ops".parse().unwrap())), @r#"
ID     ROLE      APPLICATIONS  REPLACES  BY   CREATED
ci     operator  shop shop-*   -         ops  2026-04-01T12:30:00.000Z
ops *  admin     *             old       -    2026-04-01T12:30:00.000Z
"#);
        assert_eq!(render(&[], None), "");
    }
}

//! `scafo app`: the applications of the fleet.

mod change;
mod domain;
mod lease;
mod show;

use reqwest::Method;
use scafo_core::record::{ApplicationRecord, Replicas};
use serde::{Deserialize, Serialize};

use crate::args::{AppCommand, AppListArgs, LeaseCommand};
use crate::commands::remote::{Ask, Remote};
use crate::error::Outcome;
use crate::output::{Output, table};

/// Answer of `GET /v1/applications`.
#[derive(Debug, Serialize, Deserialize)]
struct Applications {
    applications: Vec<ApplicationRecord>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    scoped: Option<bool>,
}

/// Answer of most routes of one application.
#[derive(Debug, Serialize, Deserialize)]
struct Application {
    application: ApplicationRecord,
}

/// `scafo app …`
pub(super) async fn run(command: AppCommand, output: Output) -> Outcome {
    match command {
        AppCommand::List(args) => list(args, output).await,
        AppCommand::Show(args) => show::show(args, output).await,
        AppCommand::Retire(args) => change::retire(args, output).await,
        AppCommand::Unretire(args) => change::unretire(args, output).await,
        AppCommand::Delete(args) => change::delete(args, output).await,
        AppCommand::Selector(args) => change::selector(args, output).await,
        AppCommand::Replicas(args) => change::replicas(args, output).await,
        AppCommand::Labels(args) => change::labels(args, output).await,
        AppCommand::Block(args) => change::block(args, output).await,
        AppCommand::Unblock(args) => change::unblock(args, output).await,
        AppCommand::Domain(command) => domain::run(command, output).await,
        AppCommand::Lease(LeaseCommand::Drop(args)) => lease::drop(args, output).await,
    }
}

async fn list(args: AppListArgs, output: Output) -> Outcome {
    let remote = Remote::find(&args.target, output).await?;
    let ask = Ask::new(Method::GET, "/v1/applications".to_owned(), "cannot list the applications");
    let answer: Applications = remote.ask(ask).await?;
    output.data(&answer, || render(&answer.applications))?;
    if answer.applications.is_empty() {
        output.say("no applications yet; the first `scafo deploy` creates one");
    }
    Ok(())
}

fn render(applications: &[ApplicationRecord]) -> String {
    let row = |application: &ApplicationRecord| {
        let deployment = application.deployment.as_ref().map_or("-", |published| published.version.as_str());
        let domains = application.domains.iter().map(ToString::to_string);
        let wildcards = application.wildcard_domains.iter().map(|base| format!("*.{base}"));
        let domains: Vec<String> = domains.chain(wildcards).collect();
        vec![
            application.name.to_string(),
            state(application).to_owned(),
            spelled(application.replicas.unwrap_or_default()),
            deployment.to_owned(),
            if domains.is_empty() { "-".to_owned() } else { domains.join(" ") },
            application.created_at.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = applications.iter().map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    table(&["NAME", "STATE", "REPLICAS", "DEPLOYMENT", "DOMAINS", "CREATED"], &rows)
}

/// What the fleet does with it, the strongest first.
const fn state(application: &ApplicationRecord) -> &'static str {
    if matches!(application.deleting, Some(true)) {
        "deleting"
    } else if application.blocked {
        "blocked"
    } else if application.retired_at.is_some() {
        "retired"
    } else if application.deployment.is_none() {
        "undeployed"
    } else {
        "active"
    }
}

fn spelled(replicas: Replicas) -> String {
    match replicas {
        Replicas::Count(count) => count.to_string(),
        Replicas::All => "all".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_as_a_table() {
        let answer: Applications = serde_json::from_value(serde_json::json!({ "applications": [
            { "v": 1, "name": "counter", "createdAt": "2026-04-01T12:30:00.120Z",
              "deployment": { "version": "00d1f0e2a9b8c7d6", "deploy": "counter.0123456789abcdef" } },
            { "v": 1, "name": "shop", "createdAt": "2026-04-01T12:31:00.000Z", "replicas": "all", "blocked": true,
              "domains": ["shop.example", "www.shop.example"], "wildcardDomains": ["shop.example"] },
            { "v": 1, "name": "z", "createdAt": "2026-04-01T12:31:00.000Z", "replicas": 3 },
        ]}))
        .unwrap();
        insta::assert_snapshot!(render(&answer.applications), @r#"
NAME     STATE       REPLICAS  DEPLOYMENT        DOMAINS                                       CREATED
counter  active      1         00d1f0e2a9b8c7d6  -                                             2026-04-01T12:30:00.120Z
shop     blocked     all       -                 shop.example www.shop.example *.shop.example  2026-04-01T12:31:00.000Z
z        undeployed  3         -                 -                                             2026-04-01T12:31:00.000Z
"#);
        assert_eq!(render(&[]), "");
    }
}

//! `scafo app domain`: an application's own hosts.

use reqwest::Method;
use scafo_core::ProblemCode;
use scafo_core::domain::Host;
use scafo_core::record::ApplicationRecord;
use serde::{Deserialize, Serialize};

use super::Application;
use super::show::UNKNOWN;
use crate::args::{AppArgs, DomainAddArgs, DomainCommand, DomainRemoveArgs};
use crate::commands::remote::{Ask, Remote};
use crate::error::Outcome;
use crate::output::{Output, clean, table};

/// Answer of claiming a host and of giving it up.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Domain {
    application: ApplicationRecord,
    host: Host,
    platform_hosts: Vec<String>,
}

/// The hosts of an application, as `--json` prints them.
#[derive(Debug, Serialize)]
struct Domains<'a> {
    domains: Vec<Listed<'a>>,
}

#[derive(Debug, Serialize)]
struct Listed<'a> {
    host: &'a Host,
    wildcard: bool,
}

/// `scafo app domain …`
pub(super) async fn run(command: DomainCommand, output: Output) -> Outcome {
    match command {
        DomainCommand::Add(args) => add(args, output).await,
        DomainCommand::Remove(args) => remove(args, output).await,
        DomainCommand::List(args) => list(args, output).await,
    }
}

async fn add(args: DomainAddArgs, output: Output) -> Outcome {
    let remote = Remote::find(&args.target, output).await?;
    let wildcard = if args.wildcard { "?wildcard=1" } else { "" };
    let path = format!("/v1/applications/{}/domains/{}{wildcard}", args.name, args.host);
    let hints = [
        UNKNOWN,
        (ProblemCode::ReferenceHeld, "the holder has to give it up first: `scafo app domain remove`"),
        (ProblemCode::InvalidInput, "choose another host, or give up one that is not needed any more"),
    ];
    let ask = Ask::new(Method::POST, path, "the host was not claimed").hinting(&hints);
    let answer: Domain = remote.ask(ask).await?;
    output.data(&answer, || {
        let below =
            if answer.application.wildcard_domains.contains(&answer.host) { " and the label below it" } else { "" };
        format!("{} has {}{below}\n", answer.application.name, answer.host)
    })?;
    match answer.platform_hosts.first() {
        Some(platform) => output.say(&format!(
            "the name has to lead to an ingress of the fleet, for example as a CNAME of {}",
            clean(platform)
        )),
        None => output.say("the name has to lead to an ingress of the fleet"),
    }
    Ok(())
}

async fn remove(args: DomainRemoveArgs, output: Output) -> Outcome {
    let remote = Remote::find(&args.target, output).await?;
    let path = format!("/v1/applications/{}/domains/{}", args.name, args.host);
    let list = format!("`scafo app domain list {}` shows which it has", args.name);
    let hints = [(ProblemCode::NotFound, list.as_str())];
    let ask = Ask::new(Method::DELETE, path, "the host was not given up").hinting(&hints);
    let answer: Domain = remote.ask(ask).await?;
    output.data(&answer, || format!("{} has given up {}\n", answer.application.name, answer.host))
}

async fn list(args: AppArgs, output: Output) -> Outcome {
    let remote = Remote::find(&args.target, output).await?;
    let ask = Ask::new(Method::GET, format!("/v1/applications/{}", args.name), "cannot list the domains");
    let answer: Application = remote.ask(ask.hinting(&[UNKNOWN])).await?;
    let record = &answer.application;
    let listed = |host| Listed { host, wildcard: record.wildcard_domains.contains(host) };
    let domains = Domains { domains: record.domains.iter().map(listed).collect() };
    output.data(&domains, || render(&domains))?;
    if domains.domains.is_empty() {
        output.say(&format!("{} answers under the platform domains only", record.name));
    }
    Ok(())
}

fn render(domains: &Domains<'_>) -> String {
    let row =
        |listed: &Listed<'_>| vec![listed.host.to_string(), if listed.wildcard { "yes" } else { "no" }.to_owned()];
    let rows: Vec<Vec<String>> = domains.domains.iter().map(row).collect();
    if rows.is_empty() { String::new() } else { table(&["HOST", "LABEL BELOW"], &rows) }
}

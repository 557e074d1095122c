//! `scafo app show`.

use std::collections::BTreeMap;

use reqwest::Method;
use scafo_core::ProblemCode;
use scafo_core::record::ApplicationRecord;

use super::{Application, spelled, state};
use crate::args::AppArgs;
use crate::commands::remote::{Ask, Remote};
use crate::error::Outcome;
use crate::output::{Output, clean};

/// What to do when there is no such application.
pub(super) const UNKNOWN: (ProblemCode, &str) =
    (ProblemCode::NotFound, "`scafo app list` shows which there are; the first deploy creates one");

/// `scafo app show`
pub(super) async fn show(args: AppArgs, output: Output) -> Outcome {
    let remote = Remote::find(&args.target, output).await?;
    let ask = Ask::new(Method::GET, format!("/v1/applications/{}", args.name), "cannot show the application");
    let answer: Application = remote.ask(ask.hinting(&[UNKNOWN])).await?;
    output.data(&answer, || render(&answer.application))
}

fn render(application: &ApplicationRecord) -> String {
    let mut page = String::new();
    let mut line = |name: &str, value: &str| page.push_str(&format!("{name:<12}{}\n", clean(value)));
    line("name", application.name.as_str());
    line(
        "state",
        &application.retired_at.map_or_else(
            || state(application).to_owned(),
            |at| {
                let state = state(application);
                if state == "retired" { format!("retired since {at}") } else { format!("{state}, retired since {at}") }
            },
        ),
    );
    line("replicas", &spelled(application.replicas.unwrap_or_default()));
    line("selector", &application.node_selector.as_ref().map_or_else(|| "any node".to_owned(), pairs));
    if let Some(labels) = &application.labels {
        line("labels", &pairs(labels));
    }
    if let Some(published) = &application.deployment {
        line("deployment", &format!("{} by {}", published.version, published.deploy));
    }
    for host in &application.domains {
        let below = if application.wildcard_domains.contains(host) { " and the label below" } else { "" };
        line("domain", &format!("{host}{below}"));
    }
    line("created", &application.created_at.to_string());
    page
}

/// Labels as they are given, without control characters.
pub(super) fn pairs(labels: &BTreeMap<String, String>) -> String {
    if labels.is_empty() {
        return "-".to_owned();
    }
    let each: Vec<String> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    clean(&each.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn application(json: serde_json::Value) -> ApplicationRecord {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn an_application_with_everything() {
        let record = application(serde_json::json!({
            "v": 1, "name": "shop", "createdAt": "2026-04-01T12:31:00.000Z", "replicas": "all", "blocked": true,
            "retiredAt": "2026-04-02T00:00:00.000Z", "nodeSelector": { "region": "eu", "tier": "fast" },
            "labels": { "account": "acme\u{7}" }, "domains": ["shop.example", "www.shop.example"],
            "wildcardDomains": ["shop.example"],
            "deployment": { "version": "00d1f0e2a9b8c7d6", "deploy": "shop.0123456789abcdef" },
        }));
        insta::assert_snapshot!(render(&record), @r#"
name        shop
state       blocked, retired since 2026-04-02T00:00:00.000Z
replicas    all
selector    region=eu tier=fast
labels      account=acme�
deployment  00d1f0e2a9b8c7d6 by shop.0123456789abcdef
domain      shop.example and the label below
domain      www.shop.example
created     2026-04-01T12:31:00.000Z
"#);
    }

    #[test]
    fn an_application_with_nothing() {
        let record = application(serde_json::json!({ "v": 1, "name": "z", "createdAt": "2026-04-01T12:31:00.000Z" }));
        insta::assert_snapshot!(render(&record), @r#"
name        z
state       undeployed
replicas    1
selector    any node
created     2026-04-01T12:31:00.000Z
"#);
    }
}

//! `scafo trust`: which workload tokens may deploy an application. Through the registry of a node on this machine, or in the bucket itself.

use scafo_core::record::{Rest, TrustPolicy, TrustRule};
use scafo_core::{Problem, ProblemCode};
use scafo_proto::registry::administration_client::AdministrationClient;
use scafo_proto::registry::{GetTrustRequest, RemoveTrustRequest, SetTrustRequest};
use scafo_proto::transport::within;
use serde_json::json;

use crate::args::{TrustCommand, TrustRemoveArgs, TrustSetArgs, TrustShowArgs};
use crate::commands::local::{Place, decode, me};
use crate::error::{Failure, Outcome};
use crate::output::{Output, table};

/// `scafo trust …`
pub(super) async fn run(command: TrustCommand, output: Output) -> Outcome {
    match command {
        TrustCommand::Set(args) => set(args, output).await,
        TrustCommand::Show(args) => show(args, output).await,
        TrustCommand::Remove(args) => remove(args, output).await,
    }
}

async fn set(args: TrustSetArgs, output: Output) -> Outcome {
    let rule = TrustRule { issuer: args.issuer, audience: args.audience, subjects: args.subjects, rest: Rest::new() };
    let policy = match Place::find(&args.local, output).await? {
        Place::Bucket(direct) => direct.hinted(direct.registry().set_trust(&args.name, &rule).await).await,
        Place::Node(registry) => {
            let request = SetTrustRequest {
                caller: me(),
                application: args.name.to_string(),
                rule: serde_json::to_vec(&rule).expect("a rule of strings always serialises").into(),
            };
            let answer = registry.call(|channel, left| {
                let request = within(left, request.clone());
                async move { AdministrationClient::new(channel).set_trust(request).await }
            });
            answer.await.and_then(|reply| decode(&reply.into_inner().policy))
        }
    };
    let policy = policy.map_err(|problem| Failure::refused("the rule was not set", &problem))?;
    printed(&policy, output)?;
    if rule.subjects.iter().any(|subject| subject.starts_with('*')) {
        output.warn("a subject that starts with an asterisk lets others of that issuer deploy too");
    }
    Ok(())
}

async fn show(args: TrustShowArgs, output: Output) -> Outcome {
    let answer = match Place::find(&args.local, output).await? {
        Place::Bucket(direct) => {
            let none = || Problem::new(ProblemCode::NotFound, "there is no policy");
            direct.registry().trust(&args.name).await.and_then(|there| there.map(|it| it.record).ok_or_else(none))
        }
        Place::Node(registry) => {
            let request = GetTrustRequest { application: args.name.to_string() };
            let answer = registry.call(|channel, left| {
                let request = within(left, request.clone());
                async move { AdministrationClient::new(channel).get_trust(request).await }
            });
            answer.await.and_then(|reply| decode(&reply.into_inner().policy))
        }
    };
    match answer {
        Ok(policy) => printed(&policy, output),
        Err(problem) if problem.code == ProblemCode::NotFound => {
            output.data(&json!({ "policy": null }), String::new)?;
            output.say(&format!("no workload tokens may deploy {}; `scafo trust set` admits some", args.name));
            Ok(())
        }
        Err(problem) => Err(Failure::refused("cannot show the trust policy", &problem)),
    }
}

async fn remove(args: TrustRemoveArgs, output: Output) -> Outcome {
    let removed = match Place::find(&args.local, output).await? {
        Place::Bucket(direct) => {
            let removed = direct.registry().remove_trust(&args.name, args.issuer.as_deref()).await;
            direct.hinted(removed).await
        }
        Place::Node(registry) => {
            let request = RemoveTrustRequest {
                caller: me(),
                application: args.name.to_string(),
                issuer: args.issuer.clone().unwrap_or_default(),
            };
            let answer = registry.call(|channel, left| {
                let request = within(left, request.clone());
                async move { AdministrationClient::new(channel).remove_trust(request).await }
            });
            answer.await.map(|reply| reply.into_inner().removed)
        }
    };
    let removed = removed.map_err(|problem| Failure::refused("nothing was removed", &problem))?;
    output.data(&json!({ "removed": removed }), || {
        let of = args.issuer.as_ref().map(|issuer| format!(" of {issuer}")).unwrap_or_default();
        if removed {
            format!("workload tokens{of} may not deploy {} any more\n", args.name)
        } else {
            format!("no workload tokens{of} could deploy {}\n", args.name)
        }
    })
}

fn printed(policy: &TrustPolicy, output: Output) -> Outcome {
    output.data(&json!({ "policy": policy }), || render(policy))
}

/// One line for each subject.
fn render(policy: &TrustPolicy) -> String {
    let rows: Vec<Vec<String>> = policy
        .rules
        .iter()
        .flat_map(|rule| {
            rule.subjects.iter().map(|subject| vec![rule.issuer.clone(), rule.audience.clone(), subject.clone()])
        })
        .collect();
    table(&["ISSUER", "AUDIENCE", "SUBJECT"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_as_a_table_of_subjects() {
        let policy: TrustPolicy = serde_json::from_value(json!({ "v": 1, "application": "shop", "rules": [
            { "issuer": "https://token.actions.githubusercontent.com", "audience": "scafo",
              "subjects": ["repo:acme/shop:ref:refs/heads/main", "repo:acme/shop:environment:*"] },
            { "issuer": "https://gitlab.com", "audience": "fleet", "subjects": ["project_path:acme/shop:*"] },
        ]}))
        .unwrap();
        insta::assert_snapshot!(render(&policy), @r#"
ISSUER                                       AUDIENCE  SUBJECT
https://token.actions.githubusercontent.com  scafo     repo:acme/shop:ref:refs/heads/main
https://token.actions.githubusercontent.com  scafo     repo:acme/shop:environment:*
https://gitlab.com                           fleet     project_path:acme/shop:*
"#);
    }
}

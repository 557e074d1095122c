//! `scafo deploys` and `scafo deployment`: what the registry remembers of an application. Through the registry of a node on this
//! machine, or in the bucket itself.

use scafo_core::record::{DeployRecord, DeploymentRecord};
use scafo_proto::chunk;
use scafo_proto::registry::administration_client::AdministrationClient;
use scafo_proto::registry::{ListDeploymentsRequest, ListDeploysRequest};
use scafo_proto::transport::within;
use scafo_registryd::registry::Prune;
use serde::Serialize;

use crate::args::{HistoryArgs, PruneArgs};
use crate::commands::local::{Place, decode};
use crate::error::{Failure, Outcome};
use crate::output::{Output, bytes, table};

#[derive(Debug, Serialize)]
struct Deploys {
    deploys: Vec<DeployRecord>,
}

#[derive(Debug, Serialize)]
struct Deployments {
    deployments: Vec<DeploymentRecord>,
}

/// `scafo deploys`
pub(super) async fn deploys(args: HistoryArgs, output: Output) -> Outcome {
    let deploys = match Place::find(&args.local, output).await? {
        Place::Bucket(direct) => direct.registry().deploys(&args.name).await,
        Place::Node(registry) => {
            let request = ListDeploysRequest { application: args.name.to_string() };
            let answer = registry.call(|channel, left| {
                let request = within(left, request.clone());
                async move {
                    let deploys = AdministrationClient::new(channel).list_deploys(request).await?;
                    Ok(chunk::collect(deploys.into_inner()).await)
                }
            });
            answer.await.and_then(|document| document).and_then(|document| decode(&document))
        }
    };
    let deploys = deploys.map_err(|problem| Failure::refused("cannot list the deploys", &problem))?;
    let deploys: Vec<DeployRecord> = newest(deploys, args.limit);
    let printed = Deploys { deploys };
    output.data(&printed, || render_deploys(&printed.deploys))?;
    if printed.deploys.is_empty() {
        output.say(&format!("nothing was deployed to {} in the last seven days", args.name));
    }
    Ok(())
}

/// `scafo deployment list`
pub(super) async fn deployments(args: HistoryArgs, output: Output) -> Outcome {
    let deployments = match Place::find(&args.local, output).await? {
        Place::Bucket(direct) => direct.registry().deployments(&args.name).await,
        Place::Node(registry) => {
            let request = ListDeploymentsRequest { application: args.name.to_string() };
            let answer = registry.call(|channel, left| {
                let request = within(left, request.clone());
                async move {
                    let deployments = AdministrationClient::new(channel).list_deployments(request).await?;
                    Ok(chunk::collect(deployments.into_inner()).await)
                }
            });
            answer.await.and_then(|document| document).and_then(|document| decode(&document))
        }
    };
    let deployments = deployments.map_err(|problem| Failure::refused("cannot list the deployments", &problem))?;
    let deployments: Vec<DeploymentRecord> = newest(deployments, args.limit);
    let printed = Deployments { deployments };
    output.data(&printed, || render_deployments(&printed.deployments))?;
    if printed.deployments.is_empty() {
        output.say(&format!("nothing was ever published of {}", args.name));
    }
    Ok(())
}

/// `scafo deployment prune`
pub(super) async fn prune(args: PruneArgs, output: Output) -> Outcome {
    let direct = Place::find(&args.registry, output).await?.bucket("deployments are pruned")?;
    output.warn("this command is unstable: it removes objects of the runtime");
    let prune =
        Prune { application: &args.name, keep: args.keep, younger_than: args.older_than, dry_run: args.dry_run };
    let pruned = direct.hinted(direct.registry().prune_deployments(&prune).await).await;
    let pruned = pruned.map_err(|problem| Failure::refused("nothing was pruned", &problem))?;
    output.data(&pruned, || {
        let (deployments, objects) = (pruned.versions.len(), pruned.objects);
        let verb = if args.dry_run { "would be removed" } else { "are removed" };
        format!("{deployments} deployments of {} {verb}, {objects} objects with {}\n", args.name, bytes(pruned.bytes))
    })
}

/// The last of a list that is oldest first, the newest first.
fn newest<T>(mut records: Vec<T>, limit: usize) -> Vec<T> {
    records.reverse();
    records.truncate(limit);
    records
}

fn render_deploys(deploys: &[DeployRecord]) -> String {
    let row = |deploy: &DeployRecord| {
        let outcome = match (&deploy.deployment, deploy.code) {
            (_, Some(code)) => code.to_string(),
            (Some(version), None) => version.to_string(),
            (None, None) => "-".to_owned(),
        };
        vec![
            deploy.id.to_string(),
            deploy.state.as_str().to_owned(),
            outcome,
            deploy.by.clone(),
            deploy.node.to_string(),
            deploy.accepted_at.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = deploys.iter().map(row).collect();
    if rows.is_empty() {
        String::new()
    } else {
        table(&["DEPLOY", "STATE", "OUTCOME", "BY", "NODE", "ACCEPTED"], &rows)
    }
}

fn render_deployments(deployments: &[DeploymentRecord]) -> String {
    let row = |deployment: &DeploymentRecord| {
        let source = deployment.source.as_ref().map(|source| format!("{} {}", source.repo, source.commit));
        vec![
            deployment.version.to_string(),
            deployment.deploy.to_string(),
            deployment.by.clone(),
            bytes(deployment.artifact.bytes),
            source.unwrap_or_else(|| "-".to_owned()),
            deployment.created_at.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = deployments.iter().map(row).collect();
    if rows.is_empty() {
        String::new()
    } else {
        table(&["VERSION", "DEPLOY", "BY", "SIZE", "SOURCE", "CREATED"], &rows)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn deploy(id: &str, more: &Value) -> Value {
        let at = "2026-04-01T12:30:00.000Z";
        let mut record = json!({
            "v": 1, "id": id, "application": "shop", "node": "vps-a", "by": "ops", "acceptedAt": at, "movedAt": at,
        });
        record.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        record
    }

    #[test]
    fn the_newest_deploys_come_first_and_only_so_many() {
        let document = json!([
            deploy("shop.0000000000000001", &json!({ "state": "deployed", "deployment": "00aa" })),
            deploy("shop.0000000000000002", &json!({ "state": "failed", "code": "publish-failed" })),
            deploy("shop.0000000000000003", &json!({ "state": "uploading" })),
        ]);
        let deploys: Vec<DeployRecord> = newest(serde_json::from_value(document).unwrap(), 2);
        insta::assert_snapshot!(render_deploys(&deploys), @r#"
DEPLOY                 STATE      OUTCOME         BY   NODE   ACCEPTED
shop.0000000000000003  uploading  -               ops  vps-a  2026-04-01T12:30:00.000Z
shop.0000000000000002  failed     publish-failed  ops  vps-a  2026-04-01T12:30:00.000Z
"#);
        assert_eq!(render_deploys(&[]), "");
    }

    #[test]
    fn deployments_as_a_table() {
        let document = json!([{
            "v": 1, "application": "shop", "version": "00aa", "deploy": "shop.0000000000000001", "node": "vps-a", "by": "ci",
            "celldVersion": "0.6.0", "artifact": { "sha256": "00", "bytes": 2048 }, "createdAt": "2026-04-01T12:30:00.000Z",
            "source": { "provider": "github", "repo": "acme/shop", "ref": "refs/heads/main", "commit": "deadbeef" },
        }]);
        let deployments: Vec<DeploymentRecord> = newest(serde_json::from_value(document).unwrap(), 20);
        insta::assert_snapshot!(render_deployments(&deployments), @r#"
VERSION  DEPLOY                 BY  SIZE     SOURCE              CREATED
00aa     shop.0000000000000001  ci  2.0 KiB  acme/shop deadbeef  2026-04-01T12:30:00.000Z
"#);
    }
}

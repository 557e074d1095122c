//! `scafo deploy`: pack, upload, follow until it is served.

mod follow;
mod progress;
mod reachable;
mod urls;

use std::sync::Arc;

use scafo_core::ApplicationName;
use scafo_core::deploy::Metadata;
use scafo_core::problem::ProblemCode;
use scafo_core::record::DeployState;
use scafo_core::view::{DaemonState, DeployStatus};
use serde::Serialize;

use crate::args::DeployArgs;
use crate::client::Archive;
use crate::commands::deploy::follow::{Follower, Queue};
use crate::commands::deploy::progress::Progress;
use crate::error::{Failure, Outcome, next_step};
use crate::keys::Signer;
use crate::output::{self, Output};
use crate::project::Project;
use crate::project::pack::{self, Packed};
use crate::target::{self, Target};

/// What is printed about a deploy.
#[derive(Debug, Serialize)]
struct Deployed<'a> {
    #[serde(flatten)]
    status: &'a DeployStatus,
    /// Where it answers; the first is the one to show.
    urls: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
}

/// What `--dry-run` prints.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DryRun<'a> {
    application: &'a ApplicationName,
    config: &'a str,
    metadata: &'a Metadata,
    bytes: u64,
    expanded_bytes: u64,
    entries: usize,
    left_out: &'a [String],
}

/// `scafo deploy`
pub(super) async fn run(args: DeployArgs, output: Output) -> Outcome {
    let mut project = Project::open(&args.dir)?;
    let application = application(&args, &project)?;
    let metadata = Metadata { replicas: args.replicas, node_selector: args.node_selector(), source: None };
    project.config_mut().set_vars(&args.var)?;
    if args.no_bundle {
        project.config_mut().set_no_bundle();
    }
    let config_name = project.config_name();
    if args.dry_run {
        let packed = pack(project, &args).await?;
        return say_dry_run(&application, config_name, &metadata, &packed, output);
    }
    // Before the work of packing: a node that is not there is the most common mistake.
    let target = Target::find(&args.target, output)?;
    let signer = target.signer()?;
    let progress = Progress::new(output);
    progress.step("packing");
    let packed = pack(project, &args).await?;
    progress.note(&format!("packed {} entries into {}", packed.entries, output::bytes(packed.bytes)));
    if !packed.left_out.is_empty() {
        progress.note(&format!("left out: {}", packed.left_out.join(", ")));
    }
    let queue = if args.no_wait { Queue::FailAtOnce } else { Queue::Wait };
    let follower = Follower { client: &target.client, signer: &signer, progress: &progress };
    let accepted = follower.upload(&application, &metadata, archive(packed, &progress), queue).await?;
    progress.note(&format!("accepted as {}", accepted.id));
    if args.no_wait {
        progress.end();
        let printed = Deployed { status: &accepted, urls: Vec::new(), url: None };
        return output.data(&printed, || format!("{}\n", accepted.id));
    }
    let ended = follower.follow(accepted).await?;
    // With a detail it is deployed and not served yet: there is nothing to wait for.
    if let (DeployState::Deployed, None, Some(node)) = (ended.state, &ended.detail, &target.local) {
        progress.step("waiting for the ingress to hear of it");
        reachable::wait(&target.client, node, &ended.application).await;
    }
    progress.end();
    finish(&target, &signer, &ended, output).await
}

fn application(args: &DeployArgs, project: &Project) -> Outcome<ApplicationName> {
    if let Some(name) = &args.app {
        return Ok(name.clone());
    }
    let config = project.config_name();
    let Some(name) = project.config().name() else {
        return Err(Failure::new(format!("{config} has no `name`"))
            .hint("add one to the file, or give the application's name with --app NAME"));
    };
    name.parse().map_err(|problem| {
        Failure::new(format!("the `name` of {config}: {problem}")).hint("give another name with --app NAME")
    })
}

async fn pack(project: Project, args: &DeployArgs) -> Outcome<Packed> {
    // A node may live inside the project under another name than `.scafo`.
    let state_dir = target::local_state_dir(args.target.state_dir.as_deref()).canonicalize().ok();
    if state_dir.as_deref() == Some(project.root()) || pack::is_node_state(project.root()) {
        return Err(Failure::new(format!("{} is the state directory of a node", project.root().display()))
            .hint("keep the node's state in a directory of its own: its keys must not go along with a project"));
    }
    let packing = tokio::task::spawn_blocking(move || pack::pack(&project, state_dir.as_deref()));
    packing.await.map_err(|error| Failure::because("packing ended early", &error))?
}

fn archive(packed: Packed, progress: &Progress) -> Archive {
    let bytes = packed.bytes;
    Archive { file: Arc::new(packed.file), bytes, progress: progress.uploading(bytes) }
}

fn say_dry_run(
    application: &ApplicationName,
    config: &str,
    metadata: &Metadata,
    packed: &Packed,
    output: Output,
) -> Outcome {
    let dry = DryRun {
        application,
        config,
        metadata,
        bytes: packed.bytes,
        expanded_bytes: packed.expanded_bytes,
        entries: packed.entries,
        left_out: &packed.left_out,
    };
    output.data(&dry, || {
        let mut text = format!(
            "would deploy {application} ({config}): {} entries, {}, packed {}\n",
            packed.entries,
            output::bytes(packed.expanded_bytes),
            output::bytes(packed.bytes)
        );
        if !packed.left_out.is_empty() {
            text.push_str(&format!("left out: {}\n", packed.left_out.join(", ")));
        }
        text
    })
}

/// Says how it ended.
async fn finish(target: &Target, signer: &Signer, ended: &DeployStatus, output: Output) -> Outcome {
    if ended.state != DeployState::Deployed {
        if output.json() {
            // It failed, whether anybody reads how or not.
            let _ = output.data(&Deployed { status: ended, urls: Vec::new(), url: None }, String::new);
        }
        return Err(failed(ended));
    }
    let urls = served_at(target, signer, &ended.application, output).await;
    if let Some(detail) = &ended.detail {
        output.warn(detail);
    }
    let printed = Deployed { status: ended, url: urls.first().cloned(), urls };
    output.data(&printed, || {
        let version = ended.deployment.as_ref().map_or("?", |version| version.as_str());
        let mut text = format!("deployed {} version {version}\n", ended.application);
        for url in &printed.urls {
            text.push_str(&format!("{url}\n"));
        }
        text
    })?;
    if printed.urls.is_empty() {
        output.say("it has no URL yet: the node serves no platform domain");
    }
    Ok(())
}

/// Where the application answers; nothing, and a word about it, when the node does not say its domains.
async fn served_at(target: &Target, signer: &Signer, application: &ApplicationName, output: Output) -> Vec<String> {
    if let Some(node) = &target.local {
        return urls::local(application, &node.platform_domains, node.ingress.as_deref());
    }
    match target.client.get::<DaemonState>("/v1/state", signer).await {
        Ok(state) => {
            let domains = state.node.map(|node| node.platform_domains).unwrap_or_default();
            urls::remote(application, &domains, target.client.api().is_https())
        }
        Err(error) => {
            if let Some(report) = error.into_failure("cannot ask for the URL", target.client.api()).report() {
                output.warn(report.message());
            }
            Vec::new()
        }
    }
}

fn failed(ended: &DeployStatus) -> Failure {
    let code = ended.code.unwrap_or(ProblemCode::Internal);
    let mut message = format!("the deploy {} failed: {} ({code})", ended.id, code.title());
    if let Some(detail) = &ended.detail {
        message.push('\n');
        message.push_str(detail.trim_end());
    }
    let failure = Failure::new(message);
    match next_step(code) {
        Some(step) => failure.hint(step),
        None => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(json: serde_json::Value) -> DeployStatus {
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_failed_deploy_says_its_code_the_bundlers_words_and_the_next_step() {
        let failure = failed(&ended(serde_json::json!({
            "id": "shop.0123456789abcdef", "application": "shop", "state": "failed", "code": "publish-failed",
            "detail": "src/index.js:3:8: ERROR: Expected \";\"\n"
        })));
        let report = failure.report().unwrap();
        insta::assert_snapshot!(format!("{}\nhint: {}", report.message(), report.next().unwrap()), @r#"
the deploy shop.0123456789abcdef failed: The deployment could not be published (publish-failed)
src/index.js:3:8: ERROR: Expected ";"
hint: correct what the message names and deploy again
"#);
    }

    #[test]
    fn json_has_the_status_and_the_urls_side_by_side() {
        let status = ended(serde_json::json!({
            "id": "shop.0123456789abcdef", "application": "shop", "state": "deployed", "deployment": "00aa"
        }));
        let printed =
            Deployed { status: &status, urls: vec!["http://a/".to_owned()], url: Some("http://a/".to_owned()) };
        let json = serde_json::to_value(&printed).unwrap();
        assert_eq!(
            (&json["state"], &json["deployment"], &json["url"]),
            (&"deployed".into(), &"00aa".into(), &"http://a/".into())
        );
    }
}

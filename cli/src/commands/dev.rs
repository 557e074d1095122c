//! `scafo dev`: this process becomes the supervisor of a whole node for development.

use std::path::Path;

use futures_util::future::BoxFuture;
use scafo_core::config::Config;
use scafo_core::problem::ProblemCode;
use scafo_supervisor::{Error, OnReady, Options, Pids, Ready};
use serde::Serialize;

use crate::args::DevArgs;
use crate::commands::operator::{Existing, is_registered, register};
use crate::env;
use crate::error::{Failure, Outcome};
use crate::keys::{self, Signer};
use crate::output::Output;
use crate::settings::UsualFile;
use crate::target::{DEV_KEY, DEV_STATE_DIR};
use crate::tools;

/// What differs from the defaults of a node.
const DEFAULTS: [(&str, &str); 3] =
    [("stateDir", DEV_STATE_DIR), ("platform.domains", "dev.localhost"), ("ingressd.listen", "127.0.0.1:8080")];

/// The one line of `--json`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Announcement<'a> {
    api: &'a str,
    ingress: Option<&'a str>,
    domain: Option<String>,
    node: &'a str,
    operator_id: &'a str,
    operator_key: &'a Path,
    ingress_token_file: &'a Path,
    state_dir: &'a Path,
    pids: &'a Pids,
}

/// `scafo dev`
pub(super) async fn run(args: DevArgs, output: Output) -> Outcome {
    let defaults = DEFAULTS.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let config = args.config.resolve(&defaults, UsualFile::Ignore)?;
    let tools = tools_for(&config, args.tools.as_deref())?;
    scafo_proto::child::init_tracing("scafo");
    let options =
        Options { dev: Some(tools), on_ready: Some(on_ready(output)), environment: env::all(), ..Options::default() };
    match scafo_supervisor::run(config, options).await {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::new(error.message).hint(error.hint)),
    }
}

/// The stand-in's tools. They may be missing only where a celld is.
fn tools_for(config: &Config, flag: Option<&Path>) -> Outcome<scafo_supervisor::DevOptions> {
    match tools::find(flag)? {
        Some(found) => Ok(found),
        None if config.celld.path.is_some() || on_path("celld") => Ok(scafo_supervisor::DevOptions::default()),
        None => Err(tools::missing()),
    }
}

fn on_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(name).is_file())
}

/// Makes and registers the operator key, then says that all is ready. The state directory is this node's alone by now.
fn on_ready(output: Output) -> OnReady {
    Box::new(move |ready| -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move {
            let path = ready.state_dir.join(DEV_KEY);
            let signer = keys::development(&path).map_err(|failure| as_error(&failure))?;
            known(&ready, &signer).await?;
            // Nobody reading what is printed is no reason to stop the node.
            match announce(&ready, &signer, &path, output) {
                Ok(()) | Err(Failure::PipeClosed) => Ok(()),
                Err(failure) => Err(as_error(&failure)),
            }
        })
    })
}

/// Sees to it that the fleet knows the key. A fleet on a bucket that has operators already gets this one beside them: who may
/// run a node of it is its admin anyway.
async fn known(ready: &Ready, signer: &Signer) -> Result<(), Error> {
    let mut outcome = register(&ready.admin_socket, signer, Existing::Respect).await.map(drop);
    if matches!(&outcome, Err(problem) if problem.code == ProblemCode::ReferenceHeld) {
        // After a rotation the key is there with a history that a first key has not.
        outcome = match is_registered(&ready.admin_socket, signer).await {
            Ok(true) => Ok(()),
            Ok(false) => register(&ready.admin_socket, signer, Existing::AddBeside).await.map(drop),
            Err(problem) => Err(problem),
        };
    }
    outcome.map_err(|problem| {
        Error::new(
            format!("the operator key could not be registered: {} ({})", problem.detail, problem.code),
            "start `scafo dev` again",
        )
    })
}

fn as_error(failure: &Failure) -> Error {
    let report = failure.report();
    let message = report.map_or("standard output is closed", |report| report.message());
    Error::new(message, report.and_then(|report| report.next()).unwrap_or("start `scafo dev` again"))
}

fn announce(ready: &Ready, signer: &Signer, key: &Path, output: Output) -> Outcome {
    output.say(&banner(ready, output));
    if output.json() {
        let announcement = Announcement {
            api: &ready.api,
            ingress: ready.ingress.as_deref(),
            domain: ready.platform_domains.first().map(ToString::to_string),
            node: ready.node.as_str(),
            operator_id: signer.id().as_str(),
            operator_key: key,
            ingress_token_file: &ready.ingress_token_file,
            state_dir: &ready.state_dir,
            pids: &ready.pids,
        };
        output.data(&announcement, String::new)?;
    }
    Ok(())
}

fn banner(ready: &Ready, output: Output) -> String {
    let mut text = format!("\n{}\n\n", output.strong(&format!("scafo dev: node {} is ready", ready.node)));
    let mut line = |name: &str, value: &str| text.push_str(&format!("  {name:<14}{value}\n"));
    line("API", &ready.api);
    if let (Some(ingress), Some(domain)) = (&ready.ingress, ready.platform_domains.first()) {
        let port = ingress.rsplit_once(':').map_or("", |(_, port)| port);
        line("Applications", &format!("http://<name>.{domain}:{port}/"));
    }
    line("State", &ready.state_dir.display().to_string());
    line("Next", "scafo deploy DIR");
    line("Stop", "Ctrl-C");
    text.push('\n');
    for warning in warnings(ready) {
        text.push_str(&format!("{} {warning}\n", output.strong("DEVELOPMENT ONLY:")));
    }
    text
}

fn warnings(ready: &Ready) -> Vec<String> {
    let mut warnings = Vec::new();
    match (&ready.celld_version, ready.standin) {
        (Some(version), true) => {
            warnings
                .push(format!("applications run in the stand-in {version}, not in celld; it is not for production"));
        }
        (None, _) => warnings.push("this node has no runtime: nothing can be deployed to it".to_owned()),
        (Some(_), false) => {}
    }
    if ready.bucket.is_some() {
        warnings.push(
            "the bucket is embedded in this node, so no second node can join and its disk is the only copy".to_owned(),
        );
    }
    warnings
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use scafo_core::config::{Config, Layers};

    use super::*;

    fn ready() -> Ready {
        serde_json::from_value(serde_json::json!({
            "node": "laptop", "api": "http://127.0.0.1:7400", "apiListen": ["127.0.0.1:7400"],
            "ingress": "http://127.0.0.1:8080", "bucket": "http://127.0.0.1:9000", "platformDomains": ["dev.localhost"],
            "ingressTokenFile": "/p/.scafo/ingress-token", "stateDir": "/p/.scafo", "adminSocket": "/p/.scafo/run/admin.sock",
            "celldVersion": "celld-workerd 0.6.0", "standin": true,
            "pids": { "supervisor": 1, "registryd": 2, "routerd": 3, "apiserver": 4, "bucketd": 5, "ingressd": 6 },
        }))
        .unwrap()
    }

    #[test]
    fn a_development_node_with_an_address_is_reached_there_too() {
        let defaults = DEFAULTS.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let flags = [("node.address".to_owned(), "10.0.0.7".to_owned())].into();
        let layers = Layers { flags: &flags, environment: &BTreeMap::new(), file: None, defaults: &defaults };
        let listen: Vec<String> =
            Config::resolve(&layers).unwrap().api.listen.iter().map(ToString::to_string).collect();
        assert_eq!(listen, ["127.0.0.1:7400", "10.0.0.7:7400"]);
    }

    #[test]
    fn the_banner_says_where_and_what_next_and_what_it_is_not() {
        insta::assert_snapshot!(banner(&ready(), Output::plain()).trim(), @r#"
scafo dev: node laptop is ready

  API           http://127.0.0.1:7400
  Applications  http://<name>.dev.localhost:8080/
  State         /p/.scafo
  Next          scafo deploy DIR
  Stop          Ctrl-C

DEVELOPMENT ONLY: applications run in the stand-in celld-workerd 0.6.0, not in celld; it is not for production
DEVELOPMENT ONLY: the bucket is embedded in this node, so no second node can join and its disk is the only copy
"#);
    }

    #[test]
    fn the_announcement_has_exactly_the_members_that_scripts_read() {
        let (ready, signer) = (ready(), Signer::generate("dev"));
        let key = std::path::PathBuf::from("/p/.scafo/operator.key");
        let announcement = Announcement {
            api: &ready.api,
            ingress: ready.ingress.as_deref(),
            domain: Some("dev.localhost".to_owned()),
            node: ready.node.as_str(),
            operator_id: signer.id().as_str(),
            operator_key: &key,
            ingress_token_file: &ready.ingress_token_file,
            state_dir: &ready.state_dir,
            pids: &ready.pids,
        };
        let json = serde_json::to_value(&announcement).unwrap();
        let members: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let expected =
            ["api", "domain", "ingress", "ingressTokenFile", "node", "operatorId", "operatorKey", "pids", "stateDir"];
        assert_eq!(members, expected);
        assert_eq!(json["pids"].as_object().unwrap().len(), 6);
    }

    #[test]
    fn a_node_with_celld_and_a_bucket_has_nothing_to_warn_of() {
        let real = Ready { standin: false, bucket: None, ..ready() };
        assert_eq!(warnings(&real), Vec::<String>::new());
    }
}

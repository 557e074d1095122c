//! The command line, and with it the reference: what a command does, what happens meanwhile, and what the defaults are.

// These comments are shown on terminals, where marks around every name only disturb.
#![allow(clippy::doc_markdown)]

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use scafo_core::record::Replicas;
use scafo_core::{ApplicationName, NodeId, OperatorId};

use crate::client::ApiUrl;
use crate::settings::ConfigArgs;

/// Fleet control for Workers-style applications.
#[derive(Debug, Parser)]
#[command(
    name = "scafo",
    version,
    propagate_version = true,
    max_term_width = 100,
    after_help = "Exit status: 0 when it was done, 1 when it was refused or failed, 2 when the command line is wrong."
)]
pub(crate) struct Cli {
    /// Print data as JSON on standard output
    ///
    /// What a command has to say to people goes to standard error, with and without this flag.
    #[arg(long, global = true, display_order = 100)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Dev(DevArgs),
    Sail(SailArgs),
    Deploy(DeployArgs),
    Status(StatusArgs),
    Routes(RoutesArgs),
    /// Look at the applications of the fleet
    #[command(subcommand)]
    App(AppCommand),
    /// Manage the keys that may operate the fleet
    #[command(subcommand)]
    Operator(OperatorCommand),
}

/// Run a whole node on this machine, for development
///
/// Starts everything that a node has, with an embedded bucket and our own ingress, makes an operator key, and stays in the
/// foreground until Ctrl-C. Needs no configuration: the state is kept in ./.scafo, applications answer under dev.localhost, the
/// API listens on 127.0.0.1:7400 and the ingress on 127.0.0.1:8080 (--api-listen, --ingress-listen; port 0 picks a free one).
/// Where no celld is on PATH it runs applications with a development stand-in, which is not for production.
///
/// With --json one line is printed on standard output when the node is ready, and nothing after it.
#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// The directory with the stand-in's tools, as `npm ci` makes it in runtime/node_modules
    ///
    /// Default: SCAFO_RUNTIME_TOOLS, else the nearest runtime/node_modules above the executable.
    #[arg(long, value_name = "DIR")]
    pub(crate) tools: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

/// Run this node
///
/// Starts and watches every process of the node and stays in the foreground until it is asked to end. Reads
/// /etc/scafo/scafo.toml when it is there; the environment rules over the file, and flags rule over both. A setting is spelled
/// alike in all three: node.address in the file, SCAFO_NODE_ADDRESS, --node-address.
///
/// Exits with 78 when trying again would change nothing, such as with a bucket that belongs to another installation.
#[derive(Debug, Args)]
pub(crate) struct SailArgs {
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
}

/// Deploy a project and follow it until it is served
///
/// Packs the directory, uploads it, and reports each step until every node that the application is placed on serves it; then
/// prints the URL. The application is created by its first deploy. When a deploy fails, what was served before is served on.
///
/// Left out of the archive: .git, .scafo, .wrangler, node_modules/.cache, and at the top level .env and .dev.vars files.
/// node_modules goes along, because the node bundles. The project on this machine is never changed.
#[derive(Debug, Args)]
pub(crate) struct DeployArgs {
    /// The project: a directory with wrangler.jsonc or wrangler.json
    #[arg(value_name = "DIR", default_value = ".")]
    pub(crate) dir: PathBuf,

    /// The application to deploy to [default: `name` of the project's configuration]
    #[arg(long, value_name = "NAME")]
    pub(crate) app: Option<ApplicationName>,

    /// How many nodes shall serve it, or `all` [default: as it is]
    #[arg(long, value_name = "N", value_parser = parse_replicas)]
    pub(crate) replicas: Option<Replicas>,

    /// Only nodes with this label may serve it; may be given several times [default: as it is]
    #[arg(long, value_name = "K=V", value_parser = parse_pair)]
    pub(crate) selector: Vec<(String, String)>,

    /// Set a variable of the Worker for this deploy; may be given several times
    #[arg(long, value_name = "K=V", value_parser = parse_pair)]
    pub(crate) var: Vec<(String, String)>,

    /// Publish `main` as it is, without bundling
    #[arg(long)]
    pub(crate) no_bundle: bool,

    /// Wait for nothing
    ///
    /// Fail at once when the node's deploy queue is full, and return as soon as the node has accepted the deploy.
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// Pack and say what would be sent, and send nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

impl DeployArgs {
    /// The node selector, when one was given.
    pub(crate) fn node_selector(&self) -> Option<BTreeMap<String, String>> {
        (!self.selector.is_empty()).then(|| self.selector.iter().cloned().collect())
    }
}

/// Show what a node runs and whether all is well
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// Show which hosts the fleet answers on, and where each leads
///
/// Reads the document that ingresses pull, with the node's ingress token.
#[derive(Debug, Args)]
pub(crate) struct RoutesArgs {
    /// `table`, `generic` (the document itself), or a native format that the node renders, such as `traefik`
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    pub(crate) format: String,

    /// Put this node's upstreams first; `self` is the node that answers
    #[arg(long, value_name = "NODE")]
    pub(crate) prefer: Option<NodeId>,

    /// A file with an ingress token [default: the one of the node on this machine]
    #[arg(long, value_name = "FILE")]
    pub(crate) ingress_token_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// What to do with applications.
#[derive(Debug, Subcommand)]
pub(crate) enum AppCommand {
    /// List the applications that the key reaches
    List(AppListArgs),
}

/// Arguments of `scafo app list`.
#[derive(Debug, Args)]
pub(crate) struct AppListArgs {
    #[command(flatten)]
    pub(crate) target: TargetArgs,
}

/// What to do with operator keys.
#[derive(Debug, Subcommand)]
pub(crate) enum OperatorCommand {
    Init(OperatorInitArgs),
}

/// Make the first admin key of the fleet
///
/// Runs on a node, as root or as the node's own user. The key is kept in $XDG_CONFIG_HOME/scafo/keys, readable by you alone;
/// the fleet learns its public half only. With an id whose key is there already, that key is used: repeating the command is safe.
#[derive(Debug, Args)]
pub(crate) struct OperatorInitArgs {
    /// The key's id [default: made from the key]
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<OperatorId>,

    /// Make an admin although the fleet has operators, for example when every admin key is lost
    #[arg(long)]
    pub(crate) force: bool,

    /// State directory of the node [default: SCAFO_STATE_DIR, else ./.scafo when it is there, else /var/lib/scafo]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// Which node to talk to, and with which key.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Which node, which key")]
pub(crate) struct TargetArgs {
    /// State directory of a node on this machine [default: SCAFO_STATE_DIR, else ./.scafo when it is there, else /var/lib/scafo]
    #[arg(long, value_name = "DIR")]
    pub(crate) state_dir: Option<PathBuf>,

    /// Base URL of the API of any node [default: SCAFO_URL]
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<ApiUrl>,

    /// File with an operator's private key, PKCS#8 PEM [default: SCAFO_KEY, else the node's, else yours]
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,

    /// The key's id [default: SCAFO_OPERATOR, else what stands beside the key]
    #[arg(long, value_name = "ID")]
    pub(crate) operator: Option<OperatorId>,
}

/// `K=V` with a key that is not empty; the value may hold further equals signs.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write it as K=V".to_owned()),
    }
}

fn parse_replicas(text: &str) -> Result<Replicas, String> {
    if text == "all" {
        return Ok(Replicas::All);
    }
    text.parse().map(Replicas::Count).map_err(|_| "must be `all` or a whole number of at least 1".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_deploy_takes_its_directory_and_what_is_asked_for() {
        let cli =
            parse("scafo deploy shop --app shop-eu --replicas all --selector a=b --selector c=d=e --json").unwrap();
        assert!(cli.json);
        let Command::Deploy(deploy) = cli.command else { panic!("a deploy") };
        assert_eq!(deploy.dir, PathBuf::from("shop"));
        assert_eq!(deploy.app.as_ref().map(ApplicationName::as_str), Some("shop-eu"));
        assert_eq!(deploy.replicas, Some(Replicas::All));
        let selector = deploy.node_selector().unwrap();
        assert_eq!(selector["c"], "d=e");
        assert!(
            parse("scafo deploy")
                .is_ok_and(|cli| matches!(cli.command, Command::Deploy(d) if d.dir.as_os_str() == "."))
        );
    }

    #[test]
    fn what_is_wrong_on_the_command_line_is_usage_and_exits_2() {
        for bad in [
            "scafo deploy --replicas 0",
            "scafo deploy --replicas -1",
            "scafo deploy --app Shop",
            "scafo deploy --var =x",
            "scafo deploy --var x",
            "scafo deploy a b",
            "scafo status --url ftp://node",
            "scafo nothing",
            "scafo",
        ] {
            assert_eq!(parse(bad).unwrap_err().exit_code(), 2, "{bad}");
        }
    }

    /// The settings of the node are left out: their table is the configuration's, and its tests'.
    #[test]
    fn help_is_the_reference() {
        let mut command = Cli::command();
        command.build();
        let mut pages = command.render_long_help().to_string();
        for name in ["dev", "sail", "deploy", "status", "routes"] {
            let page = command.find_subcommand_mut(name).unwrap().render_long_help().to_string();
            let own = page.split("Settings of the node:").next().unwrap();
            pages.push_str(&format!("\n===== scafo {name}\n{}\n", own.trim_end()));
        }
        insta::assert_snapshot!(pages);
    }
}

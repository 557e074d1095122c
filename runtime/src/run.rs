//! From arguments and environment to the end of the process.

use std::ffi::OsString;

use crate::{
    Exit,
    args::{self, Command, DEPLOY_HELP, HELP},
    bucket, deploy, diagnose,
    environment::{self, Environment, Surface},
    failure::{Context, Outcome},
    node, output,
    settings::NodeSettings,
    tools::Tool,
    workerd,
};

/// Does what the arguments ask for and says on standard error what went wrong.
pub fn run(arguments: impl IntoIterator<Item = OsString>, environment: &Environment) -> Exit {
    match command(arguments, environment) {
        Ok(exit) => exit,
        Err(failure) => {
            output::note(&format!("Error: {}", failure.chain()));
            Exit::Refused
        }
    }
}

fn command(arguments: impl IntoIterator<Item = OsString>, environment: &Environment) -> Outcome<Exit> {
    let mut arguments = arguments.into_iter().peekable();
    if arguments.peek().is_some_and(|first| first == args::EXEC_WORKERD) {
        // The environment was checked by the process that started this one, and is not passed on.
        let words: Vec<_> = arguments.skip(1).collect();
        return workerd::exec(&words).map(|never| match never {});
    }
    if arguments.peek().is_some_and(|first| first == args::EXEC_BUNDLER) {
        let words: Vec<_> = arguments.skip(1).collect();
        return deploy::exec_bundler(&words).map(|never| match never {});
    }
    // Before the arguments: even `--version` tells about a variable that no node would accept.
    let surface = Surface::of(environment)?;
    environment::check(environment, surface)?;
    match args::parse(arguments, environment)? {
        Command::Help => output::text(HELP),
        Command::DeployHelp => output::text(DEPLOY_HELP),
        Command::Version => output::line(&format!("celld-workerd {}", surface.release())),
        Command::Deploy(store, options) => {
            output::start_command_log();
            deploy::run(&store, &options, environment, surface)?;
        }
        Command::Diagnose(store, options, diagnose) => {
            output::start_command_log();
            let settings = NodeSettings::resolve(&options, environment, surface)?;
            let fleet = bucket::open(&store, environment)?;
            return diagnose::run(&settings, fleet.as_ref(), &diagnose);
        }
        Command::Node(store, options) => {
            output::start_node_log();
            let settings = NodeSettings::resolve(&options, environment, surface)?;
            let fleet = bucket::open(&store, environment)?;
            let workerd = if fleet.is_some() { Tool::Workerd.find(environment)? } else { "workerd".into() };
            return node(settings, fleet, workerd, environment);
        }
    }
    Ok(Exit::Clean)
}

fn node(
    settings: NodeSettings,
    fleet: Option<bucket::Fleet>,
    workerd: std::path::PathBuf,
    environment: &Environment,
) -> Outcome<Exit> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if let Some(threads) = environment.get("CELLD_TOKIO_THREADS").and_then(|threads| threads.parse().ok()) {
        // A thousand threads help nobody, and a machine may not have them.
        runtime.worker_threads(usize::min(threads, 1000));
    }
    let runtime = runtime.enable_all().build().context(|| "start the runtime".into())?;
    let outcome = runtime.block_on(node::run(settings, fleet, workerd));
    // Whoever still waits for something waits in vain.
    runtime.shutdown_background();
    output::flush_node_log();
    outcome
}

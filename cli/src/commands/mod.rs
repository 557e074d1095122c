//! One module for each command.

mod app;
mod context;
mod deploy;
mod dev;
mod direct;
mod fleet;
mod history;
mod local;
mod logs;
mod node;
mod observe;
mod operator;
mod remote;
mod routes;
mod sail;
mod shell;
mod status;
mod trust;

use std::future::Future;

use tokio::runtime::Builder;

use crate::args::{Command, DeploymentCommand};
use crate::error::{Failure, Outcome};
use crate::output::Output;

/// Runs a command.
///
/// # Errors
/// Why it was refused or failed.
pub(crate) fn run(command: Command, output: Output) -> Outcome {
    let alone = Builder::new_current_thread;
    match command {
        // These two become the supervisor, which has work for every core.
        Command::Dev(args) => drive(Builder::new_multi_thread(), dev::run(args, output)),
        Command::Sail(args) => drive(Builder::new_multi_thread(), sail::run(args, output)),
        Command::Deploy(args) => drive(alone(), deploy::run(args, output)),
        Command::Status(args) => drive(alone(), status::run(args, output)),
        Command::Routes(args) => drive(alone(), routes::run(args, output)),
        Command::Logs(args) => drive(alone(), logs::run(args, output)),
        Command::Metrics(args) => drive(alone(), observe::metrics(args, output)),
        Command::Traces(args) => drive(alone(), observe::traces(args, output)),
        Command::App(command) => drive(alone(), app::run(command, output)),
        Command::Deploys(args) => drive(alone(), history::deploys(args, output)),
        Command::Deployment(DeploymentCommand::List(args)) => drive(alone(), history::deployments(args, output)),
        Command::Deployment(DeploymentCommand::Prune(args)) => drive(alone(), history::prune(args, output)),
        Command::Fleet(command) => drive(alone(), fleet::run(command, output)),
        Command::Node(command) => drive(alone(), node::run(command, output)),
        Command::Operator(command) => drive(alone(), operator::run(command, output)),
        Command::Trust(command) => drive(alone(), trust::run(command, output)),
        // These ask nobody.
        Command::Context(command) => context::run(command, output),
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args, output),
    }
}

fn drive(mut runtime: Builder, command: impl Future<Output = Outcome>) -> Outcome {
    // The one place that names a cryptography provider; a second installation in one process is a test's doing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = runtime.enable_all().build().map_err(|error| Failure::because("cannot start", &error))?;
    let outcome = runtime.block_on(command);
    // Nothing that is still being read or resolved keeps the command from ending.
    runtime.shutdown_background();
    outcome
}

//! One module for each command.

mod app;
mod deploy;
mod dev;
mod operator;
mod routes;
mod sail;
mod status;

use std::future::Future;

use tokio::runtime::Builder;

use crate::args::{AppCommand, Command, OperatorCommand};
use crate::error::{Failure, Outcome};
use crate::output::Output;

/// Runs a command.
///
/// # Errors
/// Why it was refused or failed.
pub(crate) fn run(command: Command, output: Output) -> Outcome {
    match command {
        // These two become the supervisor, which has work for every core.
        Command::Dev(args) => drive(Builder::new_multi_thread(), dev::run(args, output)),
        Command::Sail(args) => drive(Builder::new_multi_thread(), sail::run(args, output)),
        Command::Deploy(args) => drive(Builder::new_current_thread(), deploy::run(args, output)),
        Command::Status(args) => drive(Builder::new_current_thread(), status::run(args, output)),
        Command::Routes(args) => drive(Builder::new_current_thread(), routes::run(args, output)),
        Command::App(AppCommand::List(args)) => drive(Builder::new_current_thread(), app::list(args, output)),
        Command::Operator(OperatorCommand::Init(args)) => {
            drive(Builder::new_current_thread(), operator::init(args, output))
        }
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

//! `scafo`: the command line.

mod args;
mod client;
mod commands;
mod contexts;
mod env;
mod error;
mod files;
mod keys;
mod output;
mod project;
mod settings;
mod target;
mod tools;

use std::process::ExitCode;

use clap::Parser as _;

use crate::args::Cli;
use crate::output::Output;

fn main() -> ExitCode {
    // clap ends the process with status 2 and the usage when the line is wrong, with 0 for help.
    let cli = Cli::parse();
    let output = Output::new(cli.json);
    match commands::run(cli.command, output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            if let Some(report) = failure.report() {
                output.report(report);
            }
            failure.exit_code()
        }
    }
}

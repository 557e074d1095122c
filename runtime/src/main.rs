//! The process: arguments and environment in, exit code out.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use celld_workerd::environment::Environment;

fn main() -> ExitCode {
    celld_workerd::run(std::env::args_os().skip(1), &Environment::of_process()).into()
}

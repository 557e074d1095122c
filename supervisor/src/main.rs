//! `scafo-supervisor`: runs a node, as `scafo sail` does, for service managers.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use scafo_core::config::{self, Config};
use scafo_proto::child;
use scafo_supervisor::{Error, Options, run};

/// Run a node.
#[derive(Parser)]
#[command(version, about)]
struct Arguments {
    /// The configuration file; /etc/scafo/scafo.toml when there is one.
    #[arg(long, env = "SCAFO_CONFIG")]
    config: Option<PathBuf>,
    /// One setting, over environment and file.
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = pair)]
    settings: Vec<(String, String)>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

fn main() -> ExitCode {
    child::init_tracing("scafo-supervisor");
    match start(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be a file on a full disk: then the exit code has to do.
            let _ = writeln!(std::io::stderr(), "error: {error}\nhint: {}", error.hint);
            ExitCode::from(error.exit_code)
        }
    }
}

fn start(arguments: Arguments) -> Result<(), Error> {
    let environment: BTreeMap<String, String> = std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let options = Options { environment: environment.clone(), ..Options::default() };
    let read = move || read(&arguments, &environment);
    let config = read()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::new(format!("cannot start: {error}"), "start again"))?;
    runtime.block_on(run(config, Options { reload: Some(Box::new(read)), ..options })).map(drop)
}

/// The configuration, at the start and again on SIGHUP.
fn read(arguments: &Arguments, environment: &BTreeMap<String, String>) -> Result<Config, Error> {
    let path = arguments.config.clone().unwrap_or_else(|| PathBuf::from(config::DEFAULT_FILE));
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if arguments.config.is_none() && error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => {
            return Err(Error::new(
                format!("cannot read {}: {error}", path.display()),
                "correct --config (SCAFO_CONFIG)",
            ));
        }
    };
    let path = path.display().to_string();
    let layers = config::Layers {
        flags: &arguments.settings.iter().cloned().collect(),
        environment,
        file: Some(config::File { path: &path, text: &text }),
        defaults: &BTreeMap::new(),
    };
    Config::resolve(&layers)
        .map_err(|error| Error::refused(error.to_string(), "correct the setting and start again, or send SIGHUP again"))
}

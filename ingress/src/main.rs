//! `scafo-ingressd`: see the library for what it does.

use std::{error::Error, io::Write as _, process::ExitCode};

use clap::Parser as _;
use scafo_ingressd::{
    args::Args,
    config::{Config, DEFAULT_GRACE},
    run::{Sockets, run},
};
use scafo_proto::{child, figures};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> ExitCode {
    child::init_tracing("ingressd");
    match start().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let mut text = format!("scafo-ingressd: {error}");
            let mut cause = error.source();
            while let Some(inner) = cause {
                text.push_str(&format!(": {inner}"));
                cause = inner.source();
            }
            // Nobody may be listening any more, and there is no other place to say it.
            drop(writeln!(std::io::stderr(), "{text}"));
            child::exit_code(&*error)
        }
    }
}

async fn start() -> Result<(), Box<dyn Error>> {
    let stop = child::shutdown_signal()?;
    let (config, sockets) = if std::env::args_os().len() > 1 { by_hand().await? } else { as_child()? };
    Ok(run(config, sockets, stop).await?)
}

async fn by_hand() -> Result<(Config, Sockets), Box<dyn Error>> {
    let args = Args::parse();
    let config = Config::new(&args.settings()?, args.grace()).map_err(child::Refused::new)?;
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| format!("cannot listen on {}: {error}; choose another address with --listen", args.listen))?;
    writeln!(std::io::stdout(), "http://{}", listener.local_addr()?)?;
    Ok((config, listener.into()))
}

fn as_child() -> Result<(Config, Sockets), Box<dyn Error>> {
    let mut listeners = child::Listeners::from_env();
    let sockets = Sockets { http: listeners.take_tcp("http")?, figures: listeners.try_take_unix(figures::SOCKET)? };
    let config = Config::new(&child::settings()?, DEFAULT_GRACE).map_err(child::Refused::new)?;
    Ok((config, sockets))
}

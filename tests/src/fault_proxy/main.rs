//! `scafo-fault-proxy`: the [fault proxy](scafo_tests::fault_proxy) as a process, for experiments by hand and for tests of
//! whole nodes.

use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use scafo_core::settings::{BucketAccess, Secret};
use scafo_tests::fault_proxy::{Character, FaultProxy, Rule};
use serde::Deserialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Stand between an S3 client and its store, and make things go wrong
///
/// Prints one line, `listening on http://…`, when it is ready. Commands are lines of JSON, in the script and on standard input:
/// {"push": RULE}, "calm", {"play": CHARACTER}, and "counts", which prints a line. The credentials of the store are read from
/// `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`. Ends on SIGINT and SIGTERM.
#[derive(Debug, Parser)]
#[command(name = "scafo-fault-proxy", version)]
struct Args {
    /// The true store
    #[arg(long, value_name = "URL")]
    upstream: String,
    /// Listen here; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The region that requests are signed for
    #[arg(long, value_name = "REGION", default_value = "us-east-1")]
    region: String,
    /// Choose what chance decides
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
    /// Carry out the commands of this file first
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Command {
    Push(Rule),
    Calm,
    Play(Character),
    Counts,
}

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    match run(Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> Result<(), Failure> {
    let (mut interrupted, mut terminated) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let proxy = FaultProxy::start_on(args.listen, &access(&args)?, args.seed).await?;
    if let Some(script) = &args.script {
        let text = std::fs::read_to_string(script).map_err(|error| format!("{}: {error}", script.display()))?;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            obey(&proxy, line)?;
        }
    }
    println!("listening on {}", proxy.endpoint());
    let mut lines = lines();
    loop {
        tokio::select! {
            _ = interrupted.recv() => return Ok(()),
            _ = terminated.recv() => return Ok(()),
            // A typing error ends nothing, and neither does the end of the commands.
            Some(line) = lines.recv() => obey(&proxy, &line).unwrap_or_else(|failure| eprintln!("error: {failure}")),
        }
    }
}

/// The lines of standard input. They are read in a thread of the system, which ends with the process: one of the runtime
/// would keep the process from ending until the next line.
fn lines() -> mpsc::Receiver<String> {
    // A command waits until the one before is carried out.
    let (send, lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok).filter(|line| !line.trim().is_empty()) {
            if send.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

fn access(args: &Args) -> Result<BucketAccess, Failure> {
    let of = |name: &str| std::env::var(name).map_err(|_| format!("set {name} to that of the store"));
    Ok(BucketAccess {
        name: String::new(),
        prefix: String::new(),
        endpoint: Some(args.upstream.clone()),
        region: args.region.clone(),
        path_style: true,
        access_key_id: of("AWS_ACCESS_KEY_ID")?,
        secret_access_key: Secret::new(of("AWS_SECRET_ACCESS_KEY")?),
        session_token: None,
    })
}

fn obey(proxy: &FaultProxy, line: &str) -> Result<(), Failure> {
    match serde_json::from_str(line).map_err(|error| format!("{error} in {line}"))? {
        Command::Push(rule) => proxy.push(rule),
        Command::Calm => proxy.calm(),
        Command::Play(character) => proxy.play(character),
        Command::Counts => println!("{}", serde_json::to_string(&proxy.counts())?),
    }
    Ok(())
}

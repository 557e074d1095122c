//! The process around [`scafo_bucketd::Store`]: started by the supervisor, or by hand with `--dir`.

#![forbid(unsafe_code)]

mod args;

use std::{error::Error, future::ready, net::SocketAddr, path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use rustix::{
    fs::Mode,
    process::{Signal, umask},
};
use scafo_bucketd::store::OpenError;
use scafo_bucketd::{Credentials, Figures, Store, serve};
use scafo_core::settings::BucketdSettings;
use scafo_proto::{
    child,
    figures::{self, say},
};
use tokio::{
    net::{TcpListener, UnixListener},
    signal::unix::SignalKind,
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use self::args::Args;

/// How long the queued writes may take at the end: they are at most 256, in a handful of commits.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

type Failure = Box<dyn Error + Send + Sync>;

/// Everything that a start needs, wherever it came from.
struct Start {
    dir: PathBuf,
    bucket: String,
    credentials: Credentials,
    listener: TcpListener,
    /// Where it says what it counts.
    figures: Option<UnixListener>,
    by_hand: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    child::init_tracing("scafo-bucketd");
    // Everything in the store is for its owner alone, the database's own files too.
    umask(Mode::from_raw_mode(0o077));
    match run(args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            tracing::error!(error = describe(failure.as_ref()), "scafo-bucketd cannot go on");
            child::exit_code(failure.as_ref())
        }
    }
}

async fn run(args: Args) -> Result<(), Failure> {
    let signal = child::shutdown_signal()?;
    // With a handler, a write beyond the file size limit fails like one to a full disk; without, it would end the process.
    let _beyond_limit = tokio::signal::unix::signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?;
    let start = match args.dir {
        Some(dir) => by_hand(dir, args.listen, args.bucket, args.credentials).await?,
        None => supervised()?,
    };
    let Start { dir, bucket, credentials, listener, figures, by_hand } = start;
    let store = tokio::task::spawn_blocking(move || Store::open(&dir)).await?.map_err(lasting)?;
    store.create_bucket(&bucket).await?;
    let address = listener.local_addr()?;
    tracing::info!(%address, bucket, "serving");
    if by_hand {
        announce(address)?;
    }
    let shutdown = CancellationToken::new();
    let counted = Figures::default();
    // Ends with this function.
    let mut saying = JoinSet::new();
    if let Some(socket) = figures {
        let metrics = counted.metrics();
        saying.spawn(say(socket, move || ready(metrics.text())));
    }
    let mut serving = std::pin::pin!(serve(listener, store.clone(), credentials, counted, shutdown.clone()));
    let served = tokio::select! {
        served = serving.as_mut() => served,
        () = signal => {
            shutdown.cancel();
            serving.await
        }
    };
    if timeout(CLOSE_LIMIT, store.close()).await.is_err() {
        tracing::warn!("the store did not close in time; what was answered is safe all the same");
    }
    Ok(served?)
}

fn supervised() -> Result<Start, Failure> {
    let mut listeners = child::Listeners::from_env();
    let listener = listeners.take_tcp("s3")?;
    let figures = listeners.try_take_unix(figures::SOCKET)?;
    let settings: BucketdSettings = child::settings()?;
    Ok(Start {
        credentials: Credentials::new(settings.access_key_id, settings.secret_access_key.expose()),
        dir: settings.dir,
        bucket: settings.bucket,
        listener,
        figures,
        by_hand: false,
    })
}

async fn by_hand(
    dir: PathBuf,
    listen: SocketAddr,
    bucket: String,
    credentials: args::KeyPair,
) -> Result<Start, Failure> {
    let (Some(id), Some(secret)) = (credentials.access_key_id, credentials.secret_access_key) else {
        return Err("set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to the pair that clients shall use".into());
    };
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|error| format!("cannot listen on {listen} (see --listen): {error}"))?;
    Ok(Start { dir, bucket, credentials: Credentials::new(id, &secret), listener, figures: None, by_hand: true })
}

/// A format is the same at the next start; a directory in use or a failing disk may not be.
fn lasting(error: OpenError) -> Failure {
    if matches!(error, OpenError::Format { .. }) { child::Refused::new(error).into() } else { error.into() }
}

/// The one line that scripts and tests wait for.
fn announce(address: SocketAddr) -> std::io::Result<()> {
    use std::io::Write;
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "listening on http://{address}")?;
    stdout.flush()
}

/// An error with its causes, in one line.
fn describe(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

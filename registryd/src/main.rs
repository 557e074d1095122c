//! The registry daemon. Started by scafo-supervisor, which passes its sockets and, on standard input, its settings.

use std::process::ExitCode;
use std::sync::Arc;

use scafo_core::settings::RegistrydSettings;
use scafo_proto::child::{
    EXIT_REFUSED, Listeners, StartError, export_spans, init_tracing, settings_and_telemetry, shutdown_signal,
};
use scafo_registryd::daemon::{Fatal, Sockets, run};
use scafo_registryd::registry::SystemClock;
use scafo_store::S3Bucket;

fn main() -> ExitCode {
    let listeners = Listeners::from_env();
    init_tracing("scafo-registryd");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome = runtime.map_err(Failure::Runtime).and_then(|runtime| runtime.block_on(start(listeners)));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let (text, code) = failure.describe();
            // The supervisor passes this line on to whoever started the node.
            eprintln!("scafo-registryd: {text}");
            ExitCode::from(code)
        }
    }
}

async fn start(mut listeners: Listeners) -> Result<(), Failure> {
    let (settings, telemetry) = settings_and_telemetry::<RegistrydSettings>().map_err(Failure::Start)?;
    let export = export_spans("scafo-registryd", &telemetry);
    let sockets = Sockets {
        grpc: listeners.take_unix("grpc").map_err(Failure::Start)?,
        admin: listeners.take_unix("admin").map_err(Failure::Start)?,
    };
    let shutdown = shutdown_signal().map_err(Failure::Runtime)?;
    let bucket = Arc::new(S3Bucket::new(&settings.bucket));
    let ended = Box::pin(run(settings, bucket, Arc::new(SystemClock), sockets, shutdown)).await;
    if let Some(export) = export {
        export.end().await;
    }
    ended.map_err(Failure::Fatal)
}

enum Failure {
    Start(StartError),
    Runtime(std::io::Error),
    Fatal(Fatal),
}

impl Failure {
    fn describe(&self) -> (String, u8) {
        match self {
            Self::Start(error) => (error.to_string(), EXIT_REFUSED),
            Self::Runtime(error) => (format!("cannot start: {error}"), 1),
            Self::Fatal(fatal) => (fatal.to_string(), fatal.exit_code()),
        }
    }
}

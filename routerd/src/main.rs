//! The `scafo-routerd` process.

use std::process::ExitCode;

use scafo_core::settings::RouterdSettings;
use scafo_proto::child;

#[tokio::main]
async fn main() -> ExitCode {
    let mut listeners = child::Listeners::from_env();
    child::init_tracing("routerd");
    match run(&mut listeners).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = &*error, "routerd ends");
            child::exit_code(&*error)
        }
    }
}

async fn run(listeners: &mut child::Listeners) -> Result<(), Box<dyn std::error::Error>> {
    let (settings, telemetry) = child::settings_and_telemetry::<RouterdSettings>()?;
    let export = child::export_spans("scafo-routerd", &telemetry);
    let socket = listeners.take_unix("grpc")?;
    let shutdown = child::shutdown_signal()?;
    let ended = scafo_routerd::daemon::run(settings, telemetry.observe.as_ref(), socket, shutdown).await;
    if let Some(export) = export {
        export.end().await;
    }
    Ok(ended?)
}

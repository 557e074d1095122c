//! The `scafo-apiserver` process.

use std::process::ExitCode;
use std::sync::Arc;

use scafo_apiserver::app::App;
use scafo_apiserver::clock::SystemClock;
use scafo_apiserver::{metrics, server};
use scafo_core::settings::ApiserverSettings;
use scafo_proto::{child, figures};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> ExitCode {
    let mut sockets = child::Listeners::from_env();
    child::init_tracing("apiserver");
    match run(&mut sockets).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = &*error, "apiserver ends");
            child::exit_code(&*error)
        }
    }
}

async fn run(sockets: &mut child::Listeners) -> Result<(), Box<dyn std::error::Error>> {
    let (settings, telemetry) = child::settings_and_telemetry::<ApiserverSettings>()?;
    let export = child::export_spans("scafo-apiserver", &telemetry);
    let listeners = sockets.take_tcp_starting_with("api")?;
    let scraped = sockets.try_take_tcp("metrics")?;
    if scraped.as_ref().is_some_and(|listener| !metrics::is_local(listener)) {
        let text = "the metrics are for this machine only: set observe.metricsListen to a loopback address";
        return Err(child::Refused::new(text).into());
    }
    let telling = sockets.try_take_unix(figures::SOCKET)?;
    let shutdown = child::shutdown_signal()?;
    let app = App::open(settings, Arc::new(SystemClock))?;
    let recording = app.record(telemetry.observe.as_ref());
    let stop = CancellationToken::new();
    let serving = async {
        let metrics = server::serve(scraped.into_iter().collect(), metrics::router(&app), stop.clone());
        tokio::join!(server::serve(listeners, app.served(), stop.clone()), metrics);
    };
    tokio::pin!(serving);
    tokio::select! {
        // Only when a listener breaks: nobody asked it to end.
        () = &mut serving => {}
        () = metrics::tell(&app, telling) => {}
        () = shutdown => {
            stop.cancel();
            serving.await;
        }
    }
    app.stop().await;
    if let Some(recording) = recording {
        recording.end().await;
    }
    if let Some(export) = export {
        export.end().await;
    }
    Ok(())
}

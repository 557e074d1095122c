//! The `scafo-apiserver` process.

use std::process::ExitCode;
use std::sync::Arc;

use scafo_apiserver::app::App;
use scafo_apiserver::clock::SystemClock;
use scafo_apiserver::server;
use scafo_core::settings::ApiserverSettings;
use scafo_proto::child;
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> ExitCode {
    let mut sockets = child::Listeners::from_env();
    child::init_tracing("apiserver");
    match run(&mut sockets).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = &*error, "apiserver ends");
            ExitCode::FAILURE
        }
    }
}

async fn run(sockets: &mut child::Listeners) -> Result<(), Box<dyn std::error::Error>> {
    let settings: ApiserverSettings = child::settings()?;
    let listeners = sockets.take_tcp_starting_with("api")?;
    let shutdown = child::shutdown_signal()?;
    let app = App::open(settings, Arc::new(SystemClock))?;
    let stop = CancellationToken::new();
    let serving = server::serve(listeners, app.router(), stop.clone());
    tokio::pin!(serving);
    tokio::select! {
        // Only when a listener breaks: nobody asked it to end.
        () = &mut serving => {}
        () = shutdown => {
            stop.cancel();
            serving.await;
        }
    }
    app.stop().await;
    Ok(())
}

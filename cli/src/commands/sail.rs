//! `scafo sail`: this process becomes the supervisor of the node.

use std::collections::BTreeMap;

use scafo_supervisor::Options;

use crate::args::SailArgs;
use crate::env;
use crate::error::{Failure, Outcome};
use crate::output::Output;
use crate::settings::UsualFile;

/// `scafo sail`
pub(super) async fn run(args: SailArgs, output: Output) -> Outcome {
    let again = args.config.clone();
    let config = args.config.resolve(&BTreeMap::new(), UsualFile::Read)?;
    let reload: scafo_supervisor::Reload = Box::new(move || {
        again.clone().resolve(&BTreeMap::new(), UsualFile::Read).map_err(|failure| {
            let (message, hint) =
                failure.report().map_or(("the settings cannot be read", None), |r| (r.message(), r.next()));
            scafo_supervisor::Error::new(message, hint.unwrap_or("correct the configuration and send SIGHUP again"))
        })
    });
    scafo_proto::child::init_tracing("scafo");
    let on_ready: scafo_supervisor::OnReady = Box::new(move |ready| {
        Box::pin(async move {
            output.say(&format!("node {} is ready; its API is at {}", ready.node, ready.api));
            if output.json() {
                // Whether anybody reads it does not matter to the node.
                let _ = output.data(&ready, String::new);
            }
            Ok(())
        })
    });
    let options =
        Options { on_ready: Some(on_ready), reload: Some(reload), environment: env::all(), ..Options::default() };
    match scafo_supervisor::run(config, options).await {
        Ok(_) => Ok(()),
        // The unit tells "start again" from "do not" by the exit status.
        Err(error) => Err(Failure::new(error.message).hint(error.hint).exits(error.exit_code)),
    }
}

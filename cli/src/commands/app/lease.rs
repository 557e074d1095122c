//! `scafo app lease`: leases of the runtime that it cannot read itself.

use scafo_core::ProblemCode;
use serde_json::json;

use crate::args::LeaseDropArgs;
use crate::commands::local::Place;
use crate::error::{Failure, Outcome};
use crate::output::Output;

/// `scafo app lease drop`
pub(super) async fn drop(args: LeaseDropArgs, output: Output) -> Outcome {
    let direct = Place::find(&args.registry, output).await?.bucket("leases are dropped")?;
    output.warn("this command is unstable: it removes an object of the runtime");
    let dropped = direct.hinted(direct.registry().drop_celld_lease(&args.name, &args.node).await).await;
    dropped.map_err(|problem| {
        let failure = Failure::refused("the lease was not removed", &problem);
        match problem.code {
            ProblemCode::ReferenceHeld => failure.hint("leave it: there is nothing wrong with it"),
            ProblemCode::NotFound => {
                failure.hint(format!("list what is under fleets/{}/nodes/ in the bucket", args.name))
            }
            _ => failure,
        }
    })?;
    output.data(&json!({ "dropped": args.node }), || format!("the lease of {} is removed\n", args.node))
}

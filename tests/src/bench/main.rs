//! `make bench`: what scafo costs, measured side by side with what it is compared to, in one run.
//!
//! Absolute times say nothing on a machine that others use too; the ratios do. `scafo-bench NAME…` runs some of the parts.

// A benchmark that cannot go on says why and ends.
#![allow(clippy::panic)]

mod api;
mod deploy;
mod direct;
mod idle;
mod ingress;
mod node;
mod propagation;
mod recovery;
mod registry;
mod rendering;
mod simulate;
mod statistics;
mod wrk;

#[tokio::main]
async fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if let [what, snapshot] = wanted.as_slice()
        && what == "rendering-memory"
    {
        return rendering::hold(snapshot);
    }
    if let [what, arguments @ ..] = wanted.as_slice()
        && what == "stub-celld"
    {
        return node::serve(arguments);
    }
    let runs = |name: &str| wanted.is_empty() || wanted.iter().any(|part| part == name);
    if runs("api") {
        api::run().await;
    }
    if runs("deploy") {
        deploy::run().await;
    }
    if runs("recovery") {
        recovery::run().await;
    }
    if runs("node") {
        node::run().await;
    }
    if runs("rendering") {
        rendering::run();
    }
    if runs("registry") {
        registry::run().await;
    }
    if runs("propagation") {
        propagation::run().await;
    }
    if runs("ingress") {
        ingress::run().await;
    }
    if runs("direct") {
        direct::run().await;
    }
    if runs("idle") {
        idle::run().await;
    }
    if runs("simulate") {
        simulate::run();
    }
}

//! `make bench`: what scafo costs, measured side by side with what it is compared to, in one run.
//!
//! Absolute times say nothing on a machine that others use too; the ratios do. `scafo-bench NAME…` runs some of the parts.

// A benchmark that cannot go on says why and ends.
#![allow(clippy::panic)]

mod deploy;
mod idle;
mod ingress;
mod recovery;
mod statistics;

#[tokio::main]
async fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let runs = |name: &str| wanted.is_empty() || wanted.iter().any(|part| part == name);
    if runs("deploy") {
        deploy::run().await;
    }
    if runs("recovery") {
        recovery::run().await;
    }
    if runs("ingress") {
        ingress::run().await;
    }
    if runs("idle") {
        idle::run().await;
    }
}

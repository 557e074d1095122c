//! How the processes of one node talk to each other: gRPC over Unix sockets that the supervisor bound.
//!
//! The services are in `proto/`, one package for each owner. Beside the generated code this crate holds what every process
//! needs to be a child of the supervisor ([`child`]), to serve and to call ([`transport`]), to pass failures on typed
//! ([`status`]), to move documents of any size ([`chunk`]), and to tell what is from before the machine was started ([`boot`])
//! and which connections are unused ([`open`]).

pub mod boot;
pub mod child;
pub mod chunk;
pub mod figures;
mod lockdown;
pub mod open;
pub mod record;
pub mod status;
pub mod transport;

/// `scafo.supervisor.v1`: processes, jobs, signatures.
#[allow(missing_docs, clippy::doc_markdown, clippy::wildcard_imports, clippy::too_many_lines, unreachable_pub)]
pub mod supervisor {
    tonic::include_proto!("scafo.supervisor.v1");
}

/// `scafo.registry.v1`: the registry by intent.
#[allow(missing_docs, clippy::doc_markdown, clippy::wildcard_imports, clippy::too_many_lines, unreachable_pub)]
pub mod registry {
    tonic::include_proto!("scafo.registry.v1");
}

/// `scafo.router.v1`: rendered routing.
#[allow(missing_docs, clippy::doc_markdown, clippy::wildcard_imports, clippy::too_many_lines, unreachable_pub)]
pub mod router {
    tonic::include_proto!("scafo.router.v1");
}

/// `scafo.storage.v1`: certificate storage.
#[allow(missing_docs, clippy::doc_markdown, clippy::wildcard_imports, clippy::too_many_lines, unreachable_pub)]
pub mod storage {
    tonic::include_proto!("scafo.storage.v1");
}

/// `scafo.observe.v1`: what a process counts.
#[allow(missing_docs, clippy::doc_markdown, clippy::wildcard_imports, clippy::too_many_lines, unreachable_pub)]
pub mod observe {
    tonic::include_proto!("scafo.observe.v1");
}

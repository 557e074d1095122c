//! Rendered routing for every ingress of the fleet.
//!
//! The registry daemon tells what the fleet looks like after each reconcile pass ([`fleet`]). From that follow the hosts and who
//! answers on each ([`routes`]), and from those the documents ([`render`]), which are kept compressed and in pieces
//! ([`document`]), so that a change costs what it moves and not what there is. Documents are handed out by gRPC. The last ones
//! stay when the registry daemon is gone; it is `draining` when there never were any. The bucket is never read here, and
//! nothing is known of HTTP.

pub mod daemon;
pub mod document;
pub mod documents;
mod figures;
pub mod fleet;
mod names;
pub mod render;
pub mod routes;
mod service;
mod watch;

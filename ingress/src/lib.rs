//! scafo's own ingress: pulls the routing document of one node per fleet and forwards what comes to the processes that
//! the documents name.
//!
//! What is kept true:
//!
//! - Only a document that came whole, and whose `v` is 1, replaces the one held; everything else leaves routing as it is.
//! - A request is decided on one document from beginning to end, also while the next one takes over.
//! - A document that was kept on disk, and confirmed within the last hour, routes requests for applications from the start on until a
//!   node answers. It never says that a host is nobody's, and it never leads to an API.
//! - A host that no document names reaches nobody. A denied path on an API host reaches nobody, however it is spelled.
//! - A request is never sent twice where that could make something happen twice, and an answer of an upstream is passed
//!   on whatever its status: a 503 is the upstream's word.
//! - The client's own forwarding fields are dropped; upstreams see where a request came from as this process saw it.
//!
//! `GET /.well-known/scafo-ingress/health` is answered here, on every host, to a peer on this machine that shows the token that a node is
//! polled with. For everybody else it is a path like any other. The supervisor asks on a socket of its own.
#![forbid(unsafe_code)]

mod answer;
pub mod args;
pub mod config;
mod decide;
mod document;
mod figures;
mod forwarded;
mod front;
mod health;
mod host;
mod keeper;
mod kept;
mod marks;
mod path;
mod poll;
pub mod run;
mod serve;

#[cfg(test)]
mod tests;

//! Rendered routing for every ingress of the fleet.
//!
//! The registry daemon tells what the fleet looks like after each reconcile pass; this process renders that into the generic
//! document and the native formats, once for each change, and hands documents out by gRPC. It keeps the last ones when the
//! registry daemon is gone and answers `draining` when it never had any. It never reads the bucket and knows nothing of HTTP.

pub mod daemon;
pub mod documents;
pub mod render;
mod service;
mod watch;

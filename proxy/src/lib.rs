//! Forwards one HTTP request to one upstream over HTTP/1.1 and brings the response back, streaming both bodies.
//!
//! What is kept true:
//!
//! - A request is cleaned exactly once, when it becomes an [`Outbound`]: hop-by-hop fields are gone (RFC 9110 §7.6.1),
//!   those that `Connection` names included. Fields that the caller sets on the [`Outbound`] afterwards are therefore
//!   out of the client's reach.
//! - A [`Failure`] says how far the request came, and carries the [`Outbound`] back exactly when sending it once more,
//!   here or elsewhere, cannot make anything happen twice.
//! - No body is collected in memory. Both directions carry back-pressure.
//! - A WebSocket becomes a tunnel that belongs to the [`Tunnels`] which the caller handed in, and ends with it.
//!
//! What is refused: protocols other than `websocket` in `Upgrade` (an `h2c` upgrade would open a way around every rule
//! that is decided on a request), `CONNECT`, and switching protocols when nobody asked for it.
//!
//! Which upstream to choose, whether to try a second one, and what to answer when nothing works belongs to the caller.
//!
//! ```no_run
//! # async fn example(request: http::Request<hyper::body::Incoming>) -> Result<(), Box<dyn std::error::Error>> {
//! use scafo_proxy::{Forwarder, Limits, Outbound, Tunnels, Upstream};
//!
//! let tunnels = Tunnels::new(1000);
//! let forwarder = Forwarder::new(Limits::default());
//! let upstream: Upstream = "127.0.0.1:24000".parse()?; // or Upstream::unix("/run/app.sock")
//! let mut outbound = Outbound::new(request)?;
//! outbound.headers_mut().insert("x-forwarded-proto", http::HeaderValue::from_static("http"));
//! match forwarder.forward(&upstream, outbound, &tunnels).await {
//!     Ok(response) => drop(response), // Response<hyper::body::Incoming>; a 101 is tunnelled already
//!     Err(failure) => println!("{:?}: {failure}; may go elsewhere: {}", failure.kind(), failure.outbound().is_some()),
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod dialling;
mod failure;
mod forward;
pub mod headers;
mod outbound;
mod pool;
mod socket;
mod tunnel;
mod upstream;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use failure::{Failure, FailureKind};
pub use forward::{Forwarder, Limits};
pub use outbound::{Outbound, ProxyBody, Unforwardable};
pub use tunnel::Tunnels;
pub use upstream::{InvalidUpstream, Upstream};

/// The error of a request body, whatever its type.
pub(crate) type BoxError = Box<dyn std::error::Error + Send + Sync>;

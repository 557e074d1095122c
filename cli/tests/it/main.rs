//! The real command against a node that this test plays: what goes over the wire, what is printed where, and how it exits.

mod deploy;
mod node;
mod run;
mod surface;

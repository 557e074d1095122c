//! Upstreams and clients for the tests of this crate, all on loopback.

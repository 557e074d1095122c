//! The stand-in as a supervisor meets it: the real binary, the real workerd and esbuild, a real bucket. Each row of the
//! contract that it must imitate has a test here or, where no process is needed, beside the code.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking, as tests do")]

mod adoption;
mod boot;
mod boundary;
mod commands;
mod harness;
mod hooks;
mod lease;
mod serving;
mod stopping;

//! What the processes of a node say of themselves: the log, the metrics and the traces.
//!
//! Telling never costs the work: a log line that cannot be written, a span that finds the queue full or the collector dead is
//! dropped and counted, and nothing waits for a reader. Nothing secret is told: spans and metrics carry names of operations,
//! routes, codes and ids, and their labels come from sets that are bounded.

pub mod log;
pub mod metrics;
pub mod trace;

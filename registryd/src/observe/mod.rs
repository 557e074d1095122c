//! Observations: what the processes of this node measure and trace, one Parquet file in the bucket for each flush.
//!
//! [`rows`] is what is recorded and [`file`](mod@file) how it is written; `buffer` holds it between two flushes, within bounds, and
//! `flush` writes it. [`read`] finds files again, in the same bounded way for a node and for the command line, and `pages` bounds what a
//! file may unfold to. `docs/observations.md` says what a file holds.

pub(crate) mod buffer;
pub mod file;
pub(crate) mod flush;
mod openmetrics;
mod pages;
pub mod read;
pub mod rows;
#[cfg(test)]
mod tests;

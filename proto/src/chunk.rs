//! Documents of any size as a stream of messages, since a message is bounded.

use bytes::{Bytes, BytesMut};
use scafo_core::problem::{Problem, ProblemCode};
use tonic::Status;

use crate::status::to_problem;

/// Bytes of document in one message: far below the 4 MiB that a gRPC message may have, large enough to cost nothing.
pub const CHUNK_BYTES: usize = 256 * 1024;
/// Longest document that is put together. A routing document of 100,000 hosts has about 20 MiB.
pub const MAX_DOCUMENT_BYTES: usize = 256 * 1024 * 1024;

/// Cuts a document into pieces without copying it; at least one piece, with a mark on the last.
pub fn split(document: Bytes) -> impl Iterator<Item = (Bytes, bool)> {
    let mut rest = Some(document);
    std::iter::from_fn(move || {
        let mut whole = rest.take()?;
        let piece = whole.split_to(whole.len().min(CHUNK_BYTES));
        let last = whole.is_empty();
        if !last {
            rest = Some(whole);
        }
        Some((piece, last))
    })
}

/// Puts a document together again.
#[derive(Debug, Default)]
pub struct Assembly(BytesMut);

impl Assembly {
    /// Adds a piece.
    ///
    /// # Errors
    /// `internal` when the document is longer than [`MAX_DOCUMENT_BYTES`].
    pub fn push(&mut self, piece: &[u8]) -> Result<(), Problem> {
        if self.0.len() + piece.len() > MAX_DOCUMENT_BYTES {
            return Err(Problem::new(ProblemCode::Internal, "a document between two parts of this node is too large"));
        }
        self.0.extend_from_slice(piece);
        Ok(())
    }

    /// The document; what is pushed afterwards is the next one.
    pub fn take(&mut self) -> Bytes {
        self.0.split().freeze()
    }
}

/// Reads a whole stream of [`crate::registry::Chunk`] as one document.
///
/// # Errors
/// What the stream failed with, or a document over the bound.
pub async fn collect(mut stream: tonic::Streaming<crate::registry::Chunk>) -> Result<Bytes, Problem> {
    let mut assembly = Assembly::default();
    while let Some(chunk) = stream.message().await.map_err(|status: Status| to_problem(&status))? {
        assembly.push(&chunk.data)?;
    }
    Ok(assembly.take())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_of_any_length_comes_together_again() {
        for length in [0, 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES] {
            let document = Bytes::from(vec![7; length]);
            let pieces: Vec<_> = split(document.clone()).collect();
            assert_eq!(pieces.iter().filter(|(_, last)| *last).count(), 1);
            assert!(pieces.last().unwrap().1);
            let mut assembly = Assembly::default();
            for (piece, _) in pieces {
                assembly.push(&piece).unwrap();
            }
            assert_eq!(assembly.take(), document);
        }
    }
}

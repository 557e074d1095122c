//! One document, compressed, in pieces that are kept from one state of the fleet to the next.
//!
//! The pieces are one gzip member (RFC 1952) together: each is compressed by itself and flushed to a byte boundary, so that
//! they can stand behind each other (RFC 1951 §3.2.4), and the checksum of the whole follows from theirs. One member and not
//! one for each piece, since some programs stop reading behind the first.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use flate2::{Compress, Compression, FlushCompress};
use scafo_proto::chunk::CHUNK_BYTES;
use sha2::{Digest as _, Sha256};

use crate::render::{Invalid, Part, View, What};
use crate::routes::{Block, Routing};

/// Hexadecimal digits of the digest in an entity tag: 128 bits tell any two documents apart.
const ETAG_DIGITS: usize = 32;
/// The head of a gzip member (RFC 1952 §2.3): deflate, no name, no time, the fastest level, no system in particular.
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 0xff];
/// An empty last block (RFC 1951 §3.2.6).
const LAST_BLOCK: [u8; 2] = [3, 0];

/// A document. It is JSON, and never kept as such: who reads it accepts gzip, nearly always.
#[derive(Debug)]
pub struct Document {
    /// Strong entity tag of the JSON (RFC 9110 §8.8.3), quotes included: equal bytes have equal tags on every node. It is made
    /// of the tags of the pieces, and those are cut alike everywhere.
    pub etag: String,
    /// Bytes of JSON.
    pub length: u64,
    crc: u32,
    pieces: Vec<(Origin, Arc<Piece>)>,
}

/// What a piece was written from; nothing that lasts for the head and the tail of a document.
type Origin = Option<(What, Arc<Block>)>;

#[derive(Debug)]
struct Piece {
    length: u64,
    crc: crc32fast::Hasher,
    digest: [u8; 32],
    deflated: Bytes,
}

impl Document {
    /// Writes what `view` shows of `routing`. Pieces of blocks that stood in `before`, which is an earlier document of the same
    /// view, are taken from there; the others are read back.
    ///
    /// # Errors
    /// When what was written is not read as what it has to say.
    pub fn write(view: &View<'_>, routing: &Routing, before: Option<&Self>) -> Result<Self, Invalid> {
        let mut kept: HashMap<(What, *const Block), &Arc<Piece>> = HashMap::new();
        for (origin, piece) in before.iter().flat_map(|before| &before.pieces) {
            if let Some((what, block)) = origin {
                kept.insert((*what, Arc::as_ptr(block)), piece);
            }
        }
        let (mut press, mut frame) = (Press::new(), Vec::new());
        let mut pieces: Vec<(Origin, Arc<Piece>)> = Vec::new();
        for part in view.parts(routing) {
            pieces.push(match part {
                Part::Text(text) => {
                    frame.extend_from_slice(&text);
                    (None, Arc::new(press.piece(|out| out.extend_from_slice(&text))))
                }
                Part::Of(what, block) => {
                    if what.first {
                        view.write_part(&mut frame, what, block);
                    }
                    // `before` still holds its blocks, so an equal address is the same block.
                    let piece = match kept.get(&(what, Arc::as_ptr(block))) {
                        Some(piece) => Arc::clone(piece),
                        None => {
                            let piece = press.piece(|out| view.write_part(out, what, block));
                            view.check_part(what, block, &press.text)?;
                            Arc::new(piece)
                        }
                    };
                    (Some((what, Arc::clone(block))), piece)
                }
            });
        }
        view.check_frame(routing, &frame)?;
        Ok(Self::of(pieces))
    }

    fn of(pieces: Vec<(Origin, Arc<Piece>)>) -> Self {
        let (mut tags, mut crc, mut length) = (Sha256::new(), crc32fast::Hasher::new(), 0);
        for (_, piece) in &pieces {
            tags.update(piece.digest);
            crc.combine(&piece.crc);
            length += piece.length;
        }
        let digest = hex::encode(tags.finalize());
        Self { etag: format!("\"{}\"", &digest[..ETAG_DIGITS]), length, crc: crc.finalize(), pieces }
    }

    /// The gzip form, in messages of some hundred kilobytes each; at least one.
    pub fn gzip(&self) -> Vec<Bytes> {
        let mut messages = Vec::new();
        let mut open = GZIP_HEAD.to_vec();
        for (_, piece) in &self.pieces {
            if open.len() + piece.deflated.len() > CHUNK_BYTES {
                messages.push(Bytes::from(std::mem::take(&mut open)));
            }
            open.extend_from_slice(&piece.deflated);
        }
        open.extend_from_slice(&LAST_BLOCK);
        open.extend_from_slice(&self.crc.to_le_bytes());
        // The length counts modulo 2^32.
        open.extend_from_slice(&self.length.to_le_bytes()[..4]);
        messages.push(Bytes::from(open));
        messages
    }

    /// Bytes that it takes in memory, near enough.
    pub fn held(&self) -> usize {
        self.pieces.iter().map(|(_, piece)| piece.deflated.len() + size_of::<Piece>()).sum()
    }
}

/// Writes and compresses one piece after the other.
struct Press {
    compress: Compress,
    text: Vec<u8>,
    deflated: Vec<u8>,
}

impl Press {
    fn new() -> Self {
        // The fastest level: JSON that repeats itself shrinks to a tenth with any.
        Self { compress: Compress::new(Compression::fast(), false), text: Vec::new(), deflated: Vec::new() }
    }

    fn piece(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Piece {
        self.text.clear();
        write(&mut self.text);
        self.deflate();
        let mut crc = crc32fast::Hasher::new();
        crc.update(&self.text);
        Piece {
            length: self.text.len() as u64,
            crc,
            digest: Sha256::digest(&self.text).into(),
            deflated: Bytes::copy_from_slice(&self.deflated),
        }
    }

    fn deflate(&mut self) {
        self.compress.reset();
        self.deflated.clear();
        // Text that does not shrink grows by less than this, so that one turn is enough, nearly always.
        self.deflated.reserve(self.text.len() + self.text.len() / 256 + 64);
        loop {
            let from = usize::try_from(self.compress.total_in()).unwrap_or(self.text.len());
            let rest = self.text.get(from..).unwrap_or_default();
            let pressed = self.compress.compress_vec(rest, &mut self.deflated, FlushCompress::Full);
            debug_assert!(pressed.is_ok(), "only a finished stream refuses more: {pressed:?}");
            // Flushed to the end once there is room left.
            if self.deflated.len() < self.deflated.capacity() {
                return;
            }
            self.deflated.reserve(self.text.len() / 2 + 64);
        }
    }
}

#[cfg(test)]
impl Document {
    pub(crate) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// How many pieces are the very same ones.
    pub(crate) fn shared_with(&self, other: &Self) -> usize {
        let theirs: Vec<_> = other.pieces.iter().map(|(_, piece)| Arc::as_ptr(piece)).collect();
        self.pieces.iter().filter(|(_, piece)| theirs.contains(&Arc::as_ptr(piece))).count()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn joined(texts: &[&[u8]]) -> Vec<u8> {
        let mut press = Press::new();
        let pieces = texts.iter().map(|text| (None, Arc::new(press.piece(|out| out.extend_from_slice(text)))));
        Document::of(pieces.collect()).gzip().concat()
    }

    #[test]
    fn pieces_of_any_kind_are_one_gzip_member_together() {
        let noise: Vec<u8> = (0..300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let repeated = b"0123456789".repeat(40_000);
        for texts in [
            vec![],
            vec![b"".as_slice()],
            vec![b"a", b"", b"b"],
            vec![&noise, &repeated, b"x", &noise[..70_000]],
            vec![&repeated; 5],
        ] {
            let compressed = joined(&texts);
            // This decoder stops behind the first member, and checks its checksum and length.
            let mut decoder = flate2::bufread::GzDecoder::new(compressed.as_slice());
            let mut text = Vec::new();
            decoder.read_to_end(&mut text).unwrap();
            assert!(text == texts.concat());
            assert!(decoder.into_inner().is_empty(), "nothing is left behind the member");
        }
    }

    #[test]
    fn equal_pieces_have_one_tag_and_others_another_one() {
        let tag = |texts: &[&str]| {
            let mut press = Press::new();
            let piece = |text: &&str| (None, Arc::new(press.piece(|out| out.extend_from_slice(text.as_bytes()))));
            Document::of(texts.iter().map(piece).collect()).etag
        };
        assert_eq!(tag(&["a", "b"]), tag(&["a", "b"]));
        assert_ne!(tag(&["a", "b"]), tag(&["b", "a"]));
        assert!(tag(&["a"]).len() == 34 && tag(&["a"]).starts_with('"'));
    }
}

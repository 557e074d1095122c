//! Gives a body out, or a range of it.

use std::{collections::VecDeque, fs::File, io, ops::Range, os::unix::fs::FileExt, sync::Arc};

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::task::spawn_blocking;

use super::files::{FileName, Pin};

/// Bytes that are read at once: what one answer holds in memory besides the connection's buffer.
const CHUNK: u64 = 256 * 1024;

/// The body of an object as it was when its row was read. What happens to the object afterwards does not change it.
pub struct Body {
    pub(super) content: Stored,
    pub(super) pin: Pin,
}

pub(super) enum Stored {
    Inline(Bytes),
    Files(Vec<Segment>),
}

/// One file of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) file: FileName,
    pub(super) size: u64,
}

/// What to read of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Slice {
    file: FileName,
    from: u64,
    to: u64,
}

/// The bytes of a range.
pub enum Reading {
    /// All of them.
    Whole(Bytes),
    /// Piece by piece.
    Stream(FileReader),
}

impl Body {
    /// Reads the bytes of `range`, which lies within the body.
    #[must_use]
    pub fn read(self, range: Range<u64>) -> Reading {
        match self.content {
            Stored::Inline(bytes) => Reading::Whole(bytes.slice(within(&bytes, &range))),
            Stored::Files(segments) => {
                Reading::Stream(FileReader { slices: plan(segments, &range), open: None, pin: self.pin })
            }
        }
    }
}

fn within(bytes: &Bytes, range: &Range<u64>) -> Range<usize> {
    let clamp = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(bytes.len());
    let start = clamp(range.start);
    start..clamp(range.end).max(start)
}

/// Which part of which file makes up the range.
fn plan(segments: Vec<Segment>, range: &Range<u64>) -> VecDeque<Slice> {
    let mut slices = VecDeque::new();
    let mut begin = 0;
    for Segment { file, size } in segments {
        let end = begin + size;
        let (from, to) = (range.start.max(begin), range.end.min(end));
        if from < to {
            slices.push_back(Slice { file, from: from - begin, to: to - begin });
        }
        begin = end;
    }
    slices
}

/// Reads body files piece by piece.
pub struct FileReader {
    slices: VecDeque<Slice>,
    open: Option<Arc<File>>,
    pin: Pin,
}

impl FileReader {
    /// The pieces, in order. An error means that the disk failed or the directory was changed from outside.
    pub fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send + Sync + 'static {
        stream::try_unfold(self, |mut reader| async move {
            let piece = reader.next().await?;
            Ok(piece.map(|piece| (piece, reader)))
        })
    }

    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        let Some(slice) = self.slices.front_mut() else { return Ok(None) };
        let (from, length) = (slice.from, CHUNK.min(slice.to - slice.from));
        slice.from += length;
        let done = slice.from == slice.to;
        let name = slice.file.clone();
        let files = Arc::clone(self.pin.files());
        let open = self.open.take();
        let read = spawn_blocking(move || {
            let file = match open {
                Some(file) => file,
                None => Arc::new(files.read(&name)?),
            };
            let mut piece = vec![0; usize::try_from(length).map_err(io::Error::other)?];
            file.read_exact_at(&mut piece, from)?;
            Ok::<_, io::Error>((file, Bytes::from(piece)))
        });
        let (file, piece) = read.await.map_err(io::Error::other)??;
        if done {
            self.slices.pop_front();
        } else {
            self.open = Some(file);
        }
        Ok(Some(piece))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(digit: char) -> FileName {
        FileName::parse(&digit.to_string().repeat(32)).unwrap()
    }

    #[test]
    fn range_touches_only_the_files_it_needs() {
        let segments = || {
            vec![
                Segment { file: name('a'), size: 10 },
                Segment { file: name('b'), size: 5 },
                Segment { file: name('c'), size: 10 },
            ]
        };
        let check = |range: Range<u64>, expected: &[(char, u64, u64)]| {
            let found = plan(segments(), &range);
            let expected: VecDeque<_> =
                expected.iter().map(|&(file, from, to)| Slice { file: name(file), from, to }).collect();
            assert_eq!(found, expected, "{range:?}");
        };
        check(0..25, &[('a', 0, 10), ('b', 0, 5), ('c', 0, 10)]);
        check(3..4, &[('a', 3, 4)]);
        check(9..16, &[('a', 9, 10), ('b', 0, 5), ('c', 0, 1)]);
        check(10..15, &[('b', 0, 5)]);
        check(5..5, &[]);
    }
}

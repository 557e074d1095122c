//! The pages of a file, on a budget: whoever may write to the bucket may write a small file that claims, or unfolds to, more than a
//! machine has.
//!
//! Charged is before anything is made: the unpacked length of a page when its header is read, its values when it is handed on, and
//! each text before it is copied.

use std::io::{Error, ErrorKind, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::reader::{ChunkReader, Length, SerializedPageReader};

/// What one file may still become. Clones are one budget.
#[derive(Debug, Clone)]
pub(super) struct Budget(Arc<Left>);

#[derive(Debug)]
struct Left {
    bytes: AtomicI64,
    values: AtomicI64,
}

impl Budget {
    /// So many bytes of unpacked pages and copied texts together, and so many values and places of values.
    pub(super) fn new(bytes: i64, values: i64) -> Self {
        Self(Arc::new(Left { bytes: bytes.into(), values: values.into() }))
    }

    /// Takes bytes out.
    ///
    /// # Errors
    /// When there are not as many, now and ever after.
    pub(super) fn bytes(&self, count: usize) -> Result<()> {
        take(&self.0.bytes, count)
    }

    fn values(&self, count: u32) -> Result<()> {
        take(&self.0.values, count as usize)
    }

    /// Whether more was asked for than there was.
    pub(super) fn is_spent(&self) -> bool {
        [&self.0.bytes, &self.0.values].iter().any(|left| left.load(Ordering::Relaxed) < 0)
    }
}

fn take(left: &AtomicI64, count: usize) -> Result<()> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let take = |left: i64| Some(left.saturating_sub(count));
    match left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
        Ok(before) if before >= count => Ok(()),
        _ => Err(ParquetError::General("it unfolds to more than is read".to_owned())),
    }
}

/// The file as the library reads pages of it.
pub(super) struct Source {
    bytes: Bytes,
    budget: Budget,
}

impl Source {
    pub(super) fn new(bytes: Bytes, budget: Budget) -> Arc<Self> {
        Arc::new(Self { bytes, budget })
    }

    /// The reader of one column.
    ///
    /// # Errors
    /// Those of the library.
    pub(super) fn column(
        self: &Arc<Self>,
        group: &RowGroupMetaData,
        index: usize,
        rows: usize,
    ) -> Result<ColumnReader> {
        let column = group.column(index);
        let pages = SerializedPageReader::new(Arc::clone(self), column, rows, None)?;
        let charged = Charged { pages, budget: self.budget.clone() };
        Ok(get_column_reader(column.column_descr_ptr(), Box::new(charged)))
    }
}

impl Length for Source {
    fn len(&self) -> u64 {
        self.bytes.len() as u64
    }
}

impl ChunkReader for Source {
    type T = Header;

    /// The library asks for it where the header of a page begins, or does not read of it.
    fn get_read(&self, start: u64) -> Result<Header> {
        let start = usize::try_from(start)?.min(self.bytes.len());
        Ok(Header { rest: self.bytes.slice(start..), budget: Some(self.budget.clone()) })
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        self.bytes.get_bytes(start, length)
    }
}

/// The header of a page, and what follows it. At the first byte that is read its claim is charged.
pub(super) struct Header {
    rest: Bytes,
    /// `None` once it was charged.
    budget: Option<Budget>,
}

impl Read for Header {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if let Some(budget) = self.budget.take() {
            let claim =
                unpacked(&self.rest).ok_or_else(|| Error::new(ErrorKind::InvalidData, "a page has no length"))?;
            budget.bytes(claim).map_err(Error::other)?;
        }
        let length = into.len().min(self.rest.len());
        into[..length].copy_from_slice(&self.rest.split_to(length));
        Ok(length)
    }
}

/// The unpacked length that the header of a page claims: its second field, behind the type of the page. Both are `i32` in Thrift's
/// compact protocol, in which a field that follows the one before is written as one byte.
fn unpacked(header: &[u8]) -> Option<usize> {
    const NEXT_I32: u8 = 0x15;
    let (_, rest) = varint(header.strip_prefix(&[NEXT_I32])?)?;
    let (length, _) = varint(rest.strip_prefix(&[NEXT_I32])?)?;
    // Signed numbers are folded so that the sign is the last bit.
    (length & 1 == 0).then_some(length as usize >> 1)
}

fn varint(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let length = bytes.iter().take(5).position(|byte| byte & 0x80 == 0)? + 1;
    let (digits, rest) = bytes.split_at(length);
    let number = digits.iter().rev().fold(0_u64, |number, byte| number << 7 | u64::from(byte & 0x7f));
    Some((u32::try_from(number).ok()?, rest))
}

/// The pages of one column.
struct Charged {
    pages: SerializedPageReader<Source>,
    budget: Budget,
}

impl Iterator for Charged {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Charged {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            // Others may unfold one text to many. None of them is written here.
            match page.encoding() {
                Encoding::PLAIN | Encoding::RLE | Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY => {}
                other => return Err(ParquetError::NYI(format!("a page is encoded as {other}"))),
            }
            self.budget.values(page.num_values())?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_claims_more_than_is_left_is_refused_before_it_is_unpacked() {
        for (header, read, spent) in [
            // 1 MiB, then as many bytes as there are at most.
            (&[0x15, 0x00, 0x15, 0x80, 0x80, 0x80, 0x01, 0x15][..], true, false),
            (&[0x15, 0x00, 0x15, 0xfe, 0xff, 0xff, 0xff, 0x0f], false, true),
            // Less than nothing, and no header at all.
            (&[0x15, 0x00, 0x15, 0x01], false, false),
            (&[0x15, 0x00, 0x15, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff], false, false),
            (&[0x15, 0x00, 0x16, 0x00], false, false),
            (&[], false, false),
        ] {
            let budget = Budget::new(2 << 20, 1);
            let source = Source::new(Bytes::copy_from_slice(header), budget.clone());
            let first = source.get_read(0).unwrap().read(&mut [0; 8]);
            assert_eq!((first.is_ok(), budget.is_spent()), (read, spent), "{header:x?}");
        }
        let left = Budget::new(2 << 20, 1);
        assert!(left.bytes(2 << 20).is_ok() && left.bytes(1).is_err());
    }
}

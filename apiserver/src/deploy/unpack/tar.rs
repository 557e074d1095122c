//! Tar archives: ustar, GNU and pax.
//!
//! Entries are read raw and the extensions put together here, because the reader would hold a long name of any length in
//! memory.

use std::io::Read;

use ::tar::{Archive, Entry, EntryType, PaxExtensions};
use scafo_core::problem::Problem;

use super::tree::{Tree, refused};
use super::{malformed, unreadable};

/// Longest extension that is read: a path and some attributes.
const EXTENSION_MAX: u64 = 64 * 1024;

/// What extensions say of the entry that follows them.
#[derive(Default)]
struct Extensions {
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<u64>,
    sparse: bool,
}

pub(super) fn unpack(reader: impl Read, tree: &mut Tree) -> Result<(), Problem> {
    let mut archive = Archive::new(reader);
    let mut extensions = Extensions::default();
    for entry in archive.entries().map_err(unreadable)?.raw(true) {
        let mut entry = entry.map_err(unreadable)?;
        tree.header()?;
        match entry.header().entry_type() {
            EntryType::XGlobalHeader => {}
            EntryType::XHeader => extensions.read_pax(&extension(&mut entry)?)?,
            EntryType::GNULongName => extensions.name = Some(terminated(extension(&mut entry)?)),
            EntryType::GNULongLink => extensions.target = Some(terminated(extension(&mut entry)?)),
            kind => place(&mut entry, kind, std::mem::take(&mut extensions), tree)?,
        }
    }
    Ok(())
}

fn place<R: Read>(
    entry: &mut Entry<'_, R>,
    kind: EntryType,
    known: Extensions,
    tree: &mut Tree,
) -> Result<(), Problem> {
    let name = known.name.unwrap_or_else(|| entry.path_bytes().into_owned());
    if known.sparse || kind == EntryType::GNUSparse {
        return Err(refused(&name, "a sparse file"));
    }
    if known.size.is_some_and(|size| size != entry.size()) {
        return Err(malformed("the archive says two sizes of one entry"));
    }
    match kind {
        // Archives from before ustar mark a directory by its name only.
        EntryType::Regular if name.ends_with(b"/") && entry.size() == 0 => tree.directory(&name),
        EntryType::Regular | EntryType::Continuous => {
            let executable = entry.header().mode().unwrap_or(0) & 0o111 != 0;
            let size = entry.size();
            let mut counted = Counted { inner: entry, bytes: 0 };
            tree.file(&name, executable, &mut counted)?;
            if counted.bytes == size { Ok(()) } else { Err(malformed("the archive ends in the middle of a file")) }
        }
        EntryType::Directory => tree.directory(&name),
        EntryType::Symlink => {
            let target = known.target.or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned));
            tree.link(&name, &target.unwrap_or_default())
        }
        EntryType::Link => Err(refused(&name, "a hard link")),
        EntryType::Char | EntryType::Block => Err(refused(&name, "a device")),
        EntryType::Fifo => Err(refused(&name, "a FIFO")),
        _ => Err(refused(&name, "of a kind that is not known")),
    }
}

/// Counts, since the end of the archive looks like the end of an entry.
struct Counted<R> {
    inner: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buf)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

fn extension<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>, Problem> {
    if entry.size() > EXTENSION_MAX {
        return Err(malformed("an entry of the archive has a name or attributes that are too long"));
    }
    let mut bytes = Vec::new();
    entry.take(EXTENSION_MAX).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

fn terminated(mut bytes: Vec<u8>) -> Vec<u8> {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    bytes.truncate(end);
    bytes
}

impl Extensions {
    fn read_pax(&mut self, bytes: &[u8]) -> Result<(), Problem> {
        for extension in PaxExtensions::new(bytes) {
            let extension = extension.map_err(unreadable)?;
            let value = extension.value_bytes();
            match extension.key_bytes() {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.target = Some(value.to_vec()),
                b"size" => {
                    let size = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
                    self.size = Some(size.ok_or_else(|| malformed("the archive says a size that is no number"))?);
                }
                key if key.starts_with(b"GNU.sparse") => self.sparse = true,
                _ => {}
            }
        }
        Ok(())
    }
}

//! Zip archives, read by their central directory one entry at a time.

use std::fs::File;
use std::io::{BufReader, Read as _};
use std::path::Path;

use ::zip::ZipReadOptions;
use ::zip::read::Config;
use ::zip::result::ZipError;
use ::zip::unstable::read::ZipIterable;
use scafo_core::problem::Problem;

use super::tree::{TARGET_MAX, Tree, refused};
use super::{Limits, disk, malformed, too_many_entries, unreadable};

const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;

pub(super) fn unpack(artifact: &Path, limits: Limits, tree: &mut Tree) -> Result<(), Problem> {
    let open = || File::open(artifact).map(BufReader::new).map_err(disk);
    let mut archive =
        ZipIterable::try_new(open()?, Config::default()).map_err(damaged)?.enforce_header_consistency(true);
    if archive.len() as u64 > limits.entries {
        return Err(too_many_entries(limits));
    }
    let mut entries = archive.files_with_reader(open()?, ZipReadOptions::new()).map_err(damaged)?;
    while let Some(entry) = entries.next() {
        let mut entry = entry.map_err(damaged)?;
        let name = entry.name_raw().to_vec();
        let mode = entry.unix_mode().unwrap_or(0);
        match mode & TYPE {
            DIRECTORY => tree.directory(&name)?,
            0 | REGULAR if name.ends_with(b"/") => tree.directory(&name)?,
            0 | REGULAR => tree.file(&name, mode & 0o111 != 0, &mut entry)?,
            SYMLINK => {
                let mut target = Vec::new();
                entry.by_ref().take(TARGET_MAX as u64 + 1).read_to_end(&mut target).map_err(unreadable)?;
                tree.link(&name, &target)?;
            }
            _ => return Err(refused(&name, "a device, a FIFO or a socket")),
        }
    }
    Ok(())
}

fn damaged(error: ZipError) -> Problem {
    match error {
        ZipError::Io(error) => unreadable(error),
        other => malformed(format!("the archive cannot be read: {other}")),
    }
}

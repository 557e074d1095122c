//! What a node keeps for its next run.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::in_force::Kept;
use crate::daemon::Fatal;
use crate::files;

/// Where that is.
#[derive(Debug)]
pub(crate) enum Disk {
    /// In this file.
    File(PathBuf),
    /// With a simulation, which outlives the node.
    Memory(Arc<Mutex<Option<Kept>>>),
}

impl Disk {
    /// Returns once it would survive a crash.
    ///
    /// # Errors
    /// When the file system fails; the last one stays then.
    pub(crate) async fn keep(&self, kept: &Kept) -> Result<(), Fatal> {
        match self {
            Self::File(path) => files::write(path, kept).await.map_err(|error| Fatal::disk(path, &error)),
            Self::Memory(memory) => {
                *memory.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept.clone());
                Ok(())
            }
        }
    }
}

//! The disk of the node's state: small and its own where this user may mount one, so that it can be filled.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Enough for twenty applications; what is free of it is what filling it writes.
const SIZE: &str = "size=1g,mode=0711";

/// The state directory, on a disk of its own. What the node prints goes beside it, where there is always space.
pub(crate) struct Disk {
    state: PathBuf,
    own: bool,
    _dir: TempDir,
}

impl Disk {
    pub(crate) fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let state = dir.path().join("state");
        std::fs::create_dir(&state).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", SIZE, "scafo-chaos"]).arg(&state).output();
        let own = mounted.is_ok_and(|output| output.status.success());
        if !own {
            eprintln!("SKIPPED: a full disk, because this user cannot mount one");
        }
        Self { state, own, _dir: dir }
    }

    pub(crate) fn state(&self) -> &Path {
        &self.state
    }

    pub(crate) const fn can_be_filled(&self) -> bool {
        self.own
    }

    fn ballast(&self) -> PathBuf {
        self.state.join("ballast")
    }

    /// Fills it to the last byte.
    pub(crate) fn fill(&self) {
        let mut file = File::create(self.ballast()).unwrap();
        let mut piece = vec![1; 1 << 20];
        while !piece.is_empty() {
            if file.write_all(&piece).is_err() {
                piece.truncate(piece.len() / 2);
            }
        }
    }

    pub(crate) fn empty(&self) {
        std::fs::remove_file(self.ballast()).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.own {
            // Lazily: whatever failed, the mount goes.
            let _ = Command::new("umount").arg("-l").arg(&self.state).status();
        }
    }
}

//! The last good document of each fleet, on disk, so that an ingress that was started again routes at once, also while its node
//! starts or the bucket is away.
//!
//! What is kept true:
//!
//! - A file is taken only by the fleet that it was written for, within the same boot of the machine, and is routed by for [`FOR`] after
//!   a node last confirmed it, however late in that time the ingress began. The time of day has no part in that. It is read as strictly
//!   as what comes from a node.
//! - Nothing depends on a file: whatever is wrong with one, the ingress goes on as without it.
//!
//! A boot is the limit because no process that a document of this machine names outlives it, and because files need not be forced
//! to the disk then: a crash of the machine, the only thing that could tear one, ends its use.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{fs::OFlags, process::geteuid};
use scafo_proto::boot::Boot;
use sha2::{Digest as _, Sha256};

use crate::document::{LARGEST_DOCUMENT, Refused, Table};

/// How long a document is good for after a node last confirmed it. The node reserves a pair of ports of its book for their application
/// for a day after their last use, so that within an hour they lead to nobody else. A host may change hands sooner: a custom domain
/// that did while ingress and node were away leads to its former holder, for this time at most.
pub(crate) const FOR: Duration = Duration::from_secs(3600);

/// Of a SHA-256 as text.
const DIGEST_LEN: usize = 64;
/// Milliseconds, as many digits as any `u64` takes: they are written anew in place.
const TIME_LEN: usize = 20;
const MAGIC: &str = "scafo-routes 1";
const TIME_AT: usize = MAGIC.len() + 1 + DIGEST_LEN + 1 + Boot::LEN + 1;
/// The first line, its end included: what it is, of which fleet, in which boot, and when it was last confirmed.
const HEAD_LEN: usize = TIME_AT + TIME_LEN + 1;
const SUFFIX: &str = "routes";

/// Why a file is not routed by.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("it cannot be read")]
    Unreadable(#[from] io::Error),
    #[error("it is damaged, or was written by another version")]
    Damaged,
    #[error("it is of another fleet")]
    OtherFleet,
    #[error("it is from before the machine was started")]
    OtherBoot,
    #[error("no node confirmed it for {} s", .0.as_secs())]
    Old(Duration),
    #[error("its document is refused as a whole")]
    Refused(#[from] Refused),
}

/// The directory with the documents: one file for each fleet, at most [`LARGEST_DOCUMENT`] and its first line, for a moment twice.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    dir: PathBuf,
    boot: Boot,
}

impl Kept {
    /// Makes the directory where it is missing, for this user alone. One that is there already has to be this user's, and nobody else's
    /// to write to: who can put a file there says where requests go.
    ///
    /// # Errors
    /// When it cannot be made, or is somebody else's as well.
    pub(crate) fn open(dir: &Path, boot: Boot) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let metadata = fs::metadata(dir)?;
        if !is_private(metadata.uid(), metadata.mode(), geteuid().as_raw()) {
            let text = "it belongs to another user, or others may write to it: give it to the user of the ingress, with mode 0700";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Self { dir: dir.to_owned(), boot })
    }

    /// The table to begin with, and how long ago it was confirmed; `None` where nothing was kept of this fleet.
    ///
    /// # Errors
    /// [`Unusable`]; the file then stays as it is.
    pub(crate) fn read(&self, fleet: &str, now: Duration) -> Result<Option<(Table, Duration)>, Unusable> {
        let file = match itself().read(true).open(self.path(fleet)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut bytes = Vec::new();
        file.take((HEAD_LEN + LARGEST_DOCUMENT) as u64 + 1).read_to_end(&mut bytes)?;
        let (head, document) = bytes.split_at_checked(HEAD_LEN).ok_or(Unusable::Damaged)?;
        let head = Head::parse(head).ok_or(Unusable::Damaged)?;
        if head.fleet != digest(fleet) {
            return Err(Unusable::OtherFleet);
        }
        let age = head.age(&self.boot, now)?;
        if document.len() > LARGEST_DOCUMENT {
            return Err(Unusable::Damaged);
        }
        Ok(Some((Table::parse(document)?.into_kept(head.confirmed + FOR), age)))
    }

    /// Replaces what is kept of this fleet, whole or not at all.
    ///
    /// # Errors
    /// When it cannot be written. What was there before is removed, for it is known to be replaced; the error says if it stays.
    pub(crate) fn write(&self, fleet: &str, document: &[u8], confirmed: Duration) -> io::Result<()> {
        let path = self.path(fleet);
        let beside = path.with_extension("new");
        let written = (|| {
            // One that a killed process left may have another mode.
            remove(&beside)?;
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&beside)?;
            file.write_all(self.head(fleet, confirmed).as_bytes())?;
            file.write_all(document)?;
            fs::rename(&beside, &path)
        })();
        if written.is_err() {
            // It takes space that is wanted elsewhere; the next write tries again.
            drop(fs::remove_file(&beside));
        }
        written.map_err(|error| match self.forget(fleet) {
            Ok(()) => error,
            Err(stays) => io::Error::new(
                error.kind(),
                format!(
                    "{error}; what was kept before cannot be removed either, and is routed by after a restart: {stays}"
                ),
            ),
        })
    }

    /// Removes what is kept of this fleet, so that no ingress begins with what this one knows to be replaced.
    ///
    /// # Errors
    /// When it is there and stays.
    pub(crate) fn forget(&self, fleet: &str) -> io::Result<()> {
        remove(&self.path(fleet))
    }

    /// Notes that a node said again that this is its document. Takes no space.
    ///
    /// # Errors
    /// When the file is gone or cannot be written.
    pub(crate) fn confirm(&self, fleet: &str, confirmed: Duration) -> io::Result<()> {
        let file = itself().write(true).open(self.path(fleet))?;
        file.write_all_at(time(confirmed).as_bytes(), TIME_AT as u64)
    }

    /// Removes what no ingress starts with any more, so that a directory does not grow with each change of configuration. Another
    /// ingress may keep its own documents beside ours.
    pub(crate) fn sweep(&self, now: Duration) {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).filter(|path| path.extension().is_some_and(|end| end == SUFFIX)) {
            let mut head = [0; HEAD_LEN];
            let read = itself().read(true).open(&path).and_then(|mut file| file.read_exact(&mut head));
            let useless = read.is_ok() && Head::parse(&head).is_some_and(|head| head.age(&self.boot, now).is_err());
            if useless && let Err(error) = remove(&path) {
                tracing::warn!(path = %path.display(), %error, "an old routing document cannot be removed");
            }
        }
    }

    fn path(&self, fleet: &str) -> PathBuf {
        self.dir.join(digest(fleet)).with_extension(SUFFIX)
    }

    fn head(&self, fleet: &str, confirmed: Duration) -> String {
        format!("{MAGIC} {} {} {}\n", digest(fleet), self.boot.as_str(), time(confirmed))
    }
}

/// A file's first line.
struct Head<'a> {
    fleet: &'a str,
    boot: &'a str,
    confirmed: Duration,
}

impl<'a> Head<'a> {
    fn parse(line: &'a [u8]) -> Option<Self> {
        let rest = std::str::from_utf8(line).ok()?.strip_prefix(MAGIC)?.strip_prefix(' ')?.strip_suffix('\n')?;
        let (fleet, rest) = rest.split_once(' ')?;
        let (boot, time) = rest.split_once(' ')?;
        let whole = fleet.len() == DIGEST_LEN && boot.len() == Boot::LEN && time.len() == TIME_LEN;
        let digits = time.bytes().all(|byte| byte.is_ascii_digit());
        (whole && digits).then_some(())?;
        Some(Self { fleet, boot, confirmed: Duration::from_millis(time.parse().ok()?) })
    }

    /// How long ago it was confirmed, if it may still be routed by.
    fn age(&self, boot: &Boot, now: Duration) -> Result<Duration, Unusable> {
        if self.boot != boot.as_str() {
            return Err(Unusable::OtherBoot);
        }
        // Nothing was confirmed later than now. Milliseconds were cut off when it was written.
        let age = now.checked_sub(self.confirmed).ok_or(Unusable::Damaged)?;
        if age > FOR { Err(Unusable::Old(age)) } else { Ok(age) }
    }
}

/// Whether only user `own` may change what is in a directory of `owner` with that mode.
fn is_private(owner: u32, mode: u32, own: u32) -> bool {
    owner == own && mode & 0o022 == 0
}

/// Opens a file and never what a link leads to.
fn itself() -> OpenOptions {
    let mut options = File::options();
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

fn digest(fleet: &str) -> String {
    hex::encode(Sha256::digest(fleet.as_bytes()))
}

fn time(at: Duration) -> String {
    format!("{:0TIME_LEN$}", at.as_millis())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const DOCUMENT: &str =
        r#"{"v":1,"routes":[{"host":"a.x","application":"a","upstreams":[{"node":"n","address":"10.0.0.1:80"}]}]}"#;
    const NOW: Duration = Duration::from_secs(100_000);

    fn boot(digit: char) -> Boot {
        Boot::named(&digit.to_string().repeat(Boot::LEN)).unwrap()
    }

    fn kept() -> (tempfile::TempDir, Kept) {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept::open(&dir.path().join("kept"), boot('a')).unwrap();
        (dir, kept)
    }

    fn hosts(kept: &Kept, fleet: &str, now: Duration) -> Result<Option<usize>, Unusable> {
        Ok(kept.read(fleet, now)?.map(|(table, _)| table.len()))
    }

    #[test]
    fn what_was_written_comes_back_for_an_hour_after_it_was_last_confirmed() {
        let (_dir, kept) = kept();
        assert!(matches!(hosts(&kept, "fleet", NOW), Ok(None)));
        kept.write("fleet", DOCUMENT.as_bytes(), NOW).unwrap();
        assert!(matches!(hosts(&kept, "fleet", NOW + FOR), Ok(Some(1))));
        let later = NOW + FOR + Duration::from_millis(1);
        assert!(matches!(hosts(&kept, "fleet", later), Err(Unusable::Old(_))));
        kept.confirm("fleet", later).unwrap();
        assert!(matches!(hosts(&kept, "fleet", later + FOR), Ok(Some(1))));
        assert!(matches!(hosts(&kept, "fleet", NOW), Err(Unusable::Damaged)), "confirmed after now");
    }

    #[test]
    fn another_fleet_and_another_boot_begin_with_nothing() {
        let (dir, kept) = kept();
        kept.write("fleet", DOCUMENT.as_bytes(), NOW).unwrap();
        assert!(matches!(hosts(&kept, "other", NOW), Ok(None)));
        fs::copy(kept.path("fleet"), kept.path("other")).unwrap();
        assert!(matches!(hosts(&kept, "other", NOW), Err(Unusable::OtherFleet)));
        let next = Kept::open(&dir.path().join("kept"), boot('b')).unwrap();
        assert!(matches!(hosts(&next, "fleet", NOW), Err(Unusable::OtherBoot)));
    }

    #[test]
    fn a_file_that_is_damaged_anywhere_is_refused() {
        let (_dir, kept) = kept();
        kept.write("fleet", DOCUMENT.as_bytes(), NOW).unwrap();
        let whole = fs::read(kept.path("fleet")).unwrap();
        for end in 0..whole.len() {
            fs::write(kept.path("fleet"), &whole[..end]).unwrap();
            assert!(hosts(&kept, "fleet", NOW).is_err(), "{end}");
        }
        for at in 0..HEAD_LEN {
            let mut bytes = whole.clone();
            bytes[at] = b'?';
            fs::write(kept.path("fleet"), bytes).unwrap();
            assert!(hosts(&kept, "fleet", NOW).is_err(), "{at}");
        }
        kept.write("fleet", DOCUMENT.replace("\"v\":1", "\"v\":2").as_bytes(), NOW).unwrap();
        assert!(matches!(hosts(&kept, "fleet", NOW), Err(Unusable::Refused(_))));
    }

    #[test]
    fn a_write_that_fails_leaves_nothing_of_what_was_kept_before() {
        let (_dir, kept) = kept();
        kept.write("fleet", DOCUMENT.as_bytes(), NOW).unwrap();
        // A directory in the way of the new file.
        fs::create_dir(kept.path("fleet").with_extension("new")).unwrap();
        assert!(kept.write("fleet", b"{}", NOW).is_err());
        assert!(matches!(hosts(&kept, "fleet", NOW), Ok(None)));
    }

    #[test]
    fn only_its_user_reads_what_is_kept() {
        let (_dir, kept) = kept();
        kept.write("fleet", DOCUMENT.as_bytes(), NOW).unwrap();
        for (path, mode) in [(kept.dir.clone(), 0o700), (kept.path("fleet"), 0o600)] {
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, mode, "{}", path.display());
        }
    }

    #[test]
    fn a_directory_that_others_may_write_to_or_own_is_refused() {
        for (owner, mode, private) in
            [(1, 0o40700, true), (1, 0o40755, true), (1, 0o40720, false), (1, 0o41702, false), (0, 0o40700, false)]
        {
            assert_eq!(is_private(owner, mode, 1), private, "{owner} {mode:o}");
        }
        let (_dir, kept) = kept();
        for mode in [0o770, 0o1777] {
            fs::set_permissions(&kept.dir, fs::Permissions::from_mode(mode)).unwrap();
            let refused = Kept::open(&kept.dir, boot('a')).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{mode:o}");
        }
    }

    #[test]
    fn a_link_is_no_kept_document() {
        let (dir, kept) = kept();
        kept.write("fleet", DOCUMENT.as_bytes(), NOW).unwrap();
        let elsewhere = dir.path().join("elsewhere");
        fs::rename(kept.path("fleet"), &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, kept.path("fleet")).unwrap();
        assert!(matches!(hosts(&kept, "fleet", NOW), Err(Unusable::Unreadable(_))));
        assert!(kept.confirm("fleet", NOW).is_err());
    }

    #[test]
    fn what_nobody_starts_with_any_more_goes_and_the_rest_stays() {
        let (dir, kept) = kept();
        Kept::open(&dir.path().join("kept"), boot('b')).unwrap().write("before", DOCUMENT.as_bytes(), NOW).unwrap();
        kept.write("old", DOCUMENT.as_bytes(), NOW - FOR - Duration::from_secs(1)).unwrap();
        kept.write("other", DOCUMENT.as_bytes(), NOW).unwrap();
        fs::write(kept.dir.join("notes.routes"), "somebody's").unwrap();
        kept.sweep(NOW);
        let left = |fleet: &str| kept.path(fleet).exists();
        assert_eq!(["before", "old", "other"].map(left), [false, false, true]);
        assert!(kept.dir.join("notes.routes").exists());
    }
}

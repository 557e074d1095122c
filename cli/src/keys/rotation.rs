//! One key in the place of another, in the file where the old one was.
//!
//! The new key waits in a file beside (`<file>.next`) until the fleet is known to accept it, then takes the old one's name at
//! once, its id in it. So at every moment the file holds a key that works, and a rotation that stopped anywhere finds the same new
//! key again. The name stays, because variables, contexts and mounts point at it.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};

use ed25519_dalek::SigningKey;
use scafo_core::OperatorId;

use super::{ID_BYTES, Signer, Whose, id_of, label_path};
use crate::error::{Failure, Outcome};
use crate::files;

/// Longest operator id, and what a hyphen and the digits of a key take of it.
const ID_MAX: usize = 63;
const SUFFIX: usize = 1 + 2 * ID_BYTES;

/// A key file whose key is being replaced, for this command alone.
pub(crate) struct Rotation {
    path: PathBuf,
    current: Signer,
    _lock: File,
}

/// The key that comes after.
pub(crate) struct Next {
    /// The key.
    pub(crate) signer: Signer,
    /// Whether an earlier command made it, which the fleet may know already.
    pub(crate) found: bool,
}

impl Rotation {
    /// Reads the key once nobody else is replacing it.
    ///
    /// # Errors
    /// When another command is, or the key cannot be read.
    pub(crate) fn begin(path: &Path, whose: &Whose) -> Outcome<Self> {
        // A link stays a link: what it leads to is replaced.
        let path = path
            .canonicalize()
            .map_err(|error| Failure::because(format!("cannot read the key {}", path.display()), &error))?;
        let lock = files::lock(path.parent().unwrap_or(Path::new("/")))?;
        let current = Signer::read(&path, whose)?;
        Ok(Self { path, current, _lock: lock })
    }

    /// The key that is in the file.
    pub(crate) const fn current(&self) -> &Signer {
        &self.current
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The key that comes after: the one that waits, or a new one. It is on disk before anybody hears of it.
    ///
    /// # Errors
    /// When it cannot be read or written.
    pub(crate) fn next(&self) -> Outcome<Next> {
        let waiting = self.waiting();
        if waiting.exists() {
            return Ok(Next { signer: Signer::read(&waiting, &Whose::Unsaid)?, found: true });
        }
        let made = Signer::generate("op");
        let id = successor(self.current.id(), &made.key);
        let signer = made.called(id);
        signer.write_with_id(&waiting)?;
        Ok(Next { signer, found: false })
    }

    /// Forgets the key that comes after. Only for one that the fleet does not know.
    pub(crate) fn discard(&self) {
        // What stays behind is found again by the next rotation, and is as good then.
        let _ = std::fs::remove_file(self.waiting());
    }

    /// Puts the new key into the file.
    ///
    /// # Errors
    /// When that fails; then the file holds the old one.
    pub(crate) fn switch(&self, next: &Signer) -> Outcome {
        files::supplant(&self.waiting(), &self.path)?;
        // The id in the file is what counts; what stands beside it is for scripts that read it there.
        if label_path(&self.path).exists() { next.write_label(&self.path) } else { Ok(()) }
    }

    /// Not a name that a listing of keys takes for a key.
    fn waiting(&self) -> PathBuf {
        let mut name: OsString = self.path.clone().into_os_string();
        name.push(".next");
        name.into()
    }
}

/// The id of the key after `old`'s: what was before the digits, with the digits of the new key.
fn successor(old: &OperatorId, key: &SigningKey) -> OperatorId {
    let old = old.as_str();
    let is_digits = |text: &str| text.len() == 2 * ID_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let stem = old.rsplit_once('-').filter(|(stem, digits)| !stem.is_empty() && is_digits(digits));
    let stem = stem.map_or(old, |(stem, _)| stem);
    // Ids are ASCII, so any byte is a place to cut.
    let stem = &stem[..stem.len().min(ID_MAX - SUFFIX)];
    id_of(key, stem.trim_end_matches('-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::list;

    fn rotation(dir: &Path) -> Rotation {
        Rotation::begin(&dir.join("ops.pem"), &Whose::Unsaid).unwrap()
    }

    #[test]
    fn a_rotation_that_stopped_finds_the_same_new_key_again() {
        let dir = tempfile::tempdir().unwrap();
        let first = Signer::generate("op").called("ops".parse().unwrap());
        first.write(&dir.path().join("ops.pem")).unwrap();
        let made = rotation(dir.path()).next().unwrap();
        assert!(!made.found && made.signer.id().as_str().starts_with("ops-"));
        assert_eq!(list(dir.path()).len(), 1, "the key that waits is no key yet");

        let again = rotation(dir.path());
        assert_eq!((again.current().id(), again.current().public_key()), (first.id(), first.public_key()));
        let found = again.next().unwrap();
        assert!(found.found);
        assert_eq!(found.signer.id(), made.signer.id());
        again.switch(&found.signer).unwrap();
        drop(again);

        let after = rotation(dir.path());
        assert_eq!(
            (after.current().id(), after.current().public_key()),
            (found.signer.id(), found.signer.public_key())
        );
        let next = after.next().unwrap().signer;
        assert_ne!(next.id(), found.signer.id());
        assert_eq!(next.id().as_str().len(), "ops-".len() + 8, "digits are replaced and not added");
    }

    #[test]
    fn what_stands_beside_the_key_follows() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("operator.key");
        let old = crate::keys::development(&path).unwrap();
        let rotation = Rotation::begin(&path, &Whose::Unsaid).unwrap();
        let next = rotation.next().unwrap().signer;
        rotation.switch(&next).unwrap();
        let now = crate::keys::development(&path).unwrap();
        assert_eq!((now.id(), now.public_key()), (next.id(), next.public_key()));
        assert_ne!(now.id(), old.id());
        assert!(std::fs::read_to_string(label_path(&path)).unwrap().contains(next.id().as_str()));
    }

    #[test]
    fn two_commands_do_not_replace_one_key_at_once() {
        let dir = tempfile::tempdir().unwrap();
        Signer::generate("op").write_with_id(&dir.path().join("ops.pem")).unwrap();
        let _first = rotation(dir.path());
        assert!(Rotation::begin(&dir.path().join("ops.pem"), &Whose::Unsaid).is_err());
    }

    #[test]
    fn a_long_id_leaves_room_for_the_digits() {
        let key = SigningKey::from_bytes(&[7; 32]);
        for old in ["a", &"a".repeat(63), &format!("{}-b", "a".repeat(53)), "a-deadbeef", "deadbeef"] {
            let id = successor(&old.parse().unwrap(), &key);
            assert!(id.as_str().len() <= ID_MAX && id.as_str() != old, "{id}");
        }
    }
}

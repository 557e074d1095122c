//! Operator keys on disk, and the tokens that they sign.
//!
//! A key is a PKCS#8 PEM file (RFC 5958, RFC 8410) of mode 0600. A file that others may read is refused: it counts as lost.
//! A file is written whole or not at all, and never over another one.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey as _, EncodePrivateKey as _, KeypairBytes};
use scafo_core::OperatorId;
use scafo_core::time::Timestamp;
use scafo_core::token::{self, PublicKey};
use serde::{Deserialize, Serialize};

use crate::env;
use crate::error::{Failure, Outcome};

/// Longest key file that is read. One Ed25519 key in PEM has about 120 bytes.
const MAX_KEY_BYTES: u64 = 64 * 1024;
/// Bytes of the public key that stand in an id made from it: enough that the few operators of a fleet do not meet.
const ID_BYTES: usize = 4;

/// An operator's key and its id: what a token is signed with.
pub(crate) struct Signer {
    key: SigningKey,
    id: OperatorId,
}

/// What stands beside a key file, `<stem>.json`: whose key it is.
#[derive(Debug, Serialize, Deserialize)]
struct Label {
    id: OperatorId,
}

impl Signer {
    /// A new key with an id made from it.
    pub(crate) fn generate(prefix: &str) -> Self {
        let key = SigningKey::from_bytes(&rand::random());
        let id = id_of(&key, prefix);
        Self { key, id }
    }

    /// The same key under an id that was chosen.
    pub(crate) fn called(self, id: OperatorId) -> Self {
        Self { key: self.key, id }
    }

    /// Reads a key, and its id unless that is given: from `<stem>.json` beside it, else from the name `<id>.pem`.
    ///
    /// # Errors
    /// When the file cannot be read, may be read by others, or holds no Ed25519 key, or no id is found.
    pub(crate) fn read(path: &Path, id: Option<OperatorId>) -> Outcome<Self> {
        let key = read_key(path)?;
        match id.or_else(|| label_beside(path)).or_else(|| id_in_name(path)) {
            Some(id) => Ok(Self { key, id }),
            None => Err(Failure::usage(format!("whose key {} is, is not known", path.display()))
                .hint("give its id with --operator ID")),
        }
    }

    /// Writes the key to a file that is not there yet.
    ///
    /// # Errors
    /// When the file is there or cannot be written.
    pub(crate) fn write(&self, path: &Path) -> Outcome {
        // Without the public half (version 1 of the format): older OpenSSL does not read the other form.
        let bytes = KeypairBytes { secret_key: self.key.to_bytes(), public_key: None };
        let pem = bytes
            .to_pkcs8_pem(LineEnding::LF)
            .map_err(|_| Failure::new("the new key cannot be encoded; this is a defect of scafo"))?;
        write_new(path, pem.as_bytes())
    }

    /// Writes whose key it is beside it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn write_label(&self, path: &Path) -> Outcome {
        let json = serde_json::to_vec(&Label { id: self.id.clone() }).expect("a string always serialises");
        match write_new(&label_path(path), &json) {
            Err(_) if label_beside(path).as_ref() == Some(&self.id) => Ok(()),
            written => written,
        }
    }

    /// The key's id.
    pub(crate) const fn id(&self) -> &OperatorId {
        &self.id
    }

    /// The half that the fleet knows.
    pub(crate) fn public_key(&self) -> PublicKey {
        PublicKey::from(&self.key)
    }

    /// A fresh token: each is accepted once.
    pub(crate) fn token(&self) -> String {
        token::sign(&self.key, self.id.as_str(), Timestamp::from_system(SystemTime::now()), rand::random())
    }
}

/// The key of a development node in its state directory, made when there is none. Its id is made from the key, so that a
/// crash between two files loses nothing.
///
/// # Errors
/// When the key cannot be read or written.
pub(crate) fn development(path: &Path) -> Outcome<Signer> {
    if !path.exists() {
        Signer::generate("dev").write(path)?;
    }
    let key = read_key(path)?;
    let id = label_beside(path).unwrap_or_else(|| id_of(&key, "dev"));
    let signer = Signer { key, id };
    signer.write_label(path)?;
    Ok(signer)
}

/// Where a user's keys are: `$XDG_CONFIG_HOME/scafo/keys`, by default under `~/.config`.
pub(crate) fn directory() -> Option<PathBuf> {
    let config = env::path(env::XDG_CONFIG_HOME).filter(|path| path.is_absolute());
    let config = config.or_else(|| env::path(env::HOME).map(|home| home.join(".config")));
    config.map(|config| config.join("scafo").join("keys"))
}

/// The keys in a directory, sorted; none when it is not there.
pub(crate) fn list(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut keys: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "pem") && path.is_file())
        .collect();
    keys.sort();
    keys
}

/// Makes a directory that is the user's alone, with those above it.
///
/// # Errors
/// When it cannot be made.
pub(crate) fn private_directory(path: &Path) -> Outcome {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|error| Failure::because(format!("cannot make the directory {}", path.display()), &error))
}

fn id_of(key: &SigningKey, prefix: &str) -> OperatorId {
    let public = key.verifying_key();
    let digits = hex::encode(&public.as_bytes()[..ID_BYTES]);
    format!("{prefix}-{digits}").parse().expect("a short label, a hyphen and hexadecimal digits are an id")
}

fn read_key(path: &Path) -> Outcome<SigningKey> {
    let unreadable =
        |error: &std::io::Error| Failure::because(format!("cannot read the key {}", path.display()), error);
    let file = File::open(path).map_err(|error| unreadable(&error))?;
    // Of the open file, so that it cannot be another one by the time it is read.
    let mode = file.metadata().map_err(|error| unreadable(&error))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(Failure::new(format!("others may read the key {} (mode {:03o})", path.display(), mode & 0o777))
            .hint(format!("if it was never exposed: chmod 600 {}; otherwise replace it", path.display())));
    }
    let mut pem = String::new();
    file.take(MAX_KEY_BYTES).read_to_string(&mut pem).map_err(|error| unreadable(&error))?;
    // The library's reason is left out: it could quote the file.
    SigningKey::from_pkcs8_pem(&pem).map_err(|_| {
        Failure::new(format!("{} holds no Ed25519 private key in PKCS#8 PEM", path.display()))
            .hint("a key is made by `scafo operator init`")
    })
}

fn label_path(key: &Path) -> PathBuf {
    key.with_extension("json")
}

fn label_beside(key: &Path) -> Option<OperatorId> {
    let text = std::fs::read(label_path(key)).ok()?;
    serde_json::from_slice::<Label>(&text).ok().map(|label| label.id)
}

fn id_in_name(key: &Path) -> Option<OperatorId> {
    let is_pem = key.extension().is_some_and(|extension| extension == "pem");
    key.file_stem()?.to_str().filter(|_| is_pem)?.parse().ok()
}

/// Writes a file of mode 0600 that was not there, durably, whole or not at all.
fn write_new(path: &Path, content: &[u8]) -> Outcome {
    let directory = path.parent().unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(directory)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist_noclobber(path)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(|error| {
        Failure::because(format!("cannot write {}", path.display()), &error)
            .hint("see that the directory may be written and that its disk has room")
    })
}

#[cfg(test)]
mod tests {
    use scafo_core::token::Unverified;

    use super::*;

    #[test]
    fn a_key_reads_back_from_its_file_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let made = Signer::generate("op");
        let path = dir.path().join(format!("{}.pem", made.id()));
        made.write(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let read = Signer::read(&path, None).unwrap();
        assert_eq!((read.id(), read.public_key()), (made.id(), made.public_key()));
        assert!(std::fs::read_to_string(&path).unwrap().starts_with("-----BEGIN PRIVATE KEY-----\n"));
    }

    #[test]
    fn a_key_is_never_written_over_another() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pem");
        let first = Signer::generate("op");
        first.write(&path).unwrap();
        assert!(Signer::generate("op").write(&path).is_err());
        assert_eq!(read_key(&path).unwrap().to_bytes(), first.key.to_bytes());
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pem");
        Signer::generate("op").write(&path).unwrap();
        for mode in [0o640, 0o604, 0o620] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let refused = Signer::read(&path, None).err().unwrap();
            assert!(refused.report().unwrap().next().unwrap().contains("chmod 600"), "{mode:o}");
        }
    }

    #[test]
    fn what_is_no_key_is_said_without_quoting_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pem");
        write_new(&path, b"hunter2").unwrap();
        let refused = Signer::read(&path, None).err().unwrap();
        assert!(!refused.report().unwrap().message().contains("hunter2"));
    }

    #[test]
    fn a_development_key_stays_the_same_over_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("operator.key");
        let first = development(&path).unwrap();
        std::fs::remove_file(label_path(&path)).unwrap();
        let again = development(&path).unwrap();
        assert_eq!((first.id(), first.public_key()), (again.id(), again.public_key()));
        assert_eq!(Signer::read(&path, None).unwrap().id(), first.id());
    }

    #[test]
    fn a_key_without_an_id_asks_for_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("operator.key");
        Signer::generate("op").write(&path).unwrap();
        assert!(matches!(Signer::read(&path, None), Err(Failure::Usage(_))));
        assert!(Signer::read(&path, Some("ops".parse().unwrap())).is_ok_and(|signer| signer.id().as_str() == "ops"));
    }

    #[test]
    fn every_token_is_another_and_holds_up() {
        let signer = Signer::generate("op");
        let (one, two) = (signer.token(), signer.token());
        assert_ne!(one, two);
        let now = Timestamp::from_system(SystemTime::now());
        let claims = Unverified::parse(&one).unwrap().verify(&signer.public_key(), now).unwrap();
        assert_eq!(claims.sub, signer.id().as_str());
    }
}

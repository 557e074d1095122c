//! Operator keys on disk, and the tokens that they sign.
//!
//! A key is a PKCS#8 PEM file (RFC 5958, RFC 8410) of mode 0600. A file that others may read is refused: it counts as lost.
//! A file is written whole or not at all, and over another one only where one key takes the place of another.
//!
//! Whose key it is stands in a line before the PEM text (RFC 7468 §2 has parsers skip it), else in a small file beside it, else
//! in the file's name. In the file itself, both change at once.

mod public;
pub(crate) mod rotation;

use std::fs::File;
use std::io::Read as _;
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

pub(crate) use self::public::{id_for, read_public};
use crate::error::{Failure, Outcome};
use crate::files;

/// Longest key file that is read. One Ed25519 key in PEM has about 120 bytes.
const MAX_KEY_BYTES: u64 = 64 * 1024;
/// Bytes of the public key that stand in an id made from it: enough that the few operators of a fleet do not meet.
const ID_BYTES: usize = 4;
/// What the line before the PEM text starts with.
const HEADING: &str = "scafo-operator: ";

/// An operator's key and its id: what a token is signed with.
#[derive(Clone)]
pub(crate) struct Signer {
    key: SigningKey,
    id: OperatorId,
}

/// What is known of a key's id before its file is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The user says so. A file that says another id is refused.
    Given(OperatorId),
    /// It is this one's where the file does not say.
    Otherwise(OperatorId),
    /// Nothing.
    Unsaid,
}

/// What stands beside a key file, `<stem>.json`: whose key it is.
#[derive(Debug, Serialize, Deserialize)]
struct Label {
    id: OperatorId,
}

/// What is in a key file.
struct KeyFile {
    key: SigningKey,
    id: Option<OperatorId>,
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

    /// Reads a key and its id.
    ///
    /// # Errors
    /// When the file cannot be read, may be read by others, or holds no Ed25519 key; when no id is found, or another than the one
    /// that was given.
    pub(crate) fn read(path: &Path, whose: &Whose) -> Outcome<Self> {
        let KeyFile { key, id: own } = read_key(path)?;
        let id = match (whose, own) {
            (Whose::Given(id), Some(own)) if *id != own => {
                return Err(Failure::usage(format!("the key {} is `{own}`'s and not `{id}`'s", path.display()))
                    .hint("leave out --operator and unset SCAFO_OPERATOR: the file says whose key it holds"));
            }
            (Whose::Given(id), _) | (Whose::Otherwise(id), None) => Some(id.clone()),
            (Whose::Otherwise(_) | Whose::Unsaid, Some(own)) => Some(own),
            (Whose::Unsaid, None) => label_beside(path).or_else(|| id_in_name(path)),
        };
        match id {
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
        files::create(path, self.pem()?.as_bytes())
    }

    /// The same with the id in the file.
    ///
    /// # Errors
    /// When the file is there or cannot be written.
    pub(crate) fn write_with_id(&self, path: &Path) -> Outcome {
        files::create(path, format!("{HEADING}{}\n{}", self.id, self.pem()?).as_bytes())
    }

    fn pem(&self) -> Outcome<String> {
        // Without the public half (version 1 of the format): older OpenSSL does not read the other form.
        let bytes = KeypairBytes { secret_key: self.key.to_bytes(), public_key: None };
        let pem = bytes.to_pkcs8_pem(LineEnding::LF);
        pem.map(|pem| pem.to_string())
            .map_err(|_| Failure::new("the new key cannot be encoded; this is a defect of scafo"))
    }

    /// Writes whose key it is beside it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn write_label(&self, path: &Path) -> Outcome {
        if label_beside(path).as_ref() == Some(&self.id) {
            return Ok(());
        }
        let json = serde_json::to_vec(&Label { id: self.id.clone() }).expect("a string always serialises");
        files::replace(&label_path(path), &json)
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
    let KeyFile { key, id } = read_key(path)?;
    let id = id.or_else(|| label_beside(path)).unwrap_or_else(|| id_of(&key, "dev"));
    let signer = Signer { key, id };
    signer.write_label(path)?;
    Ok(signer)
}

/// Where a user's keys are: `$XDG_CONFIG_HOME/scafo/keys`, by default under `~/.config`.
pub(crate) fn directory() -> Option<PathBuf> {
    files::config_directory().map(|directory| directory.join("keys"))
}

/// The key in a directory that is this operator's.
pub(crate) fn find(directory: &Path, id: &OperatorId) -> Option<PathBuf> {
    list(directory).into_iter().find(|path| stated_id(path).as_ref() == Some(id))
}

/// Whose key a file says that it is. One that cannot be read says nothing.
fn stated_id(path: &Path) -> Option<OperatorId> {
    let heading = File::open(path).and_then(read_text).ok().and_then(|text| heading(&text));
    heading.or_else(|| label_beside(path)).or_else(|| id_in_name(path))
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
    id_from(key.verifying_key().as_bytes(), prefix)
}

/// An id made from a public key.
fn id_from(public: &[u8; 32], prefix: &str) -> OperatorId {
    let digits = hex::encode(&public[..ID_BYTES]);
    format!("{prefix}-{digits}").parse().expect("a short label, a hyphen and hexadecimal digits are an id")
}

fn read_key(path: &Path) -> Outcome<KeyFile> {
    let unreadable =
        |error: &std::io::Error| Failure::because(format!("cannot read the key {}", path.display()), error);
    let file = File::open(path).map_err(|error| unreadable(&error))?;
    // Of the open file, so that it cannot be another one by the time it is read.
    let mode = file.metadata().map_err(|error| unreadable(&error))?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(Failure::new(format!("others may read the key {} (mode {:03o})", path.display(), mode & 0o777))
            .hint(format!("if it was never exposed: chmod 600 {}; otherwise replace it", path.display())));
    }
    let pem = read_text(file).map_err(|error| unreadable(&error))?;
    // The library's reason is left out: it could quote the file.
    let key = SigningKey::from_pkcs8_pem(&pem).map_err(|_| {
        Failure::new(format!("{} holds no Ed25519 private key in PKCS#8 PEM", path.display()))
            .hint("a key is made by `scafo operator init`")
    })?;
    Ok(KeyFile { key, id: heading(&pem) })
}

fn read_text(file: File) -> std::io::Result<String> {
    let mut text = String::new();
    file.take(MAX_KEY_BYTES).read_to_string(&mut text)?;
    Ok(text)
}

/// The id in the lines before the PEM text.
fn heading(text: &str) -> Option<OperatorId> {
    let before = text.lines().take_while(|line| !line.starts_with("-----BEGIN"));
    before.filter_map(|line| line.strip_prefix(HEADING)).find_map(|id| id.trim().parse().ok())
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
        let read = Signer::read(&path, &Whose::Unsaid).unwrap();
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
        assert_eq!(read_key(&path).unwrap().key.to_bytes(), first.key.to_bytes());
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pem");
        Signer::generate("op").write(&path).unwrap();
        for mode in [0o640, 0o604, 0o620] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let refused = Signer::read(&path, &Whose::Unsaid).err().unwrap();
            assert!(refused.report().unwrap().next().unwrap().contains("chmod 600"), "{mode:o}");
        }
    }

    #[test]
    fn what_is_no_key_is_said_without_quoting_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.pem");
        files::create(&path, b"hunter2").unwrap();
        let refused = Signer::read(&path, &Whose::Unsaid).err().unwrap();
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
        assert_eq!(Signer::read(&path, &Whose::Unsaid).unwrap().id(), first.id());
    }

    #[test]
    fn a_key_without_an_id_asks_for_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("operator.key");
        Signer::generate("op").write(&path).unwrap();
        assert!(matches!(Signer::read(&path, &Whose::Unsaid), Err(Failure::Usage(_))));
        for whose in [Whose::Given("ops".parse().unwrap()), Whose::Otherwise("ops".parse().unwrap())] {
            assert!(Signer::read(&path, &whose).is_ok_and(|signer| signer.id().as_str() == "ops"));
        }
    }

    #[test]
    fn an_id_in_the_file_is_the_one_that_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("alice.pem");
        let id: OperatorId = "bob".parse().unwrap();
        let made = Signer::generate("op").called(id.clone());
        made.write_with_id(&path).unwrap();
        std::fs::write(label_path(&path), r#"{"id":"carol"}"#).unwrap();
        for whose in [Whose::Unsaid, Whose::Given(id.clone()), Whose::Otherwise("carol".parse().unwrap())] {
            let read = Signer::read(&path, &whose).unwrap();
            assert_eq!((read.id(), read.public_key()), (&id, made.public_key()), "{whose:?}");
        }
        let refused = Signer::read(&path, &Whose::Given("alice".parse().unwrap())).err().unwrap();
        assert!(matches!(&refused, Failure::Usage(report) if report.message().contains("`bob`'s and not `alice`'s")));
        assert_eq!(find(dir.path(), &id), Some(path));
        assert_eq!(find(dir.path(), &"alice".parse().unwrap()), None);
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

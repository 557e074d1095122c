//! Who this node is and what it can prove: its id, its key, its ingress token, the credentials of its embedded bucket. Each is
//! made once and kept.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::SigningKey;
use ed25519_dalek::pkcs8::spki::der::pem::LineEnding;
use ed25519_dalek::pkcs8::{DecodePrivateKey as _, EncodePrivateKey as _};
use scafo_core::NodeId;
use scafo_core::settings::{BucketAccess, Secret};
use serde::{Deserialize, Serialize};

use super::files::{read_json, write_atomically, write_json};
use super::{Dirs, cannot_write, private_dir};
use crate::api::Error;

/// Longest small file that is read here; a key has about 120 bytes.
const MAX_BYTES: u64 = 64 * 1024;
/// Random bytes of a token or secret: 256 bits.
const SECRET_BYTES: usize = 32;

/// The node's id: from the directory once it was fixed there, else as configured, else from the host name.
pub(crate) fn node_id(dirs: &Dirs, configured: Option<&NodeId>) -> Result<NodeId, Error> {
    let path = dirs.state.join("node-id");
    let Some(text) = read_text(&path)? else {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let id = configured.cloned().unwrap_or_else(|| NodeId::from_host_name(&host));
        write_atomically(&path, format!("{id}\n").as_bytes()).map_err(|error| cannot_write(&path, &error))?;
        return Ok(id);
    };
    let fixed: NodeId = text.trim().parse().map_err(|_| unreadable(&path, "a node id"))?;
    match configured {
        Some(configured) if *configured != fixed => Err(Error::refused(
            format!(
                "node.id is `{configured}`, but the state directory {} belongs to node `{fixed}`",
                dirs.state.display()
            ),
            "leave node.id out, or choose another state directory with --state-dir",
        )),
        _ => Ok(fixed),
    }
}

/// The node's Ed25519 key, PKCS#8 PEM (RFC 8410).
pub(crate) fn node_key(dirs: &Dirs) -> Result<SigningKey, Error> {
    let path = dirs.state.join("node.key");
    if let Some(text) = read_text(&path)? {
        return SigningKey::from_pkcs8_pem(&text).map_err(|_| unreadable(&path, "an Ed25519 key in PKCS#8 PEM"));
    }
    let key = SigningKey::from_bytes(&rand::random());
    let text = key.to_pkcs8_pem(LineEnding::LF).map_err(|_| unreadable(&path, "a key that can be encoded"))?;
    write_atomically(&path, text.as_bytes()).map_err(|error| cannot_write(&path, &error))?;
    Ok(key)
}

/// The ingress tokens that are admitted, and the file with the first of them: those of the configuration, else one that is minted
/// and kept in a file of its own, so that one that was taken out of the configuration is never taken for it.
pub(crate) fn ingress_token(dirs: &Dirs, configured: &[Secret]) -> Result<(Vec<Secret>, PathBuf), Error> {
    let path = dirs.state.join("ingress-token");
    let tokens = if configured.is_empty() { vec![minted_token(dirs)?] } else { configured.to_vec() };
    let text = tokens.first().map(|token| format!("{}\n", token.expose())).unwrap_or_default();
    if read_text(&path)?.as_deref() != Some(text.as_str()) {
        write_atomically(&path, text.as_bytes()).map_err(|error| cannot_write(&path, &error))?;
    }
    Ok((tokens, path))
}

fn minted_token(dirs: &Dirs) -> Result<Secret, Error> {
    let path = dirs.state.join("ingress-token.minted");
    let kept = read_text(&path)?.map(|text| text.trim().to_owned());
    if let Some(kept) = kept.filter(|kept| !kept.is_empty()) {
        return Ok(Secret::new(kept));
    }
    let minted = secret();
    write_atomically(&path, format!("{minted}\n").as_bytes()).map_err(|error| cannot_write(&path, &error))?;
    Ok(Secret::new(minted))
}

fn secret() -> String {
    URL_SAFE_NO_PAD.encode(rand::random::<[u8; SECRET_BYTES]>())
}

/// The embedded bucket's credentials and port, in `bucket.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct EmbeddedBucket {
    /// Chosen once: celld processes that outlive the supervisor keep using it. `None` before the first choice.
    pub(crate) port: Option<u16>,
    pub(crate) access_key_id: String,
    pub(crate) secret_access_key: Secret,
}

impl EmbeddedBucket {
    /// The bucket's name. It is the only one that the store has.
    pub(crate) const NAME: &'static str = "scafo";

    pub(crate) fn load_or_create(dirs: &Dirs) -> Result<Self, Error> {
        let path = Self::path(dirs);
        // Its daemon cannot: it writes below and nowhere else.
        private_dir(&Self::data(dirs)).map_err(|error| cannot_write(&Self::data(dirs), &error))?;
        let kept = read_json(&path).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => unreadable(&path, "the embedded bucket's credentials"),
            _ => cannot_write(&path, &error),
        })?;
        if let Some(kept) = kept {
            return Ok(kept);
        }
        let access_key_id = format!("scafo{}", hex::encode(rand::random::<[u8; 8]>()));
        let made = Self { port: None, access_key_id, secret_access_key: Secret::new(secret()) };
        made.save(dirs)?;
        Ok(made)
    }

    pub(crate) fn save(&self, dirs: &Dirs) -> Result<(), Error> {
        let path = Self::path(dirs);
        write_json(&path, self).map_err(|error| cannot_write(&path, &error))
    }

    /// Where its data are.
    pub(crate) fn data(dirs: &Dirs) -> PathBuf {
        dirs.state.join("bucket")
    }

    fn path(dirs: &Dirs) -> PathBuf {
        dirs.state.join("bucket.json")
    }

    /// How clients reach it.
    pub(crate) fn access(&self, endpoint: String) -> BucketAccess {
        BucketAccess {
            name: Self::NAME.to_owned(),
            prefix: String::new(),
            endpoint: Some(endpoint),
            region: "us-east-1".to_owned(),
            path_style: true,
            access_key_id: self.access_key_id.clone(),
            secret_access_key: self.secret_access_key.clone(),
            session_token: None,
        }
    }
}

fn read_text(path: &Path) -> Result<Option<String>, Error> {
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot_write(path, &error)),
    };
    let mut text = String::new();
    match file.take(MAX_BYTES).read_to_string(&mut text) {
        Ok(_) => Ok(Some(text)),
        Err(_) => Err(unreadable(path, "text")),
    }
}

fn unreadable(path: &Path, what: &str) -> Error {
    Error::refused(
        format!("{} does not hold {what}", path.display()),
        "restore the file from a backup; when it is lost for good, remove it and the node gets a new one",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs(dir: &tempfile::TempDir) -> Dirs {
        Dirs::create(dir.path(), &dir.path().join("run")).unwrap()
    }

    #[test]
    fn an_id_is_fixed_by_the_first_start() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = dirs(&dir);
        let a: NodeId = "a".parse().unwrap();
        assert_eq!(node_id(&dirs, Some(&a)).unwrap(), a);
        assert_eq!(node_id(&dirs, None).unwrap(), a);
        let refused = node_id(&dirs, Some(&"b".parse().unwrap())).unwrap_err();
        assert_eq!(refused.exit_code, crate::EXIT_REFUSED);
        assert!(refused.message.contains("`a`") && refused.message.contains("`b`"));
    }

    #[test]
    fn a_key_is_made_once_and_is_pkcs8_pem() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = dirs(&dir);
        let key = node_key(&dirs).unwrap();
        assert_eq!(node_key(&dirs).unwrap().to_bytes(), key.to_bytes());
        let text = std::fs::read_to_string(dirs.state.join("node.key")).unwrap();
        assert!(text.starts_with("-----BEGIN PRIVATE KEY-----\n"));
        std::fs::write(dirs.state.join("node.key"), "broken").unwrap();
        assert!(node_key(&dirs).unwrap_err().message.contains("node.key"));
    }

    #[test]
    fn a_token_is_minted_once_unless_one_is_configured() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = dirs(&dir);
        let (minted, path) = ingress_token(&dirs, &[]).unwrap();
        assert_eq!(ingress_token(&dirs, &[]).unwrap().0, minted);
        assert_eq!(std::fs::read_to_string(&path).unwrap().trim(), minted[0].expose());
        assert!(minted[0].expose().len() >= 43);
        let configured = [Secret::new("one"), Secret::new("two")];
        assert_eq!(ingress_token(&dirs, &configured).unwrap().0, configured);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\n");
        assert_eq!(
            ingress_token(&dirs, &[]).unwrap().0,
            minted,
            "one that was taken out of the configuration opens nothing"
        );
        assert_eq!(std::fs::read_to_string(&path).unwrap().trim(), minted[0].expose());
    }

    #[test]
    fn the_embedded_bucket_keeps_its_credentials_and_its_port() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = dirs(&dir);
        let mut first = EmbeddedBucket::load_or_create(&dirs).unwrap();
        first.port = Some(21_000);
        first.save(&dirs).unwrap();
        let second = EmbeddedBucket::load_or_create(&dirs).unwrap();
        assert_eq!((second.port, second.secret_access_key), (Some(21_000), first.secret_access_key));
    }
}

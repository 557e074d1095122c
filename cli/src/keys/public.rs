//! Public keys that somebody sends: PEM as OpenSSL writes it (RFC 7468 §13, RFC 8410), or a JWK (RFC 8037).

use std::fs::File;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::VerifyingKey;
use ed25519_dalek::pkcs8::DecodePublicKey as _;
use scafo_core::OperatorId;
use scafo_core::token::PublicKey;
use serde_json::json;

use crate::error::{Failure, Outcome};

/// Reads a public key.
///
/// # Errors
/// When the file cannot be read or holds none. A private key is refused by name: it should not have been sent.
pub(crate) fn read_public(path: &Path) -> Outcome<PublicKey> {
    let text = File::open(path)
        .and_then(super::read_text)
        .map_err(|error| Failure::because(format!("cannot read the public key {}", path.display()), &error))?;
    if text.contains("PRIVATE KEY-----") {
        return Err(Failure::new(format!("{} holds a private key", path.display())).hint(
            "ask for the public half only: openssl pkey -in KEY -pubout; and use another key if that one was sent",
        ));
    }
    parse(&text).ok_or_else(|| {
        Failure::new(format!("{} holds no Ed25519 public key, neither in PEM nor as a JWK", path.display()))
            .hint("one is made by: openssl genpkey -algorithm ed25519 -out my.pem; openssl pkey -in my.pem -pubout")
    })
}

/// The id of a key that nobody gave one.
pub(crate) fn id_for(key: &PublicKey) -> OperatorId {
    let jwk = serde_json::to_value(key).ok();
    let bytes = jwk.and_then(|jwk| URL_SAFE_NO_PAD.decode(jwk.get("x")?.as_str()?).ok());
    let bytes: Option<[u8; 32]> = bytes.and_then(|bytes| bytes.try_into().ok());
    super::id_from(&bytes.expect("a public key is spelled as a JWK whose x is its 32 bytes"), "op")
}

fn parse(text: &str) -> Option<PublicKey> {
    if let Ok(key) = serde_json::from_str(text) {
        return Some(key);
    }
    let key = VerifyingKey::from_public_key_pem(text.trim_start()).ok()?;
    // Through the JWK, where weak keys are refused.
    let jwk = json!({ "kty": "OKP", "crv": "Ed25519", "x": URL_SAFE_NO_PAD.encode(key.as_bytes()) });
    serde_json::from_value(jwk).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key of RFC 8410 §10.1.
    const PEM: &str = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n-----END PUBLIC KEY-----\n";
    const JWK: &str = r#"{ "kty": "OKP", "crv": "Ed25519", "x": "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE" }"#;

    #[test]
    fn pem_and_jwk_say_the_same_key() {
        let key = parse(PEM).unwrap();
        assert_eq!(id_for(&key).as_str(), "op-19bf4409");
        assert_eq!(parse(JWK), Some(key.clone()));
        assert_eq!(parse(&format!("\n{PEM}")), Some(key));
        for bad in ["", "{}", "hunter2", &PEM.replace("MCow", "MCox")] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_private_key_is_refused_by_name_and_not_quoted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sent.pem");
        std::fs::write(&path, "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n").unwrap();
        let refused = read_public(&path).err().unwrap();
        let report = refused.report().unwrap();
        assert!(report.message().ends_with("holds a private key") && report.next().unwrap().contains("public half"));
    }
}

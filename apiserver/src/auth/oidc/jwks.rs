//! The keys of an issuer, out of its JWK Set (RFC 7517).
//!
//! What this build cannot use (other curves, symmetric keys, keys for encryption, malformed ones) is left out, as RFC 7517 §5
//! asks, so that one key of a new kind does not lock everybody out.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::Value;

use super::algorithm::{Algorithm, PublicKey};
use super::object;

/// Keys of one issuer that are kept. Issuers publish two to ten; a document of the largest size could hold some thousand.
const KEYS_MAX: usize = 64;
/// Keys that one token is tried against, when several have its key id or it names none. Bounds the work of one request to
/// some four RSA operations.
const TRIED_MAX: usize = 4;

/// The usable keys of an issuer, in the order in which it lists them.
#[derive(Debug, Default)]
pub(super) struct KeySet(Vec<Key>);

#[derive(Debug)]
struct Key {
    kid: Option<String>,
    /// The one algorithm that the issuer allows for it; absent: any that fits.
    algorithm: Option<Algorithm>,
    key: PublicKey,
}

#[derive(Deserialize)]
struct SetIn {
    keys: Vec<Value>,
}

#[derive(Deserialize)]
struct JwkIn {
    kty: String,
    kid: Option<String>,
    #[serde(rename = "use")]
    usage: Option<String>,
    key_ops: Option<Vec<String>>,
    alg: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl KeySet {
    /// Reads a JWK Set; `None` when it is none. A set without a usable key is a set.
    pub(super) fn parse(json: &[u8]) -> Option<Self> {
        let set: SetIn = object(json)?;
        Some(Self(set.keys.into_iter().filter_map(usable).take(KEYS_MAX).collect()))
    }

    /// Whether the issuer publishes a key with this id.
    pub(super) fn has(&self, kid: &str) -> bool {
        self.0.iter().any(|key| key.kid.as_deref() == Some(kid))
    }

    /// Whether one of the keys signed `message`. Only keys with the token's `kid` are tried, or all when it names none.
    pub(super) fn verifies(&self, kid: Option<&str>, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        let named = |key: &&Key| kid.is_none() || key.kid.as_deref() == kid;
        let fits = |key: &&Key| key.algorithm.is_none_or(|only| only == algorithm) && key.key.fits(algorithm);
        let candidates = self.0.iter().filter(named).filter(fits).take(TRIED_MAX);
        candidates.into_iter().any(|key| key.key.verifies(algorithm, message, signature))
    }
}

fn usable(jwk: Value) -> Option<Key> {
    let jwk: JwkIn = jwk.is_object().then(|| serde_json::from_value(jwk).ok())??;
    let signs = jwk.usage.as_deref().is_none_or(|usage| usage == "sig")
        && jwk.key_ops.as_ref().is_none_or(|ops| ops.iter().any(|op| op == "verify"));
    if !signs {
        return None;
    }
    // An algorithm that is not ours is a key that is not for us.
    let algorithm = match &jwk.alg {
        None => None,
        Some(name) => Some(Algorithm::parse(name)?),
    };
    let key = public_key(&jwk)?;
    Some(Key { kid: jwk.kid, algorithm, key })
}

fn public_key(jwk: &JwkIn) -> Option<PublicKey> {
    match (jwk.kty.as_str(), jwk.crv.as_deref()) {
        ("RSA", _) => Some(PublicKey::Rsa { n: number(jwk.n.as_deref()?)?, e: number(jwk.e.as_deref()?)? }),
        ("EC", Some("P-256")) => point(jwk, 32).map(PublicKey::P256),
        ("EC", Some("P-384")) => point(jwk, 48).map(PublicKey::P384),
        ("EC", Some("P-521")) => {
            let key = p521::ecdsa::VerifyingKey::from_sec1_bytes(&point(jwk, 66)?).ok()?;
            Some(PublicKey::P521(Box::new(key)))
        }
        ("OKP", Some("Ed25519")) => {
            let x = jwk.x.as_deref()?;
            // Our own type knows which points are none (RFC 8032 §8.4).
            let checked = serde_json::json!({ "kty": "OKP", "crv": "Ed25519", "x": x });
            serde_json::from_value::<scafo_core::token::PublicKey>(checked).ok()?;
            Some(PublicKey::Ed25519(bytes(x)?.try_into().ok()?))
        }
        _ => None,
    }
}

/// An uncompressed point with coordinates of exactly `size` bytes (RFC 7518 §6.2.1.2).
fn point(jwk: &JwkIn, size: usize) -> Option<Vec<u8>> {
    let (x, y) = (bytes(jwk.x.as_deref()?)?, bytes(jwk.y.as_deref()?)?);
    (x.len() == size && y.len() == size).then(|| [&[4][..], &x, &y].concat())
}

/// A number, big-endian. Some issuers put a zero byte in front, which RFC 7518 §6.3.1.1 asks everybody to be ready for.
fn number(text: &str) -> Option<Vec<u8>> {
    let bytes = bytes(text)?;
    let start = bytes.iter().position(|byte| *byte != 0)?;
    Some(bytes[start..].to_vec())
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rsa(more: &Value) -> Value {
        let mut key = json!({ "kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "1" });
        key.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        key
    }

    fn usable_of(key: &Value) -> usize {
        KeySet::parse(json!({ "keys": [key] }).to_string().as_bytes()).unwrap().0.len()
    }

    #[test]
    fn keys_for_something_else_are_left_out() {
        for (more, count) in [
            (json!({}), 1),
            (json!({ "use": "sig" }), 1),
            (json!({ "use": "enc" }), 0),
            (json!({ "key_ops": ["verify"] }), 1),
            (json!({ "key_ops": ["encrypt"] }), 0),
            (json!({ "alg": "RS256" }), 1),
            (json!({ "alg": "RSA-OAEP" }), 0),
            (json!({ "alg": "HS256" }), 0),
            (json!({ "kty": "oct", "k": "AAAA" }), 0),
            (json!({ "kty": "EC", "crv": "secp256k1", "x": "AA", "y": "AA" }), 0),
            (json!({ "kty": "EC", "crv": "P-256", "x": "AA", "y": "AA" }), 0),
            (json!({ "kty": "EC", "crv": "P-521", "x": "A".repeat(88), "y": "A".repeat(88) }), 0),
            (json!({ "kty": "OKP", "crv": "Ed448", "x": "AA" }), 0),
            (json!({ "kty": "OKP", "crv": "Ed25519", "x": "A".repeat(43) }), 0),
            (json!({ "n": "!" }), 0),
            (json!({ "n": "AAAA" }), 0),
            (json!({ "kid": 7 }), 0),
            (json!({ "n": "AAEAAQ==" }), 1),
        ] {
            assert_eq!(usable_of(&rsa(&more)), count, "{more}");
        }
    }

    #[test]
    fn one_unusable_key_hides_no_other_and_the_number_is_bounded() {
        let mut keys = vec![json!(null), json!("x"), json!(["RSA", "x"]), json!({ "kty": "new" })];
        keys.extend((0..100).map(|index| rsa(&json!({ "kid": index.to_string() }))));
        let set = KeySet::parse(json!({ "keys": keys }).to_string().as_bytes()).unwrap();
        assert!(set.has("0") && set.has("63") && !set.has("64"));
    }

    #[test]
    fn what_is_no_set_is_refused() {
        for bad in ["", "[]", "[[]]", "{}", r#"{"keys":{}}"#, "<html>"] {
            assert!(KeySet::parse(bad.as_bytes()).is_none(), "{bad}");
        }
        assert!(KeySet::parse(br#"{"keys":[]}"#).is_some());
    }
}

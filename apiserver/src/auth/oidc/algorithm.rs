//! The signature algorithms of workload tokens (RFC 7518 §3.1, RFC 8037 §3.1, RFC 9864 §2.2).
//!
//! ring verifies all but P-521, which it does not have. The widespread JWT libraries cover only a part of this list, which is
//! why none of them stands here.

use p521::ecdsa::signature::Verifier as _;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384,
    RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512,
    RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};

/// What a workload token may be signed with. Whatever is not here, `none` and the symmetric `HS*` above all, is refused before
/// anything else is looked at (RFC 8725 §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Rs256,
    Rs384,
    Rs512,
    Ps256,
    Ps384,
    Ps512,
    Es256,
    Es384,
    Es512,
    /// `EdDSA` and, by its newer name, `Ed25519`.
    Ed25519,
}

impl Algorithm {
    pub(super) fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "RS256" => Self::Rs256,
            "RS384" => Self::Rs384,
            "RS512" => Self::Rs512,
            "PS256" => Self::Ps256,
            "PS384" => Self::Ps384,
            "PS512" => Self::Ps512,
            "ES256" => Self::Es256,
            "ES384" => Self::Es384,
            "ES512" => Self::Es512,
            "EdDSA" | "Ed25519" => Self::Ed25519,
            _ => return None,
        })
    }
}

/// A public key of an issuer. RSA moduli of 2048 to 8192 bits verify; others never do.
#[derive(Debug, Clone)]
pub(super) enum PublicKey {
    /// Modulus and exponent, big-endian without leading zeros.
    Rsa { n: Vec<u8>, e: Vec<u8> },
    /// An uncompressed point, SEC 1 §2.3.3.
    P256(Vec<u8>),
    /// An uncompressed point.
    P384(Vec<u8>),
    /// A point of the curve.
    P521(Box<p521::ecdsa::VerifyingKey>),
    /// An encoded point, not of small order.
    Ed25519([u8; 32]),
}

impl PublicKey {
    /// Whether the algorithm is for keys of this kind.
    pub(super) const fn fits(&self, algorithm: Algorithm) -> bool {
        use Algorithm as A;
        match self {
            Self::Rsa { .. } => {
                matches!(algorithm, A::Rs256 | A::Rs384 | A::Rs512 | A::Ps256 | A::Ps384 | A::Ps512)
            }
            Self::P256(_) => matches!(algorithm, A::Es256),
            Self::P384(_) => matches!(algorithm, A::Es384),
            Self::P521(_) => matches!(algorithm, A::Es512),
            Self::Ed25519(_) => matches!(algorithm, A::Ed25519),
        }
    }

    /// Whether `signature` is this key's, under this algorithm, over `message`.
    pub(super) fn verifies(&self, algorithm: Algorithm, message: &[u8], signature: &[u8]) -> bool {
        match self {
            Self::Rsa { n, e } => rsa(algorithm)
                .is_some_and(|scheme| RsaPublicKeyComponents { n, e }.verify(scheme, message, signature).is_ok()),
            _ if !self.fits(algorithm) => false,
            Self::P256(point) => plain(&ECDSA_P256_SHA256_FIXED, point, message, signature),
            Self::P384(point) => plain(&ECDSA_P384_SHA384_FIXED, point, message, signature),
            Self::P521(key) => p521::ecdsa::Signature::from_slice(signature)
                .is_ok_and(|signature| key.verify(message, &signature).is_ok()),
            Self::Ed25519(point) => plain(&ED25519, point, message, signature),
        }
    }
}

fn rsa(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    match algorithm {
        Algorithm::Rs256 => Some(&RSA_PKCS1_2048_8192_SHA256),
        Algorithm::Rs384 => Some(&RSA_PKCS1_2048_8192_SHA384),
        Algorithm::Rs512 => Some(&RSA_PKCS1_2048_8192_SHA512),
        Algorithm::Ps256 => Some(&RSA_PSS_2048_8192_SHA256),
        Algorithm::Ps384 => Some(&RSA_PSS_2048_8192_SHA384),
        Algorithm::Ps512 => Some(&RSA_PSS_2048_8192_SHA512),
        Algorithm::Es256 | Algorithm::Es384 | Algorithm::Es512 | Algorithm::Ed25519 => None,
    }
}

fn plain(scheme: &'static dyn VerificationAlgorithm, key: &[u8], message: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(scheme, key).verify(message, signature).is_ok()
}

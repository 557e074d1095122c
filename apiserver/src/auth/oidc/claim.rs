//! A workload token: what can be said of it before any key is known, and what its key says.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use scafo_core::time::Timestamp;
use scafo_core::token::{AUDIENCE, CLOCK_SKEW_S};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::algorithm::Algorithm;
use super::jwks::KeySet;
use super::object;

/// Longest token that is looked at. Those of CI systems have 1 to 3 KiB.
const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// Longest issuer, subject, audience and key id, in bytes. No longer one can stand in a trust policy.
const TEXT_MAX: usize = 2048;
/// Audiences that one token may name.
const AUDIENCES_MAX: usize = 16;

/// Why a token does not hold up. For the log; callers all read the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// Not three base64url parts, or too long.
    Shape,
    /// A header that cannot be read or brings a key of its own.
    Header,
    /// An algorithm that is not on the list.
    Algorithm,
    /// Claims that cannot be read, or without one that has to be there.
    Claims,
    /// `exp` is over, by more than the skew.
    Expired,
    /// `nbf` or `iat` is in the future, by more than the skew.
    NotYet,
    /// For somebody else.
    Audience,
    /// Of none of the issuer's keys.
    Signature,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shape => "not a compact token",
            Self::Header => "a header that is not allowed",
            Self::Algorithm => "an algorithm that is not allowed",
            Self::Claims => "malformed claims",
            Self::Expired => "an expired workload token",
            Self::NotYet => "a workload token of the future",
            Self::Audience => "a workload token for another audience",
            Self::Signature => "a signature of none of the issuer's keys",
        })
    }
}

/// Members that would change how a token is verified, or bring the key to verify it with, are not allowed to be there; others
/// (`x5t` is common) mean nothing here.
#[derive(Deserialize)]
struct HeaderIn {
    alg: String,
    kid: Option<String>,
    #[serde(default, deserialize_with = "present")]
    crit: bool,
    #[serde(default, deserialize_with = "present")]
    b64: bool,
    #[serde(default, deserialize_with = "present")]
    jwk: bool,
    #[serde(default, deserialize_with = "present")]
    jku: bool,
    #[serde(default, deserialize_with = "present")]
    x5u: bool,
    #[serde(default, deserialize_with = "present")]
    x5c: bool,
}

/// True for a member that is there, whatever its value.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| true)
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Audiences {
    One(String),
    Several(Vec<String>),
}

/// Times are seconds since the Unix epoch and may have a fraction (RFC 7519 §2, `NumericDate`).
#[derive(Debug, Deserialize)]
struct ClaimsIn {
    iss: String,
    sub: String,
    aud: Audiences,
    exp: f64,
    nbf: Option<f64>,
    iat: Option<f64>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// A token whose form, algorithm and times are right. Nothing of what it says may be trusted yet.
#[derive(Debug)]
pub(super) struct Unverified<'a> {
    signed: &'a str,
    signature: Vec<u8>,
    algorithm: Algorithm,
    kid: Option<String>,
    claims: Claims,
}

/// What a token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Claims {
    pub(super) issuer: String,
    pub(super) subject: String,
    pub(super) audiences: Vec<String>,
    /// Everything else, as the issuer wrote it.
    pub(super) rest: Map<String, Value>,
}

/// Whether it says of itself that it is a workload token: it names an issuer, and is not made out to a node.
pub(in crate::auth) fn is_workload(token: &str) -> bool {
    #[derive(Deserialize)]
    struct Says {
        iss: Option<Value>,
        aud: Option<Value>,
    }
    if token.len() > MAX_TOKEN_BYTES {
        return false;
    }
    let says: Option<Says> = token.split('.').nth(1).and_then(decode);
    says.is_some_and(|says| says.iss.is_some() && says.aud.is_none_or(|aud| aud != AUDIENCE))
}

impl<'a> Unverified<'a> {
    /// Reads a token and holds it to every rule that needs no key.
    ///
    /// # Errors
    /// [`Refusal`] with the first rule that it breaks.
    pub(super) fn parse(token: &'a str, now: Timestamp) -> Result<Self, Refusal> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Refusal::Shape);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(Refusal::Shape)?;
        let (header, claims) = signed.split_once('.').ok_or(Refusal::Shape)?;
        let header: HeaderIn = decode(header).ok_or(Refusal::Header)?;
        let algorithm = Algorithm::parse(&header.alg).ok_or(Refusal::Algorithm)?;
        if header.crit || header.b64 || header.jwk || header.jku || header.x5u || header.x5c {
            return Err(Refusal::Header);
        }
        if header.kid.as_deref().is_some_and(|kid| kid.len() > TEXT_MAX) {
            return Err(Refusal::Header);
        }
        let claims: ClaimsIn = decode(claims).ok_or(Refusal::Claims)?;
        in_time(&claims, now)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| Refusal::Shape)?;
        Ok(Self { signed, signature, algorithm, kid: header.kid, claims: Claims::bounded(claims)? })
    }

    /// Who it says has signed it.
    pub(super) fn issuer(&self) -> &str {
        &self.claims.issuer
    }

    /// Which key of the issuer.
    pub(super) fn kid(&self) -> Option<&str> {
        self.kid.as_deref()
    }

    /// Whether it says that it is for `audience`. One of several is enough (RFC 7519 §4.1.3).
    pub(super) fn is_for(&self, audience: &str) -> bool {
        self.claims.audiences.iter().any(|one| one == audience)
    }

    /// Decides whether the issuer has signed it.
    ///
    /// # Errors
    /// [`Refusal::Signature`].
    pub(super) fn verify(self, keys: &KeySet) -> Result<Claims, Refusal> {
        let signed = keys.verifies(self.kid.as_deref(), self.algorithm, self.signed.as_bytes(), &self.signature);
        if signed { Ok(self.claims) } else { Err(Refusal::Signature) }
    }
}

impl Claims {
    fn bounded(claims: ClaimsIn) -> Result<Self, Refusal> {
        let ClaimsIn { iss, sub, aud, rest, .. } = claims;
        let audiences = match aud {
            Audiences::One(audience) => vec![audience],
            Audiences::Several(audiences) => audiences,
        };
        let plain = |text: &String| !text.is_empty() && text.len() <= TEXT_MAX && !text.chars().any(char::is_control);
        if !plain(&iss) || !plain(&sub) || audiences.len() > AUDIENCES_MAX || !audiences.iter().all(plain) {
            return Err(Refusal::Claims);
        }
        Ok(Self { issuer: iss, subject: sub, audiences, rest })
    }
}

/// RFC 7519 §4.1.4 to §4.1.6, with the skew at both ends.
#[expect(clippy::cast_precision_loss, reason = "seconds of a clock stay far below 2^53")]
fn in_time(claims: &ClaimsIn, now: Timestamp) -> Result<(), Refusal> {
    let (now, skew) = (now.as_seconds() as f64, CLOCK_SKEW_S as f64);
    if claims.exp <= now - skew {
        return Err(Refusal::Expired);
    }
    let early = |from: Option<f64>| from.is_some_and(|from| from > now + skew);
    if early(claims.nbf) || early(claims.iat) { Err(Refusal::NotYet) } else { Ok(()) }
}

fn decode<T: DeserializeOwned>(part: &str) -> Option<T> {
    object(&URL_SAFE_NO_PAD.decode(part).ok()?)
}

//! Node and operator tokens: compact JWS (RFC 7515) with Ed25519 signatures (RFC 8037), one short life and one use each.
//!
//! Verification is in two steps, because the key is looked up by the unverified `kid`: [`Unverified::parse`] reads a token
//! without trusting it, [`Unverified::verify`] decides. Every refusal is the same to the caller; the reason is for the log.

use std::collections::HashMap;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

/// The audience of every node and operator token.
pub const AUDIENCE: &str = "scafo-node";
/// The header, with the value `1`, of a request that a node forwards to the coordinator. It counts only beside a node token.
pub const FORWARDED: &str = "x-scafo-forwarded";
/// The header that says of which operation such a request is, so that it is recognised when it is forwarded again.
pub const OPERATION: &str = "x-scafo-operation";
/// Longest life of a token, in seconds.
pub const MAX_LIFETIME_S: i64 = 60;
/// How far the clocks of signer and verifier may be apart, in seconds, at both ends.
pub const CLOCK_SKEW_S: i64 = 30;
/// Longest token that is looked at. A token of ours has about 300 bytes.
pub const MAX_TOKEN_BYTES: usize = 4096;
/// Bytes of randomness in a `jti`.
const JTI_BYTES: usize = 16;

/// An Ed25519 public key as a JWK (RFC 8037 §2). Only ever public material: other members are not kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "JwkIn", into = "Jwk")]
pub struct PublicKey(VerifyingKey);

#[derive(Serialize)]
struct Jwk {
    kty: &'static str,
    crv: &'static str,
    x: String,
}

#[derive(Deserialize)]
struct JwkIn {
    kty: String,
    crv: String,
    x: String,
    /// Read past. Without it an array of the three would be read too.
    #[serde(flatten)]
    _others: HashMap<String, IgnoredAny>,
}

/// The JWK is no Ed25519 public key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not an Ed25519 public key: {0}")]
pub struct BadKey(&'static str);

impl TryFrom<JwkIn> for PublicKey {
    type Error = BadKey;

    fn try_from(jwk: JwkIn) -> Result<Self, BadKey> {
        if jwk.kty != "OKP" || jwk.crv != "Ed25519" {
            return Err(BadKey("kty must be OKP and crv Ed25519"));
        }
        let bytes = URL_SAFE_NO_PAD.decode(&jwk.x).map_err(|_| BadKey("x is not unpadded base64url"))?;
        let bytes: [u8; 32] = bytes.try_into().map_err(|_| BadKey("x is not 32 bytes"))?;
        // The library reads a coordinate of 2^255 - 19 and more as a smaller one, which would give a key two spellings (RFC 8032
        // §5.1.3 refuses it).
        let beyond = bytes[0] >= 0xed && bytes[1..31].iter().all(|byte| *byte == 0xff) && bytes[31] & 0x7f == 0x7f;
        let key = VerifyingKey::from_bytes(&bytes).map_err(|_| BadKey("x is not a point of the curve"))?;
        if beyond {
            return Err(BadKey("x is not the canonical spelling of a point"));
        }
        // A point of small order verifies signatures that nobody made (RFC 8032 §8.4 leaves the check to us).
        if key.is_weak() {
            return Err(BadKey("x is a point of small order"));
        }
        Ok(Self(key))
    }
}

impl From<PublicKey> for Jwk {
    fn from(key: PublicKey) -> Self {
        Self { kty: "OKP", crv: "Ed25519", x: URL_SAFE_NO_PAD.encode(key.0.as_bytes()) }
    }
}

impl From<&SigningKey> for PublicKey {
    fn from(key: &SigningKey) -> Self {
        Self(key.verifying_key())
    }
}

#[derive(Serialize)]
struct HeaderOut<'a> {
    alg: &'static str,
    kid: &'a str,
    typ: &'static str,
}

/// What a token says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claims {
    /// The signer's id, equal to `kid`.
    pub sub: String,
    /// [`AUDIENCE`].
    pub aud: String,
    /// Signed at, in seconds since the Unix epoch.
    pub iat: i64,
    /// Not accepted after, in seconds since the Unix epoch.
    pub exp: i64,
    /// base64url of 16 random bytes; a token is accepted once.
    pub jti: String,
}

/// Signs one token for `signer`, valid from `now` for a minute.
pub fn sign(key: &SigningKey, signer: &str, now: Timestamp, jti: [u8; JTI_BYTES]) -> String {
    let header = HeaderOut { alg: "EdDSA", kid: signer, typ: "JWT" };
    let claims = Claims {
        sub: signer.to_owned(),
        aud: AUDIENCE.to_owned(),
        iat: now.as_seconds(),
        exp: now.as_seconds() + MAX_LIFETIME_S,
        jti: URL_SAFE_NO_PAD.encode(jti),
    };
    let signed = format!("{}.{}", encode(&header), encode(&claims));
    let signature = key.sign(signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.to_bytes()))
}

fn encode(part: &impl Serialize) -> String {
    let json = serde_json::to_vec(part).expect("strings and integers always serialise");
    URL_SAFE_NO_PAD.encode(json)
}

/// Why a token was refused. For the log; callers all read the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Not three base64url parts, or too long.
    Shape,
    /// A header that is not exactly `alg`, `kid` and perhaps `typ`, or another algorithm.
    Header,
    /// Claims that are not exactly the five with their types.
    Claims,
    /// `sub` and `kid` differ.
    Subject,
    /// Another audience.
    Audience,
    /// `exp - iat` is not in (0, 60].
    Lifetime,
    /// Signed in the future, by more than the skew.
    NotYet,
    /// Over, by more than the skew.
    Expired,
    /// The signature is not the key's.
    Signature,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shape => "not a compact token",
            Self::Header => "a header that is not allowed",
            Self::Claims => "malformed claims",
            Self::Subject => "sub and kid differ",
            Self::Audience => "another audience",
            Self::Lifetime => "a lifetime out of bounds",
            Self::NotYet => "signed in the future",
            Self::Expired => "expired",
            Self::Signature => "a wrong signature",
        })
    }
}

/// A token that was read and is not trusted yet.
#[derive(Debug)]
pub struct Unverified<'a> {
    signed: &'a str,
    signature: Signature,
    kid: String,
    claims: Claims,
}

/// A header with exactly these members: anything that could name another key or rule (`jwk`, `jku`, `x5u`, `crit`, `b64`)
/// is refused with the rest (RFC 8725 §3.1, §3.10).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderIn {
    alg: String,
    kid: String,
    #[serde(default)]
    typ: Option<String>,
}

impl<'a> Unverified<'a> {
    /// Reads a token. Nothing of it may be trusted.
    ///
    /// # Errors
    /// [`Refusal`] when it could not be a token of ours whatever the key.
    pub fn parse(token: &'a str) -> Result<Self, Refusal> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(Refusal::Shape);
        }
        let (signed, signature) = token.rsplit_once('.').ok_or(Refusal::Shape)?;
        let (header, claims) = signed.split_once('.').ok_or(Refusal::Shape)?;
        let header: HeaderIn = decode(header).ok_or(Refusal::Header)?;
        if header.alg != "EdDSA" || header.typ.is_some_and(|typ| !typ.eq_ignore_ascii_case("JWT")) {
            return Err(Refusal::Header);
        }
        let claims: Claims = decode(claims).ok_or(Refusal::Claims)?;
        let signature = URL_SAFE_NO_PAD.decode(signature).map_err(|_| Refusal::Shape)?;
        let signature = Signature::from_slice(&signature).map_err(|_| Refusal::Signature)?;
        Ok(Self { signed, signature, kid: header.kid, claims })
    }

    /// Whose token it says it is.
    pub fn kid(&self) -> &str {
        &self.kid
    }

    /// Decides. The caller still has to see that the `jti` was never accepted before.
    ///
    /// # Errors
    /// [`Refusal`] with the first rule that it breaks.
    pub fn verify(self, key: &PublicKey, now: Timestamp) -> Result<Claims, Refusal> {
        key.0.verify_strict(self.signed.as_bytes(), &self.signature).map_err(|_| Refusal::Signature)?;
        let claims = self.claims;
        if claims.sub != self.kid {
            return Err(Refusal::Subject);
        }
        if claims.aud != AUDIENCE {
            return Err(Refusal::Audience);
        }
        if URL_SAFE_NO_PAD.decode(&claims.jti).map_or(0, |bytes| bytes.len()) != JTI_BYTES {
            return Err(Refusal::Claims);
        }
        let lifetime = claims.exp.checked_sub(claims.iat).ok_or(Refusal::Lifetime)?;
        if !(1..=MAX_LIFETIME_S).contains(&lifetime) {
            return Err(Refusal::Lifetime);
        }
        let now = now.as_seconds();
        if claims.iat > now + CLOCK_SKEW_S {
            return Err(Refusal::NotYet);
        }
        if claims.exp <= now - CLOCK_SKEW_S {
            return Err(Refusal::Expired);
        }
        Ok(claims)
    }
}

/// Header and claims are JSON objects (RFC 7515 §2, RFC 7519 §2). Our types would read an array of the members too.
fn decode<T: for<'de> Deserialize<'de>>(part: &str) -> Option<T> {
    let json = URL_SAFE_NO_PAD.decode(part).ok()?;
    if !json.trim_ascii_start().starts_with(b"{") {
        return None;
    }
    serde_json::from_slice(&json).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis_const(1_800_000_000_000);

    fn key() -> SigningKey {
        SigningKey::from_bytes(&[7; 32])
    }

    fn check(header: &str, claims: &str, at: Timestamp) -> Result<Claims, Refusal> {
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(key().sign(signed.as_bytes()).to_bytes());
        let token = format!("{signed}.{signature}");
        Unverified::parse(&token)?.verify(&PublicKey::from(&key()), at)
    }

    fn claims(iat: i64, exp: i64) -> String {
        format!(r#"{{"sub":"op","aud":"scafo-node","iat":{iat},"exp":{exp},"jti":"{}"}}"#, "A".repeat(22))
    }

    const HEADER: &str = r#"{"alg":"EdDSA","kid":"op"}"#;

    #[test]
    fn a_token_that_was_just_signed_is_accepted() {
        let token = sign(&key(), "op", NOW, [1; 16]);
        let parsed = Unverified::parse(&token).unwrap();
        assert_eq!(parsed.kid(), "op");
        assert!(parsed.verify(&PublicKey::from(&key()), NOW).is_ok());
    }

    #[test]
    fn the_skew_is_thirty_seconds_at_both_ends() {
        let now = NOW.as_seconds();
        assert!(check(HEADER, &claims(now + 30, now + 60), NOW).is_ok());
        assert_eq!(check(HEADER, &claims(now + 31, now + 60), NOW), Err(Refusal::NotYet));
        assert!(check(HEADER, &claims(now - 60, now - 29), NOW).is_ok());
        assert_eq!(check(HEADER, &claims(now - 60, now - 30), NOW), Err(Refusal::Expired));
    }

    #[test]
    fn a_life_is_more_than_nothing_and_at_most_a_minute() {
        let now = NOW.as_seconds();
        for (life, good) in [(1, true), (60, true), (61, false), (0, false), (-5, false)] {
            assert_eq!(check(HEADER, &claims(now, now + life), NOW).is_ok(), good, "{life}");
        }
        assert_eq!(check(HEADER, &claims(i64::MIN, i64::MAX), NOW), Err(Refusal::Lifetime));
    }

    #[test]
    fn a_header_may_say_nothing_but_algorithm_and_key() {
        let now = NOW.as_seconds();
        for header in [
            r#"{"alg":"none","kid":"op"}"#,
            r#"{"alg":"HS256","kid":"op"}"#,
            r#"{"alg":"eddsa","kid":"op"}"#,
            r#"{"alg":"EdDSA"}"#,
            r#"{"alg":"EdDSA","kid":"op","crit":[]}"#,
            r#"{"alg":"EdDSA","kid":"op","jwk":{}}"#,
            r#"{"alg":"EdDSA","kid":"op","b64":false}"#,
            r#"{"alg":"EdDSA","alg":"EdDSA","kid":"op"}"#,
            r#"["EdDSA","op"]"#,
        ] {
            assert_eq!(check(header, &claims(now, now + 10), NOW), Err(Refusal::Header), "{header}");
        }
        assert_eq!(check(r#"{"alg":"EdDSA","kid":"xx"}"#, &claims(now, now + 10), NOW), Err(Refusal::Subject));
    }

    #[test]
    fn a_foreign_or_altered_signature_is_refused() {
        let token = sign(&SigningKey::from_bytes(&[8; 32]), "op", NOW, [1; 16]);
        let refused = Unverified::parse(&token).unwrap().verify(&PublicKey::from(&key()), NOW);
        assert_eq!(refused, Err(Refusal::Signature));
        assert!(Unverified::parse("a.b").is_err() && Unverified::parse("").is_err());
    }

    #[test]
    fn a_key_of_small_order_is_no_key() {
        let zero = format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{}"}}"#, URL_SAFE_NO_PAD.encode([0; 32]));
        assert!(serde_json::from_str::<PublicKey>(&zero).is_err());
    }

    #[test]
    fn a_point_has_one_spelling() {
        let mut points = 0;
        for (low, sign) in (0xed..=0xff_u8).flat_map(|low| [(low, 0x7f), (low, 0xff)]) {
            let mut x = [0xff; 32];
            (x[0], x[31]) = (low, sign);
            points += u32::from(VerifyingKey::from_bytes(&x).is_ok());
            let jwk = format!(r#"{{"kty":"OKP","crv":"Ed25519","x":"{}"}}"#, URL_SAFE_NO_PAD.encode(x));
            assert!(serde_json::from_str::<PublicKey>(&jwk).is_err(), "{low:x} {sign:x}");
        }
        assert!(points > 0, "the library reads some of them");
    }

    #[test]
    fn a_key_is_an_object() {
        let key = serde_json::to_value(PublicKey::from(&key())).unwrap();
        assert!(serde_json::from_value::<PublicKey>(key.clone()).is_ok());
        let array = serde_json::json!(["OKP", "Ed25519", key["x"]]);
        assert!(serde_json::from_value::<PublicKey>(array).is_err());
    }

    #[test]
    fn private_material_is_never_copied() {
        let public = serde_json::to_value(PublicKey::from(&key())).unwrap();
        let mut with_d = public.clone();
        with_d["d"] = "secret".into();
        let read: PublicKey = serde_json::from_value(with_d).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), public);
    }

    mod properties {
        use proptest::prelude::*;

        use super::*;
        use crate::fuzz;

        fn verifies(token: &str) -> bool {
            Unverified::parse(token).is_ok_and(|token| token.verify(&PublicKey::from(&key()), NOW).is_ok())
        }

        #[test]
        fn no_text_is_a_panic_and_none_is_a_token() {
            fuzz::holds(
                2000,
                &"[A-Za-z0-9_.=-]{0,200}|.{0,40}|([A-Za-z0-9_-]{0,40}\\.){2}[A-Za-z0-9_-]{86}",
                |token| {
                    prop_assert!(!verifies(&token));
                    Ok(())
                },
            );
        }

        #[test]
        fn no_json_in_the_right_places_is_a_panic() {
            let value = || {
                prop_oneof!["-?[0-9]{1,20}", "[0-9]{1,3}(\\.[0-9])?(e[0-9]{1,3})?", "\"[a-zA-Z0-9_-]{0,30}\"", ".{0,5}"]
            };
            let claims = [value(), value(), value(), value(), value()].prop_map(|[sub, aud, iat, exp, jti]| {
                format!(r#"{{"sub":{sub},"aud":{aud},"iat":{iat},"exp":{exp},"jti":{jti}}}"#)
            });
            fuzz::holds(
                2000,
                &("(\\{\"alg\":\"EdDSA\",\"kid\":\"[a-z]{0,3}\"\\})|.{0,40}", claims),
                |(header, claims)| {
                    // Signed by the right key: what is said decides.
                    let read = check(&header, &claims, NOW);
                    prop_assert!(read.is_err(), "{read:?}");
                    Ok(())
                },
            );
        }

        #[test]
        fn of_times_around_now_exactly_the_legal_are_accepted() {
            fuzz::holds(2000, &(-200..200_i64, -70..70_i64), |(signed, life)| {
                let now = NOW.as_seconds();
                let accepted = check(HEADER, &claims(now + signed, now + signed + life), NOW).is_ok();
                let legal = (1..=60).contains(&life) && signed <= 30 && signed + life > -30;
                prop_assert_eq!(accepted, legal);
                Ok(())
            });
        }

        /// Pieces of tokens, right ones and wrong ones.
        const WORDS: [&str; 22] = [
            "\"alg\":\"none\",",
            "\"alg\":\"EdDSA\",",
            "\"crit\":[],",
            "\"jwk\":{},",
            "\"b64\":false,",
            "\"typ\":\"JWT\",",
            "\"kid\":\"op\",",
            "\"sub\":\"op\",",
            "\"aud\":\"scafo-node\",",
            "1800000000",
            "1800000030",
            "1799999911",
            "-1",
            "1e9",
            "9223372036854775807",
            "null",
            "\\u0000",
            "{",
            "}",
            ",",
            "\"",
            "AQEBAQEBAQEBAQEBAQEBAQ",
        ];

        /// The rules again, over the plain JSON.
        fn is_legal(header: &str, claims: &str) -> bool {
            let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap_or_default();
            let (header, claims) = (read(header), read(claims));
            let known = |name: &String| ["alg", "kid", "typ"].contains(&name.as_str());
            let typ = header
                .get("typ")
                .is_none_or(|typ| typ.is_null() || typ.as_str().is_some_and(|typ| typ.eq_ignore_ascii_case("JWT")));
            let plain = header["alg"] == "EdDSA" && typ && header.as_object().is_some_and(|all| all.keys().all(known));
            let same = header["kid"].is_string() && header["kid"] == claims["sub"] && claims["aud"] == "scafo-node";
            let jti = claims["jti"].as_str().and_then(|jti| URL_SAFE_NO_PAD.decode(jti).ok());
            let (Some(iat), Some(exp)) = (claims["iat"].as_i64(), claims["exp"].as_i64()) else { return false };
            let now = i128::from(NOW.as_seconds());
            let (iat, exp) = (i128::from(iat), i128::from(exp));
            let in_time = (1..=60).contains(&(exp - iat)) && iat <= now + 30 && exp > now - 30;
            plain && same && in_time && jti.is_some_and(|jti| jti.len() == 16)
        }

        #[test]
        fn what_became_of_a_token_is_accepted_only_by_the_rules() {
            fuzz::holds(2000, &fuzz::mutated("token", &WORDS), |input| {
                let text = String::from_utf8_lossy(&input);
                let (header, claims) = text.split_once('\n').unwrap_or((&text, ""));
                // Signed by the right key: what is said decides.
                let accepted = check(header, claims, NOW).is_ok();
                prop_assert!(!accepted || is_legal(header, claims), "{text}");
                Ok(())
            });
            let accepted = |input: Vec<u8>| {
                let text = String::from_utf8(input).unwrap();
                let (header, claims) = text.split_once('\n').unwrap();
                check(header, claims, NOW).is_ok()
            };
            assert!(fuzz::corpus("token").into_iter().filter(|input| accepted(input.clone())).count() >= 2);
        }

        #[test]
        fn a_changed_character_is_another_token() {
            let token = sign(&key(), "op", NOW, [1; 16]);
            assert!(verifies(&token));
            fuzz::holds(2000, &(any::<prop::sample::Index>(), "[A-Za-z0-9_.=-]"), |(at, into)| {
                let at = at.index(token.len());
                let mut changed = token.clone();
                changed.replace_range(at..=at, &into);
                prop_assert_eq!(verifies(&changed), changed == token);
                Ok(())
            });
        }
    }
}

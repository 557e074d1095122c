//! What holds for every token and key set.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::super::claim::Unverified;
use super::super::jwks::KeySet;
use super::*;
use crate::fuzz;

const NOW: Timestamp = Timestamp::from_millis_const(NOW_S * 1000);

struct Genuine {
    token: String,
    keys: KeySet,
}

/// A token for each kind of key.
static GENUINE: LazyLock<Vec<Genuine>> = LazyLock::new(|| {
    let claims = json!({ "iss": "https://i", "sub": "s", "aud": "scafo", "exp": NOW_S + 300, "iat": NOW_S });
    let one = |algorithm| {
        let signer = Signer::new(algorithm, "1");
        let keys = json!({ "keys": [signer.jwk()] }).to_string();
        Genuine { token: signer.token(&claims), keys: KeySet::parse(keys.as_bytes()).unwrap() }
    };
    ["RS256", "PS256", "ES256", "ES384", "EdDSA"].into_iter().map(one).collect()
});

fn holds_up(token: &str, keys: &KeySet) -> bool {
    Unverified::parse(token, NOW).is_ok_and(|token| token.verify(keys).is_ok())
}

#[test]
fn no_text_is_a_panic_and_none_holds_up() {
    fuzz::holds(2000, &"[A-Za-z0-9_.=-]{0,200}|.{0,40}", |token| {
        let _ = is_workload(&token);
        prop_assert!(!holds_up(&token, &GENUINE[0].keys));
        Ok(())
    });
}

#[test]
fn no_json_in_the_right_places_is_a_panic() {
    let header = "\\{\"alg\":\"(RS256|EdDSA|none)\"(,\"kid\":(\"1\"|.{0,3}))?\\}|.{0,40}";
    fuzz::holds(2000, &(header, ".{0,60}", ".{0,20}"), |(header, claims, signature)| {
        let token = [header, claims, signature].map(|part| encode(part.as_bytes())).join(".");
        let _ = is_workload(&token);
        prop_assert!(!holds_up(&token, &GENUINE[0].keys));
        Ok(())
    });
}

#[test]
fn a_changed_character_never_holds_up() {
    let change = (any::<prop::sample::Index>(), any::<prop::sample::Index>(), "[A-Za-z0-9_.-]");
    fuzz::holds(1000, &change, |(which, at, into)| {
        let genuine = which.get(&GENUINE);
        let at = at.index(genuine.token.len());
        let mut changed = genuine.token.clone();
        changed.replace_range(at..=at, &into);
        prop_assert!(holds_up(&genuine.token, &genuine.keys));
        prop_assert_eq!(holds_up(&changed, &genuine.keys), changed == genuine.token);
        Ok(())
    });
}

#[test]
fn a_key_set_of_any_bytes_is_no_panic() {
    fuzz::holds(2000, &(prop::collection::vec(any::<u8>(), 0..200), "(RSA|EC|OKP)", ".{0,80}"), |(json, kty, text)| {
        let _ = KeySet::parse(&json);
        let key = json!({ "kty": kty, "n": text, "e": text, "crv": text, "x": text, "y": text });
        let keys = KeySet::parse(json!({ "keys": [key] }).to_string().as_bytes()).unwrap();
        prop_assert!(!holds_up(&GENUINE[0].token, &keys));
        Ok(())
    });
}

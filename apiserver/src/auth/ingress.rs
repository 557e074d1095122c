//! Ingress tokens: opaque, admitted from a list.

use http::HeaderMap;
use scafo_core::problem::Problem;
use scafo_core::settings::Secret;
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

use super::{bearer, refused};

/// The tokens that this node admits, as digests, so that comparing them tells neither content nor length.
pub(crate) struct IngressTokens(Vec<[u8; 32]>);

impl IngressTokens {
    /// `None` when one of them is empty: it would open the door to an empty bearer.
    pub(crate) fn new(tokens: &[Secret]) -> Option<Self> {
        let trimmed = tokens.iter().map(|token| token.expose().trim());
        trimmed.map(|token| (!token.is_empty()).then(|| digest(token))).collect::<Option<Vec<_>>>().map(Self)
    }

    /// Admits a request that carries one of the tokens.
    ///
    /// # Errors
    /// `auth-invalid`.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let given = digest(bearer::token(headers).ok_or_else(|| refused("no bearer token"))?);
        // Every token is compared, found or not.
        let found = self.0.iter().fold(Choice::from(0), |found, token| found | token.ct_eq(&given));
        if bool::from(found) { Ok(()) } else { Err(refused("no ingress token of this node")) }
    }
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use http::header::AUTHORIZATION;

    use super::*;

    #[test]
    fn any_of_the_tokens_is_admitted_and_nothing_else() {
        let tokens = IngressTokens::new(&[Secret::new("one"), Secret::new("two\n"), Secret::new("one")]).unwrap();
        for (header, admitted) in
            [("Bearer one", true), ("bearer two", true), ("Bearer on", false), ("Bearer onee", false), ("one", false)]
        {
            let headers = HeaderMap::from_iter([(AUTHORIZATION, header.parse().unwrap())]);
            assert_eq!(tokens.admit(&headers).is_ok(), admitted, "{header}");
        }
        assert!(tokens.admit(&HeaderMap::new()).is_err());
    }

    #[test]
    fn an_empty_token_is_refused_at_the_start() {
        assert!(IngressTokens::new(&[Secret::new("one"), Secret::new(" \n")]).is_none());
        let none = IngressTokens::new(&[]).unwrap();
        assert!(none.admit(&HeaderMap::from_iter([(AUTHORIZATION, "Bearer x".parse().unwrap())])).is_err());
    }
}

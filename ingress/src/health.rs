//! Who may ask this process how it is, where requests come.
//!
//! A proxy on this machine hands on what strangers send, from a peer and for a host that say nothing of them. So whoever asks shows
//! the ingress token of a node: to everybody else the path is like any other.

use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

use crate::config::Source;

/// Where it is asked, on every host.
pub(crate) const HEALTH_PATH: &str = "/.well-known/scafo-ingress/health";

/// What may be shown, as digests, so that comparing them tells neither content nor length.
#[derive(Debug, Default)]
pub(crate) struct Askers(Vec<[u8; 32]>);

impl Askers {
    /// Whoever shows a token that one of these nodes is polled with.
    pub(crate) fn of(sources: &[Source]) -> Self {
        Self(sources.iter().map(|source| digest(&source.authorization)).collect())
    }

    /// Whether the one field for it shows one of the tokens, as `Bearer` and the token.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> bool {
        let mut given = headers.get_all(AUTHORIZATION).iter();
        let (Some(given), None) = (given.next().map(digest), given.next()) else { return false };
        // Every one is compared, found or not.
        self.0.iter().fold(Choice::from(0), |found, asker| found | asker.ct_eq(&given)).into()
    }
}

fn digest(authorization: &HeaderValue) -> [u8; 32] {
    Sha256::digest(authorization.as_bytes()).into()
}

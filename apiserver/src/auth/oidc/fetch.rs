//! Asking an issuer (OpenID Connect Discovery 1.0 §4): its metadata, and the keys that these point to.
//!
//! Only over TLS, or on this machine; no redirect is followed, because it would leave what the policy names; and each answer is
//! bounded in time and size.

use std::sync::Arc;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode, Url};
use scafo_core::trust::is_fetchable;
use serde::Deserialize;
use tokio::sync::OnceCell;

use super::cache::{Found, Question};
use super::jwks::KeySet;
use super::object;

/// One request, from the connection to the last byte.
pub(super) const REQUEST: Duration = Duration::from_secs(5);
/// Largest answer. Metadata has some 3 KiB; sixty-four RSA keys of 8192 bits with their certificates have about 250 KiB.
const ANSWER_MAX: usize = 256 * 1024;

/// Why an issuer's keys could not be fetched. For the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum FetchError {
    /// Not a URL that may be fetched.
    #[error("keys are fetched over https only, or over http from this machine")]
    Url,
    /// The certificates of this machine cannot be loaded.
    #[error("no client for https: {0}")]
    Client(reqwest::Error),
    /// No whole answer in time.
    #[error("no whole answer: {}", chain(.0))]
    Broken(#[from] reqwest::Error),
    /// Another status than 200. Redirects are among them.
    #[error("the answer has status {0} and not 200")]
    Status(StatusCode),
    /// Larger than any such document.
    #[error("the answer has more than {ANSWER_MAX} bytes")]
    TooLarge,
    /// No such document.
    #[error("the answer is no {0}")]
    Malformed(&'static str),
    /// The metadata are another issuer's (OpenID Connect Discovery 1.0 §4.3).
    #[error("the metadata name another issuer")]
    OtherIssuer,
}

/// What the client library hides in its sources: which part of the connection failed.
fn chain(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// The two clients. The one for TLS loads the certificates of this machine, so it is made when the first issuer needs it: a node
/// that admits no workloads needs none.
#[derive(Debug)]
pub(super) struct Fetcher {
    within: Duration,
    tls: OnceCell<Client>,
    plain: OnceCell<Client>,
}

impl Fetcher {
    /// `within` bounds one request; [`REQUEST`] outside of tests.
    pub(super) const fn new(within: Duration) -> Self {
        Self { within, tls: OnceCell::const_new(), plain: OnceCell::const_new() }
    }

    /// Asks `issuer`. Takes two requests at most.
    pub(super) async fn ask(&self, issuer: &str, question: &Question) -> Result<Found, FetchError> {
        let jwks_uri = match question {
            Question::Keys(uri) => uri.clone(),
            Question::Everything => self.discover(issuer).await?,
        };
        let keys = KeySet::parse(&self.get(&jwks_uri).await?).ok_or(FetchError::Malformed("JWK Set"))?;
        Ok(Found { jwks_uri, keys: Arc::new(keys) })
    }

    async fn discover(&self, issuer: &str) -> Result<Arc<str>, FetchError> {
        #[derive(Deserialize)]
        struct Metadata {
            issuer: String,
            jwks_uri: String,
        }
        let address = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let metadata: Metadata =
            object(&self.get(&address).await?).ok_or(FetchError::Malformed("provider metadata"))?;
        if metadata.issuer != issuer {
            return Err(FetchError::OtherIssuer);
        }
        // An issuer elsewhere does not make this node talk to itself without TLS.
        if issuer.starts_with("https:") && !metadata.jwks_uri.starts_with("https:") {
            return Err(FetchError::Url);
        }
        Ok(metadata.jwks_uri.into())
    }

    async fn get(&self, address: &str) -> Result<Vec<u8>, FetchError> {
        let url: Url = address.parse().map_err(|_| FetchError::Url)?;
        // Both forms, because the parser changes some texts into others.
        if !is_fetchable(address) || !is_fetchable(url.as_str()) {
            return Err(FetchError::Url);
        }
        let mut answer = self.client(url.scheme() == "https").await?.get(url).send().await?;
        if answer.status() != StatusCode::OK {
            return Err(FetchError::Status(answer.status()));
        }
        let mut body = Vec::new();
        while let Some(piece) = answer.chunk().await? {
            if body.len() + piece.len() > ANSWER_MAX {
                return Err(FetchError::TooLarge);
            }
            body.extend_from_slice(&piece);
        }
        Ok(body)
    }

    async fn client(&self, tls: bool) -> Result<&Client, FetchError> {
        let builder = Client::builder()
            .user_agent(concat!("scafo/", env!("CARGO_PKG_VERSION")))
            .redirect(Policy::none())
            .referer(false)
            .timeout(self.within)
            // Asked twice in five minutes, so a connection is not worth keeping.
            .pool_max_idle_per_host(0);
        let (cell, builder) = if tls {
            (&self.tls, builder.https_only(true))
        } else {
            // Loopback: no proxy can reach it, and no certificate is needed.
            (&self.plain, builder.no_proxy().tls_certs_only([]))
        };
        let build = async || {
            // Even the plain client wants one. The first in the process stays, and there is only one in the build.
            let _ = rustls::crypto::ring::default_provider().install_default();
            builder.build()
        };
        cell.get_or_try_init(build).await.map_err(FetchError::Client)
    }
}

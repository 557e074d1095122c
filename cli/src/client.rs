//! A node's HTTP API from outside. Every request carries a token of its own, because a token is accepted once.
//!
//! What can go wrong comes back as one of few outcomes ([`CallError`]): the node refused, or nobody was reached, or the
//! connection broke after the request may have arrived. Only the caller knows what may be asked again.

use std::error::Error as _;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::Stream;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Method, RequestBuilder, Response, Url};
use scafo_core::deploy::{self, Metadata};
use scafo_core::problem::ProblemDocument;
use scafo_core::view::DeployStatus;
use scafo_core::{ApplicationName, DeployId, Problem, ProblemCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Failure, chain};
use crate::keys::Signer;

/// How long finding a node may take.
const CONNECT: Duration = Duration::from_secs(5);
/// How long an answer may take: the node's own longest wait for its bucket is 40 s.
pub(crate) const ANSWER: Duration = Duration::from_secs(45);
/// How long deleting an application may take: a node gives the coordinator 150 s, and its own API 5 s more.
pub(crate) const DELETION: Duration = Duration::from_secs(165);
/// How long an upload may take: the node's own limit is 10 min by default, and it says so better than we could.
const UPLOAD: Duration = Duration::from_secs(20 * 60);
/// Longest answer that is read. A hundred thousand applications have about 50 MiB.
const MAX_ANSWER_BYTES: usize = 128 * 1024 * 1024;
/// How much of an upload is read at once.
const PIECE: usize = 256 * 1024;
/// Longest wait that a node may ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

/// Base URL of an API: `http` or `https`, without credentials, query or fragment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct ApiUrl(Url);

impl FromStr for ApiUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let url = Url::parse(text).map_err(|error| format!("not a URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err("must start with http:// or https:// and name a host".to_owned());
        }
        let bare = url.username().is_empty() && url.password().is_none();
        if !bare || url.query().is_some() || url.fragment().is_some() {
            return Err("must have no user, query or fragment".to_owned());
        }
        Ok(Self(url))
    }
}

impl TryFrom<String> for ApiUrl {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ApiUrl> for String {
    fn from(url: ApiUrl) -> Self {
        url.to_string()
    }
}

impl ApiUrl {
    /// Whether it is reached over TLS.
    pub(crate) fn is_https(&self) -> bool {
        self.0.scheme() == "https"
    }

    fn is_loopback(&self) -> bool {
        let host = self.0.host_str().unwrap_or_default().trim_matches(['[', ']']);
        host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
    }

    /// The address of `path`, which starts with a slash, under this base.
    fn join(&self, path: &str) -> String {
        format!("{}{path}", self.0.as_str().trim_end_matches('/'))
    }
}

impl fmt::Display for ApiUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_str().trim_end_matches('/'))
    }
}

/// Why a call brought no answer that was hoped for.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The node refused. `retry_after` is what it asked for.
    Refused { problem: Problem, status: u16, retry_after: Option<Duration> },
    /// Nobody was reached: nothing has happened.
    Unreachable(String),
    /// It broke on the way: the request may have arrived.
    Broken(String),
    /// Something answered that is no scafo node.
    Foreign(String),
}

impl CallError {
    /// Whether it may pass by itself: the node is restarting a part, or cannot be reached at the moment.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Refused { status, .. } => matches!(status, 429 | 502 | 503 | 504),
            Self::Unreachable(_) | Self::Broken(_) => true,
            Self::Foreign(_) => false,
        }
    }

    /// The failure of a command that was doing `what`.
    pub(crate) fn into_failure(self, what: &str, api: &ApiUrl) -> Failure {
        match self {
            Self::Refused { problem, .. } => Failure::refused(what, &problem),
            Self::Unreachable(cause) => Failure::new(format!("{what}: no node answers at {api}: {cause}"))
                .hint("start one with `scafo dev` (or `scafo sail`), or name another with --url or --context"),
            Self::Broken(cause) => Failure::new(format!("{what}: the connection to {api} broke: {cause}"))
                .hint("run it again; it is safe to repeat"),
            Self::Foreign(cause) => Failure::new(format!("{what}: {api} does not answer like a scafo node: {cause}"))
                .hint("check the address; the API of a node listens on port 7400 by default"),
        }
    }
}

/// A node's API.
pub(crate) struct Client {
    http: reqwest::Client,
    api: ApiUrl,
}

impl Client {
    /// A client of the node at `api`.
    ///
    /// # Errors
    /// When the trusted certificates of this machine cannot be loaded (only asked for `https`).
    pub(crate) fn new(api: ApiUrl) -> Result<Self, Failure> {
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("scafo/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT)
            // A token is not carried to where a node points: nodes do not redirect.
            .redirect(reqwest::redirect::Policy::none());
        if api.is_loopback() {
            builder = builder.no_proxy();
        }
        if !api.is_https() {
            // No certificates are loaded for a connection without TLS; a bare machine has none.
            builder = builder.tls_certs_only([]);
        }
        let http = builder.build().map_err(|error| {
            Failure::because("cannot prepare connections", &error).hint("install the package ca-certificates")
        })?;
        Ok(Self { http, api })
    }

    /// Where the node is.
    pub(crate) const fn api(&self) -> &ApiUrl {
        &self.api
    }

    /// Reads `path` with an operator's token.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str, signer: &Signer) -> Result<T, CallError> {
        self.get_with(path, &signer.token()).await.and_then(|body| decode(&body))
    }

    /// Reads `path` with a bearer token that is given, as it is.
    pub(crate) async fn get_with(&self, path: &str, token: &str) -> Result<Vec<u8>, CallError> {
        let request = self.request(Method::GET, path, token).timeout(ANSWER);
        body(send(request).await?).await
    }

    /// Makes one request that changes something, or reads, with an operator's token; answered within `deadline`.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        content: Option<&Value>,
        deadline: Duration,
        signer: &Signer,
    ) -> Result<T, CallError> {
        let mut request = self.request(method, path, &signer.token()).timeout(deadline);
        if let Some(content) = content {
            request = request.json(content);
        }
        decode(&body(send(request).await?).await?)
    }

    /// Asks how a deploy is going.
    pub(crate) async fn deploy_status(&self, id: &DeployId, signer: &Signer) -> Result<DeployStatus, CallError> {
        self.get(&format!("/v1/deploys/{id}"), signer).await
    }

    /// How many hosts our own ingress on this machine knows, from its health answer, for which it wants its node's token; `None` when it
    /// does not say.
    pub(crate) async fn ingress_hosts(&self, ingress: &str, token: &str) -> Option<usize> {
        #[derive(Deserialize)]
        struct Health {
            hosts: usize,
        }
        let url = format!("{}/.well-known/scafo-ingress/health", ingress.trim_end_matches('/'));
        let request = self.http.get(url).bearer_auth(token).timeout(CONNECT);
        let answer = body(send(request).await.ok()?).await.ok()?;
        serde_json::from_slice::<Health>(&answer).ok().map(|health| health.hosts)
    }

    /// Uploads an archive.
    pub(crate) async fn upload(
        &self,
        application: &ApplicationName,
        metadata: &Metadata,
        archive: Archive,
        signer: &Signer,
    ) -> Result<DeployStatus, CallError> {
        let request = self
            .request(Method::POST, &format!("/v1/applications/{application}/deploys"), &signer.token())
            .header(deploy::HEADER, metadata.encode())
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(CONTENT_LENGTH, archive.bytes)
            .body(reqwest::Body::wrap_stream(archive.pieces()))
            .timeout(UPLOAD);
        decode(&body(send(request).await?).await?)
    }

    fn request(&self, method: Method, path: &str, token: &str) -> RequestBuilder {
        self.http.request(method, self.api.join(path)).header(AUTHORIZATION, format!("Bearer {token}"))
    }
}

/// What is uploaded. Every try reads the file by position, so that a try that was given up cannot disturb the next.
#[derive(Clone)]
pub(crate) struct Archive {
    /// The file.
    pub(crate) file: Arc<File>,
    /// Its size.
    pub(crate) bytes: u64,
    /// Hears the position up to which it was handed to the connection.
    pub(crate) progress: Arc<dyn Fn(u64) + Send + Sync>,
}

impl Archive {
    fn pieces(self) -> impl Stream<Item = io::Result<Bytes>> {
        futures_util::stream::try_unfold(0, move |position| {
            let Self { file, progress, .. } = self.clone();
            async move {
                let piece =
                    tokio::task::spawn_blocking(move || read_at(&file, position)).await.map_err(io::Error::other)??;
                let position = position + piece.len() as u64;
                progress(position);
                Ok((!piece.is_empty()).then_some((piece, position)))
            }
        })
    }
}

fn read_at(file: &File, position: u64) -> io::Result<Bytes> {
    let mut piece = vec![0; PIECE];
    let count = file.read_at(&mut piece, position)?;
    piece.truncate(count);
    Ok(piece.into())
}

async fn send(request: RequestBuilder) -> Result<Response, CallError> {
    let response = request.send().await.map_err(|error| transport(&error))?;
    let status = response.status().as_u16();
    if response.status().is_success() {
        return Ok(response);
    }
    let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    let retry_after = retry_after.map(|seconds| Duration::from_secs(seconds).min(MAX_RETRY_AFTER));
    let body = body(response).await?;
    match serde_json::from_slice::<ProblemDocument>(&body) {
        Ok(document) => Err(CallError::Refused { problem: document.into_problem(), status, retry_after }),
        // A proxy in front of the node says so without a problem document.
        Err(_) if matches!(status, 502..=504) => {
            let problem = Problem::new(ProblemCode::Draining, format!("something before the node answered {status}"));
            Err(CallError::Refused { problem, status, retry_after })
        }
        Err(_) => Err(CallError::Foreign(format!("status {status} without a problem document"))),
    }
}

async fn body(mut response: Response) -> Result<Vec<u8>, CallError> {
    let mut whole = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|error| transport(&error))? {
        if whole.len() + piece.len() > MAX_ANSWER_BYTES {
            return Err(CallError::Foreign(format!("an answer of more than {MAX_ANSWER_BYTES} bytes")));
        }
        whole.extend_from_slice(&piece);
    }
    Ok(whole)
}

fn decode<T: DeserializeOwned>(body: &[u8]) -> Result<T, CallError> {
    serde_json::from_slice(body).map_err(|error| CallError::Foreign(error.to_string()))
}

fn transport(error: &reqwest::Error) -> CallError {
    // The error's own text repeats the address; what is below it says why.
    let cause = error.source().map_or_else(|| error.to_string(), chain);
    if error.is_connect() { CallError::Unreachable(cause) } else { CallError::Broken(cause) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_is_a_scheme_and_a_host_and_perhaps_a_path() {
        for (text, shown) in [
            ("http://127.0.0.1:7400", "http://127.0.0.1:7400"),
            ("https://api.example/", "https://api.example"),
            ("http://[::1]:7400/base/", "http://[::1]:7400/base"),
        ] {
            assert_eq!(text.parse::<ApiUrl>().unwrap().to_string(), shown);
        }
        for bad in ["node", "ftp://node", "http://", "http://u:p@node", "http://node?x", "http://node#x", ""] {
            assert!(bad.parse::<ApiUrl>().is_err(), "{bad}");
        }
        let base: ApiUrl = "http://[::1]:7400/base/".parse().unwrap();
        assert_eq!(base.join("/v1/state"), "http://[::1]:7400/base/v1/state");
        assert!(base.is_loopback() && !base.is_https());
    }

    #[test]
    fn only_what_may_pass_is_asked_again() {
        let refused =
            |status| CallError::Refused { problem: Problem::new(ProblemCode::Internal, ""), status, retry_after: None };
        for (status, passes) in [(400, false), (401, false), (403, false), (409, false), (500, false), (503, true)] {
            assert_eq!(refused(status).may_pass(), passes, "{status}");
        }
        assert!(CallError::Unreachable(String::new()).may_pass() && !CallError::Foreign(String::new()).may_pass());
    }
}

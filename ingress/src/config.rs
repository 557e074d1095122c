//! What the daemon runs with, checked once.

use std::{fmt, path::PathBuf, time::Duration};

use http::{
    HeaderValue, Uri,
    uri::{PathAndQuery, Scheme},
};
use scafo_core::settings::{IngressSource, IngressdSettings, Secret};
use scafo_proxy::Upstream;

/// Shortest pause between two polls. Below it, polling would cost more than anybody can notice.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(50);

/// Longest pause between two polls. A node holds a process for 35 s after it left the document; polling more slowly
/// than that would send requests to processes that are gone even where every poll succeeds. One that is lost takes up to
/// 10 s, and the next comes a pause later: two pauses and that have to fit into the 35 s where a lost poll is to do no harm, so that pauses
/// of up to 10 s are safe from one.
const LONGEST_INTERVAL: Duration = Duration::from_secs(30);

/// Most fleets behind one ingress. Each request that no fleet names exactly is looked up in all of them.
const MOST_FLEETS: usize = 64;

/// A configuration that can be run.
#[derive(Debug)]
pub struct Config {
    pub(crate) sources: Vec<Source>,
    pub(crate) interval: Duration,
    pub(crate) grace: Duration,
    pub(crate) first_wait: Duration,
    /// Where the last document of each fleet is kept.
    pub(crate) dir: Option<PathBuf>,
}

/// How long requests under way may take to end after the daemon was asked to. 10 s: ordinary requests are done long
/// before, and streams and WebSockets have no end to wait for.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// For how long after its start the daemon holds requests that it cannot decide yet for want of a document. 10 s: a
/// restarted ingress has its document within milliseconds, and one poll at most takes that long. Nobody is refused
/// because of a restart, and nobody waits for a node that does not answer at all.
const DEFAULT_FIRST_WAIT: Duration = Duration::from_secs(10);

/// Settings that cannot be run with.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    /// No node, or too many.
    #[error("{0} nodes are configured: name one node of each fleet, from 1 to {MOST_FLEETS}")]
    Fleets(usize),
    /// The URL of a node is no `http://host:port`.
    #[error(
        "`{0}` is no node: write http://HOST:PORT (the token is sent as it is, so keep to loopback or a private network)"
    )]
    Url(String),
    /// The token is empty or not sendable.
    #[error(
        "the ingress token for `{0}` is empty or holds characters that no token has: read it from <state-dir>/ingress-token"
    )]
    Token(String),
    /// The interval is out of bounds.
    #[error("a poll interval of {} ms is out of bounds: from {} ms to {} ms", .0.as_millis(), SHORTEST_INTERVAL.as_millis(), LONGEST_INTERVAL.as_millis())]
    Interval(Duration),
}

impl Config {
    /// Checks the settings that the supervisor or the command line gives.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names what has to be changed; it never holds a token.
    pub fn new(settings: &IngressdSettings, grace: Duration) -> Result<Self, ConfigError> {
        if !(1..=MOST_FLEETS).contains(&settings.nodes.len()) {
            return Err(ConfigError::Fleets(settings.nodes.len()));
        }
        let interval = settings.poll_interval.get();
        if !(SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(&interval) {
            return Err(ConfigError::Interval(interval));
        }
        let sources = settings.nodes.iter().map(Source::new).collect::<Result<_, _>>()?;
        Ok(Self { sources, interval, grace, first_wait: DEFAULT_FIRST_WAIT, dir: settings.dir.clone() })
    }
}

/// One node whose document is pulled.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// What this fleet is told from others by, where its document is kept.
    pub(crate) fleet: String,
    pub(crate) upstream: Upstream,
    pub(crate) host: HeaderValue,
    pub(crate) target: Uri,
    pub(crate) authorization: HeaderValue,
}

impl Source {
    fn new(source: &IngressSource) -> Result<Self, ConfigError> {
        let (upstream, host, target) = parsed_url(&source.url).ok_or_else(|| ConfigError::Url(shown(&source.url)))?;
        let authorization = bearer(&source.token).ok_or_else(|| ConfigError::Token(shown(&source.url)))?;
        let fleet = source.fleet.clone().unwrap_or_else(|| source.url.trim_end_matches('/').to_owned());
        Ok(Self { fleet, upstream, host, target, authorization })
    }
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.upstream.fmt(out)
    }
}

fn parsed_url(url: &str) -> Option<(Upstream, HeaderValue, Uri)> {
    let uri: Uri = url.parse().ok()?;
    let authority = uri.authority()?;
    let bare = uri.query().is_none() && !authority.as_str().contains('@');
    if uri.scheme() != Some(&Scheme::HTTP) || !bare {
        return None;
    }
    let address = format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(80));
    let path = format!("{}/v1/ingress/routes?prefer=self", uri.path().trim_end_matches('/'));
    let target = Uri::from(PathAndQuery::from_maybe_shared(path).ok()?);
    Some((address.parse().ok()?, HeaderValue::from_str(authority.as_str()).ok()?, target))
}

fn bearer(token: &Secret) -> Option<HeaderValue> {
    let token = token.expose().trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return None;
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// A URL as it may be shown: without what stands before an `@`, which may be a password.
fn shown(url: &str) -> String {
    let text = match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
        (None, Some((_, rest))) => rest.to_owned(),
        (_, None) => url.to_owned(),
    };
    text.chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use scafo_core::settings::Millis;

    use super::*;

    fn config(url: &str, token: &str, interval: u64) -> Result<Config, ConfigError> {
        let nodes = vec![IngressSource { url: url.to_owned(), token: Secret::new(token), fleet: None }];
        Config::new(&IngressdSettings { nodes, poll_interval: Millis(interval), dir: None }, DEFAULT_GRACE)
    }

    #[test]
    fn a_node_is_read_once_and_its_token_is_never_shown() {
        let config = config("http://[::1]:7400/", " secret\n", 5000).unwrap();
        let source = &config.sources[0];
        assert_eq!(source.upstream, "[::1]:7400".parse().unwrap());
        assert_eq!(source.target, "/v1/ingress/routes?prefer=self");
        assert_eq!(source.authorization, "Bearer secret");
        assert!(!format!("{config:?}").contains("secret"));
    }

    #[test]
    fn what_cannot_be_run_with_is_refused_without_the_token() {
        for url in ["https://a:1", "a:1", "", "http://", "http://u:hunter2@a:1", "http://a:1/?x=hunter2@b"] {
            let error = config(url, "hunter2", 5000).unwrap_err();
            assert!(matches!(error, ConfigError::Url(_)), "{url}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        for token in ["", " \n", "a b", "a\u{7f}"] {
            assert_eq!(config("http://a:1", token, 5000).unwrap_err(), ConfigError::Token("http://a:1".to_owned()));
        }
        for interval in [0, 49, 30_001] {
            assert!(matches!(config("http://a:1", "t", interval), Err(ConfigError::Interval(_))));
        }
        let none = IngressdSettings { nodes: Vec::new(), poll_interval: Millis(5000), dir: None };
        assert_eq!(Config::new(&none, DEFAULT_GRACE).unwrap_err(), ConfigError::Fleets(0));
    }
}

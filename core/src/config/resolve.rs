//! From merged layers to a checked [`Config`]: bounds, defaults that depend on other keys, keys that need each other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::layers::{Error, Layers, Merged};
use super::value::{Raw, Refusal};
use super::{Api, Celld, Config, Ingress, Node, Observe};
use crate::address::is_private;
use crate::domain::Host;
use crate::id::NodeId;
use crate::settings::{BucketAccess, DeployIntakeSettings, Secret, TraefikTls};

const DEFAULT_STATE_DIR: &str = "/var/lib/scafo";
const DEFAULT_RUNTIME_DIR: &str = "/run/scafo";
/// Port of the API when `api.listen` does not say.
const API_PORT: u16 = 7400;
/// Most labels, domains or tokens: they stand in records, which are read as a whole.
const MAX_ITEMS: usize = 1000;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// What an interval may be. The short end is for tests, the long end keeps a typing error from stopping a loop for good.
const INTERVAL: RangeInclusive<Duration> = Duration::from_millis(50)..=Duration::from_secs(60 * 60);
/// What a bound on work may be.
const DEADLINE: RangeInclusive<Duration> = Duration::from_secs(1)..=DAY;

pub(super) fn resolve(layers: &Layers<'_>) -> Result<Config, Error> {
    let merged = Merged::of(layers)?;
    let node = node(&merged)?;
    let (state_dir, runtime_dir) = directories(&merged)?;
    let celld = celld(&merged)?;
    closed_to_strangers(&merged, node.address, &celld)?;
    Ok(Config {
        lease_ttl: merged.get("lease.ttl").read(|raw| raw.duration(INTERVAL))?,
        platform_domains: platform_domains(&merged)?,
        bucket: bucket(&merged, layers.environment)?,
        api: api(&merged, node.address)?,
        ingress: ingress(&merged)?,
        ingressd_listen: merged.get("ingressd.listen").try_read(|raw| raw.parsed(HOW_TO_LISTEN))?,
        celld,
        deploy: deploy(&merged)?,
        deploy_jobs: merged.get("deploy.jobs").read(|raw| small(raw, 1..=64))?,
        // With its envelope the largest fits an object of the bucket.
        storage_value_bytes: merged.get("storage.valueBytes").read(|raw| raw.size(1..=40 << 20))?,
        log: merged.get("log").try_read(|raw| raw.text().map(str::to_owned))?,
        reconcile_interval: merged.get("reconcile.interval").read(|raw| raw.duration(INTERVAL))?,
        drain_timeout: merged.get("drain.timeout").read(|raw| raw.duration(DEADLINE))?,
        observe: observe(&merged)?,
        node,
        state_dir,
        runtime_dir,
    })
}

const HOW_TO_LISTEN: &str =
    "write an IP address and a port, like 127.0.0.1:7400 or [::1]:7400; port 0 takes any free one";

fn small(raw: &Raw, bounds: RangeInclusive<u32>) -> Result<u32, Refusal> {
    let count = raw.count(u64::from(*bounds.start())..=u64::from(*bounds.end()))?;
    u32::try_from(count).map_err(|_| "it is too large".to_owned())
}

fn node(merged: &Merged) -> Result<Node, Error> {
    let liveness = merged.get("node.liveness");
    let node = Node {
        id: merged.get("node.id").try_read(|raw| raw.text()?.parse::<NodeId>().map_err(|problem| problem.detail))?,
        address: merged.get("node.address").try_read(address)?,
        labels: merged.get("node.labels").read(labels)?,
        heartbeat: merged.get("node.heartbeat").read(|raw| raw.duration(INTERVAL))?,
        liveness: liveness.read(|raw| raw.duration(INTERVAL))?,
    };
    // One lost write must not make a node dead to the others.
    if node.liveness < node.heartbeat * 2 {
        return Err(liveness.refuse("it must be at least twice node.heartbeat"));
    }
    Ok(node)
}

fn address(raw: &Raw) -> Result<IpAddr, Refusal> {
    let address: IpAddr = raw.parsed("write the IP address that peers reach this node at, no name and no port")?;
    if address.is_unspecified() || address.is_multicast() {
        return Err("peers cannot reach a node at such an address; write the address of an interface".to_owned());
    }
    Ok(address)
}

/// What celld needs before it advertises a public address.
const UNSAFE_PUBLIC: &str = "CELLD_UNSAFE_PUBLIC_ADVERTISE";

/// Peers of an application speak to its celld at the node's address, where nobody is asked for credentials. celld starts with no public
/// one unless it is told to; every application would end at its start again and again.
fn closed_to_strangers(merged: &Merged, address: Option<IpAddr>, celld: &Celld) -> Result<(), Error> {
    let allowed = celld.env.get(UNSAFE_PUBLIC).is_some_and(|value| value == "1");
    if allowed || address.is_none_or(is_private) {
        return Ok(());
    }
    let rule = format!(
        "it is a public address, at which everybody could stop the applications or read their data, so celld refuses to start there; \
         write this node's address in a private network or VPN (or, when a firewall keeps strangers out, set {UNSAFE_PUBLIC}=1 in \
         celld.env)"
    );
    Err(merged.get("node.address").refuse(rule))
}

fn labels(raw: &Raw) -> Result<BTreeMap<String, String>, Refusal> {
    let labels = raw.map()?;
    let fine = |key: &String, value: &String| (1..=63).contains(&key.len()) && value.len() <= 255;
    if labels.len() > MAX_ITEMS || !labels.iter().all(|(key, value)| fine(key, value)) {
        return Err("a label's name has 1 to 63 bytes, its value at most 255".to_owned());
    }
    Ok(labels)
}

fn platform_domains(merged: &Merged) -> Result<Vec<Host>, Error> {
    merged.get("platform.domains").read(|raw| {
        let mut domains = Vec::new();
        for item in raw.list()?.iter().take(MAX_ITEMS) {
            domains.push(item.parse::<Host>().map_err(|problem| problem.detail)?);
        }
        domains.sort();
        domains.dedup();
        Ok(domains)
    })
}

/// The sockets of a node whose state was moved are moved with it, so that a second node on the machine needs one setting and
/// not two.
fn directories(merged: &Merged) -> Result<(PathBuf, PathBuf), Error> {
    let state = merged.get("stateDir").read(|raw| raw.text().map(PathBuf::from))?;
    if state.as_os_str().is_empty() {
        return Err(merged.get("stateDir").refuse("write a directory"));
    }
    let runtime = merged.get("runtimeDir").try_read(|raw| raw.text().map(PathBuf::from))?;
    let runtime = runtime.unwrap_or_else(|| {
        if state.as_os_str() == DEFAULT_STATE_DIR { PathBuf::from(DEFAULT_RUNTIME_DIR) } else { state.join("run") }
    });
    Ok((state, runtime))
}

fn bucket(merged: &Merged, environment: &BTreeMap<String, String>) -> Result<Option<BucketAccess>, Error> {
    let Some(name) = merged.get("bucket.name").try_read(bucket_name)? else {
        for key in ["bucket.prefix", "bucket.endpoint", "bucket.region", "bucket.pathStyle"] {
            if merged.get(key).is_set() {
                let message =
                    format!("`{key}` is set and `bucket.name` is not; set both, or neither for the embedded store");
                return Err(Error::Conflict(message));
            }
        }
        return Ok(None);
    };
    let endpoint = merged.get("bucket.endpoint").try_read(endpoint)?;
    let variable = |name: &str| environment.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
    let region = merged.get("bucket.region").try_read(|raw| raw.text().map(str::to_owned))?;
    let fallback =
        || variable("AWS_REGION").or_else(|| variable("AWS_DEFAULT_REGION")).unwrap_or("us-east-1").to_owned();
    let (Some(access_key_id), Some(secret)) = (variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY")) else {
        return Err(Error::Conflict(no_credentials(variable("AWS_PROFILE").is_some())));
    };
    Ok(Some(BucketAccess {
        name,
        prefix: merged.get("bucket.prefix").read(bucket_prefix)?,
        path_style: merged.get("bucket.pathStyle").try_read(Raw::bool)?.unwrap_or(endpoint.is_some()),
        endpoint,
        region: region.unwrap_or_else(fallback),
        access_key_id: access_key_id.to_owned(),
        secret_access_key: Secret::new(secret),
        session_token: variable("AWS_SESSION_TOKEN").map(Secret::new),
    }))
}

fn no_credentials(profile: bool) -> String {
    let why = if profile { " (AWS_PROFILE is set, but celld reads no profiles)" } else { "" };
    format!(
        "`bucket.name` is set without credentials{why}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
    )
}

fn bucket_name(raw: &Raw) -> Result<String, Refusal> {
    let name = raw.text()?;
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.len() <= 255 && name.bytes().all(legal) {
        return Ok(name.to_owned());
    }
    Err("write the bare name of the bucket, without scheme and path (there is bucket.prefix for that)".to_owned())
}

/// The characters that celld takes in a prefix; `.` and `..` as segments would be paths to some stores.
fn bucket_prefix(raw: &Raw) -> Result<String, Refusal> {
    let prefix = raw.text()?.trim_matches('/');
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/');
    let segments_fine = prefix.is_empty() || prefix.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if prefix.len() <= 512 && prefix.bytes().all(legal) && segments_fine {
        return Ok(prefix.to_owned());
    }
    Err("write segments of letters, digits, `-`, `_` and `.`, separated by `/`".to_owned())
}

fn endpoint(raw: &Raw) -> Result<String, Refusal> {
    let url = raw.text()?.trim_end_matches('/');
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    if rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['/', '@', '?', '#', ' '])) {
        return Ok(url.to_owned());
    }
    Err("write scheme, host and port, like https://s3.example:9000".to_owned())
}

fn api(merged: &Merged, address: Option<IpAddr>) -> Result<Api, Error> {
    let listen = merged.get("api.listen");
    let mut addresses = listen.read(|raw| {
        let parse = |item: &String| item.parse::<SocketAddr>().map_err(|_| HOW_TO_LISTEN.to_owned());
        raw.list()?.iter().map(parse).collect::<Result<Vec<_>, _>>()
    })?;
    if addresses.is_empty() {
        let loopback = IpAddr::from([127, 0, 0, 1]);
        addresses.extend([loopback].into_iter().chain(address).map(|ip| SocketAddr::new(ip, API_PORT)));
    }
    addresses.dedup();
    // The other nodes send requests there, and so do their ingresses; none of them may be sent to itself.
    if address.is_some_and(|ip| !is_loopback(ip)) && addresses.iter().all(|listen| is_loopback(listen.ip())) {
        return Err(listen.refuse(
            "only this machine reaches the API there, and node.address says that others are to reach this node; add node.address with a \
             port, or leave the setting out",
        ));
    }
    // Each is one inherited descriptor; a machine with more interfaces listens on the unspecified address.
    if addresses.len() > 8 {
        return Err(listen.refuse("at most 8 addresses"));
    }
    Ok(Api {
        listen: addresses,
        public: merged.get("api.public").read(Raw::bool)?,
        json_bytes: merged.get("api.jsonBytes").read(|raw| raw.size(1024..=16 << 20))?,
    })
}

fn ingress(merged: &Merged) -> Result<Ingress, Error> {
    let token = merged.get("ingress.token");
    let tokens = token.read(Raw::list)?;
    let empty = tokens.is_empty() && !token.is_default();
    if empty || tokens.iter().any(|token| token.trim().is_empty()) {
        return Err(
            token.refuse("an empty token would let anybody read the routes; write one, or leave the setting out")
        );
    }
    let tokens: Vec<&str> = tokens.iter().map(|token| token.trim()).collect();
    // What stands in an `Authorization` header as one word; the API takes nothing else for a token.
    if !tokens.iter().all(|token| token.bytes().all(|byte| byte.is_ascii_graphic())) {
        return Err(
            token.refuse("a request cannot carry such a token: write printable ASCII characters without spaces")
        );
    }
    if tokens.len() > MAX_ITEMS || tokens.iter().any(|token| token.len() > 4096) {
        return Err(token.refuse("at most 1000 tokens of at most 4096 bytes"));
    }
    let entry_points = merged.get("ingress.entryPoints");
    let names = entry_points.read(Raw::list)?;
    if names.is_empty() || names.iter().any(String::is_empty) {
        return Err(entry_points.refuse("write the names of Traefik entry points, at least one"));
    }
    Ok(Ingress {
        tokens: tokens.into_iter().map(Secret::new).collect(),
        entry_points: names,
        tls: traefik_tls(merged)?,
        hold: merged.get("ingress.hold").read(|raw| raw.duration(Duration::ZERO..=Duration::from_secs(600)))?,
    })
}

fn traefik_tls(merged: &Merged) -> Result<Option<TraefikTls>, Error> {
    let domains = merged.get("ingress.tls.domains");
    let bases = domains.read(|raw| {
        let base = |text: &String| text.strip_prefix("*.").and_then(|base| base.parse::<Host>().ok());
        let bases: Option<BTreeSet<Host>> = raw.list()?.iter().map(base).collect();
        bases.ok_or_else(|| "each one is a wildcard like `*.apps.example.com`".to_owned())
    })?;
    let resolver = merged.get("ingress.tls.certResolver").try_read(|raw| raw.text().map(str::to_owned))?;
    if resolver.is_none() && !bases.is_empty() {
        return Err(
            domains.refuse("it says what a certificate resolver is to get: set `ingress.tls.certResolver` as well")
        );
    }
    Ok(resolver.map(|cert_resolver| TraefikTls { cert_resolver, wildcard_bases: bases.into_iter().collect() }))
}

fn celld(merged: &Merged) -> Result<Celld, Error> {
    let ports = merged.get("celld.portRange");
    let port_range = ports.read(Raw::range::<u16>)?;
    if *port_range.start() < 1024 || port_range.len() < 2 {
        return Err(ports.refuse("it must hold at least two ports and none below 1024"));
    }
    Ok(Celld {
        path: merged.get("celld.path").try_read(|raw| raw.text().map(PathBuf::from))?,
        port_range,
        env: merged.get("celld.env").read(environment)?,
        uid_range: merged.get("celld.uidRange").try_read(Raw::range::<u32>)?,
    })
}

fn environment(raw: &Raw) -> Result<BTreeMap<String, String>, Refusal> {
    let variables = raw.map()?;
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let named = |name: &String| {
        !name.is_empty() && name.bytes().all(legal) && !name.as_bytes().first().is_some_and(u8::is_ascii_digit)
    };
    if variables.iter().any(|(name, value)| !named(name) || value.contains('\0')) {
        return Err("a variable's name is made of letters, digits and `_`".to_owned());
    }
    Ok(variables)
}

fn deploy(merged: &Merged) -> Result<DeployIntakeSettings, Error> {
    let size = |key: &str, bounds| merged.get(key).read(|raw| raw.size(bounds));
    let time = |key: &str| merged.get(key).read(|raw| raw.duration(DEADLINE)).map(Into::into);
    let settings = DeployIntakeSettings {
        artifact_bytes: size("deploy.artifactBytes", 1024..=1 << 40)?,
        archive_entries: merged.get("deploy.archiveEntries").read(|raw| raw.count(1..=10_000_000))?,
        staged_bytes: size("deploy.stagedBytes", 1024..=1 << 50)?,
        queue: merged.get("deploy.queue").read(|raw| small(raw, 1..=10_000))?,
        receive_timeout: time("deploy.receiveTimeout")?,
        queue_timeout: time("deploy.queueTimeout")?,
        task_timeout: time("deploy.taskTimeout")?,
    };
    if settings.staged_bytes < settings.artifact_bytes {
        return Err(merged.get("deploy.stagedBytes").refuse("it must be at least deploy.artifactBytes"));
    }
    Ok(settings)
}

fn observe(merged: &Merged) -> Result<Observe, Error> {
    Ok(Observe {
        flush: merged.get("observe.flush").read(flush)?,
        retention: merged.get("observe.retention").read(|raw| raw.duration(Duration::from_secs(3600)..=DAY * 3650))?,
        otlp: merged.get("observe.otlp").try_read(endpoint_text)?,
        metrics_listen: merged.get("observe.metricsListen").try_read(loopback)?,
    })
}

/// Nothing is 0; less than a second would be a request a moment.
fn flush(raw: &Raw) -> Result<Option<Duration>, Refusal> {
    match raw.duration(Duration::ZERO..=DAY)? {
        Duration::ZERO => Ok(None),
        flush if flush < Duration::from_secs(1) => Err("write 0 for never, or from 1s to a day".to_owned()),
        flush => Ok(Some(flush)),
    }
}

const fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

/// Nobody is asked for a token there, so nobody else may reach it.
fn loopback(raw: &Raw) -> Result<SocketAddr, Refusal> {
    let address: SocketAddr = raw.parsed(HOW_TO_LISTEN)?;
    if is_loopback(address.ip()) {
        return Ok(address);
    }
    Err("whoever reaches the metrics reads them: write a loopback address, like 127.0.0.1:7402".to_owned())
}

fn endpoint_text(raw: &Raw) -> Result<String, Refusal> {
    let url = raw.text()?;
    if url.starts_with("http://") || url.starts_with("https://") {
        return Ok(url.to_owned());
    }
    Err("write the URL of an OTLP receiver, like http://127.0.0.1:4317".to_owned())
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

//! Which daemons a node has and what each of them is given: the least that it can work with.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use scafo_core::NodeId;
use scafo_core::config::Config;
use scafo_core::settings::{
    ApiserverSettings, BucketAccess, BucketdSettings, FiguresSockets, IngressSource, IngressdSettings, NodeIdentity,
    ObserveSettings, RegistrydSettings, RouterdSettings, Secret, TelemetrySettings,
};
use scafo_core::token::PublicKey;
use scafo_proto::figures::SOCKET as FIGURES;
use scafo_proto::transport;
use serde::Serialize;

use super::Probe;
use crate::api::Error;
use crate::confine::{self, Allowed, Confinement, Tcp};
use crate::sockets::{self, Sockets, address, executable, share};
use crate::spawn::{Bond, Input, Limits, Output, Rights, Spec, User};
use crate::state::{Dirs, EmbeddedBucket, Users, callers};

/// How long those that serve requests may take to finish them.
const FRONT_GRACE: Duration = Duration::from_secs(35);
/// How long those behind may take: their servers finish calls within 5 s, registryd flushes its change hint.
const BACK_GRACE: Duration = Duration::from_secs(15);
/// How often our own ingress asks for the document.
const POLL: Duration = Duration::from_secs(5);
/// The same in development, where somebody waits for each deploy and the API is on the same machine.
const DEV_POLL: Duration = Duration::from_millis(250);
/// Variables of ours that daemons get: they are about the log and about people, never secrets.
const PASSED: [&str; 6] = ["SCAFO_LOG", "SCAFO_LOG_FORMAT", "RUST_BACKTRACE", "NO_COLOR", "TZ", "TMPDIR"];
/// Variables that name other authorities for TLS than those of the machine: a file, and directories with colons between them.
const AUTHORITIES: [&str; 2] = ["SSL_CERT_FILE", "SSL_CERT_DIR"];

/// Our daemons, in the order in which they are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    Bucketd,
    Registryd,
    Routerd,
    Apiserver,
    Ingressd,
}

impl Name {
    pub(crate) const fn executable(self) -> &'static str {
        match self {
            Self::Bucketd => "scafo-bucketd",
            Self::Registryd => "scafo-registryd",
            Self::Routerd => "scafo-routerd",
            Self::Apiserver => "scafo-apiserver",
            Self::Ingressd => "scafo-ingressd",
        }
    }

    /// Its name without `scafo-`.
    pub(crate) fn short(self) -> &'static str {
        self.executable().trim_start_matches("scafo-")
    }
}

/// One daemon, ready to be started any number of times.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) name: Name,
    pub(crate) executable: PathBuf,
    pub(crate) probe: Probe,
    pub(crate) grace: Duration,
    /// Who it is, where it is not who we are.
    user: Option<User>,
    allowed: Allowed,
    sockets: Vec<(String, OwnedFd)>,
    /// What it is started with now.
    pub(crate) given: Arc<Given>,
}

/// What a daemon is told at its start.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Given {
    /// The settings document, secrets included.
    settings: Document,
    environment: BTreeMap<String, String>,
}

/// Bytes that no `Debug` shows.
#[derive(PartialEq, Eq)]
struct Document(Vec<u8>);

impl std::fmt::Debug for Document {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Document({} bytes)", self.0.len())
    }
}

impl Daemon {
    pub(crate) fn spec(&self) -> io::Result<Spec> {
        let shared = |(name, socket): &(String, OwnedFd)| Ok((name.clone(), share(socket)?));
        Ok(Spec {
            program: self.executable.clone(),
            arguments: Vec::new(),
            environment: self.given.environment.clone(),
            directory: Some(PathBuf::from("/")),
            input: Input::Document(self.given.settings.0.clone()),
            output: Output::OurLog,
            sockets: self.sockets.iter().map(shared).collect::<io::Result<_>>()?,
            bond: Bond::Bound,
            limits: Limits::default(),
            rights: Rights {
                user: self.user.clone(),
                confined: Some(Confinement::prepare(&self.allowed)?),
                gate: None,
            },
        })
    }
}

/// What the settings of the daemons are made from.
pub(crate) struct Plan<'a> {
    pub(crate) config: &'a Config,
    pub(crate) dirs: &'a Dirs,
    pub(crate) sockets: &'a Sockets,
    pub(crate) executables: &'a Path,
    pub(crate) environment: &'a BTreeMap<String, String>,
    pub(crate) node: &'a NodeId,
    pub(crate) public_key: PublicKey,
    pub(crate) bucket: &'a BucketAccess,
    /// The embedded bucket's credentials, when it is used.
    pub(crate) embedded: Option<&'a EmbeddedBucket>,
    pub(crate) ingress_tokens: &'a [Secret],
    pub(crate) celld_version: Option<String>,
    pub(crate) dev: bool,
    pub(crate) users: Option<&'a Users>,
}

/// The document that a daemon reads: its own settings, and what every daemon is told.
#[derive(Serialize)]
struct Whole<'a, T> {
    #[serde(flatten)]
    settings: &'a T,
    telemetry: TelemetrySettings,
}

impl Plan<'_> {
    /// The daemons in the order in which they are started.
    pub(crate) fn daemons(&self) -> Result<Vec<Daemon>, Error> {
        let mut daemons = Vec::new();
        if let (Some(bucket), Some(listener)) = (self.embedded, &self.sockets.bucket) {
            // Applications could fill the port of the store.
            let probe = Probe::grpc(&self.dirs.socket(sockets::BUCKETD));
            let sockets = with_figures(("s3", shared(listener)?), self.sockets.bucketd.as_ref())?;
            daemons.push(self.daemon(Name::Bucketd, probe, BACK_GRACE, sockets, &self.bucketd(bucket))?);
        }
        let registry = vec![
            ("grpc".to_owned(), shared(&self.sockets.registry)?),
            ("admin".to_owned(), shared(&self.sockets.admin)?),
        ];
        let probe = Probe::grpc(&self.dirs.socket(sockets::REGISTRY));
        daemons.push(self.daemon(Name::Registryd, probe, BACK_GRACE, registry, &self.registryd()?)?);
        let probe = Probe::grpc(&self.dirs.socket(sockets::ROUTER));
        let router = vec![("grpc".to_owned(), shared(&self.sockets.router)?)];
        daemons.push(self.daemon(Name::Routerd, probe, BACK_GRACE, router, &self.routerd())?);
        let local = self.api_local()?;
        // Those that strangers connect to are asked on a socket that strangers cannot fill.
        let probe = Probe::grpc(&self.dirs.socket(sockets::APISERVER));
        daemons.push(self.daemon(Name::Apiserver, probe, FRONT_GRACE, self.api_sockets()?, &self.apiserver())?);
        if let Some(listener) = &self.sockets.ingress {
            let probe = Probe::grpc(&self.dirs.socket(sockets::INGRESSD));
            let sockets = with_figures(("http", shared(listener)?), self.sockets.ingressd.as_ref())?;
            daemons.push(self.daemon(Name::Ingressd, probe, FRONT_GRACE, sockets, &self.ingressd(local))?);
        }
        Ok(daemons)
    }

    /// The address of the API for programs on this machine.
    pub(crate) fn api_local(&self) -> Result<SocketAddr, Error> {
        let first = self.sockets.api.first().ok_or_else(|| Error::new("the API has no address", "set api.listen"))?;
        address(first).map(reachable)
    }

    fn daemon(
        &self,
        name: Name,
        probe: Probe,
        grace: Duration,
        sockets: Vec<(String, OwnedFd)>,
        settings: &impl Serialize,
    ) -> Result<Daemon, Error> {
        let telemetry = TelemetrySettings {
            node: self.node.to_string(),
            otlp: self.config.observe.otlp.clone(),
            observe: self.observe().filter(|_| matches!(name, Name::Routerd | Name::Apiserver)),
        };
        let settings = serde_json::to_vec(&Whole { settings, telemetry })
            .map_err(|error| Error::new(format!("the settings cannot be written: {error}"), "report this"))?;
        let passed = PASSED.iter().chain(&AUTHORITIES).filter_map(|name| self.environment.get_key_value(*name));
        let mut environment: BTreeMap<String, String> = passed.map(|(k, v)| (k.clone(), v.clone())).collect();
        environment.extend(self.config.log.iter().map(|filter| ("SCAFO_LOG".to_owned(), filter.clone())));
        // For people who look at a process and ask which node it belongs to.
        environment.insert("SCAFO_STATE_DIR".to_owned(), self.dirs.state.display().to_string());
        if let Some(users) = self.users {
            environment.insert(transport::CALLERS.to_owned(), named_callers(name, users));
        }
        let executable = executable(self.executables, name.executable())?;
        let real = std::fs::canonicalize(&executable).unwrap_or_else(|_| executable.clone());
        Ok(Daemon {
            name,
            user: self.users.map(|users| users.daemon(name)),
            allowed: self.trusting(self.telling(name, confine::daemon(name, &real, self.dirs))),
            executable,
            probe,
            grace,
            sockets,
            given: Arc::new(Given { settings: Document(settings), environment }),
        })
    }

    /// How the processes of this node hand in what they measured and traced; `None` when that is off.
    pub(crate) fn observe(&self) -> Option<ObserveSettings> {
        let flush = self.config.observe.flush?.into();
        Some(ObserveSettings { registry_socket: self.dirs.socket(sockets::REGISTRY), flush })
    }

    /// Those that answer requests send spans, where there is a collector.
    fn telling(&self, name: Name, allowed: Allowed) -> Allowed {
        let Some(collector) = &self.config.observe.otlp else { return allowed };
        match name {
            Name::Registryd | Name::Routerd | Name::Apiserver => confine::and_collector(collector, allowed),
            Name::Bucketd | Name::Ingressd => allowed,
        }
    }

    /// Those that connect to other machines read the authorities that they are told of.
    fn trusting(&self, allowed: Allowed) -> Allowed {
        if allowed.tcp == Tcp::Nowhere {
            return allowed;
        }
        let named = AUTHORITIES.iter().filter_map(|name| self.environment.get(*name));
        let read = allowed.read.into_iter().chain(named.flat_map(std::env::split_paths)).collect();
        Allowed { read, ..allowed }
    }

    fn bucketd(&self, bucket: &EmbeddedBucket) -> BucketdSettings {
        BucketdSettings {
            dir: EmbeddedBucket::data(self.dirs),
            bucket: EmbeddedBucket::NAME.to_owned(),
            access_key_id: bucket.access_key_id.clone(),
            secret_access_key: bucket.secret_access_key.clone(),
        }
    }

    fn registryd(&self) -> Result<RegistrydSettings, Error> {
        Ok(RegistrydSettings {
            node: self.identity()?,
            bucket: self.bucket.clone(),
            embedded: self.embedded.is_some(),
            dir: self.dirs.state.join("registryd"),
            supervisor_socket: self.dirs.socket(sockets::SUPERVISOR),
            figures_sockets: FiguresSockets {
                bucketd: self.sockets.bucketd.as_ref().map(|_| self.dirs.socket(sockets::BUCKETD)),
                ingressd: self.sockets.ingressd.as_ref().map(|_| self.dirs.socket(sockets::INGRESSD)),
            },
            lease_ttl: self.config.lease_ttl.into(),
            heartbeat: self.config.node.heartbeat.into(),
            liveness: self.config.node.liveness.into(),
            reconcile_interval: self.config.reconcile_interval.into(),
            ingress_hold: self.config.ingress.hold.into(),
            deploy_task_timeout: self.config.deploy.task_timeout,
            deploy_jobs: self.config.deploy_jobs,
            deploy_queue: self.config.deploy.queue,
            local_only: self.config.node.address.is_none(),
            drain_timeout: self.config.drain_timeout.into(),
            observe_flush: self.config.observe.flush.map(Into::into),
            observe_retention: self.config.observe.retention.into(),
            storage_value_bytes: self.config.storage_value_bytes,
        })
    }

    fn identity(&self) -> Result<NodeIdentity, Error> {
        let advertised = self.config.advertised();
        let addresses = self.sockets.api.iter().map(address).collect::<Result<Vec<_>, _>>()?;
        let api = published(&addresses, advertised);
        Ok(NodeIdentity {
            id: self.node.clone(),
            public_key: self.public_key.clone(),
            address: advertised.to_string(),
            api: api.map(|api| api.to_string()).unwrap_or_default(),
            labels: self.config.node.labels.clone(),
            platform_domains: self.config.platform_domains.clone(),
            api_public: self.config.api.public,
            celld_version: self.celld_version.clone(),
        })
    }

    fn routerd(&self) -> RouterdSettings {
        RouterdSettings {
            node: self.node.clone(),
            registry_socket: self.dirs.socket(sockets::REGISTRY),
            entry_points: self.config.ingress.entry_points.clone(),
            tls: self.config.ingress.tls.clone(),
        }
    }

    fn apiserver(&self) -> ApiserverSettings {
        ApiserverSettings {
            node: self.node.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            registry_socket: self.dirs.socket(sockets::REGISTRY),
            router_socket: self.dirs.socket(sockets::ROUTER),
            dir: self.dirs.state.join("apiserver"),
            ingress_tokens: self.ingress_tokens.to_vec(),
            json_bytes: self.config.api.json_bytes,
            storage_value_bytes: self.config.storage_value_bytes,
            deploy: self.config.deploy.clone(),
            deploy_runner: self.celld_version.is_some(),
        }
    }

    /// `api` alone, or `api0`, `api1`, … when there are several; `metrics`, when they are served; and where it says that it lives.
    fn api_sockets(&self) -> Result<Vec<(String, OwnedFd)>, Error> {
        let alone = self.sockets.api.len() == 1;
        let name = |n: usize| if alone { "api".to_owned() } else { format!("api{n}") };
        let api = self.sockets.api.iter().enumerate().map(|(n, listener)| (name(n), listener));
        let metrics = self.sockets.metrics.iter().map(|listener| ("metrics".to_owned(), listener));
        let lives = std::iter::once(Ok((FIGURES.to_owned(), shared(&self.sockets.apiserver)?)));
        api.chain(metrics).map(|(name, listener)| Ok((name, shared(listener)?))).chain(lives).collect()
    }

    fn ingressd(&self, api: SocketAddr) -> IngressdSettings {
        let token = self.ingress_tokens.first().cloned().unwrap_or_else(|| Secret::new(""));
        IngressdSettings {
            nodes: vec![IngressSource { url: format!("http://{api}"), token, fleet: Some(self.fleet()) }],
            poll_interval: if self.dev { DEV_POLL } else { POLL }.into(),
            dir: Some(self.dirs.state.join("ingressd")),
        }
    }

    /// What a routing document of this node depends on beside the fleet's records. The address of its API is no part of it: with
    /// port 0 that is another one after each start, and what is kept never leads there.
    fn fleet(&self) -> String {
        let BucketAccess { name, prefix, endpoint, .. } = self.bucket;
        let parts = (self.node, endpoint, name, prefix, &self.config.platform_domains, self.config.api.public);
        // Parts that cannot be written are a defect; then there is one fleet, as there is for a node.
        serde_json::to_string(&parts).unwrap_or_default()
    }
}

/// Who may call each socket of a daemon, in the form of [`transport::CALLERS`].
fn named_callers(name: Name, users: &Users) -> String {
    let served: &[(&str, &str)] = match name {
        Name::Registryd => &[("grpc", sockets::REGISTRY), ("admin", sockets::ADMIN)],
        Name::Routerd => &[("grpc", sockets::ROUTER)],
        Name::Bucketd => &[(FIGURES, sockets::BUCKETD)],
        Name::Ingressd => &[(FIGURES, sockets::INGRESSD)],
        Name::Apiserver => &[(FIGURES, sockets::APISERVER)],
    };
    let of = |(socket, server): &(&str, &str)| {
        let uids: Vec<String> = callers(server).iter().map(|caller| users.daemon(*caller).uid.to_string()).collect();
        format!("{socket}={}", uids.join(","))
    };
    served.iter().map(of).collect::<Vec<_>>().join(";")
}

/// Where the rest of the fleet finds the API: at the node's own address when it listens there, else at another one that is not loopback,
/// which every machine has for itself; that only for a node that is alone.
fn published(listening: &[SocketAddr], advertised: IpAddr) -> Option<SocketAddr> {
    let serves = |listen: &SocketAddr| listen.ip() == advertised || listen.ip().is_unspecified();
    if let Some(listen) = listening.iter().find(|listen| serves(listen)) {
        return Some(SocketAddr::new(advertised, listen.port()));
    }
    listening.iter().find(|listen| !listen.ip().to_canonical().is_loopback()).or(listening.first()).copied()
}

/// Loopback where the address says "every interface".
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, address.port())),
        _ => address,
    }
}

/// The sockets of a daemon that serves HTTP, and beside it says what it counts.
fn with_figures(
    (name, served): (&str, OwnedFd),
    figures: Option<&UnixListener>,
) -> Result<Vec<(String, OwnedFd)>, Error> {
    let figures = figures.map(|listener| Ok((FIGURES.to_owned(), shared(listener)?)));
    std::iter::once(Ok((name.to_owned(), served))).chain(figures).collect()
}

fn shared(socket: &impl std::os::fd::AsFd) -> Result<OwnedFd, Error> {
    share(socket).map_err(|error| {
        Error::new(
            format!("cannot pass a socket on: {error}"),
            "raise the limit of open files (LimitNOFILE, `ulimit -n`)",
        )
    })
}

#[cfg(test)]
mod tests {
    use ed25519_dalek::SigningKey;
    use scafo_core::config::Layers;
    use scafo_core::settings::TraefikTls;

    use super::*;
    use crate::manager::Kept;

    #[test]
    fn the_fleet_is_told_an_address_of_the_api_that_it_reaches() {
        for (listening, advertised, expected) in [
            (&["127.0.0.1:7400", "10.0.0.7:7401"][..], "10.0.0.7", "10.0.0.7:7401"),
            (&["0.0.0.0:7400"], "10.0.0.7", "10.0.0.7:7400"),
            (&["127.0.0.1:7400", "10.99.0.7:7401"], "10.0.0.7", "10.99.0.7:7401"),
            (&["127.0.0.1:7400"], "127.0.0.1", "127.0.0.1:7400"),
            (&["[::1]:7400"], "127.0.0.1", "[::1]:7400"),
        ] {
            let listening: Vec<SocketAddr> = listening.iter().map(|listen| listen.parse().unwrap()).collect();
            let api = published(&listening, advertised.parse().unwrap());
            assert_eq!(api, Some(expected.parse().unwrap()), "{listening:?}");
        }
        assert_eq!(published(&[], IpAddr::from([127, 0, 0, 1])), None);
    }

    #[test]
    fn the_router_is_told_the_entry_points_and_the_resolver_that_are_set() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs::create(&dir.path().join("state"), &dir.path().join("run")).unwrap();
        let nothing = BTreeMap::new();
        for (set, entry_points, tls) in [
            (&[][..], &["web"][..], None),
            (
                &[
                    ("ingress.entryPoints", "websecure,internal"),
                    ("ingress.tls.certResolver", "le"),
                    ("ingress.tls.domains", "*.apps.test"),
                ],
                &["websecure", "internal"],
                Some(TraefikTls { cert_resolver: "le".to_owned(), wildcard_bases: vec!["apps.test".parse().unwrap()] }),
            ),
        ] {
            let mut flags: BTreeMap<_, _> = set.iter().map(|(key, to)| ((*key).to_owned(), (*to).to_owned())).collect();
            flags.insert("api.listen".to_owned(), "127.0.0.1:0".to_owned());
            let layers = Layers { flags: &flags, environment: &nothing, file: None, defaults: &nothing };
            let config = Config::resolve(&layers).unwrap();
            let sockets = Sockets::bind(&config, &dirs, None, Kept::default()).unwrap();
            let bucket = BucketAccess {
                name: "unused".to_owned(),
                prefix: String::new(),
                endpoint: None,
                region: "unused".to_owned(),
                path_style: true,
                access_key_id: "unused".to_owned(),
                secret_access_key: Secret::new("unused"),
                session_token: None,
            };
            let plan = Plan {
                config: &config,
                dirs: &dirs,
                sockets: &sockets,
                executables: dir.path(),
                environment: &nothing,
                node: &"a".parse().unwrap(),
                public_key: PublicKey::from(&SigningKey::from_bytes(&[1; 32])),
                bucket: &bucket,
                embedded: None,
                ingress_tokens: &[],
                celld_version: None,
                dev: false,
                users: None,
            };
            let told = plan.routerd();
            assert_eq!((told.entry_points, told.tls), (entry_points.iter().map(ToString::to_string).collect(), tls));
        }
    }
}

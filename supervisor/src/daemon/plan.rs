//! Which daemons a node has and what each of them is given: the least that it can work with.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use scafo_core::NodeId;
use scafo_core::config::Config;
use scafo_core::settings::{
    ApiserverSettings, BucketAccess, BucketdSettings, IngressSource, IngressdSettings, NodeIdentity, RegistrydSettings,
    RouterdSettings, Secret,
};
use scafo_core::token::PublicKey;
use serde::Serialize;

use super::Probe;
use crate::api::Error;
use crate::sockets::{self, Sockets, address, executable, share};
use crate::spawn::{Bond, Input, Limits, Output, Spec};
use crate::state::{Dirs, EmbeddedBucket};

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
}

/// One daemon, ready to be started any number of times.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) name: Name,
    pub(crate) executable: PathBuf,
    pub(crate) probe: Probe,
    pub(crate) grace: Duration,
    /// The settings document, secrets included.
    settings: Document,
    sockets: Vec<(String, OwnedFd)>,
    environment: BTreeMap<String, String>,
}

/// Bytes that no `Debug` shows.
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
            environment: self.environment.clone(),
            directory: Some(PathBuf::from("/")),
            input: Input::Document(self.settings.0.clone()),
            output: Output::OurLog,
            sockets: self.sockets.iter().map(shared).collect::<io::Result<_>>()?,
            bond: Bond::Bound,
            limits: Limits::default(),
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
}

impl Plan<'_> {
    /// The daemons in the order in which they are started.
    pub(crate) fn daemons(&self) -> Result<Vec<Daemon>, Error> {
        let mut daemons = Vec::new();
        if let (Some(bucket), Some(listener)) = (self.embedded, &self.sockets.bucket) {
            let probe = http_probe(address(listener)?, "localhost".to_owned(), "/.well-known/scafo/health");
            let socket = ("s3".to_owned(), shared(listener)?);
            daemons.push(self.daemon(Name::Bucketd, probe, BACK_GRACE, vec![socket], &self.bucketd(bucket))?);
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
        let probe = http_probe(local, local.to_string(), "/.well-known/scafo/health");
        daemons.push(self.daemon(Name::Apiserver, probe, FRONT_GRACE, self.api_sockets()?, &self.apiserver())?);
        if let Some(listener) = &self.sockets.ingress {
            let host = "scafo-ingressd.invalid".to_owned();
            let probe = http_probe(reachable(address(listener)?), host, "/.well-known/scafo-ingress/health");
            let socket = ("http".to_owned(), shared(listener)?);
            daemons.push(self.daemon(Name::Ingressd, probe, FRONT_GRACE, vec![socket], &self.ingressd(local))?);
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
        let settings = serde_json::to_vec(settings)
            .map_err(|error| Error::new(format!("the settings cannot be written: {error}"), "report this"))?;
        let passed = PASSED.iter().filter_map(|name| self.environment.get_key_value(*name));
        let mut environment: BTreeMap<String, String> = passed.map(|(k, v)| (k.clone(), v.clone())).collect();
        // For people who look at a process and ask which node it belongs to.
        environment.insert("SCAFO_STATE_DIR".to_owned(), self.dirs.state.display().to_string());
        Ok(Daemon {
            name,
            executable: executable(self.executables, name.executable())?,
            probe,
            grace,
            settings: Document(settings),
            sockets,
            environment,
        })
    }

    fn bucketd(&self, bucket: &EmbeddedBucket) -> BucketdSettings {
        BucketdSettings {
            dir: self.dirs.state.join("bucket"),
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
            lease_ttl: self.config.lease_ttl.into(),
            heartbeat: self.config.node.heartbeat.into(),
            liveness: self.config.node.liveness.into(),
            reconcile_interval: self.config.reconcile_interval.into(),
            ingress_hold: self.config.ingress.hold.into(),
            deploy_task_timeout: self.config.deploy.task_timeout,
            deploy_jobs: self.config.deploy_jobs,
            local_only: self.config.node.address.is_none(),
            drain_timeout: self.config.drain_timeout.into(),
            observe_retention: self.config.observe.retention.into(),
        })
    }

    fn identity(&self) -> Result<NodeIdentity, Error> {
        let advertised = self.config.advertised();
        let addresses = self.sockets.api.iter().map(address).collect::<Result<Vec<_>, _>>()?;
        let serves = |listen: &&SocketAddr| listen.ip() == advertised || listen.ip().is_unspecified();
        let listen = addresses.iter().find(serves).or(addresses.first()).copied();
        let api = listen.map(|l| SocketAddr::new(if serves(&&l) { advertised } else { l.ip() }, l.port()));
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

    /// `api` alone, or `api0`, `api1`, … when there are several.
    fn api_sockets(&self) -> Result<Vec<(String, OwnedFd)>, Error> {
        let alone = self.sockets.api.len() == 1;
        let name = |n: usize| if alone { "api".to_owned() } else { format!("api{n}") };
        self.sockets.api.iter().enumerate().map(|(n, listener)| Ok((name(n), shared(listener)?))).collect()
    }

    fn ingressd(&self, api: SocketAddr) -> IngressdSettings {
        let token = self.ingress_tokens.first().cloned().unwrap_or_else(|| Secret::new(""));
        IngressdSettings {
            nodes: vec![IngressSource { url: format!("http://{api}"), token }],
            poll_interval: if self.dev { DEV_POLL } else { POLL }.into(),
        }
    }
}

/// Loopback where the address says "every interface".
pub(crate) fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())),
        IpAddr::V6(ip) if ip.is_unspecified() => SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, address.port())),
        _ => address,
    }
}

fn http_probe(address: SocketAddr, host: String, path: &'static str) -> Probe {
    Probe::Http { address, host, path }
}

fn shared(socket: &impl std::os::fd::AsFd) -> Result<OwnedFd, Error> {
    share(socket).map_err(|error| {
        Error::new(
            format!("cannot pass a socket on: {error}"),
            "raise the limit of open files (LimitNOFILE, `ulimit -n`)",
        )
    })
}

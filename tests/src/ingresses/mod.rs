//! Ingresses in front of nodes: Traefik, Caddy with our modules, and scafo-ingressd. Each is the real program, in a process on a
//! free port with a directory of its own, gone when it is dropped.

pub mod authority;
pub mod echo;
pub mod fake_node;
pub mod http;

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use self::authority::Authority;
use crate::stores::leash::Leash;
use crate::stores::{free_ports, tools};
use crate::{Dev, node, wait};

/// How long an ingress may take until it accepts connections. The slowest takes a second alone on a machine.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How often other ports are tried: somebody may take one between the choice and the start.
const START_TRIES: u32 = 3;
/// Pause between two polls: what a test waits for, and no more than a debug build answers without effort.
const POLL: &str = "250ms";
/// The certificate resolver of a Traefik with certificates.
pub const RESOLVER: &str = "authority";
/// Its entry point for HTTPS.
pub const SECURE: &str = "websecure";
/// A host that the operator of an ingress leads somewhere.
pub const OWN: &str = "own.example";
/// The configuration of a Traefik, what its operator routes, and the configuration of a Caddy.
const TRAEFIK: &str = "traefik.yml";
const TRAEFIK_OWN: &str = "own.yml";
const CADDY: &str = "Caddyfile";

/// Where an ingress pulls its document.
#[derive(Debug, Clone)]
pub struct Source {
    /// Base URL of a node.
    pub url: String,
    /// Its ingress token.
    pub token: String,
}

impl Source {
    /// A real node.
    ///
    /// # Panics
    /// When its token cannot be read.
    pub fn of(dev: &Dev) -> Self {
        let token = fs::read_to_string(&dev.ingress_token_file).expect("the ingress token");
        Self { url: dev.api.clone(), token: token.trim().to_owned() }
    }
}

/// Which program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Traefik v3 with its http provider.
    Traefik,
    /// The first one of its major version.
    OldestTraefik,
    /// Caddy with the modules of `ingress/caddy`.
    Caddy,
    /// scafo's own.
    Ingressd,
}

impl Kind {
    /// Those of today.
    pub const ALL: [Self; 3] = [Self::Traefik, Self::Caddy, Self::Ingressd];
    /// All of them.
    pub const WITH_OLDEST: [Self; 4] = [Self::Traefik, Self::OldestTraefik, Self::Caddy, Self::Ingressd];

    /// Whether it is a Traefik.
    pub const fn is_traefik(self) -> bool {
        matches!(self, Self::Traefik | Self::OldestTraefik)
    }
}

/// A running ingress that asks `prefer=self`.
pub struct Ingress {
    kind: Kind,
    address: SocketAddr,
    https: Option<SocketAddr>,
    /// Before the directory, so that the process has ended when that is removed.
    leash: Leash,
    dir: TempDir,
}

impl Ingress {
    /// Starts one over plain HTTP.
    ///
    /// # Panics
    /// When it is not installed or does not start.
    pub async fn start(kind: Kind, source: &Source) -> Self {
        match kind {
            Kind::Traefik | Kind::OldestTraefik => retried(|| traefik(kind, source, Beside::default())).await,
            Kind::Caddy => retried(|| caddy(source, Beside::default())).await,
            Kind::Ingressd => ingressd(source).await,
        }
    }

    /// Starts one of each of these.
    ///
    /// # Panics
    /// As [`Ingress::start`].
    pub async fn start_each(kinds: &[Kind], source: &Source) -> Vec<Self> {
        futures_util::future::join_all(kinds.iter().map(|kind| Self::start(*kind, source))).await
    }

    /// Starts one whose operator leads [`OWN`] to that port of the loopback.
    ///
    /// # Panics
    /// As [`Ingress::start`], and for scafo's own, which takes no routes.
    pub async fn start_beside_own(kind: Kind, source: &Source, port: u16) -> Self {
        let beside = Beside { own: Some(port), ..Beside::default() };
        match kind {
            Kind::Traefik | Kind::OldestTraefik => retried(|| traefik(kind, source, beside)).await,
            Kind::Caddy => retried(|| caddy(source, beside)).await,
            Kind::Ingressd => panic!("scafo-ingressd has no routes of its own"),
        }
    }

    /// Starts a Traefik that says when it takes a configuration over.
    ///
    /// # Panics
    /// As [`Ingress::start`].
    pub async fn verbose_traefik(source: &Source) -> Self {
        retried(|| traefik(Kind::Traefik, source, Beside { verbose: true, ..Beside::default() })).await
    }

    /// Starts a Traefik that gets the certificates that its routers ask the resolver [`RESOLVER`] for, and serves on
    /// [`SECURE`] beside `web`.
    ///
    /// # Panics
    /// As [`Ingress::start`].
    pub async fn traefik_with_certificates(kind: Kind, source: &Source, authority: &Authority) -> Self {
        retried(|| traefik(kind, source, Beside { authority: Some(authority), ..Beside::default() })).await
    }

    /// Starts a Caddy that gets certificates on demand and keeps them in the fleet.
    ///
    /// # Panics
    /// As [`Ingress::start`].
    pub async fn caddy_with_certificates(source: &Source, authority: &Authority) -> Self {
        retried(|| caddy(source, Beside { authority: Some(authority), ..Beside::default() })).await
    }

    /// Which program it is.
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Where it serves HTTP.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it serves HTTPS.
    ///
    /// # Panics
    /// When it does not.
    pub fn https(&self) -> SocketAddr {
        self.https.expect("started with certificates")
    }

    /// One GET with this Host field, on a connection of its own.
    ///
    /// # Errors
    /// When there is no whole answer.
    pub async fn ask(&self, host: &str, target: &str) -> std::io::Result<http::Answer> {
        http::ask(self.address, host, target).await
    }

    /// Waits until a GET is answered with `status` and a body that holds `text`.
    ///
    /// # Panics
    /// When it is not within `limit`: shows the last answer and the log.
    pub async fn until_answered(&self, host: &str, target: &str, status: u16, text: &str, limit: Duration) {
        let started = std::time::Instant::now();
        loop {
            let answer = self.ask(host, target).await;
            if answer.as_ref().is_ok_and(|answer| answer.status == status && answer.body.contains(text)) {
                return;
            }
            assert!(
                started.elapsed() < limit,
                "{:?}: {host}{target} is not {status} {text:?} within {limit:?} but {answer:?}\n{}",
                self.kind,
                self.log()
            );
            wait::moment().await;
        }
    }

    /// Its configuration as it is on the disk, file by file.
    ///
    /// # Panics
    /// When one of its files cannot be read.
    pub fn configuration(&self) -> Vec<(&'static str, String)> {
        let files = [TRAEFIK, TRAEFIK_OWN, CADDY].into_iter().map(|name| (name, self.dir.path().join(name)));
        let there = files.filter(|(_, path)| path.exists());
        there.map(|(name, path)| (name, fs::read_to_string(path).expect("a configuration"))).collect()
    }

    /// What it printed so far.
    pub fn log(&self) -> String {
        self.leash.log()
    }

    /// The lines of its log that say that something is wrong.
    pub fn errors(&self) -> Vec<String> {
        let wrong = match self.kind {
            Kind::Traefik | Kind::OldestTraefik | Kind::Caddy => [r#""level":"error""#, r#""level":"fatal""#],
            Kind::Ingressd => ["ERROR", "panicked"],
        };
        self.log().lines().filter(|line| wrong.iter().any(|wrong| line.contains(wrong))).map(str::to_owned).collect()
    }
}

/// What stands beside the fleet in the configuration of an ingress.
#[derive(Clone, Copy, Default)]
struct Beside<'a> {
    /// Where it gets certificates.
    authority: Option<&'a Authority>,
    /// Where the operator's own host leads.
    own: Option<u16>,
    /// Whether it says when it takes a configuration over.
    verbose: bool,
}

/// Starts until one runs and accepts connections.
async fn retried(start: impl Fn() -> Ingress) -> Ingress {
    let mut last = String::new();
    for _ in 0..START_TRIES {
        let ingress = start();
        let accepts = wait::until("the ingress", START_LIMIT, || async {
            if ingress.leash.ended() {
                return Some(false);
            }
            tokio::net::TcpStream::connect(ingress.address).await.is_ok().then_some(true)
        })
        .await;
        if accepts {
            return ingress;
        }
        last = ingress.log();
    }
    panic!("an ingress does not start:\n{last}")
}

fn traefik(kind: Kind, source: &Source, beside: Beside) -> Ingress {
    let Beside { authority, own, verbose } = beside;
    let dir = TempDir::new().expect("a temporary directory");
    let [free, https] = free_ports();
    // Where the authority looks for challenges, they are answered.
    let port = authority.map_or(free, Authority::challenges);
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    // A file, because the token must not be in the arguments; JSON is YAML too.
    let mut config = serde_json::json!({
        "global": {"checkNewVersion": false, "sendAnonymousUsage": false},
        "log": {"level": if verbose { "DEBUG" } else { "INFO" }, "format": "json"},
        "entryPoints": {"web": {"address": address.to_string()}},
        "providers": {
            "providersThrottleDuration": "50ms",
            "http": {
                "endpoint": format!("{}/v1/ingress/routes/traefik?prefer=self", source.url),
                "pollInterval": POLL,
                "pollTimeout": "10s",
                "headers": {"Authorization": format!("Bearer {}", source.token)},
            },
        },
    });
    let mut command = Command::new(tools::find(if kind == Kind::OldestTraefik { "traefik-oldest" } else { "traefik" }));
    if let Some(authority) = authority {
        config["entryPoints"][SECURE] = serde_json::json!({"address": format!("127.0.0.1:{https}")});
        config["certificatesResolvers"][RESOLVER]["acme"] = serde_json::json!({
            "email": "ops@example.com",
            "storage": dir.path().join("acme.json"),
            "caServer": authority.directory(),
            "httpChallenge": {"entryPoint": "web"},
        });
        command.env("LEGO_CA_CERTIFICATES", authority.roots());
    }
    if let Some(port) = own {
        let path = dir.path().join(TRAEFIK_OWN);
        let server = format!("http://127.0.0.1:{port}");
        let http = serde_json::json!({
            "routers": {"own": {"entryPoints": ["web"], "rule": format!("Host(`{OWN}`)"), "service": "own"}},
            "services": {"own": {"loadBalancer": {"servers": [{"url": server}]}}},
        });
        write(&path, &serde_json::json!({"http": http}).to_string());
        config["providers"]["file"] = serde_json::json!({"filename": path, "watch": true});
    }
    let path = dir.path().join(TRAEFIK);
    write(&path, &config.to_string());
    command.arg(format!("--configfile={}", path.display()));
    let leash = Leash::start(&command, &dir.path().join("log"));
    let https = authority.map(|_| SocketAddr::from(([127, 0, 0, 1], https)));
    Ingress { kind, address, https, leash, dir }
}

fn caddy(source: &Source, beside: Beside) -> Ingress {
    let Beside { authority, own, verbose: _ } = beside;
    let dir = TempDir::new().expect("a temporary directory");
    let root = dir.path().display();
    let [port, https] = free_ports();
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    write(&dir.path().join("token"), &source.token);
    let fleet = format!(
        "scafo {{\nfleet main {{\nnode {}\ntoken_file {root}/token\nprefer self\npoll_interval {POLL}\n}}\n}}\n",
        source.url
    );
    let common = "admin off\npersist_config off\nskip_install_trust\n";
    let site =
        "bind 127.0.0.1\nscafo\nreverse_proxy {\ndynamic scafo\nlb_retries 2\ntransport http {\nkeepalive 4s\n}\n}\n";
    let mut text = match authority {
        None => format!("{{\n{common}auto_https off\n{fleet}}}\nhttp://:{port} {{\n{site}}}\n"),
        Some(authority) => format!(
            "{{\n{common}auto_https disable_redirects\n{fleet}storage scafo {{\nlocal {root}/local\n}}\n\
             on_demand_tls {{\npermission scafo\n}}\nhttps_port {https}\nhttp_port {port}\n\
             servers {{\nprotocols h1 h2\n}}\n}}\n\
             http://:{port} {{\n{site}}}\n\
             https://:{https} {{\ntls {{\non_demand\nissuer acme {{\ndir {}\ntrusted_roots {}\nemail ops@example.com\n\
             disable_tlsalpn_challenge\nalt_http_port {}\n}}\n}}\n{site}}}\n",
            authority.directory(),
            authority.roots().display(),
            authority.challenges(),
        ),
    };
    if let Some(upstream) = own {
        text += &format!("http://{OWN}:{port} {{\nbind 127.0.0.1\nreverse_proxy 127.0.0.1:{upstream}\n}}\n");
    }
    let config = dir.path().join(CADDY);
    write(&config, &text);
    let mut command = Command::new(tools::find("caddy-scafo"));
    command.args(["run", "--adapter", "caddyfile", "--config"]).arg(&config);
    command.env("HOME", dir.path()).env("XDG_DATA_HOME", dir.path().join("data"));
    command.env("XDG_CONFIG_HOME", dir.path().join("config"));
    let leash = Leash::start(&command, &dir.path().join("log"));
    let https = authority.map(|_| SocketAddr::from(([127, 0, 0, 1], https)));
    Ingress { kind: Kind::Caddy, address, https, leash, dir }
}

async fn ingressd(source: &Source) -> Ingress {
    let dir = TempDir::new().expect("a temporary directory");
    let token = dir.path().join("token");
    write(&token, &source.token);
    let mut command = Command::new(node::built("scafo-ingressd"));
    command.args(["--node", &source.url, "--listen", "127.0.0.1:0", "--poll-interval-ms", "250", "--token-file"]);
    command.arg(token);
    let leash = Leash::start(&command, &dir.path().join("log"));
    let address = leash.said("http://127.0.0.1:", START_LIMIT).await;
    let address = SocketAddr::from(([127, 0, 0, 1], address.parse().expect("a port")));
    Ingress { kind: Kind::Ingressd, address, https: None, leash, dir }
}

/// A new file that only its owner reads: some hold tokens.
pub(crate) fn write(path: &Path, text: &str) {
    let file = fs::File::options().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes())).expect("a new file");
}

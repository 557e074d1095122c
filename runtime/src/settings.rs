//! What a node runs with: options over environment over defaults, checked against each other.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use scafo_core::address::is_private;

use crate::{
    Failure,
    args::NodeOptions,
    environment::{Environment, Surface},
    failure::Outcome,
    hooks::Hooks,
    names::NodeId,
};

/// Everything a node needs to know, apart from its bucket and its tools.
#[derive(Debug, Clone)]
pub(crate) struct NodeSettings {
    pub surface: Surface,
    pub listen: SocketAddr,
    pub internal_listen: SocketAddr,
    /// `None`: the address that the internal listener is bound to.
    pub advertise: Option<String>,
    pub trust_forwarded_headers: bool,
    pub node: NodeId,
    /// Where the node keeps what must survive it.
    pub watch: PathBuf,
    /// Where asset bodies are kept.
    pub asset_cache: PathBuf,
    /// How large that may grow, in bytes.
    pub asset_cache_max: u64,
    /// The life of the lease. Renewed every third of it.
    pub lease_ttl: Duration,
    /// How long the whole shutdown may take.
    pub shutdown_total: Duration,
    /// How often the pointer is read while serving.
    pub deploy_poll: Duration,
    /// When what still runs in an old generation is cut off.
    pub deploy_max_age: Duration,
    /// Bytes of one request body, at most.
    pub max_request_body: u64,
    /// How long a Worker may keep workerd from answering anything.
    pub handler_budget: Duration,
    pub hooks: Hooks,
}

impl NodeSettings {
    /// Merges and checks.
    ///
    /// # Errors
    /// A value that does not parse, or one that does not go with another.
    pub(crate) fn resolve(options: &NodeOptions, environment: &Environment, surface: Surface) -> Outcome<Self> {
        if options.control_plane || environment.flag("CELLD_CLOUD") {
            return Err(Failure::new("the stand-in has no managed mode: leave out --control-plane and CELLD_CLOUD"));
        }
        let given = |option: &Option<String>, variable: &str| {
            let option = option.as_deref().map(str::trim).filter(|value| !value.is_empty());
            option.or_else(|| environment.text(variable)).map(str::to_owned)
        };
        let listen = address("--listen", given(&options.listen, "CELLD_ADDR").as_deref().unwrap_or("127.0.0.1:8080"))?;
        let internal = given(&options.internal_listen, "CELLD_INTERNAL_ADDR");
        let advertise = given(&options.advertise, "CELLD_ADVERTISE");
        let internal_listen = address("--internal-listen", internal.as_deref().unwrap_or("127.0.0.1:0"))?;
        let unsafe_public = options.unsafe_public_advertise || environment.flag("CELLD_UNSAFE_PUBLIC_ADVERTISE");
        pairing(listen, internal.is_some(), internal_listen, advertise.as_deref())?;
        if let Some(advertise) = &advertise {
            check_advertise(advertise, unsafe_public)?;
        }
        let node = environment.text("CELLD_NODE").map_or_else(|| Ok(NodeId::random()), str::parse)?;
        let temporary = PathBuf::from(environment.text("TMPDIR").unwrap_or("/tmp"));
        let watch = environment
            .text("CELLD_WATCH")
            .map_or_else(|| temporary.join(format!("celld-{}", std::process::id())), PathBuf::from);
        let asset_cache = environment
            .text("CELLD_ASSET_CACHE_DIR")
            .map_or_else(|| temporary.join("celld").join("asset-cache"), PathBuf::from);
        let (total, total_default) = match surface {
            Surface::V0_3 => ("CELLD_SHUTDOWN_DRAIN_MS", 25_000),
            Surface::V0_6 => ("CELLD_SHUTDOWN_TOTAL_MS", 40_000),
        };
        Ok(Self {
            surface,
            listen,
            internal_listen,
            advertise,
            trust_forwarded_headers: options.trust_forwarded_headers
                || environment.flag("CELLD_TRUST_FORWARDED_HEADERS"),
            node,
            watch: absolute(&watch)?,
            asset_cache: absolute(&asset_cache)?,
            // Twice the largest set of assets that can be deployed: the served one and the next.
            asset_cache_max: environment.number("CELLD_ASSET_CACHE_BYTES", 2 << 30),
            lease_ttl: Duration::from_millis(environment.number("CELLD_TTL_MS", 10_000)),
            shutdown_total: Duration::from_millis(environment.number(total, total_default)),
            deploy_poll: Duration::from_secs(environment.number("CELLD_DEPLOY_POLL_S", 30)),
            deploy_max_age: Duration::from_secs(environment.number("CELLD_DEPLOY_MAX_AGE_S", 60)),
            max_request_body: environment.number("CELLD_MAX_REQUEST_BODY_BYTES", 1 << 30),
            // Cloudflare's default of CPU time for one request.
            handler_budget: Duration::from_secs(environment.number("CELLD_HANDLER_BUDGET_S", 30)),
            hooks: Hooks::of(environment)?,
        })
    }
}

/// workerd runs in another directory than we do.
fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).map_err(|error| Failure::because(format!("resolve {}", path.display()), error))
}

fn address(option: &str, text: &str) -> Outcome<SocketAddr> {
    text.parse().map_err(|_| Failure::new(format!("{option} is {text:?}: write an IP address and a port, IP:PORT")))
}

/// Which of the three addresses need which.
fn pairing(listen: SocketAddr, internal_given: bool, internal: SocketAddr, advertise: Option<&str>) -> Outcome<()> {
    if !internal_given && !listen.ip().is_loopback() {
        return Err(Failure::new("--listen is not a loopback address: give --internal-listen too"));
    }
    if !internal_given && advertise.is_some() {
        return Err(Failure::new("--advertise says how to reach the internal listener: give --internal-listen too"));
    }
    if internal.ip().is_unspecified() && advertise.is_none() {
        return Err(Failure::new("--internal-listen is an unspecified address: give --advertise too"));
    }
    if listen == internal && listen.port() != 0 {
        return Err(Failure::new("--listen and --internal-listen are the same: give two addresses"));
    }
    Ok(())
}

fn check_advertise(text: &str, unsafe_public: bool) -> Outcome<()> {
    let refused = |why: &str| Err(Failure::new(format!("--advertise is {text:?}: {why}")));
    if let Ok(address) = text.parse::<SocketAddr>() {
        let ip = address.ip();
        return match ip {
            _ if address.port() == 0 => refused("the port must not be 0"),
            _ if ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::V4(Ipv4Addr::BROADCAST) => {
                refused("no peer can reach such an address")
            }
            _ if !is_private(ip) && !unsafe_public => {
                refused("a public address lets everybody stop this node; --unsafe-public-advertise allows it")
            }
            _ => Ok(()),
        };
    }
    let named = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    match text.rsplit_once(':') {
        Some((host, port))
            if (1..=253).contains(&host.len())
                && host.bytes().all(named)
                && !port.starts_with('+')
                && port.parse::<u16>().is_ok_and(|port| port != 0) =>
        {
            Ok(())
        }
        Some(_) | None => refused("write ADDRESS:PORT or HOST:PORT"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(listen: Option<&str>, internal: Option<&str>, advertise: Option<&str>) -> Outcome<NodeSettings> {
        let options = NodeOptions {
            listen: listen.map(str::to_owned),
            internal_listen: internal.map(str::to_owned),
            advertise: advertise.map(str::to_owned),
            ..NodeOptions::default()
        };
        NodeSettings::resolve(&options, &Environment::default(), Surface::V0_6)
    }

    #[test]
    fn addresses_that_need_each_other_are_asked_for() {
        for (listen, internal, advertise, accepted) in [
            (None, None, None, true),
            (Some("127.0.0.1:1"), Some("127.0.0.1:2"), None, true),
            (Some("10.0.0.1:1"), None, None, false),
            (Some("10.0.0.1:1"), Some("10.0.0.1:2"), Some("10.0.0.1:2"), true),
            (None, None, Some("10.0.0.1:2"), false),
            (None, Some("0.0.0.0:2"), None, false),
            (None, Some("[::]:2"), Some("10.0.0.1:2"), true),
            (Some("127.0.0.1:1"), Some("127.0.0.1:1"), None, false),
            (Some("localhost:1"), None, None, false),
        ] {
            let outcome = resolved(listen, internal, advertise);
            assert_eq!(outcome.is_ok(), accepted, "{listen:?} {internal:?} {advertise:?}: {outcome:?}");
        }
    }

    #[test]
    fn an_advertised_address_must_be_reachable_and_private() {
        for (advertise, accepted) in [
            ("10.1.2.3:7", true),
            ("100.64.0.1:7", true),
            ("100.128.0.1:7", false),
            ("169.254.1.1:7", true),
            ("[fd00::1]:7", true),
            ("[2001:db8::1]:7", false),
            ("[::ffff:8.8.8.8]:7", false),
            ("8.8.8.8:7", false),
            ("127.0.0.1:0", false),
            ("0.0.0.0:7", false),
            ("255.255.255.255:7", false),
            ("224.0.0.1:7", false),
            ("node-a.example:7", true),
            ("node-a.example", false),
            ("node-a.example:0", false),
        ] {
            let outcome = resolved(None, Some("0.0.0.0:2"), Some(advertise));
            assert_eq!(outcome.is_ok(), accepted, "{advertise}: {outcome:?}");
        }
        assert!(check_advertise("8.8.8.8:7", true).is_ok());
    }

    #[test]
    fn options_win_over_the_environment_and_blanks_count_as_unset() {
        let environment = Environment::from_iter([("CELLD_ADDR", "127.0.0.1:7"), ("CELLD_INTERNAL_ADDR", " ")]);
        let options = NodeOptions { listen: Some(String::new()), ..NodeOptions::default() };
        let settings = NodeSettings::resolve(&options, &environment, Surface::V0_6).unwrap();
        assert_eq!(settings.listen.port(), 7);
        assert_eq!(settings.internal_listen.to_string(), "127.0.0.1:0");
        let options = NodeOptions { listen: Some("127.0.0.1:8".into()), ..NodeOptions::default() };
        assert_eq!(NodeSettings::resolve(&options, &environment, Surface::V0_6).unwrap().listen.port(), 8);
    }

    #[test]
    fn managed_mode_is_refused() {
        let options = NodeOptions { control_plane: true, ..NodeOptions::default() };
        assert!(NodeSettings::resolve(&options, &Environment::default(), Surface::V0_6).is_err());
    }
}

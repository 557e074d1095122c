//! Who may do what.

use std::path::{Path, PathBuf};

use scafo_proto::boot::Boot;

use super::{Allowed, Children, Families, Tcp};
use crate::daemon::Name;
use crate::sockets;
use crate::state::Dirs;

/// What resolving names takes (`resolv.conf(5)`, `nsswitch.conf(5)`), with the places where distributions keep what is linked
/// from there.
const RESOLVER: [&str; 11] = [
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/host.conf",
    "/etc/nsswitch.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager",
    "/mnt/wsl",
];
/// Where the certificates of authorities are.
const AUTHORITIES: [&str; 7] = [
    "/etc/ssl",
    "/etc/pki",
    "/etc/ca-certificates",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/usr/lib/ssl",
    "/usr/share/pki",
];
/// Where programs are that a deploy may need: celld, esbuild, an interpreter that starts it. Nothing of these is secret.
const PROGRAMS: [&str; 6] = ["/usr", "/bin", "/sbin", "/opt", "/lib", "/lib64"];
/// What such programs ask about the machine; what `/proc` says of other processes Landlock keeps from them.
const MACHINE: [&str; 7] = [
    "/proc",
    "/sys/fs/cgroup",
    "/sys/devices/system/cpu",
    "/etc/localtime",
    "/etc/passwd",
    "/etc/group",
    "/etc/mime.types",
];

/// One of our daemons, started from `program`.
pub(crate) fn daemon(name: Name, program: &Path, dirs: &Dirs) -> Allowed {
    let own = Allowed { execute: vec![program.to_owned()], ..Allowed::default() };
    let state = |dir: &str| vec![dirs.state.join(dir)];
    let network = || paths(&[&RESOLVER[..], &AUTHORITIES[..]].concat());
    match name {
        Name::Bucketd => Allowed { write: state("bucket"), families: Families::Internet, ..own },
        Name::Registryd => Allowed {
            read: network(),
            write: state("registryd"),
            sockets: [sockets::SUPERVISOR, sockets::BUCKETD, sockets::INGRESSD].map(|name| dirs.socket(name)).into(),
            tcp: Tcp::Everywhere,
            families: Families::Both,
            ..own
        },
        Name::Routerd => Allowed { sockets: vec![dirs.socket(sockets::REGISTRY)], families: Families::Unix, ..own },
        Name::Apiserver => Allowed {
            read: [network(), paths(&[Boot::FILE])].concat(),
            write: state("apiserver"),
            sockets: vec![dirs.socket(sockets::REGISTRY), dirs.socket(sockets::ROUTER)],
            tcp: Tcp::Everywhere,
            families: Families::Both,
            ..own
        },
        Name::Ingressd => Allowed {
            read: [network(), paths(&[Boot::FILE])].concat(),
            write: state("ingressd"),
            tcp: Tcp::Everywhere,
            families: Families::Internet,
            ..own
        },
    }
}

/// The same, for a daemon that also sends spans to the collector at this URL.
pub(crate) fn and_collector(url: &str, allowed: Allowed) -> Allowed {
    if allowed.tcp == Tcp::Everywhere {
        return allowed;
    }
    let url = url.parse::<http::Uri>().ok();
    let usual = if url.as_ref().and_then(http::Uri::scheme_str) == Some("https") { 443 } else { 80 };
    let port = url.as_ref().and_then(http::Uri::port_u16).unwrap_or(usual);
    let read = [allowed.read, paths(&RESOLVER), paths(&AUTHORITIES)].concat();
    Allowed { read, tcp: Tcp::Port(port), families: Families::Both, ..allowed }
}

/// A deploy job: reads the staged project, writes in its own temporary directory, talks to the bucket. `tools` are the programs
/// that it was given by path, and the directories of its `PATH`.
pub(crate) fn job(project: &Path, temp: &Path, tools: &[PathBuf], bucket: u16) -> Allowed {
    Allowed {
        execute: [tools.to_vec(), paths(&PROGRAMS)].concat(),
        read: [paths(&RESOLVER), paths(&AUTHORITIES), paths(&MACHINE), vec![project.to_owned()]].concat(),
        write: vec![temp.to_owned()],
        sockets: Vec::new(),
        tcp: Tcp::Port(bucket),
        families: Families::Both,
        children: Children::Some,
    }
}

fn paths(list: &[&str]) -> Vec<PathBuf> {
    list.iter().map(PathBuf::from).collect()
}

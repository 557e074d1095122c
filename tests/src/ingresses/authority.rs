//! An ACME server (Pebble) that looks for HTTP challenges on this machine, whatever the name is.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::write;
use crate::stores::leash::Leash;
use crate::stores::{free_ports, tools};
use crate::{process, wait};

const START_LIMIT: Duration = Duration::from_secs(60);
const START_TRIES: u32 = 3;

/// A running authority.
pub struct Authority {
    directory: String,
    challenges: u16,
    pebble: Leash,
    names: Leash,
    dir: TempDir,
}

impl Authority {
    /// Starts one.
    ///
    /// # Panics
    /// When it is not installed or does not start.
    pub async fn start() -> Self {
        let mut last = String::new();
        for _ in 0..START_TRIES {
            let authority = Self::try_start();
            let listens = wait::until("Pebble", START_LIMIT, || async {
                if authority.pebble.ended() || authority.names.ended() {
                    return Some(false);
                }
                authority.pebble.log().contains("ACME directory available").then_some(true)
            })
            .await;
            if listens {
                return authority;
            }
            last = format!("{}{}", authority.pebble.log(), authority.names.log());
        }
        panic!("Pebble does not start:\n{last}")
    }

    fn try_start() -> Self {
        let dir = TempDir::new().expect("a temporary directory");
        let [acme, challenges, unused, dns, management] = free_ports();
        let names = {
            let mut command = Command::new(tools::find("pebble-challtestsrv"));
            command.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", "", "-defaultIPv6", ""]);
            command.arg("-dnsserver").arg(format!("127.0.0.1:{dns}"));
            command.arg("-management").arg(format!("127.0.0.1:{management}"));
            Leash::start(&command, &dir.path().join("names.log"))
        };
        let certificate = certificates().join("localhost");
        let config = serde_json::json!({"pebble": {
            "listenAddress": format!("127.0.0.1:{acme}"),
            "certificate": certificate.join("cert.pem"),
            "privateKey": certificate.join("key.pem"),
            "httpPort": challenges,
            "tlsPort": unused,
            "profiles": {"default": {"description": "default", "validityPeriod": 7_776_000}},
            // Seconds; how soon a client asks again.
            "retryAfter": {"authz": 1, "order": 1},
        }});
        let path = dir.path().join("pebble.json");
        write(&path, &config.to_string());
        let mut command = Command::new(tools::find("pebble"));
        command.arg("-config").arg(path).arg("-dnsserver").arg(format!("127.0.0.1:{dns}"));
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_WFE_NONCEREJECT", "0");
        let pebble = Leash::start(&command, &dir.path().join("pebble.log"));
        let directory = format!("https://127.0.0.1:{acme}/dir");
        Self { directory, challenges, pebble, names, dir }
    }

    /// URL of the ACME directory.
    pub fn directory(&self) -> &str {
        &self.directory
    }

    /// A file with the root certificate of its own interface.
    pub fn roots(&self) -> PathBuf {
        certificates().join("pebble.minica.pem")
    }

    /// The port where it looks for HTTP challenges.
    pub const fn challenges(&self) -> u16 {
        self.challenges
    }

    /// How many certificates were ordered so far.
    pub fn orders(&self) -> usize {
        self.pebble.log().matches("POST /order-plz").count()
    }

    /// Stops or continues it, as if the network to it were slow.
    ///
    /// # Panics
    /// When it does not run.
    pub fn signal(&self, signal: Signal) {
        let dir = self.dir.path().to_str().expect("temporary paths are text");
        let pebble = process::mentioning(dir).into_iter().find(|process| process.name == "pebble");
        process::signal(pebble.expect("Pebble runs").pid, signal);
    }

    /// What it printed so far.
    pub fn log(&self) -> String {
        self.pebble.log()
    }
}

fn certificates() -> PathBuf {
    let pebble = tools::find("pebble");
    pebble.parent().unwrap_or(Path::new("/")).join("pebble-certs")
}

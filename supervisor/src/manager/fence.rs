//! A fence between applications: none of them connects to a port of another one's celld on this machine. Their internal ports ask
//! for no credentials, and whoever reaches one may stop that celld or read its data. By user id, so it takes one for each
//! application, root, and nftables.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use crate::job::{self, Why};
use crate::spawn::{Bond, Exit, Input, Limits, Output, Rights, Spawner, Spec};
use crate::state::Users;

/// Where distributions have it; `PATH` may be anybody's.
const NFT: [&str; 3] = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft"];
/// How long it may take; it makes one call to the kernel.
const DEADLINE: Duration = Duration::from_secs(10);
/// What becomes of a connection: refused where the kernel can, else never answered.
const VERDICTS: [&str; 2] = ["reject with tcp reset", "drop"];

/// What stands where.
#[derive(Debug)]
pub(crate) struct Fence<'a> {
    pub(crate) users: &'a Users,
    pub(crate) address: IpAddr,
    pub(crate) ports: &'a RangeInclusive<u16>,
}

impl Fence<'_> {
    /// Puts it up, in place of one that stands.
    ///
    /// # Errors
    /// Why it does not stand, in a few words.
    pub(crate) async fn raise(&self, spawner: &Spawner) -> Result<(), String> {
        let mut why = String::new();
        for verdict in VERDICTS {
            match run(spawner, self.script(verdict)).await {
                Ok(()) => return Ok(()),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Takes it down, if it stands.
    pub(crate) async fn lower(&self, spawner: &Spawner) {
        let table = self.table();
        if let Err(error) = run(spawner, format!("add table inet {table}\ndelete table inet {table}\n")).await {
            tracing::debug!(error, "the fence between applications stays");
        }
    }

    fn table(&self) -> String {
        format!("scafo_{}", self.users.strangers().start())
    }

    fn script(&self, verdict: &str) -> String {
        let (table, users, ports) = (self.table(), self.users.strangers(), self.ports);
        let users = format!("meta skuid {}-{}", users.start(), users.end());
        let ports = format!("tcp dport {}-{} {verdict}", ports.start(), ports.end());
        let mut own = BTreeMap::from([("ip", vec!["127.0.0.0/8".to_owned()]), ("ip6", vec!["::1".to_owned()])]);
        if !self.address.is_loopback() {
            own.entry(if self.address.is_ipv4() { "ip" } else { "ip6" }).or_default().push(self.address.to_string());
        }
        let rule = |(family, addresses): (&&str, &Vec<String>)| {
            format!("{users} {family} daddr {{ {} }} {ports}\n", addresses.join(", "))
        };
        let rules: String = own.iter().map(rule).collect();
        format!(
            "add table inet {table}\ndelete table inet {table}\ntable inet {table} {{\nchain output {{\n\
             type filter hook output priority 0; policy accept;\n{rules}}}\n}}\n"
        )
    }
}

async fn run(spawner: &Spawner, script: String) -> Result<(), String> {
    let program =
        NFT.iter().map(Path::new).find(|path| path.is_file()).ok_or("nft is not installed (package nftables)")?;
    let spec = Spec {
        program: program.to_owned(),
        arguments: vec!["-f".into(), "-".into()],
        environment: BTreeMap::new(),
        directory: Some("/".into()),
        input: Input::Document(script.into_bytes()),
        output: Output::Piped,
        sockets: Vec::new(),
        bond: Bond::Bound,
        limits: Limits::default(),
        rights: Rights::default(),
    };
    let finished = job::run(spawner, spec, DEADLINE, std::future::pending(), None).await;
    let finished = finished.map_err(|error| format!("nft cannot be started: {error}"))?;
    if finished.why == Why::ItEnded && finished.exit == Exit::Code(0) {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&finished.stderr);
    Err(format!("nft failed: {}", said.lines().next().unwrap_or("it said nothing")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_and_jobs_reach_no_port_of_a_celld_on_an_address_of_this_machine() {
        let dir = tempfile::tempdir().unwrap();
        let users = Users::of(dir.path(), &(700_000..=700_999)).unwrap();
        let fence = Fence { users: &users, address: "10.0.0.7".parse().unwrap(), ports: &(24_000..=31_999) };
        let script = fence.script("drop");
        for line in [
            "meta skuid 700016-700999 ip daddr { 127.0.0.0/8, 10.0.0.7 } tcp dport 24000-31999 drop\n",
            "meta skuid 700016-700999 ip6 daddr { ::1 } tcp dport 24000-31999 drop\n",
        ] {
            assert!(script.contains(line), "{script}");
        }
        assert!(
            script.starts_with("add table inet scafo_700016\ndelete table inet scafo_700016\n"),
            "as one transaction"
        );
    }
}

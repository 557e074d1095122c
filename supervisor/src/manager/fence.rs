//! A fence between applications: none of them connects to a port of another one's celld on this machine. Their internal ports ask
//! for no credentials, and whoever reaches one may stop that celld or read its data. By user id, so it takes one for each
//! application, root, and nftables.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::celld::Strays;
use crate::job::{self, Why};
use crate::spawn::{Bond, Exit, Input, Limits, Output, Rights, Spawner, Spec};
use crate::state::Users;

/// Where distributions have it; `PATH` may be anybody's.
const NFT: [&str; 3] = ["/usr/sbin/nft", "/sbin/nft", "/usr/bin/nft"];
/// How long it may take; it makes one call to the kernel.
const DEADLINE: Duration = Duration::from_secs(10);
/// What becomes of a connection: refused where the kernel can, else never answered.
const VERDICTS: [&str; 2] = ["reject with tcp reset", "drop"];

/// What stands where. Whoever was given ports or a user keeps them when the settings change, so there may be some beside the ranges.
#[derive(Debug)]
pub(crate) struct Fence {
    pub(crate) users: Arc<Users>,
    pub(crate) strays: watch::Receiver<Strays>,
    pub(crate) address: IpAddr,
    /// `celld.portRange`.
    pub(crate) range: RangeInclusive<u16>,
    pub(crate) beside_range: BTreeSet<u16>,
}

impl Fence {
    /// Puts it up, in place of one that stands.
    ///
    /// # Errors
    /// Why it does not stand, in a few words.
    pub(crate) async fn raise(&mut self, spawner: &Spawner) -> Result<(), String> {
        let strays: BTreeSet<u32> = self.strays.borrow_and_update().values().copied().collect();
        let mut why = String::new();
        for verdict in VERDICTS {
            match run(spawner, self.script(&strays, verdict)).await {
                Ok(()) => return Ok(()),
                Err(error) => why = error,
            }
        }
        Err(why)
    }

    /// Puts it up anew whenever the users beside the range change. Ends only when it is dropped.
    pub(crate) async fn follow(mut self, spawner: Spawner) {
        while self.strays.changed().await.is_ok() {
            if let Err(why) = self.raise(&spawner).await {
                tracing::error!(
                    why,
                    "the fence between applications stands as it did, though their users have changed"
                );
            }
        }
        // The fleet is gone, and this goes with it.
        std::future::pending::<()>().await;
    }

    /// Takes down that of these users, if it stands.
    pub(crate) async fn lower(users: &Users, spawner: &Spawner) {
        let table = table(users);
        if let Err(error) = run(spawner, format!("add table inet {table}\ndelete table inet {table}\n")).await {
            tracing::debug!(error, "the fence between applications stays");
        }
    }

    fn script(&self, strays: &BTreeSet<u32>, verdict: &str) -> String {
        let (table, range) = (table(&self.users), self.users.strangers());
        let mut users = vec![format!("{}-{}", range.start(), range.end())];
        users.extend(strays.iter().map(u32::to_string));
        let mut ports = vec![format!("{}-{}", self.range.start(), self.range.end())];
        ports.extend(self.beside_range.iter().map(u16::to_string));
        let ports = format!("tcp dport {{ {} }} {verdict}", ports.join(", "));
        let mut own = BTreeMap::from([("ip", vec!["127.0.0.0/8".to_owned()]), ("ip6", vec!["::1".to_owned()])]);
        if !self.address.is_loopback() {
            own.entry(if self.address.is_ipv4() { "ip" } else { "ip6" }).or_default().push(self.address.to_string());
        }
        // A rule for each, since not every nft takes a set of single ids and of ranges of them.
        let rule = |user: &String, family: &str, addresses: &Vec<String>| {
            format!("meta skuid {user} {family} daddr {{ {} }} {ports}\n", addresses.join(", "))
        };
        let own = &own;
        let rules = users.iter().flat_map(|user| own.iter().map(|(family, addresses)| rule(user, family, addresses)));
        let rules: String = rules.collect();
        format!(
            "add table inet {table}\ndelete table inet {table}\ntable inet {table} {{\nchain output {{\n\
             type filter hook output priority 0; policy accept;\n{rules}}}\n}}\n"
        )
    }
}

fn table(users: &Users) -> String {
    format!("scafo_{}", users.strangers().start())
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

    fn fence(dir: &Path, beside_range: &[u16]) -> Fence {
        Fence {
            users: Arc::new(Users::of(dir, &(700_000..=700_999)).unwrap()),
            strays: watch::Sender::default().subscribe(),
            address: "10.0.0.7".parse().unwrap(),
            range: 24_000..=31_999,
            beside_range: beside_range.iter().copied().collect(),
        }
    }

    #[test]
    fn what_kept_ports_or_a_user_of_other_settings_is_fenced_too() {
        let dir = tempfile::tempdir().unwrap();
        let script = fence(dir.path(), &[23_999, 40_001]).script(&BTreeSet::from([800_032]), "drop");
        for user in ["700016-700999", "800032"] {
            for addresses in ["ip daddr { 127.0.0.0/8, 10.0.0.7 }", "ip6 daddr { ::1 }"] {
                let rule = format!("meta skuid {user} {addresses} tcp dport {{ 24000-31999, 23999, 40001 }} drop\n");
                assert!(script.contains(&rule), "{script}");
            }
        }
    }

    #[test]
    fn applications_and_jobs_reach_no_port_of_a_celld_on_an_address_of_this_machine() {
        let dir = tempfile::tempdir().unwrap();
        let script = fence(dir.path(), &[]).script(&BTreeSet::new(), "drop");
        for line in [
            "meta skuid 700016-700999 ip daddr { 127.0.0.0/8, 10.0.0.7 } tcp dport { 24000-31999 } drop\n",
            "meta skuid 700016-700999 ip6 daddr { ::1 } tcp dport { 24000-31999 } drop\n",
        ] {
            assert!(script.contains(line), "{script}");
        }
        assert!(
            script.starts_with("add table inet scafo_700016\ndelete table inet scafo_700016\n"),
            "as one transaction"
        );
    }
}

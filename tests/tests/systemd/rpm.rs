//! The RPM package, in the same machine: Debian's rpm installs it and runs its scriptlets.

use std::path::Path;
use std::process::Command;

use crate::machine::Machine;
use crate::{config, deploys, installs, package, starts, survives};

/// Debian's rpm wants to hear that this is meant; what is installed there is unknown to it.
const RPM: &str = "rpm --force-debian --nodeps";

/// Two releases of one version, if this machine can pack them.
pub(crate) fn prepare(root: &Path) {
    if Command::new("rpmbuild").arg("--version").output().is_err() {
        return;
    }
    for release in ["1", "2"] {
        let packed = package("rpm.sh", &["--release", release], root);
        std::fs::rename(&packed, root.join(format!("scafo-{release}.rpm"))).expect("the same file system");
    }
}

/// Install, deploy, upgrade under load, remove.
pub(crate) async fn does_the_same(machine: &Machine) {
    if !machine.root().join("scafo-1.rpm").exists() {
        eprintln!("SKIPPED: the RPM package was not tried: rpmbuild is not installed (Debian: rpm)");
        return;
    }
    // The operator's key of the node that was there before.
    machine.must("rm -rf /root/.config/scafo").await;
    installs(machine, &format!("{RPM} -i /scafo-1.rpm")).await;
    starts(machine).await;
    deploys(machine).await;
    survives(machine, "an upgrade of the RPM package", &format!("{RPM} -U /scafo-2.rpm")).await;
    machine.must("rpm -q scafo | grep -q -- '-2[.]'").await;
    let etc = machine.root().join("etc/scafo");
    let settings = std::fs::read_to_string(etc.join("scafo.toml")).expect("the configuration");
    assert_eq!(settings, config(), "an upgrade keeps the settings");
    machine.must(&format!("{RPM} -e scafo")).await;
    assert!(machine.processes("/usr/local/lib/").is_empty(), "applications are left\n{}", machine.journal());
    assert!(machine.processes("/usr/lib/scafo/").is_empty(), "daemons are left\n{}", machine.journal());
    assert!(!machine.root().join("usr/bin/scafo").exists() && !machine.root().join("usr/lib/scafo").exists());
    // rpm knows no purge: what the operator wrote and what the node kept stay.
    assert!(etc.join("scafo.toml.rpmsave").exists() && machine.root().join("var/lib/scafo").exists());
}

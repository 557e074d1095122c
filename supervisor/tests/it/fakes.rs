//! Stands the fakes in: `tests/fake` is their executable.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

const FAKE: &str = env!("CARGO_BIN_EXE_scafo-supervisor-fake");

/// Fills a directory with the executables of a node. Daemons are links, since a confined one may start nothing else, not even a
/// shell; celld is a script that starts another program, as operators write them.
pub(crate) fn install(dir: &Path) {
    for daemon in ["registryd", "routerd", "apiserver", "bucketd", "ingressd"] {
        symlink(FAKE, dir.join(format!("scafo-{daemon}"))).unwrap();
    }
    symlink(FAKE, dir.join("real-celld")).unwrap();
    celld(dir, "", "exec");
}

/// Has the celld of this directory stay beside the program that it starts.
pub(crate) fn stay(dir: &Path) {
    celld(dir, "", "");
}

/// Has the celld of this directory wait for a file before it says its version, and say that it waits by another.
pub(crate) fn hesitate(dir: &Path) {
    let at = dir.display();
    celld(
        dir,
        &format!("touch '{at}/celld.asked'; while [ ! -e '{at}/celld.goes-on' ]; do sleep 0.01; done; "),
        "exec",
    );
}

fn celld(dir: &Path, before_version: &str, exec: &str) {
    let at = dir.display();
    let text = format!(
        "#!/bin/sh\n\
         if [ \"$1\" = --version ]; then {before_version}echo 'celld 0.6.0'; exit 0; fi\n\
         if [ \"$1\" = deploy ]; then . '{at}/deploy.sh'; fi\n\
         {exec} '{at}/real-celld' \"$@\"\n\
         exit $?\n"
    );
    // Another process writes it: what forks here meanwhile would hold it open, and then the kernel does not start it.
    let script = dir.join("celld.sh");
    std::fs::write(&script, text).unwrap();
    let mut install = Command::new("install");
    assert!(install.args(["-m", "755"]).args([&script, &dir.join("celld")]).status().unwrap().success());
}

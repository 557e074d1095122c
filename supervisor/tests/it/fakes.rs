//! Stands the fakes in: `tests/fake` is their executable.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

const FAKE: &str = env!("CARGO_BIN_EXE_scafo-supervisor-fake");

/// Fills a directory with the executables of a node. Daemons are links, since a confined one may start nothing else, not even a
/// shell; celld is a script that starts another program, as operators write them.
pub(crate) fn install(dir: &Path) {
    for daemon in ["registryd", "routerd", "apiserver", "bucketd", "ingressd"] {
        symlink(FAKE, dir.join(format!("scafo-{daemon}"))).unwrap();
    }
    symlink(FAKE, dir.join("real-celld")).unwrap();
    let at = dir.display();
    let text = format!(
        "#!/bin/sh\n\
         if [ \"$1\" = --version ]; then echo 'celld 0.6.0'; exit 0; fi\n\
         if [ \"$1\" = deploy ]; then . '{at}/deploy.sh'; fi\n\
         exec '{at}/real-celld' \"$@\"\n"
    );
    let celld = dir.join("celld");
    std::fs::write(&celld, text).unwrap();
    std::fs::set_permissions(&celld, std::fs::Permissions::from_mode(0o755)).unwrap();
}

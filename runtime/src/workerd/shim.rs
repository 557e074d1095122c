//! The forerunner of workerd: this program again, which ties itself to its parent and then becomes workerd.
//!
//! What a child does between fork and exec would need unsafe code; what a fresh process does to itself does not.

use std::{ffi::OsString, os::unix::process::CommandExt as _, process::Command};

use nix::{
    sys::{prctl::set_pdeathsig, signal::Signal},
    unistd::getppid,
};

use crate::{
    Failure,
    failure::{Context, Outcome},
};

/// Becomes the program in `words`: the parent's process id, the program, its arguments. Returns only if it cannot.
pub(crate) fn exec(words: &[OsString]) -> Outcome<std::convert::Infallible> {
    let [parent, program, arguments @ ..] = words else {
        return Err(Failure::new("__exec-workerd is for the stand-in's own use"));
    };
    let parent: i32 =
        parent.to_str().and_then(|text| text.parse().ok()).context(|| "the parent's process id is no number".into())?;
    set_pdeathsig(Signal::SIGKILL).context(|| "tie workerd to its parent".into())?;
    // The parent may have died before the tie was made; then somebody else has adopted us.
    if getppid().as_raw() != parent {
        return Err(Failure::new("the stand-in has ended"));
    }
    Err(Failure::because(format!("start {}", program.display()), Command::new(program).args(arguments).exec()))
}

//! The forerunner of esbuild: this program again, which gives up the right to read the machine and then becomes esbuild.
//!
//! A project is somebody else's text, and an `import` may name any file. This account can read the bucket's credentials, so
//! the bundler must not be able to. Where the kernel has no Landlock, [`super::boundary`] alone keeps them apart: it looks at
//! what was read, after the fact.

use std::{
    ffi::OsString,
    io::Read as _,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, RulesetStatus, path_beneath_rules,
};

use crate::{
    Failure,
    args::EXEC_BUNDLER,
    failure::{Context, Outcome},
};

/// Rights as of Linux 6.10. An older kernel enforces those that it knows.
const RIGHTS: ABI = ABI::V5;

/// What a program needs before its first line: the dynamic linker, its cache, and libraries.
const LIBRARIES: [&str; 10] = [
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libx32",
    "/etc/ld.so.cache",
    "/etc/ld.so.preload",
];

/// What holds the bundler back from the rest of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Confinement {
    /// The kernel.
    Landlock,
    /// Nothing but the check of what it has read.
    None,
}

impl Confinement {
    /// What this machine can do for `program`. Says in the log when that is nothing.
    pub(crate) fn available(program: &Path) -> Self {
        if is_script(program) {
            let shown = program.display();
            tracing::warn!(
                "{shown} is a script, so the bundler is not confined: give the path of esbuild's own binary"
            );
            return Self::None;
        }
        if let Err(error) = probe() {
            tracing::warn!("this kernel has no Landlock, so the bundler's reads are checked only afterwards: {error}");
            return Self::None;
        }
        Self::Landlock
    }

    /// A command that runs `program` in `root` and lets it write in `output`, with nothing of this process's environment but
    /// the way to interpreters.
    pub(crate) fn command(self, program: &Path, root: &Path, output: &Path) -> Outcome<Command> {
        let mut command = match self {
            Self::None => Command::new(program),
            Self::Landlock => {
                let this = std::env::current_exe().context(|| "find this program".into())?;
                let mut command = Command::new(this);
                command.arg(EXEC_BUNDLER).args([root, output, program]);
                command
            }
        };
        // Credentials are in our environment, and variables such as NODE_PATH would change what is bundled.
        command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path))).current_dir(root);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        Ok(command)
    }
}

/// Becomes the program in `words`: the project, the directory for output, the program, its arguments. Returns only if it
/// cannot.
pub(crate) fn exec(words: &[OsString]) -> Outcome<std::convert::Infallible> {
    let [root, output, program, arguments @ ..] = words else {
        return Err(Failure::new("__exec-bundler is for the stand-in's own use"));
    };
    let status =
        restrict(Path::new(root), Path::new(output), Path::new(program)).context(|| "confine esbuild".into())?;
    // Whoever started this has seen that the kernel can.
    if status == RulesetStatus::NotEnforced {
        return Err(Failure::new("the kernel does not confine esbuild"));
    }
    Err(Failure::because(format!("start {}", program.display()), Command::new(program).args(arguments).exec()))
}

fn restrict(root: &Path, output: &Path, program: &Path) -> Result<RulesetStatus, RulesetError> {
    let read = AccessFs::from_read(RIGHTS);
    let rules = Ruleset::default()
        .handle_access(AccessFs::from_all(RIGHTS))?
        .handle_access(AccessNet::from_all(RIGHTS))?
        .create()?
        .add_rules(path_beneath_rules(LIBRARIES, read))?
        .add_rules(path_beneath_rules([program, root], read))?
        .add_rules(path_beneath_rules([output], AccessFs::from_all(RIGHTS) & !AccessFs::Execute))?;
    Ok(rules.restrict_self()?.ruleset)
}

/// Whether the kernel knows Landlock, has it switched on, and lets us use it.
fn probe() -> Result<(), RulesetError> {
    let oldest = Ruleset::default().set_compatibility(CompatLevel::HardRequirement);
    oldest.handle_access(AccessFs::from_all(ABI::V1))?.create().map(drop)
}

/// An interpreter, with files that nobody here knows, would have to be let in too.
fn is_script(program: &Path) -> bool {
    let mut start = [0; 2];
    let read = std::fs::File::open(program).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && start == *b"#!"
}

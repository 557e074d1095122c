//! A process that ends with the test, however that ends.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::wait;

/// Starts its arguments, and kills what it started as soon as its standard input ends: which happens when the test drops the
/// other end, and also when the test is killed. SIGKILL, because one of the stores takes its time over anything else.
const SCRIPT: &str = "exec 3<&0 </dev/null; \"$@\" 3<&- & child=$!; \
    { read -r line <&3; kill -9 $child; } 2>/dev/null & exec 3<&-; wait $child";

/// A process on a leash.
pub(crate) struct Leash {
    shell: Mutex<Child>,
    log: PathBuf,
}

impl Leash {
    /// Starts `command` with both of its outputs at the end of the file `log`. Of its settings, the program, the arguments and the
    /// environment count.
    ///
    /// # Panics
    /// When there is no shell or no file.
    pub(crate) fn start(command: &Command, log: &Path) -> Self {
        let out = File::options().create(true).append(true).open(log).expect("a log file");
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", SCRIPT, "leash"]).arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.stdin(Stdio::piped()).stdout(out.try_clone().expect("a descriptor")).stderr(out);
        Self { shell: Mutex::new(shell.spawn().expect("a shell")), log: log.to_owned() }
    }

    /// What it printed so far.
    pub(crate) fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Whether it has ended.
    pub(crate) fn ended(&self) -> bool {
        let mut shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner);
        !matches!(shell.try_wait(), Ok(None))
    }

    /// Waits until it has printed `before`, and gives the word behind it.
    ///
    /// # Panics
    /// When it ends before, or takes longer than `limit`.
    pub(crate) async fn said(&self, before: &str, limit: Duration) -> String {
        wait::until(before, limit, || async {
            let ended = self.ended();
            let log = self.log();
            let (_, behind) = log.split_once(before).unwrap_or_default();
            // Only a whole line: the rest may not be written yet.
            match behind.split_once('\n') {
                Some((line, _)) => line.split([' ', '\r', '\u{1b}']).next().map(str::to_owned),
                None => {
                    assert!(!ended, "it ended and did not say {before:?}:\n{log}");
                    None
                }
            }
        })
        .await
    }

    /// Kills it and waits for its end.
    pub(crate) fn pull(&self) {
        let mut shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner);
        drop(shell.stdin.take());
        // Fails only if somebody else has waited for it.
        let _ = shell.wait();
    }
}

impl Drop for Leash {
    fn drop(&mut self) {
        self.pull();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process;

    #[tokio::test]
    async fn what_is_on_a_leash_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo pid $$; exec sleep 600"]);
        let leash = Leash::start(&command, &dir.path().join("log"));
        let pid: u32 = leash.said("pid ", Duration::from_secs(60)).await.parse().unwrap();
        assert!(!leash.ended() && process::read(pid).is_some());
        drop(leash);
        wait::until("its end", Duration::from_secs(60), || async { process::read(pid).is_none().then_some(()) }).await;
    }

    #[tokio::test]
    async fn an_end_of_its_own_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let leash = Leash::start(&Command::new("/bin/false"), &dir.path().join("log"));
        wait::until("its end", Duration::from_secs(60), || async { leash.ended().then_some(()) }).await;
    }
}

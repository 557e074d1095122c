//! Running the command as a user would, in a directory of its own and with nothing in its environment.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use tokio::process::Command;

/// An empty home with a key and a project in it.
pub(crate) struct Home(tempfile::TempDir);

/// What came out.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A key as OpenSSL writes it (`openssl genpkey -algorithm ed25519`), made for this test.
const KEY: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8g
-----END PRIVATE KEY-----
";
/// The bytes of [`KEY`].
pub(crate) const SEED: [u8; 32] = {
    let mut seed = [0; 32];
    let mut index = 0;
    while index < 32 {
        seed[index] = index as u8 + 1;
        index += 1;
    }
    seed
};

impl Home {
    pub(crate) fn new() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let home = Self(tempfile::tempdir().unwrap());
        std::fs::write(home.key(), KEY).unwrap();
        std::fs::set_permissions(home.key(), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::create_dir_all(home.project().join("src")).unwrap();
        std::fs::write(
            home.project().join("wrangler.jsonc"),
            "{ \"name\": \"shop\", \"main\": \"src/index.js\" } // a\n",
        )
        .unwrap();
        std::fs::write(home.project().join("src/index.js"), "export default {}\n").unwrap();
        home
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.path().join("ops.pem")
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.path().join("project")
    }

    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_scafo"));
        command.args(line.split_whitespace()).current_dir(self.path()).env_clear();
        command.env("HOME", self.path()).env("TMPDIR", self.path());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    pub(crate) async fn run(&self, line: &str) -> Ran {
        Ran::from(self.command(line).output().await.unwrap())
    }

    /// Runs a command against a node with the key of this home.
    pub(crate) async fn against(&self, url: &str, line: &str) -> Ran {
        self.run(&format!("{line} --url {url} --key ops.pem")).await
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Ran {
    /// Everything at once, for a test that fails.
    pub(crate) fn all(&self) -> String {
        format!("exit {:?}\n--- stdout\n{}--- stderr\n{}", self.code, self.stdout, self.stderr)
    }
}

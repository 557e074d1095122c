//! An embedded store of its own for each test, and what a test puts into it behind the stand-in's back.

use std::{
    fs::File,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use scafo_core::settings::{BucketAccess, Secret};
use scafo_store::{Bucket as _, PutOptions, S3Bucket};

use super::eventually;

pub(crate) struct Bucket {
    pub endpoint: String,
    process: Child,
    _directory: tempfile::TempDir,
}

impl Bucket {
    pub(crate) const NAME: &str = "development";
    pub(crate) const KEY: &str = "test-key";
    pub(crate) const SECRET: &str = "test-secret-of-no-worth";

    pub(crate) fn start() -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_celld-workerd")).with_file_name("scafo-bucketd");
        assert!(program.is_file(), "{} is missing: run `cargo build -p scafo-bucketd`", program.display());
        let directory = tempfile::tempdir().unwrap();
        let output = directory.path().join("out");
        let mut process = Command::new(program)
            .args(["--listen", "127.0.0.1:0", "--bucket", Self::NAME, "--dir"])
            .arg(directory.path().join("store"))
            .env("AWS_ACCESS_KEY_ID", Self::KEY)
            .env("AWS_SECRET_ACCESS_KEY", Self::SECRET)
            .stdin(Stdio::null())
            .stdout(File::create(&output).unwrap())
            .stderr(File::create(directory.path().join("err")).unwrap())
            .spawn()
            .unwrap();
        let endpoint = eventually("the bucket listens", || {
            let said = std::fs::read_to_string(&output).unwrap();
            let ended = process.try_wait().unwrap();
            assert!(ended.is_none(), "the bucket ended: {ended:?}");
            Some(said.lines().find_map(|line| line.strip_prefix("listening on "))?.to_owned())
        });
        Self { endpoint, process, _directory: directory }
    }

    fn store(&self) -> Arc<S3Bucket> {
        Arc::new(S3Bucket::new(&BucketAccess {
            name: Self::NAME.into(),
            prefix: "fleets/shop".into(),
            endpoint: Some(self.endpoint.clone()),
            region: "us-east-1".into(),
            path_style: true,
            access_key_id: Self::KEY.into(),
            secret_access_key: Secret::new(Self::SECRET),
            session_token: None,
        }))
    }

    /// The document at `key` of the fleet.
    pub(crate) fn read(&self, key: &str) -> Option<serde_json::Value> {
        self.bytes(key).map(|body| serde_json::from_slice(&body).unwrap())
    }

    /// What is at `key` of the fleet.
    pub(crate) fn bytes(&self, key: &str) -> Option<Vec<u8>> {
        let store = self.store();
        block_on(async move { store.get(key).await }).unwrap().map(|object| object.body.to_vec())
    }

    /// Puts a document there, whatever is there.
    pub(crate) fn write(&self, key: &str, document: &serde_json::Value) {
        let (store, body) = (self.store(), document.to_string());
        block_on(async move { store.put(key, body.into(), PutOptions::default()).await }).unwrap();
    }

    pub(crate) fn delete(&self, key: &str) {
        let store = self.store();
        block_on(async move { store.delete(key).await }).unwrap();
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

impl Drop for Bucket {
    fn drop(&mut self) {
        let _gone = self.process.kill();
        let _reaped = self.process.wait();
    }
}

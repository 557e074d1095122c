use scafo_core::settings::{BucketAccess, Secret};
use scafo_store::{S3Bucket, conformance, probe};

use crate::harness::{ACCESS_KEY_ID, BUCKET, Bucketd, SECRET};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_and_start_probe_for_every_store_pass() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    for prefix in ["", "some/where"] {
        let bucket = S3Bucket::new(&BucketAccess {
            name: BUCKET.into(),
            prefix: prefix.into(),
            endpoint: Some(format!("http://{}", bucketd.address())),
            region: "us-east-1".into(),
            path_style: true,
            access_key_id: ACCESS_KEY_ID.into(),
            secret_access_key: Secret::new(SECRET),
            session_token: None,
        });
        probe(&bucket).await.unwrap();
        conformance::run(&bucket).await.unwrap_or_else(|violation| panic!("{violation}"));
    }
    let left = bucketd.client().list_objects_v2().bucket(BUCKET).send().await.unwrap();
    assert_eq!(left.contents().len(), 0);
}

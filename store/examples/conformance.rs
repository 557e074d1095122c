//! Runs the probe and the conformance suite against any S3-compatible store:
//!
//! ```text
//! SCAFO_BUCKET_NAME=b SCAFO_BUCKET_ENDPOINT=http://127.0.0.1:9000 AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… \
//!     cargo run -p scafo-store --example conformance
//! ```

use std::{env, error::Error};

use scafo_core::settings::{BucketAccess, Secret};
use scafo_store::{Bucket, S3Bucket, conformance, probe};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoint = env::var("SCAFO_BUCKET_ENDPOINT").ok();
    let bucket = S3Bucket::new(&BucketAccess {
        name: env::var("SCAFO_BUCKET_NAME")?,
        prefix: env::var("SCAFO_BUCKET_PREFIX").unwrap_or_default(),
        path_style: endpoint.is_some(),
        endpoint,
        region: env::var("SCAFO_BUCKET_REGION").unwrap_or_else(|_| "us-east-1".to_owned()),
        access_key_id: env::var("AWS_ACCESS_KEY_ID")?,
        secret_access_key: Secret::new(env::var("AWS_SECRET_ACCESS_KEY")?),
        session_token: env::var("AWS_SESSION_TOKEN").ok().map(Secret::new),
    });
    if let Err(error) = probe(&bucket).await {
        return Err(format!("probe: {error} {:?}", error.cause()).into());
    }
    println!("probe passed after {} requests", bucket.requests());
    conformance::run(&bucket).await?;
    println!("suite passed after {} requests", bucket.requests());
    Ok(())
}

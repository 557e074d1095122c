//! The bucket over S3's REST interface, with the SDK's own retries off: a second try of a conditional write means
//! something else than the first, and only the caller can tell what.

mod answer;
mod listing;
#[cfg(test)]
mod tests;
mod wire;

use std::{
    ops::Range,
    sync::{Arc, RwLock, atomic::AtomicU64, atomic::Ordering},
    time::Duration,
};

use async_trait::async_trait;
use aws_sdk_s3::{
    Client,
    config::{
        BehaviorVersion, Credentials, Region, RequestChecksumCalculation, ResponseChecksumValidation,
        StalledStreamProtectionConfig, retry::RetryConfig, timeout::TimeoutConfig,
    },
    primitives::ByteStream,
    types::{Delete, ObjectIdentifier},
};
use aws_smithy_http_client::{
    Builder,
    tls::{Provider, rustls_provider::CryptoMode},
};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use scafo_core::{Timestamp, settings::BucketAccess};

use self::{
    answer::{Context, Failure},
    wire::Trace,
};
use crate::{
    Bucket, Cause, Condition, ETag, ETagForm, Error, Head, ListRequest, Object, Page, Put, PutOptions, TITLE_ETAGS,
    TITLE_RANGES,
};

/// Time to a connection: three SYN of a kernel (0, 1 and 3 s), and as long as celld allows.
const CONNECT: Duration = Duration::from_secs(3);
/// Time for a whole call without its body. Two thirds of the default lease TTL, so that the holder of a lease hears of a
/// renewal that got stuck before the lease lapses.
const CALL: Duration = Duration::from_secs(10);
/// Slowest transfer that is waited for, in bytes per second: 25 MiB take 50 s more.
const SLOWEST: u64 = 512 << 10;
/// How many keys one batch delete takes (S3's own limit).
const DELETE_BATCH: usize = 1000;
/// Single deletes at once, where a store has no batches.
const DELETES_AT_ONCE: usize = 8;

/// A bucket of an S3-compatible store.
#[derive(Debug)]
pub struct S3Bucket {
    client: Client,
    name: String,
    /// Empty, or ends in `/`.
    prefix: String,
    form: RwLock<ETagForm>,
    requests: Arc<AtomicU64>,
}

impl S3Bucket {
    /// A client for `access`. Sends nothing yet.
    #[must_use]
    pub fn new(access: &BucketAccess) -> Self {
        let requests = Arc::new(AtomicU64::new(0));
        let prefix = match access.prefix.trim_matches('/') {
            "" => String::new(),
            prefix => format!("{prefix}/"),
        };
        Self { client: client(access), name: access.name.clone(), prefix, form: RwLock::default(), requests }
    }

    fn full(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn trace(&self) -> Trace {
        Trace::new(Arc::clone(&self.requests))
    }

    fn tag_form(&self) -> ETagForm {
        *self.form.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn delete_singly(&self, keys: &[String]) -> Result<(), Error> {
        let deletes = stream::iter(keys.to_vec()).map(|key| async move { self.delete(&key).await });
        deletes.buffer_unordered(DELETES_AT_ONCE).try_collect().await
    }

    /// `true` if the whole batch is gone, `false` if the store has no batches.
    async fn delete_batch(&self, keys: &[String]) -> Result<bool, Error> {
        let at = at("delete", keys.first().map_or("", String::as_str));
        let mut delete = Delete::builder().quiet(true);
        for key in keys {
            let object = ObjectIdentifier::builder().key(self.full(key)).build();
            delete = delete.objects(object.map_err(|error| rejected(at, &error))?);
        }
        let delete = delete.build().map_err(|error| rejected(at, &error))?;
        let trace = self.trace();
        let call = self.client.delete_objects().bucket(&self.name).delete(delete);
        match wire::ask(CALL, call.customize().interceptor(trace.clone()).send(), &trace).await {
            // What failed singly inside a batch is tried singly, which also gives it an error of its own.
            Ok(output) => Ok(output.errors().is_empty()),
            Err(Failure::Answer(answer)) if matches!(answer.status, 400 | 404 | 405 | 411 | 501) => Ok(false),
            Err(failure) => answer::of_other(failure, at).map(|()| false),
        }
    }
}

fn client(access: &BucketAccess) -> Client {
    let plain = access.endpoint.as_deref().is_some_and(|url| url.starts_with("http://"));
    let http = if plain {
        Builder::new().build_http()
    } else {
        Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https()
    };
    let credentials = Credentials::new(
        &access.access_key_id,
        access.secret_access_key.expose(),
        access.session_token.as_ref().map(|token| token.expose().to_owned()),
        None,
        "scafo",
    );
    let mut config = aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(access.region.clone()))
        .credentials_provider(credentials)
        .force_path_style(access.path_style)
        .http_client(http)
        .retry_config(RetryConfig::disabled())
        // Theirs signs each request by the clock of the answer before: one wrong `Date` has the store refuse what comes next, and a
        // machine whose clock is wrong is never told.
        .disable_clock_skew_correction(true)
        .timeout_config(TimeoutConfig::builder().connect_timeout(CONNECT).build())
        // Our own deadline covers the body; theirs gives up on a store that pauses.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        // Trailing checksums are what third-party stores stumble over.
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired);
    if let Some(endpoint) = &access.endpoint {
        config = config.endpoint_url(endpoint);
    }
    Client::from_conf(config.build())
}

#[async_trait]
impl Bucket for S3Bucket {
    async fn get_bounded(&self, key: &str, limit: u64) -> Result<Option<Object>, Error> {
        let at = at("get", key);
        let trace = self.trace();
        let call = self.client.get_object().bucket(&self.name).key(self.full(key));
        let whole = async {
            let output = match wire::ask(CALL, call.customize().interceptor(trace.clone()).send(), &trace).await {
                Ok(output) => output,
                Err(failure) => return answer::of_other(failure, at).map(|()| None),
            };
            let size = output.content_length().and_then(|size| u64::try_from(size).ok());
            if let Some(size) = size.filter(|size| *size > limit) {
                return Err(Error::TooLarge { key: key.to_owned(), size, limit });
            }
            let head = Head {
                etag: etag(output.e_tag(), at)?,
                size: 0,
                metadata: wire::metadata(output.metadata()),
                content_type: output.content_type().map(str::to_owned),
                last_modified: wire::time(output.last_modified()),
                date: trace.date(),
            };
            let body = collect(output.body, limit, size, at).await?;
            Ok(Some(Object { head: Head { size: body.len() as u64, ..head }, body }))
        };
        within(deadline(limit), at, whole).await
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, Error> {
        let at = at("head", key);
        let trace = self.trace();
        let call = self.client.head_object().bucket(&self.name).key(self.full(key));
        let output = match wire::ask(CALL, call.customize().interceptor(trace.clone()).send(), &trace).await {
            Ok(output) => output,
            Err(failure) => return answer::of_other(failure, at).map(|()| None),
        };
        Ok(Some(Head {
            etag: etag(output.e_tag(), at)?,
            size: output.content_length().and_then(|size| u64::try_from(size).ok()).unwrap_or_default(),
            metadata: wire::metadata(output.metadata()),
            content_type: output.content_type().map(str::to_owned),
            last_modified: wire::time(output.last_modified()),
            date: trace.date(),
        }))
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Option<Bytes>, Error> {
        let at = at("get", key);
        if range.is_empty() {
            return Err(rejected(at, &"an empty range"));
        }
        let wanted = range.end - range.start;
        let header = format!("bytes={}-{}", range.start, range.end - 1);
        let trace = self.trace();
        let call = self.client.get_object().bucket(&self.name).key(self.full(key)).range(header);
        let whole = async {
            let output = match wire::ask(CALL, call.customize().interceptor(trace.clone()).send(), &trace).await {
                Ok(output) => output,
                Err(failure) => return answer::of_other(failure, at).map(|()| None),
            };
            if !output.content_range().is_some_and(|given| wire::range_starts_at(given, range.start)) {
                let detail =
                    format!("a read of bytes {}-{} of `{key}` was not answered with them", range.start, range.end);
                return Err(Error::nonconforming(TITLE_RANGES, detail));
            }
            collect(output.body, wanted, None, at).await.map(Some)
        };
        within(deadline(wanted), at, whole).await
    }

    async fn put(&self, key: &str, body: Bytes, options: PutOptions) -> Result<Put, Error> {
        let at = at("put", key);
        let size = body.len() as u64;
        let mut call = self.client.put_object().bucket(&self.name).key(self.full(key)).body(ByteStream::from(body));
        for (name, value) in options.metadata {
            call = call.metadata(name, value);
        }
        call = match &options.condition {
            Condition::None => call,
            Condition::Absent => call.if_none_match("*"),
            Condition::Matches(etag) => call.if_match(etag.render(self.tag_form())),
        };
        call = call.set_content_type(options.content_type);
        let trace = self.trace();
        match wire::ask(deadline(size), call.customize().interceptor(trace.clone()).send(), &trace).await {
            Ok(output) => Ok(Put::Written(etag(output.e_tag(), at)?)),
            Err(failure) => answer::of_put(failure, &options.condition, at),
        }
    }

    async fn delete(&self, key: &str) -> Result<(), Error> {
        let trace = self.trace();
        let call = self.client.delete_object().bucket(&self.name).key(self.full(key));
        match wire::ask(CALL, call.customize().interceptor(trace.clone()).send(), &trace).await {
            Ok(_) => Ok(()),
            Err(failure) => answer::of_other(failure, at("delete", key)),
        }
    }

    async fn delete_many(&self, keys: &[String]) -> Result<(), Error> {
        for batch in keys.chunks(DELETE_BATCH) {
            if !self.delete_batch(batch).await? {
                self.delete_singly(batch).await?;
            }
        }
        Ok(())
    }

    async fn list_page(&self, request: ListRequest<'_>) -> Result<Page, Error> {
        listing::page(self, request).await
    }

    fn use_etag_form(&self, form: ETagForm) {
        *self.form.write().unwrap_or_else(std::sync::PoisonError::into_inner) = form;
    }

    fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

/// The whole body, as soon as it is known to fit.
async fn collect(mut body: ByteStream, limit: u64, announced: Option<u64>, at: Context<'_>) -> Result<Bytes, Error> {
    let mut bytes = BytesMut::new();
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|error| unavailable(at, Cause::from_chain(&error)))?;
        if (bytes.len() + chunk.len()) as u64 > limit {
            return Err(Error::TooLarge { key: at.key.to_owned(), size: (bytes.len() + chunk.len()) as u64, limit });
        }
        bytes.extend_from_slice(&chunk);
    }
    match announced {
        Some(size) if size != bytes.len() as u64 => {
            Err(unavailable(at, Cause::new(format!("{} of {size} bytes came", bytes.len()))))
        }
        Some(_) | None => Ok(bytes.freeze()),
    }
}

async fn within<T>(limit: Duration, at: Context<'_>, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_) => Err(unavailable(at, Cause::new(format!("no whole answer within {} s", limit.as_secs())))),
    }
}

fn deadline(bytes: u64) -> Duration {
    CALL + Duration::from_secs(bytes / SLOWEST)
}

fn at<'a>(operation: &'static str, key: &'a str) -> Context<'a> {
    Context { operation, key, now: Timestamp::from_system(std::time::SystemTime::now()) }
}

fn etag(given: Option<&str>, at: Context<'_>) -> Result<ETag, Error> {
    given.and_then(ETag::parse).ok_or_else(|| {
        let detail = format!(
            "the answer to {} of `{}` has no ETag: where that is a store, it is none for this; where it is something else, a \
             proxy's page mostly, check `bucket.endpoint`",
            at.operation, at.key
        );
        Error::nonconforming(TITLE_ETAGS, detail)
    })
}

fn unavailable(at: Context<'_>, cause: Cause) -> Error {
    Error::Unavailable { operation: at.operation, key: at.key.to_owned(), cause }
}

fn rejected(at: Context<'_>, why: &dyn std::fmt::Display) -> Error {
    Error::Rejected { operation: at.operation, key: at.key.to_owned(), code: why.to_string() }
}

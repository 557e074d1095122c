//! The S3 operations over the store: each is a translation of the request, one call of the store, and a translation back.
//!
//! What the store does not have (versions, encryption, locks, tags, access lists) is refused with `NotImplemented`, never
//! ignored.

mod conditions;
mod convert;
mod errors;
mod intake;
mod listing;
mod multipart;
mod objects;

use std::time::Instant;

use s3s::{S3, S3Request, S3Response, S3Result, dto};

use self::{convert::precise_timestamp, errors::to_s3};
use crate::{figures::Figures, store::Store};

/// The operations, to be put behind [`s3s::service::S3ServiceBuilder`].
pub(crate) struct Operations {
    store: Store,
    figures: Figures,
}

impl Operations {
    pub(crate) fn new(store: Store, figures: Figures) -> Self {
        Self { store, figures }
    }

    /// Counts what `work` comes to.
    async fn counted<T>(&self, operation: &'static str, work: impl Future<Output = Answer<T>> + Send) -> Answer<T> {
        let began = Instant::now();
        // Some are large, and would lie in this one twice: as what it was given and as what it waits for.
        let answer = Box::pin(work).await;
        self.figures.asked(operation, &answer, began.elapsed());
        answer
    }
}

type Answer<T> = S3Result<S3Response<T>>;

#[async_trait::async_trait]
impl S3 for Operations {
    async fn list_buckets(&self, _: S3Request<dto::ListBucketsInput>) -> Answer<dto::ListBucketsOutput> {
        let work = async {
            let buckets = self.store.buckets().await.map_err(to_s3)?;
            let buckets = buckets.into_iter().map(|bucket| dto::Bucket {
                name: Some(bucket.name),
                creation_date: Some(precise_timestamp(bucket.created)),
                ..Default::default()
            });
            Ok(S3Response::new(dto::ListBucketsOutput { buckets: Some(buckets.collect()), ..Default::default() }))
        };
        self.counted("list_buckets", work).await
    }

    async fn create_bucket(&self, req: S3Request<dto::CreateBucketInput>) -> Answer<dto::CreateBucketOutput> {
        let work = async {
            let bucket = req.input.bucket;
            self.store.create_bucket(&bucket).await.map_err(to_s3)?;
            Ok(S3Response::new(dto::CreateBucketOutput { location: Some(format!("/{bucket}")) }))
        };
        self.counted("create_bucket", work).await
    }

    async fn head_bucket(&self, req: S3Request<dto::HeadBucketInput>) -> Answer<dto::HeadBucketOutput> {
        let work = async {
            self.store.require_bucket(&req.input.bucket).await.map_err(to_s3)?;
            Ok(S3Response::new(dto::HeadBucketOutput::default()))
        };
        self.counted("head_bucket", work).await
    }

    async fn get_bucket_location(
        &self,
        req: S3Request<dto::GetBucketLocationInput>,
    ) -> Answer<dto::GetBucketLocationOutput> {
        let work = async {
            self.store.require_bucket(&req.input.bucket).await.map_err(to_s3)?;
            // No constraint means us-east-1, the region that clients sign for by default; any other is accepted too.
            Ok(S3Response::new(dto::GetBucketLocationOutput::default()))
        };
        self.counted("get_bucket_location", work).await
    }

    async fn put_object(&self, req: S3Request<dto::PutObjectInput>) -> Answer<dto::PutObjectOutput> {
        self.counted("put", objects::put(&self.store, req)).await
    }

    async fn get_object(&self, req: S3Request<dto::GetObjectInput>) -> Answer<dto::GetObjectOutput> {
        self.counted("get", objects::get(&self.store, req.input)).await
    }

    async fn head_object(&self, req: S3Request<dto::HeadObjectInput>) -> Answer<dto::HeadObjectOutput> {
        self.counted("head", objects::head(&self.store, req.input)).await
    }

    async fn copy_object(&self, req: S3Request<dto::CopyObjectInput>) -> Answer<dto::CopyObjectOutput> {
        self.counted("copy", objects::copy(&self.store, req.input)).await
    }

    async fn delete_object(&self, req: S3Request<dto::DeleteObjectInput>) -> Answer<dto::DeleteObjectOutput> {
        self.counted("delete", objects::delete(&self.store, req.input)).await
    }

    async fn delete_objects(&self, req: S3Request<dto::DeleteObjectsInput>) -> Answer<dto::DeleteObjectsOutput> {
        self.counted("delete_many", objects::delete_many(&self.store, req.input)).await
    }

    async fn list_objects(&self, req: S3Request<dto::ListObjectsInput>) -> Answer<dto::ListObjectsOutput> {
        self.counted("list", listing::version_1(&self.store, req.input)).await
    }

    async fn list_objects_v2(&self, req: S3Request<dto::ListObjectsV2Input>) -> Answer<dto::ListObjectsV2Output> {
        self.counted("list", listing::version_2(&self.store, req.input)).await
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<dto::CreateMultipartUploadInput>,
    ) -> Answer<dto::CreateMultipartUploadOutput> {
        self.counted("create_multipart_upload", multipart::create(&self.store, req.input)).await
    }

    async fn upload_part(&self, req: S3Request<dto::UploadPartInput>) -> Answer<dto::UploadPartOutput> {
        self.counted("upload_part", multipart::upload_part(&self.store, req)).await
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<dto::CompleteMultipartUploadInput>,
    ) -> Answer<dto::CompleteMultipartUploadOutput> {
        self.counted("complete_multipart_upload", multipart::complete(&self.store, req.input)).await
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<dto::AbortMultipartUploadInput>,
    ) -> Answer<dto::AbortMultipartUploadOutput> {
        self.counted("abort_multipart_upload", multipart::abort(&self.store, req.input)).await
    }

    async fn list_parts(&self, req: S3Request<dto::ListPartsInput>) -> Answer<dto::ListPartsOutput> {
        self.counted("list_parts", multipart::list_parts(&self.store, req.input)).await
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<dto::ListMultipartUploadsInput>,
    ) -> Answer<dto::ListMultipartUploadsOutput> {
        self.counted("list_multipart_uploads", multipart::list_uploads(&self.store, req.input)).await
    }
}

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

use s3s::{S3, S3Request, S3Response, S3Result, dto};

use self::{convert::precise_timestamp, errors::to_s3};
use crate::store::Store;

/// The operations, to be put behind [`s3s::service::S3ServiceBuilder`].
pub(crate) struct Operations {
    store: Store,
}

impl Operations {
    pub(crate) fn new(store: Store) -> Self {
        Self { store }
    }
}

type Answer<T> = S3Result<S3Response<T>>;

#[async_trait::async_trait]
impl S3 for Operations {
    async fn list_buckets(&self, _: S3Request<dto::ListBucketsInput>) -> Answer<dto::ListBucketsOutput> {
        let buckets = self.store.buckets().await.map_err(to_s3)?;
        let buckets = buckets.into_iter().map(|bucket| dto::Bucket {
            name: Some(bucket.name),
            creation_date: Some(precise_timestamp(bucket.created)),
            ..Default::default()
        });
        Ok(S3Response::new(dto::ListBucketsOutput { buckets: Some(buckets.collect()), ..Default::default() }))
    }

    async fn create_bucket(&self, req: S3Request<dto::CreateBucketInput>) -> Answer<dto::CreateBucketOutput> {
        let bucket = req.input.bucket;
        self.store.create_bucket(&bucket).await.map_err(to_s3)?;
        Ok(S3Response::new(dto::CreateBucketOutput { location: Some(format!("/{bucket}")) }))
    }

    async fn head_bucket(&self, req: S3Request<dto::HeadBucketInput>) -> Answer<dto::HeadBucketOutput> {
        self.store.require_bucket(&req.input.bucket).await.map_err(to_s3)?;
        Ok(S3Response::new(dto::HeadBucketOutput::default()))
    }

    async fn get_bucket_location(
        &self,
        req: S3Request<dto::GetBucketLocationInput>,
    ) -> Answer<dto::GetBucketLocationOutput> {
        self.store.require_bucket(&req.input.bucket).await.map_err(to_s3)?;
        // No constraint means us-east-1, the region that clients sign for by default; any other is accepted too.
        Ok(S3Response::new(dto::GetBucketLocationOutput::default()))
    }

    async fn put_object(&self, req: S3Request<dto::PutObjectInput>) -> Answer<dto::PutObjectOutput> {
        objects::put(&self.store, req).await
    }

    async fn get_object(&self, req: S3Request<dto::GetObjectInput>) -> Answer<dto::GetObjectOutput> {
        objects::get(&self.store, req.input).await
    }

    async fn head_object(&self, req: S3Request<dto::HeadObjectInput>) -> Answer<dto::HeadObjectOutput> {
        objects::head(&self.store, req.input).await
    }

    async fn copy_object(&self, req: S3Request<dto::CopyObjectInput>) -> Answer<dto::CopyObjectOutput> {
        objects::copy(&self.store, req.input).await
    }

    async fn delete_object(&self, req: S3Request<dto::DeleteObjectInput>) -> Answer<dto::DeleteObjectOutput> {
        objects::delete(&self.store, req.input).await
    }

    async fn delete_objects(&self, req: S3Request<dto::DeleteObjectsInput>) -> Answer<dto::DeleteObjectsOutput> {
        objects::delete_many(&self.store, req.input).await
    }

    async fn list_objects(&self, req: S3Request<dto::ListObjectsInput>) -> Answer<dto::ListObjectsOutput> {
        listing::version_1(&self.store, req.input).await
    }

    async fn list_objects_v2(&self, req: S3Request<dto::ListObjectsV2Input>) -> Answer<dto::ListObjectsV2Output> {
        listing::version_2(&self.store, req.input).await
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<dto::CreateMultipartUploadInput>,
    ) -> Answer<dto::CreateMultipartUploadOutput> {
        multipart::create(&self.store, req.input).await
    }

    async fn upload_part(&self, req: S3Request<dto::UploadPartInput>) -> Answer<dto::UploadPartOutput> {
        multipart::upload_part(&self.store, req).await
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<dto::CompleteMultipartUploadInput>,
    ) -> Answer<dto::CompleteMultipartUploadOutput> {
        multipart::complete(&self.store, req.input).await
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<dto::AbortMultipartUploadInput>,
    ) -> Answer<dto::AbortMultipartUploadOutput> {
        multipart::abort(&self.store, req.input).await
    }

    async fn list_parts(&self, req: S3Request<dto::ListPartsInput>) -> Answer<dto::ListPartsOutput> {
        multipart::list_parts(&self.store, req.input).await
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<dto::ListMultipartUploadsInput>,
    ) -> Answer<dto::ListMultipartUploadsOutput> {
        multipart::list_uploads(&self.store, req.input).await
    }
}

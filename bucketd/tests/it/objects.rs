use std::{collections::HashMap, time::SystemTime};

use aws_sdk_s3::{
    operation::{get_object::GetObjectOutput, put_object::builders::PutObjectFluentBuilder},
    primitives::ByteStream,
    types::{ChecksumAlgorithm, ChecksumMode, Delete, MetadataDirective, ObjectIdentifier},
};

use crate::harness::{BUCKET, Bucketd, body_files, bytes, plain_client, refusal, refused, until_body_files};

/// One of each kind: empty, in the database, at the border, in a file, in many pieces.
const SIZES: [usize; 6] = [0, 1, 64 * 1024, 64 * 1024 + 1, 256 * 1024, 3_000_001];

async fn read(object: GetObjectOutput) -> Vec<u8> {
    object.body.collect().await.unwrap().to_vec()
}

#[tokio::test]
async fn etag_is_the_same_in_put_get_head_and_listing() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    for (name, client) in [("default", bucketd.client()), ("plain", plain_client(&bucketd))] {
        for size in SIZES {
            let key = format!("{name}/{size}");
            let body = bytes(7, size);
            let put = client.put_object().bucket(BUCKET).key(&key).body(body.clone().into()).send().await.unwrap();
            let get = client.get_object().bucket(BUCKET).key(&key).send().await.unwrap();
            let head = client.head_object().bucket(BUCKET).key(&key).send().await.unwrap();
            let list = client.list_objects_v2().bucket(BUCKET).prefix(&key).send().await.unwrap();
            let listed = list.contents()[0].clone();
            let etag = put.e_tag.unwrap();
            assert!(etag.len() == 34 && etag.starts_with('"') && etag.ends_with('"'), "{etag}");
            assert_eq!(get.e_tag.as_ref(), Some(&etag), "{key}");
            assert_eq!(head.e_tag.as_ref(), Some(&etag), "{key}");
            assert_eq!(listed.e_tag.as_ref(), Some(&etag), "{key}");
            let length = i64::try_from(size).unwrap();
            assert_eq!(
                (get.content_length, head.content_length, listed.size),
                (Some(length), Some(length), Some(length))
            );
            assert_eq!(read(get).await, body, "{key}");
        }
    }
    // The MD5 of nothing, as everybody knows it.
    let empty = bucketd.client().head_object().bucket(BUCKET).key("plain/0").send().await.unwrap();
    assert_eq!(empty.e_tag.as_deref(), Some("\"d41d8cd98f00b204e9800998ecf8427e\""));
}

#[tokio::test]
async fn metadata_and_headers_come_back_as_they_were_sent() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    let put = client.put_object().bucket(BUCKET).key("k").body(b"x".to_vec().into());
    let put = put.metadata("sha256", "abc").metadata("scafo-write", "01J").content_type("application/json");
    put.cache_control("no-cache").content_encoding("gzip").send().await.unwrap();
    let head = client.head_object().bucket(BUCKET).key("k").send().await.unwrap();
    let expected =
        HashMap::from([("sha256".to_owned(), "abc".to_owned()), ("scafo-write".to_owned(), "01J".to_owned())]);
    assert_eq!(head.metadata, Some(expected));
    assert_eq!(head.content_type.as_deref(), Some("application/json"));
    assert_eq!(head.cache_control.as_deref(), Some("no-cache"));
    assert_eq!(head.content_encoding.as_deref(), Some("gzip"));
    let age = SystemTime::now().duration_since(SystemTime::try_from(head.last_modified.unwrap()).unwrap()).unwrap();
    assert!(age.as_secs() < 60, "{age:?}");

    let put = client.put_object().bucket(BUCKET).key("k2").metadata("long", "x".repeat(2048)).send().await;
    assert_eq!(refusal(put), refused(400, "MetadataTooLarge"));
}

#[tokio::test]
async fn ranges_are_read_from_small_and_large_objects() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    for size in [10_usize, 600_000] {
        let body = bytes(3, size);
        let key = size.to_string();
        client.put_object().bucket(BUCKET).key(&key).body(body.clone().into()).send().await.unwrap();
        let rows = [
            ("bytes=0-0".to_owned(), 0..1),
            ("bytes=3-7".to_owned(), 3..8),
            (format!("bytes=5-{}", size * 2), 5..size),
            ("bytes=-4".to_owned(), size - 4..size),
            (format!("bytes=-{}", size * 2), 0..size),
            (format!("bytes={}-", size - 1), size - 1..size),
        ];
        for (range, expected) in rows {
            let part = client.get_object().bucket(BUCKET).key(&key).range(&range).send().await.unwrap();
            let content_range = format!("bytes {}-{}/{size}", expected.start, expected.end - 1);
            assert_eq!(part.content_range.as_ref(), Some(&content_range), "{range}");
            assert_eq!(read(part).await, &body[expected], "{range} of {size}");
        }
        for range in [format!("bytes={size}-"), "bytes=-0".to_owned()] {
            let outside = client.get_object().bucket(BUCKET).key(&key).range(&range).send().await;
            assert_eq!(refusal(outside), refused(416, "InvalidRange"), "{range}");
        }
    }
}

#[tokio::test]
async fn every_checksum_of_the_sdk_is_verified_kept_and_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    let algorithms = [
        ChecksumAlgorithm::Crc32,
        ChecksumAlgorithm::Crc32C,
        ChecksumAlgorithm::Crc64Nvme,
        ChecksumAlgorithm::Sha1,
        ChecksumAlgorithm::Sha256,
    ];
    let path = dir.path().join("to-send");
    std::fs::write(&path, bytes(1, 200_000)).unwrap();
    for algorithm in algorithms {
        for streamed in [false, true] {
            let key = format!("{algorithm}/{streamed}");
            let body = if streamed {
                // A body that is not in memory travels as aws-chunked with a trailer.
                ByteStream::from_path(&path).await.unwrap()
            } else {
                bytes(1, 200_000).into()
            };
            let put = client.put_object().bucket(BUCKET).key(&key).body(body).checksum_algorithm(algorithm.clone());
            put.send().await.unwrap();
            let get = client.get_object().bucket(BUCKET).key(&key).checksum_mode(ChecksumMode::Enabled);
            let get = get.send().await.unwrap();
            let kept = [
                &get.checksum_crc32,
                &get.checksum_crc32_c,
                &get.checksum_crc64_nvme,
                &get.checksum_sha1,
                &get.checksum_sha256,
            ];
            assert_eq!(kept.iter().filter(|sum| sum.is_some()).count(), 1, "{key}");
            assert_eq!(get.content_encoding, None, "{key}");
            // The SDK compares the body with the checksum while it reads.
            assert_eq!(read(get).await, bytes(1, 200_000), "{key}");
        }
    }
}

#[tokio::test]
async fn body_that_is_not_what_was_declared_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    let put = |size| client.put_object().bucket(BUCKET).key("k").body(bytes(1, size).into());
    let wrong: [fn(PutObjectFluentBuilder) -> PutObjectFluentBuilder; 3] = [
        |put| put.checksum_crc32("AAAAAA=="),
        |put| put.checksum_sha256("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="),
        |put| put.content_md5("AAAAAAAAAAAAAAAAAAAAAA=="),
    ];
    for declare in wrong {
        for size in [10, 300_000] {
            assert_eq!(refusal(declare(put(size)).send().await), refused(400, "BadDigest"));
        }
    }
    assert_eq!(refusal(client.get_object().bucket(BUCKET).key("k").send().await), refused(404, "NoSuchKey"));
    until_body_files(dir.path(), 0);
}

#[tokio::test]
async fn absent_keys_and_buckets_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    assert_eq!(refusal(client.get_object().bucket(BUCKET).key("no").send().await), refused(404, "NoSuchKey"));
    assert_eq!(refusal(client.head_object().bucket(BUCKET).key("no").send().await).0, 404);
    assert_eq!(refusal(client.get_object().bucket("nowhere").key("no").send().await), refused(404, "NoSuchBucket"));
    let put = client.put_object().bucket("nowhere").key("k").body(b"x".to_vec().into()).send().await;
    assert_eq!(refusal(put), refused(404, "NoSuchBucket"));
    assert_eq!(refusal(client.list_objects_v2().bucket("nowhere").send().await), refused(404, "NoSuchBucket"));
    assert_eq!(refusal(client.head_bucket().bucket("nowhere").send().await).0, 404);

    client.head_bucket().bucket(BUCKET).send().await.unwrap();
    for _ in 0..2 {
        client.create_bucket().bucket("second").send().await.unwrap();
    }
    let buckets = client.list_buckets().send().await.unwrap();
    let names: Vec<_> = buckets.buckets().iter().map(|bucket| bucket.name().unwrap().to_owned()).collect();
    assert_eq!(names, [BUCKET, "second"]);
    client.get_bucket_location().bucket(BUCKET).send().await.unwrap();
    // The same key in another bucket is another object.
    client.put_object().bucket("second").key("k").body(b"x".to_vec().into()).send().await.unwrap();
    assert_eq!(refusal(client.get_object().bucket(BUCKET).key("k").send().await), refused(404, "NoSuchKey"));
}

#[tokio::test]
async fn what_the_store_does_not_have_is_refused_not_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    let put = client.put_object().bucket(BUCKET).key("k").tagging("a=b").send().await;
    assert_eq!(refusal(put), refused(501, "NotImplemented"));
    let get = client.get_object().bucket(BUCKET).key("k").version_id("v1").send().await;
    assert_eq!(refusal(get), refused(501, "NotImplemented"));
    let long = client.put_object().bucket(BUCKET).key("k".repeat(1025)).send().await;
    assert_eq!(refusal(long), refused(400, "KeyTooLongError"));
}

#[tokio::test]
async fn batch_delete_answers_for_each_object() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    for key in ["a", "b", "c & <d>"] {
        client.put_object().bucket(BUCKET).key(key).body(bytes(1, 100_000).into()).send().await.unwrap();
    }
    let object = |key: &str| ObjectIdentifier::builder().key(key);
    let stale = object("b").e_tag("\"00000000000000000000000000000000\"").build().unwrap();
    let objects =
        [object("a").build().unwrap(), stale, object("c & <d>").build().unwrap(), object("no").build().unwrap()];
    let delete = Delete::builder().set_objects(Some(objects.to_vec())).build().unwrap();
    let answer = client.delete_objects().bucket(BUCKET).delete(delete).send().await.unwrap();
    let deleted: Vec<_> = answer.deleted().iter().map(|deleted| deleted.key().unwrap()).collect();
    assert_eq!(deleted, ["a", "c & <d>", "no"]);
    let [failed] = answer.errors() else { panic!("{answer:?}") };
    assert_eq!((failed.key(), failed.code()), (Some("b"), Some("PreconditionFailed")));
    let left = client.list_objects_v2().bucket(BUCKET).send().await.unwrap();
    assert_eq!(left.contents().iter().map(|object| object.key().unwrap()).collect::<Vec<_>>(), ["b"]);
    until_body_files(dir.path(), 1);
}

#[tokio::test]
async fn copy_outlives_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    for size in [100, 500_000] {
        let body = bytes(9, size);
        let put = client.put_object().bucket(BUCKET).key("from").body(body.clone().into()).metadata("a", "1");
        let etag = put.send().await.unwrap().e_tag;
        let copy = || client.copy_object().bucket(BUCKET).copy_source(format!("{BUCKET}/from"));
        let copied = copy().key("to").send().await.unwrap();
        assert_eq!(copied.copy_object_result.unwrap().e_tag, etag);
        copy().key("bare").metadata_directive(MetadataDirective::Replace).send().await.unwrap();
        assert_eq!(refusal(copy().key("from").send().await), refused(400, "InvalidRequest"));
        client.delete_object().bucket(BUCKET).key("from").send().await.unwrap();
        let get = client.get_object().bucket(BUCKET).key("to").send().await.unwrap();
        assert_eq!(get.metadata.as_ref().and_then(|metadata| metadata.get("a")).map(String::as_str), Some("1"));
        assert_eq!(read(get).await, body);
        let bare = client.get_object().bucket(BUCKET).key("bare").send().await.unwrap();
        assert_eq!(bare.metadata, Some(HashMap::new()));
        assert_eq!(read(bare).await, body);
    }
}

#[tokio::test]
async fn reader_keeps_the_object_that_it_began_to_read() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    // More than the buffers on the way, so that most of it is read after the object is gone.
    let body = bytes(5, 24 * 1024 * 1024);
    client.put_object().bucket(BUCKET).key("k").body(body.clone().into()).send().await.unwrap();
    let reading = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
    client.put_object().bucket(BUCKET).key("k").body(b"new".to_vec().into()).send().await.unwrap();
    client.delete_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert_eq!(body_files(dir.path()).len(), 1);
    assert!(read(reading).await == body);
    until_body_files(dir.path(), 0);
}

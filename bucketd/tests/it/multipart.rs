use aws_sdk_s3::{
    Client,
    types::{CompletedMultipartUpload, CompletedPart},
};

use crate::harness::{BUCKET, Bucketd, bytes, refusal, refused, until_body_files};

const MIB: usize = 1024 * 1024;

struct Uploading<'client> {
    client: &'client Client,
    key: &'static str,
    id: String,
    parts: Vec<CompletedPart>,
}

impl<'client> Uploading<'client> {
    async fn start(client: &'client Client, key: &'static str) -> Self {
        let create = client.create_multipart_upload().bucket(BUCKET).key(key).content_type("text/x").metadata("m", "1");
        let id = create.send().await.unwrap().upload_id.unwrap();
        Self { client, key, id, parts: Vec::new() }
    }

    async fn part(&mut self, number: i32, body: Vec<u8>) {
        let part = self.client.upload_part().bucket(BUCKET).key(self.key).upload_id(&self.id).part_number(number);
        let etag = part.body(body.into()).send().await.unwrap().e_tag;
        self.parts.push(CompletedPart::builder().part_number(number).set_e_tag(etag).build());
    }

    fn complete(
        &self,
    ) -> aws_sdk_s3::operation::complete_multipart_upload::builders::CompleteMultipartUploadFluentBuilder {
        let parts = CompletedMultipartUpload::builder().set_parts(Some(self.parts.clone())).build();
        let complete = self.client.complete_multipart_upload().bucket(BUCKET).key(self.key);
        complete.upload_id(&self.id).multipart_upload(parts)
    }
}

#[tokio::test]
async fn parts_become_one_object_at_completion() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    let mut upload = Uploading::start(&client, "big").await;
    let (first, second, last) = (bytes(1, 5 * MIB), bytes(2, 5 * MIB + 7), bytes(3, 10));
    // Out of order, and one of them twice: the later one counts.
    upload.part(2, second.clone()).await;
    upload.part(1, bytes(4, 5 * MIB)).await;
    upload.parts.clear();
    upload.part(1, first.clone()).await;
    upload.part(2, second.clone()).await;
    upload.part(9, last.clone()).await;
    until_body_files(dir.path(), 3);
    assert_eq!(refusal(client.get_object().bucket(BUCKET).key("big").send().await), refused(404, "NoSuchKey"));
    let listed = client.list_parts().bucket(BUCKET).key("big").upload_id(&upload.id).max_parts(2).send().await.unwrap();
    assert_eq!(listed.parts().iter().map(|part| part.part_number().unwrap()).collect::<Vec<_>>(), [1, 2]);
    assert_eq!((listed.is_truncated, listed.next_part_number_marker.as_deref()), (Some(true), Some("2")));
    let under_way = client.list_multipart_uploads().bucket(BUCKET).send().await.unwrap();
    assert_eq!(under_way.uploads()[0].upload_id(), Some(upload.id.as_str()));

    let etag = upload.complete().send().await.unwrap().e_tag.unwrap();
    assert!(etag.ends_with("-3\""), "{etag}");
    let get = client.get_object().bucket(BUCKET).key("big").send().await.unwrap();
    assert_eq!(get.e_tag.as_ref(), Some(&etag));
    assert_eq!(get.content_type.as_deref(), Some("text/x"));
    assert_eq!(get.metadata.as_ref().unwrap()["m"], "1");
    let whole = [first, second, last].concat();
    assert!(get.body.collect().await.unwrap().to_vec() == whole);
    // Over the seam of two parts.
    let range = format!("bytes={}-{}", 5 * MIB - 3, 5 * MIB + 2);
    let seam = client.get_object().bucket(BUCKET).key("big").range(range).send().await.unwrap();
    assert_eq!(seam.body.collect().await.unwrap().to_vec(), &whole[5 * MIB - 3..5 * MIB + 3]);
    let listed = client.list_objects_v2().bucket(BUCKET).send().await.unwrap();
    assert_eq!(listed.contents()[0].e_tag(), Some(etag.as_str()));
    // Whose answer got lost, asks again; until the object is another one.
    assert_eq!(upload.complete().send().await.unwrap().e_tag.as_ref(), Some(&etag));
    // A copy of it is an object of one piece.
    let copy = client.copy_object().bucket(BUCKET).key("copy").copy_source(format!("{BUCKET}/big"));
    copy.send().await.unwrap();
    client.delete_object().bucket(BUCKET).key("big").send().await.unwrap();
    assert_eq!(refusal(upload.complete().send().await), refused(404, "NoSuchUpload"));
    until_body_files(dir.path(), 1);
    let copy = client.get_object().bucket(BUCKET).key("copy").send().await.unwrap();
    assert!(copy.body.collect().await.unwrap().to_vec() == whole);
}

#[tokio::test]
async fn completion_holds_its_condition_and_keeps_the_upload_when_refused() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    let put = client.put_object().bucket(BUCKET).key("k").body(b"old".to_vec().into()).send().await.unwrap();
    let mut upload = Uploading::start(&client, "k").await;
    upload.part(1, b"new".to_vec()).await;
    let refused_create = upload.complete().if_none_match("*").send().await;
    assert_eq!(refusal(refused_create), refused(412, "PreconditionFailed"));
    let stale = upload.complete().if_match("\"stale\"").send().await;
    assert_eq!(refusal(stale), refused(412, "PreconditionFailed"));
    upload.complete().if_match(put.e_tag.unwrap()).send().await.unwrap();
    let get = client.get_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert_eq!(get.body.collect().await.unwrap().to_vec(), b"new");
}

#[tokio::test]
async fn wrong_parts_are_named_and_abort_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    let mut upload = Uploading::start(&client, "k").await;
    upload.part(1, b"small".to_vec()).await;
    upload.part(2, b"last".to_vec()).await;
    assert_eq!(refusal(upload.complete().send().await), refused(400, "EntityTooSmall"));
    upload.parts.reverse();
    assert_eq!(refusal(upload.complete().send().await), refused(400, "InvalidPartOrder"));
    upload.parts = vec![CompletedPart::builder().part_number(1).e_tag("\"0\"").build()];
    assert_eq!(refusal(upload.complete().send().await), refused(400, "InvalidPart"));
    let abort = || client.abort_multipart_upload().bucket(BUCKET).key("k").upload_id(&upload.id);
    abort().send().await.unwrap();
    until_body_files(dir.path(), 0);
    assert_eq!(refusal(abort().send().await), refused(404, "NoSuchUpload"));
    let late = client.upload_part().bucket(BUCKET).key("k").upload_id(&upload.id).part_number(1);
    assert_eq!(refusal(late.body(b"x".to_vec().into()).send().await), refused(404, "NoSuchUpload"));
    let other = client.list_parts().bucket(BUCKET).key("other").upload_id(&upload.id).send().await;
    assert_eq!(refusal(other), refused(404, "NoSuchUpload"));
}

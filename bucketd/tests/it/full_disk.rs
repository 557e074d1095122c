use std::{
    path::Path,
    process::{Command, Stdio},
};

use aws_sdk_s3::{
    Client,
    types::{CompletedMultipartUpload, CompletedPart},
};
use rustix::process::{Resource, Rlimit, prlimit};

use crate::harness::{BUCKET, Bucketd, body_files, bytes, command, refusal, refused, until_body_files};

fn limit_file_size(bucketd: &Bucketd, bytes: Option<u64>) {
    prlimit(Some(bucketd.pid()), Resource::Fsize, Rlimit { current: bytes, maximum: None }).unwrap();
}

async fn put(client: &Client, key: &str, size: usize) -> Result<(), (u16, String)> {
    match client.put_object().bucket(BUCKET).key(key).body(bytes(1, size).into()).send().await {
        Ok(_) => Ok(()),
        error => Err(refusal(error)),
    }
}

async fn keys(client: &Client) -> Vec<String> {
    let list = client.list_objects_v2().bucket(BUCKET).send().await.unwrap();
    list.contents().iter().map(|object| object.key().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn write_that_the_disk_refuses_changes_nothing_and_works_again_later() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    put(&client, "before/small", 100).await.unwrap();
    put(&client, "before/large", 400_000).await.unwrap();
    let upload = client.create_multipart_upload().bucket(BUCKET).key("mp").send().await.unwrap().upload_id.unwrap();
    let part = client.upload_part().bucket(BUCKET).key("mp").upload_id(&upload).part_number(1);
    let etag = part.body(b"part".to_vec().into()).send().await.unwrap().e_tag;
    let part = CompletedPart::builder().part_number(1).set_e_tag(etag).build();
    let parts = CompletedMultipartUpload::builder().parts(part).build();
    let complete = || {
        let complete = client.complete_multipart_upload().bucket(BUCKET).key("mp").upload_id(&upload);
        complete.multipart_upload(parts.clone())
    };
    let files = body_files(dir.path()).len();

    // From here on every write to a file fails, as on a full disk.
    limit_file_size(&bucketd, Some(0));
    for round in 0..3 {
        for size in [100, 60_000, 100_000, 400_000, 20_000_000] {
            let key = format!("during/{round}/{size}");
            assert_eq!(put(&client, &key, size).await, Err(refused(503, "ServiceUnavailable")), "{key}");
        }
        assert_eq!(put(&client, "before/small", 7).await, Err(refused(503, "ServiceUnavailable")));
        assert_eq!(refusal(complete().send().await), refused(503, "ServiceUnavailable"));
        let delete = client.delete_object().bucket(BUCKET).key("before/large").send().await;
        assert_eq!(refusal(delete), refused(503, "ServiceUnavailable"));
    }
    assert_eq!(keys(&client).await, ["before/large", "before/small"]);
    let kept = client.get_object().bucket(BUCKET).key("before/small").send().await.unwrap();
    assert_eq!(kept.body.collect().await.unwrap().to_vec(), bytes(1, 100));
    let kept = client.get_object().bucket(BUCKET).key("before/large").send().await.unwrap();
    assert!(kept.body.collect().await.unwrap().to_vec() == bytes(1, 400_000));
    until_body_files(dir.path(), files);

    limit_file_size(&bucketd, None);
    put(&client, "during/0/100", 100).await.unwrap();
    put(&client, "during/0/400000", 400_000).await.unwrap();
    complete().send().await.unwrap();
    assert_eq!(keys(&client).await, ["before/large", "before/small", "during/0/100", "during/0/400000", "mp"]);
    // And what was answered since is on the disk.
    bucketd.kill();
    let bucketd = Bucketd::start(dir.path());
    assert_eq!(keys(&bucketd.client()).await.len(), 5);
    until_body_files(dir.path(), files + 1);
}

/// Runs the store on a small file system in a mount namespace of its own, where the machine allows that.
fn on_a_tiny_disk(dir: &Path, megabytes: u32) -> Option<Bucketd> {
    let unshare = ["--map-root-user", "--mount"];
    let allowed = Command::new("unshare")
        .args(unshare)
        .args(["mount", "-t", "tmpfs", "tmpfs"])
        .arg(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    if !allowed.is_ok_and(|status| status.success()) {
        return None;
    }
    let plain = command(dir);
    let mut command = Command::new("unshare");
    let mount = format!("mount -t tmpfs -o size={megabytes}m tmpfs \"$0\" && exec \"$@\"");
    command.args(unshare).args(["sh", "-c", &mount]).arg(dir);
    command.arg(plain.get_program()).args(plain.get_args());
    command.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    Some(Bucketd::spawn(command))
}

#[tokio::test]
async fn disk_that_fills_up_by_itself_is_told_and_recovers_when_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let Some(bucketd) = on_a_tiny_disk(dir.path(), 4) else {
        eprintln!(
            "not run: this machine does not let a test mount a file system (the file size limit is tested instead)"
        );
        return;
    };
    let client = bucketd.client();
    // Somebody else's file on the same disk, seen through the namespace of the process.
    let inside = format!("/proc/{}/root{}", bucketd.pid().as_raw_nonzero(), dir.path().display());
    let ballast = Path::new(&inside).join("ballast");
    std::fs::write(&ballast, vec![0; 1024 * 1024]).unwrap();
    let mut written = Vec::new();
    let refusal = loop {
        let key = format!("k/{:04}", written.len());
        match put(&client, &key, if written.len() % 2 == 0 { 30_000 } else { 100_000 }).await {
            Ok(()) => written.push(key),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(refusal, refused(503, "ServiceUnavailable"));
    assert_eq!(keys(&client).await, written);
    let large = written.len() / 2;
    until_body_files(Path::new(&inside), large);
    std::fs::remove_file(&ballast).unwrap();
    put(&client, "after", 100_000).await.unwrap();
    put(&client, "after/small", 100).await.unwrap();
    assert_eq!(keys(&client).await.len(), written.len() + 2);
}

#[tokio::test]
async fn small_writes_go_on_for_a_while_on_a_full_disk_and_large_ones_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let Some(bucketd) = on_a_tiny_disk(dir.path(), 64) else {
        eprintln!("not run: this machine does not let a test mount a file system");
        return;
    };
    let client = bucketd.client();
    put(&client, "lease", 500).await.unwrap();
    let inside = format!("/proc/{}/root{}", bucketd.pid().as_raw_nonzero(), dir.path().display());
    let mut ballast = std::fs::File::create(Path::new(&inside).join("ballast")).unwrap();
    while std::io::Write::write_all(&mut ballast, &[0; 4096]).is_ok() {}

    assert_eq!(put(&client, "large", 200_000).await, Err(refused(503, "ServiceUnavailable")));
    for round in 0..2_000 {
        put(&client, "lease", 500 + round % 7).await.unwrap();
    }
    for record in 0..200 {
        put(&client, &format!("record/{record}"), 1_000).await.unwrap();
    }
    assert_eq!(put(&client, "large", 200_000).await, Err(refused(503, "ServiceUnavailable")));
    assert_eq!(keys(&client).await.len(), 201);
}

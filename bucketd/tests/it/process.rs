use std::{
    io::{Read, Write},
    net::TcpListener,
    os::fd::OwnedFd,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use aws_sdk_s3::primitives::ByteStream;
use command_fds::{CommandFdExt, FdMapping};

use crate::harness::{
    ACCESS_KEY_ID, BUCKET, Bucketd, LIMIT, SECRET, bytes, client, command, plain_client, raw, refusal, refused,
    until_body_files,
};

#[tokio::test]
async fn second_process_on_one_directory_is_refused_with_the_pid_of_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let first = Bucketd::start(dir.path());
    let second = command(dir.path()).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let text = String::from_utf8(second.stderr).unwrap();
    let pid = first.pid().as_raw_nonzero();
    assert!(text.contains(&format!("in use by another scafo-bucketd (pid {pid})")), "{text}");
    assert!(!text.contains(SECRET), "{text}");
    first.client().head_bucket().bucket(BUCKET).send().await.unwrap();
}

#[tokio::test]
async fn a_store_of_another_format_is_refused_for_good() {
    let dir = tempfile::tempdir().unwrap();
    drop(Bucketd::start(dir.path()));
    let database = rusqlite::Connection::open(dir.path().join("store.sqlite")).unwrap();
    database.pragma_update(None, "user_version", 9_999).unwrap();
    drop(database);
    let output = command(dir.path()).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    // What a supervisor does not start again.
    assert_eq!(output.status.code(), Some(78), "{text}");
    assert!(text.contains("holds a store of format 9999"), "{text}");
}

#[test]
fn missing_credentials_and_a_taken_port_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut without = command(dir.path());
    without.env_remove("AWS_SECRET_ACCESS_KEY");
    let mut on_taken = Command::new(env!("CARGO_BIN_EXE_scafo-bucketd"));
    on_taken.arg("--dir").arg(dir.path()).arg("--listen").arg(taken.local_addr().unwrap().to_string());
    on_taken.env("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID).env("AWS_SECRET_ACCESS_KEY", SECRET);
    for (mut command, expected) in [(without, "AWS_SECRET_ACCESS_KEY"), (on_taken, "--listen")] {
        let output = command.stderr(Stdio::piped()).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains(expected), "{text}");
    }
}

#[tokio::test]
async fn started_by_the_supervisor_it_serves_on_the_inherited_socket() {
    let dir = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_scafo-bucketd"));
    command.env("LISTEN_FDS", "1").env("LISTEN_FDNAMES", "s3").env_remove("LISTEN_PID");
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    command.fd_mappings(vec![FdMapping { parent_fd: OwnedFd::from(listener), child_fd: 3 }]).unwrap();
    let mut child = command.spawn().unwrap();
    let settings = format!(
        "{{\"dir\":{:?},\"bucket\":\"{BUCKET}\",\"accessKeyId\":\"{ACCESS_KEY_ID}\",\"secretAccessKey\":\"{SECRET}\"}}",
        dir.path()
    );
    child.stdin.take().unwrap().write_all(settings.as_bytes()).unwrap();
    // The socket was listening before the process existed: this waits in its backlog.
    let answer = raw(&address, "GET /.well-known/scafo/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    let put = client(&address, ACCESS_KEY_ID, SECRET).put_object().bucket(BUCKET).key("k").body(b"x".to_vec().into());
    let put = put.send().await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    put.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_under_way_ends_well_when_the_process_is_asked_to_stop() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    let address = bucketd.address().to_owned();
    client.put_object().bucket(BUCKET).key("big").body(bytes(1, 24 * 1024 * 1024).into()).send().await.unwrap();
    let get = client.get_object().bucket(BUCKET).key("big").send().await.unwrap();
    let stopping = std::thread::spawn(move || bucketd.stop());
    // Once it refuses connections it is draining; only then the rest of the body is taken.
    let deadline = Instant::now() + LIMIT;
    while std::net::TcpStream::connect_timeout(&address.parse().unwrap(), Duration::from_secs(1)).is_ok() {
        assert!(Instant::now() < deadline, "goes on listening");
        tokio::task::yield_now().await;
    }
    assert!(get.body.collect().await.unwrap().to_vec() == bytes(1, 24 * 1024 * 1024));
    assert_eq!(stopping.join().unwrap(), Some(0));
}

#[tokio::test]
async fn refusal_of_a_large_body_arrives_as_an_answer() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    // More than the sockets buffer, so that the client is still sending when the answer is ready.
    let body = bytes(1, 20 * 1024 * 1024);
    let stranger = client(bucketd.address(), ACCESS_KEY_ID, "another secret");
    for _ in 0..3 {
        let absent = plain_client(&bucketd).put_object().bucket("nowhere").key("k").body(body.clone().into());
        assert_eq!(refusal(absent.send().await), refused(404, "NoSuchBucket"));
        let forged = stranger.put_object().bucket(BUCKET).key("k").body(body.clone().into()).send().await;
        assert_eq!(refusal(forged), refused(403, "SignatureDoesNotMatch"));
        let wrong = plain_client(&bucketd).put_object().bucket(BUCKET).key("k").body(body.clone().into());
        assert_eq!(refusal(wrong.tagging("a=b").send().await), refused(501, "NotImplemented"));
    }
    until_body_files(dir.path(), 0);
}

#[tokio::test]
async fn body_cut_off_by_its_client_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let client = bucketd.client();
    // The stream breaks after 300,000 of the bytes that the request announces.
    let path = dir.path().join("to-send");
    std::fs::write(&path, bytes(1, 300_000)).unwrap();
    let body = ByteStream::read_from().path(&path).length(aws_sdk_s3::primitives::Length::UpTo(900_000));
    let body = body.build().await.unwrap();
    let put = client.put_object().bucket(BUCKET).key("cut").content_length(900_000).body(body).send().await;
    assert!(put.is_err());
    until_body_files(dir.path(), 0);
    let mut stream = std::net::TcpStream::connect(bucketd.address()).unwrap();
    stream.write_all(b"GARBAGE\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let list = client.list_objects_v2().bucket(BUCKET).send().await.unwrap();
    assert_eq!(list.contents().len(), 0);
}

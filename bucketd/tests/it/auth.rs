use crate::harness::{ACCESS_KEY_ID, BUCKET, Bucketd, SECRET, client, raw, refusal, refused};

#[tokio::test]
async fn request_without_the_right_signature_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    bucketd.client().put_object().bucket(BUCKET).key("k").body(b"x".to_vec().into()).send().await.unwrap();

    let wrong = client(bucketd.address(), ACCESS_KEY_ID, "another secret");
    let stranger = client(bucketd.address(), "SOMEBODY", SECRET);
    for (who, code) in [(wrong, "SignatureDoesNotMatch"), (stranger, "InvalidAccessKeyId")] {
        let get = who.get_object().bucket(BUCKET).key("k").send().await;
        assert_eq!(refusal(get), refused(403, code));
        let put = who.put_object().bucket(BUCKET).key("k").body(b"y".to_vec().into()).send().await;
        assert_eq!(refusal(put), refused(403, code));
    }
    for method in ["GET", "PUT", "DELETE"] {
        let request =
            format!("{method} /{BUCKET}/k HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        let answer = raw(bucketd.address(), &request).await;
        assert!(answer.starts_with("HTTP/1.1 403 "), "{method}: {answer}");
    }
    let kept = bucketd.client().get_object().bucket(BUCKET).key("k").send().await.unwrap();
    assert_eq!(kept.body.collect().await.unwrap().to_vec(), b"x");
}

#[tokio::test]
async fn health_route_needs_no_signature() {
    let dir = tempfile::tempdir().unwrap();
    let bucketd = Bucketd::start(dir.path());
    let request = "GET /.well-known/scafo/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answer = raw(bucketd.address(), request).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let request = "POST /.well-known/scafo/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let answer = raw(bucketd.address(), request).await;
    assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
}

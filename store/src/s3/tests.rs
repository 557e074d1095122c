//! The adapter against a server that answers whatever a test says.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use scafo_core::settings::{BucketAccess, Secret};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Mutex,
    task::JoinSet,
};

use super::S3Bucket;
use crate::{Bucket, Condition, ETag, ETagForm, Error, Put, PutOptions, TITLE_ETAGS, TITLE_LISTING, TITLE_RANGES};

/// What the server does with one request.
#[derive(Clone)]
enum Reply {
    /// Status line and headers without `content-length`, then the body.
    Answer(&'static str, &'static str),
    /// Takes the request and closes.
    Hangup,
    /// An answer that announces more than it sends.
    Torn,
}

struct Server {
    bucket: S3Bucket,
    /// Heads of the requests that came.
    seen: Arc<Mutex<Vec<String>>>,
    _task: JoinSet<()>,
}

async fn serve(replies: Vec<Reply>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let heads = Arc::clone(&seen);
    let mut task = JoinSet::new();
    task.spawn(async move {
        for reply in replies {
            let (mut stream, _) = listener.accept().await.unwrap();
            heads.lock().await.push(read_request(&mut stream).await);
            answer(&mut stream, reply).await;
        }
    });
    let bucket = S3Bucket::new(&BucketAccess {
        name: "bucket".to_owned(),
        prefix: "/root/".to_owned(),
        endpoint: Some(endpoint),
        region: "us-east-1".to_owned(),
        path_style: true,
        access_key_id: "AKIAEXAMPLE".to_owned(),
        secret_access_key: Secret::new("very-secret"),
        session_token: None,
    });
    Server { bucket, seen, _task: task }
}

async fn read_request(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    let mut buffer = [0; 4096];
    let head = loop {
        let read = stream.read(&mut buffer).await.unwrap();
        request.extend_from_slice(&buffer[..read]);
        if let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") {
            break String::from_utf8(request[..end].to_vec()).unwrap().to_ascii_lowercase();
        }
    };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).map_or(0, |n| n.parse().unwrap());
    while request.len() < head.len() + 4 + length {
        let read = stream.read(&mut buffer).await.unwrap();
        request.extend_from_slice(&buffer[..read]);
    }
    head
}

async fn answer(stream: &mut TcpStream, reply: Reply) {
    let text = match reply {
        Reply::Answer(head, body) => {
            format!("HTTP/1.1 {head}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
        }
        Reply::Hangup => return,
        Reply::Torn => "HTTP/1.1 200 OK\r\netag: \"t\"\r\ncontent-length: 100\r\n\r\nshort".to_owned(),
    };
    stream.write_all(text.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
}

fn on(condition: Condition) -> PutOptions {
    PutOptions { condition, metadata: [("scafo-write".to_owned(), "w1".to_owned())].into(), content_type: None }
}

fn tag(text: &str) -> ETag {
    ETag::parse(text).unwrap()
}

const HTML: &str = "<html><body>Welcome to the router</body></html>";

#[tokio::test]
async fn tags_go_back_in_the_form_in_which_they_came_or_as_told() {
    let ok = || Reply::Answer("200 OK\r\netag: \"new\"", "");
    let server = serve(vec![ok(), ok(), ok(), ok(), ok()]).await;
    for (given, form) in [
        ("\"old\"", ETagForm::AsGiven),
        ("old", ETagForm::AsGiven),
        ("\"old\"", ETagForm::Unquoted),
        ("old", ETagForm::Quoted),
    ] {
        server.bucket.use_etag_form(form);
        let put = server.bucket.put("k", Bytes::from_static(b"x"), on(Condition::Matches(tag(given)))).await.unwrap();
        assert_eq!(put, Put::Written(tag("new")));
    }
    server.bucket.put("k", Bytes::from_static(b"x"), on(Condition::Absent)).await.unwrap();
    let seen = server.seen.lock().await;
    let sent = |at: usize, line: &str| seen[at].lines().any(|given| given == line);
    assert!(sent(0, "if-match: \"old\"") && sent(1, "if-match: old"), "{seen:?}");
    assert!(sent(2, "if-match: old") && sent(3, "if-match: \"old\""), "{seen:?}");
    assert!(sent(4, "if-none-match: *") && sent(4, "x-amz-meta-scafo-write: w1"), "{seen:?}");
    assert!(seen[4].starts_with("put /bucket/root/k"), "{seen:?}");
    assert!(!seen[4].contains("x-amz-trailer") && !seen[4].contains("aws-chunked"), "no trailing checksums: {seen:?}");
}

#[tokio::test]
async fn the_date_of_an_answer_does_not_change_by_which_clock_the_next_request_is_signed() {
    let wrong = || Reply::Answer("200 OK\r\netag: \"t\"\r\ndate: Sat, 01 Jan 2000 00:00:00 GMT", "x");
    let server = serve(vec![wrong(), wrong(), wrong()]).await;
    let answer = server.bucket.get("k").await.unwrap().unwrap();
    assert_eq!(answer.head.date.map(|date| date.to_string()), Some("2000-01-01T00:00:00.000Z".to_owned()));
    server.bucket.get("k").await.unwrap();
    server.bucket.put("k", Bytes::from_static(b"x"), on(Condition::Absent)).await.unwrap();
    let seen = server.seen.lock().await;
    for head in seen.iter() {
        let signed = head.lines().find_map(|line| line.strip_prefix("x-amz-date: ")).unwrap();
        assert!(!signed.starts_with("2000"), "{signed}");
    }
}

#[tokio::test]
async fn each_call_is_one_request_whatever_comes_back() {
    let busy = "<Error><Code>SlowDown</Code><Message>slower</Message></Error>";
    let replies = vec![Reply::Hangup, Reply::Answer("503 Slow", busy), Reply::Answer("500 Oops", ""), Reply::Hangup];
    let server = serve(replies).await;
    let put = || server.bucket.put("k", Bytes::from_static(b"x"), on(Condition::Absent));
    assert!(matches!(put().await, Ok(Put::Unknown(_))));
    assert_eq!(put().await, Ok(Put::Busy));
    assert!(matches!(put().await, Ok(Put::Unknown(_))));
    assert!(matches!(server.bucket.get("k").await, Err(Error::Unavailable { .. })));
    assert_eq!(server.bucket.requests(), 4);
    assert_eq!(server.seen.lock().await.len(), 4);
}

#[tokio::test]
async fn an_endpoint_that_answers_html_is_named_as_no_store() {
    let page = || Reply::Answer("200 OK\r\ncontent-type: text/html", HTML);
    let server = serve(vec![page(), page(), page(), Reply::Answer("404 Not Found", HTML)]).await;
    let bucket = &server.bucket;
    let title = |error: Error| match error {
        Error::Nonconforming { title, .. } => title,
        other => panic!("{other:?}"),
    };
    assert_eq!(title(bucket.get("k").await.unwrap_err()), TITLE_ETAGS);
    assert_eq!(title(bucket.put("k", Bytes::new(), on(Condition::None)).await.unwrap_err()), TITLE_ETAGS);
    assert_eq!(title(bucket.list("p/").await.unwrap_err()), TITLE_LISTING);
    assert!(bucket.list("p/").await.is_err());
}

#[tokio::test]
async fn a_torn_body_is_no_object() {
    let server = serve(vec![Reply::Torn]).await;
    assert!(matches!(server.bucket.get("k").await, Err(Error::Unavailable { .. })));
}

#[tokio::test]
async fn an_object_beyond_the_limit_is_refused_by_its_announced_size() {
    let server = serve(vec![Reply::Answer("200 OK\r\netag: \"t\"", "0123456789")]).await;
    let refused = server.bucket.get_bounded("k", 5).await.unwrap_err();
    assert_eq!(refused, Error::TooLarge { key: "k".to_owned(), size: 10, limit: 5 });
}

#[tokio::test]
async fn a_range_that_is_ignored_is_noticed() {
    let server = serve(vec![
        Reply::Answer("200 OK\r\netag: \"t\"", "0123456789"),
        Reply::Answer("206 Partial\r\netag: \"t\"\r\ncontent-range: bytes 0-1/10", "01"),
    ])
    .await;
    for _ in 0..2 {
        let refused = server.bucket.get_range("k", 4..6).await.unwrap_err();
        assert!(matches!(refused, Error::Nonconforming { title: TITLE_RANGES, .. }), "{refused:?}");
    }
}

#[tokio::test]
async fn refusals_say_what_to_set_right_and_tell_no_secret() {
    let moved = "<Error><Code>AuthorizationHeaderMalformed</Code><Message>The authorization header is malformed; the \
                 region 'us-east-1' is wrong; expecting 'eu-west-3'</Message></Error>";
    let skewed = "<Error><Code>RequestTimeTooSkewed</Code><Message>skewed</Message></Error>";
    let denied = "<Error><Code>SignatureDoesNotMatch</Code><Message>AKIAEXAMPLE</Message></Error>";
    let server = serve(vec![
        Reply::Answer("301 Moved\r\nx-amz-bucket-region: eu-west-1", ""),
        Reply::Answer("400 Bad Request", moved),
        Reply::Answer("403 Forbidden\r\ndate: Thu, 01 Jan 1970 00:00:10 GMT", skewed),
        Reply::Answer("403 Forbidden", denied),
    ])
    .await;
    for want in ["eu-west-1", "eu-west-3", "clock", "SignatureDoesNotMatch"] {
        let error = server.bucket.get("k").await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(want), "{text}");
        assert!(!format!("{error:?} {text} {:?}", server.bucket).contains("very-secret"));
    }
}

#[tokio::test]
async fn a_listing_is_checked_and_read_below_the_prefix() {
    let page = "<ListBucketResult><Name>bucket</Name><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>\
                <Contents><Key>root/a%2Fb+c</Key><ETag>&quot;t1&quot;</ETag><Size>5</Size>\
                <LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>\
                <CommonPrefixes><Prefix>root/a%2Fd%2F</Prefix></CommonPrefixes></ListBucketResult>";
    let bare = "<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>\
                <Contents><Key>root/a/b</Key><Size>5</Size></Contents></ListBucketResult>";
    let cut = "<ListBucketResult><Name>bucket</Name><IsTruncated>true</IsTruncated></ListBucketResult>";
    let server = serve(vec![
        Reply::Answer("200 OK\r\ndate: Thu, 01 Jan 1970 00:00:10 GMT", page),
        Reply::Answer("200 OK", bare),
        Reply::Answer("200 OK", cut),
    ])
    .await;
    let listing = server.bucket.list_delimited("a/").await.unwrap();
    assert_eq!(listing.prefixes, ["a/d/"]);
    let listed = &listing.entries[0];
    assert_eq!((listed.key.as_str(), &listed.etag, listed.size), ("a/b c", &tag("t1"), 5));
    assert_eq!(listed.date.unwrap().as_millis(), 10_000);
    let title = |error: Error| match error {
        Error::Nonconforming { title, .. } => title,
        other => panic!("{other:?}"),
    };
    assert_eq!(title(server.bucket.list("a/").await.unwrap_err()), TITLE_ETAGS);
    assert_eq!(title(server.bucket.list("a/").await.unwrap_err()), TITLE_LISTING);
    assert!(server.seen.lock().await[0].contains("prefix=root%2fa%2f"));
}

#[tokio::test]
async fn a_batch_delete_that_a_store_does_not_have_is_done_singly() {
    let gone = || Reply::Answer("204 No Content", "");
    let server = serve(vec![Reply::Answer("501 Not Implemented", ""), gone(), gone()]).await;
    server.bucket.delete_many(&["a".to_owned(), "b".to_owned()]).await.unwrap();
    let seen = server.seen.lock().await;
    assert_eq!(seen.iter().filter(|head| head.starts_with("delete /bucket/root/")).count(), 2);
}

#[tokio::test]
async fn a_port_that_nobody_listens_on_is_unavailable_soon() {
    let server = serve(Vec::new()).await;
    let bucket = server.bucket;
    drop(server._task);
    let asked = tokio::time::timeout(Duration::from_secs(30), bucket.get("k")).await.unwrap();
    assert!(matches!(asked, Err(error) if error.is_transient()));
}

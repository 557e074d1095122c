//! Every example that ships answers through the ingress.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use scafo_tests::Node;
use scafo_tests::project::example;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::deploy::count;

/// How long one message may take from one browser to the other.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test]
async fn hello_answers() {
    let node = Node::start().await;
    node.deploy(&example("hello")).await;
    let (status, body) = node.get("hello", "/").await.unwrap();
    assert_eq!(status, 200);
    assert!(!body.is_empty());
    node.stop().await;
}

#[tokio::test]
async fn counter_counts_in_its_durable_object() {
    let node = Node::start().await;
    node.deploy(&example("counter")).await;
    let first = count(&node.get("counter", "/").await.unwrap().1);
    for step in 1..=3 {
        assert_eq!(count(&node.get("counter", "/").await.unwrap().1), first + step);
    }
    node.stop().await;
}

#[tokio::test]
async fn static_serves_its_files() {
    let node = Node::start().await;
    node.deploy(&example("static")).await;
    let (status, page) = node.get("static", "/").await.unwrap();
    assert_eq!(status, 200, "{page}");
    assert!(page.contains("<html"), "{page}");
    let (status, _) = node.get("static", "/no-such-page-here").await.unwrap();
    assert_eq!(status, 404);
    node.stop().await;
}

#[tokio::test]
async fn chat_carries_a_message_from_one_browser_to_the_other() {
    let node = Node::start().await;
    node.deploy(&example("chat")).await;
    let mut one = join(&node).await;
    let mut two = join(&node).await;
    one.send(Message::text("good morning")).await.unwrap();
    assert!(hears(&mut two, "good morning").await);
    two.send(Message::text("and to you")).await.unwrap();
    assert!(hears(&mut one, "and to you").await);
    one.close(None).await.unwrap();
    node.stop().await;
}

async fn join(node: &Node) -> WebSocketStream<TcpStream> {
    let address = node.dev.ingress.trim_start_matches("http://").trim_end_matches('/');
    let stream = TcpStream::connect(address).await.unwrap();
    let request = format!("ws://{}/room/lobby", node.host("chat")).into_client_request().unwrap();
    let (socket, answer) = client_async(request, stream).await.unwrap();
    assert_eq!(answer.status(), 101);
    socket
}

/// Whether a message with `text` arrives; others (who came, who left) may come before it.
async fn hears(socket: &mut WebSocketStream<TcpStream>, text: &str) -> bool {
    let heard = async {
        while let Some(Ok(message)) = socket.next().await {
            if message.to_text().is_ok_and(|said| said.contains(text)) {
                return true;
            }
        }
        false
    };
    tokio::time::timeout(PATIENCE, heard).await.unwrap_or(false)
}

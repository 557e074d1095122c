//! A tiny upstream that says which of its ports was reached, and by which target.

use super::http::{Reply, Server};

/// Several ports, each of which names itself.
#[derive(Debug)]
pub struct Echo {
    servers: Vec<Server>,
}

impl Echo {
    /// Opens that many ports.
    pub async fn start(ports: usize) -> Self {
        let mut servers = Vec::new();
        for _ in 0..ports {
            let answer = |port, received: super::http::Received| Reply {
                status: 200,
                media_type: "text/plain",
                body: format!("reached {port} {}\n", received.target).into_bytes(),
                cut: false,
            };
            servers.push(Server::start(answer).await);
        }
        Self { servers }
    }

    /// The ports.
    pub fn ports(&self) -> Vec<u16> {
        self.servers.iter().map(|server| server.address.port()).collect()
    }

    /// Closes one port, with the connections to it.
    pub fn close(&mut self, port: u16) {
        self.servers.retain(|server| server.address.port() != port);
    }
}

/// The port that an answer names, and the target with which it was reached.
pub fn reached(body: &str) -> Option<(u16, &str)> {
    let (_, rest) = body.split_once("reached ")?;
    let (port, rest) = rest.split_once(' ')?;
    let target = rest.lines().next().unwrap_or_default();
    Some((port.parse().ok()?, target))
}

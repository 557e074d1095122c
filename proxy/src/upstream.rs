//! Where a request may be sent, and how a connection to it is made.

use std::{
    fmt, io,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either;

use crate::socket::{Patience, Socket};

/// A connection to an upstream, as hyper wants it.
pub(crate) type Io = TokioIo<Either<Socket, UnixStream>>;

/// One place that answers HTTP/1.1. Cheap to clone; equal values share their idle connections.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Upstream {
    /// An IP address and port.
    Address(SocketAddr),
    /// A host name and port (`host:port`), looked up for each new connection.
    Name(Arc<str>),
    /// The path of a Unix socket.
    Unix(Arc<Path>),
}

impl Upstream {
    /// The Unix socket at `path`.
    pub fn unix(path: impl Into<PathBuf>) -> Self {
        Self::Unix(path.into().into())
    }

    /// Opens a connection. The caller sets the deadline; dropping the future gives the attempt up.
    pub(crate) async fn dial(&self) -> io::Result<(Io, Patience)> {
        let patience = Patience::default();
        let tcp = |stream| Socket::new(stream, patience.clone()).map(Either::Left);
        let stream = match self {
            Self::Address(address) => tcp(TcpStream::connect(address).await?)?,
            Self::Name(name) => tcp(TcpStream::connect(&**name).await?)?,
            Self::Unix(path) => Either::Right(UnixStream::connect(path).await?),
        };
        Ok((TokioIo::new(stream), patience))
    }
}

impl From<SocketAddr> for Upstream {
    fn from(address: SocketAddr) -> Self {
        Self::Address(address)
    }
}

/// The text is no `host:port`.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is no upstream address: write HOST:PORT, an IPv6 address in brackets")]
pub struct InvalidUpstream(String);

impl FromStr for Upstream {
    type Err = InvalidUpstream;

    /// Reads `host:port`; the host is an IP literal (IPv6 in brackets) or a name of at most 253 characters.
    fn from_str(text: &str) -> Result<Self, InvalidUpstream> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self::Address(address));
        }
        let invalid = || InvalidUpstream(text.chars().take(300).collect());
        let (host, port) = text.rsplit_once(':').ok_or_else(invalid)?;
        let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let named = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
        match port.parse::<u16>() {
            Ok(1..) if digits && named && (1..=253).contains(&host.len()) => Ok(Self::Name(text.into())),
            _ => Err(invalid()),
        }
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(out),
            Self::Name(name) => name.fmt(out),
            Self::Unix(path) => write!(out, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Upstream;

    #[test]
    fn addresses_and_names_are_told_apart() {
        for literal in ["10.83.0.1:24417", "[::1]:7400"] {
            assert!(matches!(literal.parse(), Ok(Upstream::Address(_))), "{literal}");
        }
        assert!(matches!("node-a.example:80".parse(), Ok(Upstream::Name(_))));
    }

    #[test]
    fn what_is_no_host_and_port_is_refused() {
        for text in
            ["", ":80", "host", "host:", "host:0", "host:+80", "host:65536", "::1:80", "a b:80", "http://a:80", "::::"]
        {
            assert!(text.parse::<Upstream>().is_err(), "{text}");
        }
    }
}

//! A place between fork and exec where a child waits until somebody has put it where it belongs: whatever it starts later begins
//! its life there too.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::unix::pipe;

/// The child's side.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(super) arrived: OwnedFd,
    pub(super) opened: OwnedFd,
    pub(super) patience: Duration,
}

/// Our side. Dropping it does not let the child through: [`Door::open`] does. A child that nobody lets through gives up.
#[derive(Debug)]
pub(crate) struct Door {
    arrived: pipe::Receiver,
    open: pipe::Sender,
}

impl Gate {
    /// Both sides, for a child that waits for so long: it holds copies of both ends of each pipe, so it cannot tell that our side is gone.
    pub(crate) fn new(patience: Duration) -> io::Result<(Self, Door)> {
        let (arrival, arrived) = io::pipe()?;
        let (opened, open) = io::pipe()?;
        let door = Door {
            arrived: pipe::Receiver::from_owned_fd(arrival.into())?,
            open: pipe::Sender::from_owned_fd(open.into())?,
        };
        Ok((Self { arrived: arrived.into(), opened: opened.into(), patience }, door))
    }
}

impl Door {
    /// Waits for the child and says its number.
    ///
    /// # Errors
    /// When there will be no child.
    pub(crate) async fn arrival(&mut self) -> io::Result<u32> {
        let mut number = [0; 4];
        self.arrived.read_exact(&mut number).await?;
        Ok(u32::from_ne_bytes(number))
    }

    /// Lets the child through.
    pub(crate) async fn open(mut self) {
        // A child that is gone needs nothing.
        let _ = self.open.write_all(&[1]).await;
    }
}

//! Starts processes from one thread that lives as long as this process.
//!
//! The kernel ties a child to the *thread* that made it when it delivers the parent-death signal. A thread of the
//! asynchronous runtime may end at any time, and would take workerd with it.

use std::{io, process::Stdio};

use tokio::{
    process::{Child, Command},
    runtime::Handle,
    sync::{mpsc, oneshot},
};

use crate::failure::{Context, Outcome};

/// Starts that wait: one at a time is made, and a node has at most a few.
const WAITING_MAX: usize = 8;

/// A handle on the thread.
#[derive(Clone, Debug)]
pub(crate) struct Launcher {
    orders: mpsc::Sender<Order>,
}

struct Order {
    command: Command,
    answer: oneshot::Sender<io::Result<Child>>,
}

impl Launcher {
    /// Starts the thread. Must be called within the runtime that will wait for the children.
    pub(crate) fn start() -> Outcome<Self> {
        let (orders, mut waiting) = mpsc::channel::<Order>(WAITING_MAX);
        let runtime = Handle::current();
        let thread = std::thread::Builder::new().name("launcher".into()).spawn(move || {
            let _inside = runtime.enter();
            while let Some(mut order) = waiting.blocking_recv() {
                // Whoever asked may have gone; then the child is dropped, and killed with it.
                let _gone = order.answer.send(order.command.spawn());
            }
            // Ending here would kill the children while the last of them are still being stopped.
            loop {
                std::thread::park();
            }
        });
        thread.context(|| "start the launcher thread".into())?;
        Ok(Self { orders })
    }

    /// Starts `command`. The child is killed when its handle is dropped.
    pub(crate) async fn spawn(&self, mut command: Command) -> io::Result<Child> {
        command.kill_on_drop(true).stdout(Stdio::piped()).stderr(Stdio::piped());
        let (answer, spawned) = oneshot::channel();
        let ended = || io::Error::other("the launcher thread has ended");
        self.orders.send(Order { command, answer }).await.map_err(|_| ended())?;
        spawned.await.map_err(|_| ended())?
    }
}

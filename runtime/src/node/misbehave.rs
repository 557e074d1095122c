//! The test hooks that make a node leave or eat by itself.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use crate::{
    args::EXEC_WORKERD,
    failure::Exit,
    hooks::{Hog, Hooks},
    output,
};

/// Starts eating, and ends when the node is to leave by itself: never, without such a hook.
pub(super) fn start(hooks: &Hooks) -> impl Future<Output = Exit> + use<> {
    if let Some(hog) = hooks.hog {
        let eats = move || match hog {
            Hog::Memory => eat_memory(),
            Hog::Tasks => eat_tasks(),
            Hog::Log => eat_log(),
        };
        if std::thread::Builder::new().name("hog".into()).spawn(eats).is_err() {
            output::note("Warning: no thread for CELLD_STANDIN_HOG");
        }
    }
    let exit_after = hooks.exit_after;
    async move {
        match exit_after {
            Some((after, code)) => {
                tokio::time::sleep(after).await;
                Exit::Hooked(code)
            }
            None => std::future::pending().await,
        }
    }
}

fn eat_memory() {
    let mut eaten: Vec<Vec<u8>> = Vec::new();
    loop {
        // Not zero, or the pages would be the kernel's one page of zeroes.
        eaten.push(vec![1; 16 << 20]);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Processes tied to this thread, which never ends: they go when this process goes.
fn eat_tasks() {
    let Ok(this) = std::env::current_exe() else { return };
    let mut children = Vec::new();
    loop {
        let child = Command::new(&this)
            .args([EXEC_WORKERD, &std::process::id().to_string(), "/bin/sleep", "3600"])
            .stdin(Stdio::null())
            .spawn();
        match child {
            Ok(child) => children.push(child),
            Err(error) => output::note(&format!("no more processes: {error}")),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn eat_log() {
    loop {
        output::line(&"CELLD_STANDIN_HOG=log ".repeat(40));
    }
}

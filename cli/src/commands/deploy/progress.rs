//! What one sees while a deploy goes on: a moving line on a terminal, one line for each step elsewhere. All of it on standard
//! error.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::Output;

/// How often the line moves by itself.
const TICK: Duration = Duration::from_millis(100);

/// The progress of one deploy.
pub(super) struct Progress {
    output: Output,
    bar: ProgressBar,
}

impl Progress {
    /// Nothing is shown yet.
    pub(super) fn new(output: Output) -> Self {
        let target = if output.live() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(style("{spinner} {msg}"));
        bar.enable_steady_tick(TICK);
        Self { output, bar }
    }

    /// Something has begun. Shown while it lasts; on no terminal only what is done is worth a line.
    pub(super) fn step(&self, what: &str) {
        self.bar.unset_length();
        self.bar.set_style(style("{spinner} {msg}"));
        self.bar.set_message(what.to_owned());
    }

    /// Something is done. It stays to be read.
    pub(super) fn note(&self, what: &str) {
        self.bar.suspend(|| self.output.say(what));
    }

    /// The upload of `bytes` bytes has begun; the answer hears how far it is.
    pub(super) fn uploading(&self, bytes: u64) -> Arc<dyn Fn(u64) + Send + Sync> {
        self.bar.set_style(style("{spinner} {msg} {bar:24} {bytes}/{total_bytes}"));
        self.bar.set_length(bytes);
        self.bar.set_message("uploading");
        let bar = self.bar.clone();
        Arc::new(move |position| bar.set_position(position))
    }

    /// Nothing more is shown.
    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    /// An error is printed below, not beside, a moving line.
    fn drop(&mut self) {
        self.end();
    }
}

fn style(template: &'static str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates are constants of this file; a test parses each")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_parses() {
        let progress = Progress::new(Output::new(false));
        progress.step("packing");
        progress.uploading(10)(5);
        progress.end();
    }
}

//! What a deploy says. Standard output holds the result alone since 0.4; before, everything was on it.

use std::{io::Write as _, time::Duration};

use flate2::{Compression, write::GzEncoder};
use serde_json::json;

use super::build::Built;
use crate::{bucket::Location, environment::Surface, output, shapes::Binding};

/// Tells about one deploy.
pub(super) struct Report<'a> {
    pub surface: Surface,
    pub json: bool,
    pub built: &'a Built,
}

impl Report<'_> {
    /// What was built and what `env` will hold.
    pub(super) fn built(&self, took: Duration) {
        self.say(&format!(" celld-workerd {}", self.surface.release()));
        self.say(&"─".repeat(40));
        let bytes: usize = self.built.modules.values().map(Vec::len).sum();
        self.say(&format!("Total Upload: {} / gzip: {}", kib(bytes as u64), kib(self.gzipped())));
        if let Some(assets) = &self.built.assets {
            self.say(&format!("Static Assets: {} files / {}", assets.file_count, kib(assets.total_bytes)));
        }
        self.bindings();
        self.say(&format!("Bundled {} ({:.2} sec)", self.built.manifest.script_name, took.as_secs_f64()));
    }

    fn bindings(&self) {
        let bindings = self.built.manifest.metadata().map(|metadata| metadata.bindings).unwrap_or_default();
        if bindings.is_empty() {
            return self.say("Your Worker has no bindings.");
        }
        self.say("Your Worker has access to the following bindings:");
        for binding in bindings {
            let name = binding.name().to_owned();
            let what = match binding {
                Binding::PlainText { .. } => "Environment Variable".to_owned(),
                Binding::DurableObjectNamespace { class_name, .. } => format!("Durable Object ({class_name})"),
                Binding::Service { service, .. } => format!("Service ({service})"),
                Binding::Assets { .. } => "Static Assets".to_owned(),
            };
            self.say(&format!("  env.{name:24} {what}"));
        }
    }

    /// The end of a dry run.
    pub(super) fn dry_run(&self) {
        self.result(None);
    }

    /// The end of a deploy that both pointers name.
    pub(super) fn uploaded(&self, took: Duration, at: &Location) {
        let Built { manifest, prefix, .. } = self.built;
        self.say(&format!("Uploaded {} ({:.2} sec)", manifest.script_name, took.as_secs_f64()));
        self.say(&format!("  {at}/{prefix}"));
        self.result(Some(at));
        if self.surface == Surface::V0_3 {
            self.say("Restart the fleet's nodes to serve it: this release reads the pointer only when it starts.");
        }
    }

    fn result(&self, at: Option<&Location>) {
        let Built { manifest, prefix, .. } = self.built;
        let version = &manifest.version;
        if self.json && self.surface != Surface::V0_3 {
            let document = json!({
                "worker": manifest.script_name,
                "version": version,
                "location": at.map(|at| format!("{at}/{prefix}")),
                "dry_run": at.is_none(),
            });
            return output::line(&document.to_string());
        }
        let suffix = if at.is_none() { " (dry run; nothing written)" } else { "" };
        output::line(&format!("Current Version ID: {version}{suffix}"));
    }

    fn say(&self, text: &str) {
        match self.surface {
            Surface::V0_3 => output::line(text),
            Surface::V0_6 => output::note(text),
        }
    }

    fn gzipped(&self) -> u64 {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let written = self.built.modules.values().try_for_each(|body| encoder.write_all(body));
        written.and_then(|()| encoder.finish()).map_or(0, |bytes| bytes.len() as u64)
    }
}

fn kib(bytes: u64) -> String {
    // Deployments are far below 2^52 bytes, where a float still counts every one.
    #[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
    let kib = bytes as f64 / 1024.0;
    format!("{kib:.2} KiB")
}

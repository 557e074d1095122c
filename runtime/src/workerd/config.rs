//! workerd's configuration, as text. A pure function of the deployment and of where things are.

use std::{collections::BTreeSet, fmt::Write as _, path::Path};

use serde_json::json;

use super::load::{Deployment, Script};
use crate::shapes::{AssetConfig, Binding, Metadata, ModuleKind, RunWorkerFirst};

/// The socket that takes requests, a file in the stage's directory.
pub(crate) const HTTP_SOCKET: &str = "http.sock";

/// The socket for the node's own questions: whether workerd is alive (GET), and the firing of crons (POST).
pub(crate) const SIDE_SOCKET: &str = "side.sock";

/// How many sockets a configuration opens.
pub(super) const SOCKETS: usize = 2;

/// Tells workerd which scheme the client used. The node sets it on every request, so no client can.
pub(crate) const PROTO_HEADER: &str = "x-celld-standin-proto";

/// Cloudflare's own default for a Worker that names no date.
const OLDEST_DATE: &str = "2021-11-02";

/// The Worker that answers the node: that it is alive, or after a call of the application's `scheduled`.
const SIDE_WORKER: &str = "\
export default {
  async fetch(request, env) {
    if (request.method !== 'POST') return new Response(null, { status: 204 });
    const { cron, time } = await request.json();
    return Response.json(await env.WORKER.scheduled({ cron, scheduledTime: new Date(time) }));
  },
};
";

/// Where the parts of a stage are.
pub(super) struct Places<'a> {
    /// Where Durable Objects of all scripts live, one directory for each.
    pub storage: &'a Path,
    /// The newest compatibility date that this workerd knows, `YYYY-MM-DD`.
    pub newest_date: &'a str,
}

/// The configuration for `deployment`. Modules are files below `modules/<script>/`, assets below `assets/<script>/`,
/// both relative to the configuration's own directory.
pub(super) fn render(deployment: &Deployment, places: &Places<'_>) -> String {
    let mut services = Vec::new();
    for script in deployment.scripts() {
        services.extend(script_services(script, places));
    }
    let main = front(&deployment.main);
    services.push(side_service(&deployment.main, places));
    let socket = |name: &str, file: &str, http: &str, service: &str| {
        let address = text(&format!("unix:{file}"));
        format!("(name = {}, address = {address}, http = ({http}), service = (name = {}))", text(name), text(service))
    };
    let proto = format!("forwardedProtoHeader = {}", text(PROTO_HEADER));
    let sockets = [socket("http", HTTP_SOCKET, &proto, &main), socket("side", SIDE_SOCKET, "", "side")];
    let mut out = String::from("using Workerd = import \"/workerd/workerd.capnp\";\n\n");
    // Writing to a string cannot fail.
    let _infallible = write!(
        out,
        "const config :Workerd.Config = (\n  services = [\n    {}\n  ],\n  sockets = [\n    {}\n  ],\n);\n",
        services.join(",\n    "),
        sockets.join(",\n    "),
    );
    out
}

/// The node's own Worker beside the application.
fn side_service(main: &Script, places: &Places<'_>) -> String {
    let worker = worker(&main.manifest.script_name);
    let bindings = match main.manifest.main_module {
        Some(_) => format!("(name = \"WORKER\", service = (name = {}))", text(&worker)),
        None => String::new(),
    };
    format!(
        "(name = \"side\", worker = (modules = [(name = \"side.js\", esModule = {})], compatibilityDate = {}, \
         compatibilityFlags = [\"service_binding_extra_handlers\"], bindings = [{bindings}]))",
        text(SIDE_WORKER),
        text(places.newest_date),
    )
}

/// The service that answers for a script: its assets in front of its Worker, where it has any.
fn front(script: &Script) -> String {
    let name = &script.manifest.script_name;
    if script.assets.is_some() { assets(name) } else { worker(name) }
}

fn worker(script: &str) -> String {
    format!("worker/{script}")
}

fn assets(script: &str) -> String {
    format!("assets/{script}")
}

fn storage(script: &str) -> String {
    format!("storage/{script}")
}

fn script_services(script: &Script, places: &Places<'_>) -> Vec<String> {
    let mut services = Vec::new();
    let name = &script.manifest.script_name;
    let date = clamped(script.metadata.compatibility_date.as_deref(), places.newest_date);
    let flags = list(script.metadata.compatibility_flags.iter().map(|flag| text(flag)));
    if script.manifest.main_module.is_some() {
        let mut fields = vec![
            format!("modules = {}", modules(script)),
            format!("compatibilityDate = {}", text(date)),
            format!("compatibilityFlags = {flags}"),
            format!("bindings = {}", bindings(script)),
        ];
        let classes = classes(script);
        if !classes.is_empty() {
            fields.push(format!("durableObjectNamespaces = {}", list(classes.into_iter())));
            fields.push(format!("durableObjectStorage = (localDisk = {})", text(&storage(name))));
            let path = places.storage.join(name);
            services.push(format!(
                "(name = {}, disk = (path = {}, writable = true))",
                text(&storage(name)),
                text(&path.to_string_lossy()),
            ));
        }
        services.push(format!("(name = {}, worker = ({}))", text(&worker(name)), fields.join(", ")));
    }
    if let Some(index) = &script.assets {
        let mut fields = vec![
            format!("path = {}", text(&format!("assets/{name}"))),
            format!("config = {}", text(&asset_config(&index.config))),
        ];
        if script.manifest.main_module.is_some() {
            fields.push(format!("userWorker = (name = {})", text(&worker(name))));
        } else {
            fields.push(format!("compatibilityDate = {}", text(date)));
            fields.push(format!("compatibilityFlags = {flags}"));
        }
        services.push(format!("(name = {}, assets = ({}))", text(&assets(name)), fields.join(", ")));
    }
    services
}

/// Dates are ISO 8601, which sorts as text.
fn clamped<'a>(date: Option<&'a str>, newest: &'a str) -> &'a str {
    date.unwrap_or(OLDEST_DATE).min(newest)
}

fn modules(script: &Script) -> String {
    let main = script.manifest.main_module.as_deref();
    let kind = |module: &crate::shapes::ModuleRef| match module.kind {
        Some(ModuleKind::Wasm) => "wasm",
        None if main == Some(module.name.as_str()) => "esModule",
        None => "text",
    };
    // workerd starts the first module.
    let mut modules: Vec<_> = script.manifest.modules.iter().collect();
    modules.sort_by_key(|module| main != Some(module.name.as_str()));
    list(modules.into_iter().map(|module| {
        let file = text(&format!("modules/{}/{}", script.manifest.script_name, module.name));
        format!("(name = {}, {} = embed {file})", text(&module.name), kind(module))
    }))
}

fn classes(script: &Script) -> Vec<String> {
    let sqlite = &script.manifest.sqlite_classes;
    let classes: BTreeSet<&String> = script.manifest.do_classes.iter().chain(sqlite).collect();
    let namespace = |class: &String| {
        // The key names the directory and seals the ids: it must be the same for every version of the script.
        let key = format!("{}.{class}", script.manifest.script_name);
        let sql = if sqlite.contains(class) { "true" } else { "false" };
        format!("(className = {}, uniqueKey = {}, enableSql = {sql})", text(class), text(&key))
    };
    classes.into_iter().map(namespace).collect()
}

fn bindings(script: &Script) -> String {
    let Metadata { bindings, .. } = &script.metadata;
    list(bindings.iter().map(|binding| {
        let value = match binding {
            Binding::PlainText { text: value, .. } => format!("text = {}", text(value)),
            Binding::DurableObjectNamespace { class_name, .. } => {
                format!("durableObjectNamespace = (className = {})", text(class_name))
            }
            Binding::Assets { .. } => {
                let service = text(&assets(&script.manifest.script_name));
                format!("service = (name = {service}, entrypoint = \"AssetWorker\")")
            }
            Binding::Service { service, entrypoint: Some(entrypoint), .. } => {
                format!("service = (name = {}, entrypoint = {})", text(&worker(service)), text(entrypoint))
            }
            Binding::Service { service, entrypoint: None, .. } => {
                let has_assets = script.services_with_assets.contains(service);
                let name = if has_assets { assets(service) } else { worker(service) };
                format!("service = (name = {})", text(&name))
            }
        };
        format!("(name = {}, {value})", text(binding.name()))
    }))
}

fn asset_config(config: &AssetConfig) -> String {
    let first = match &config.run_worker_first {
        RunWorkerFirst::Always(always) => json!(always),
        RunWorkerFirst::Routes(routes) => json!(routes),
    };
    let mut object = json!({ "run_worker_first": first });
    for (key, value) in [
        ("html_handling", &config.html_handling),
        ("not_found_handling", &config.not_found_handling),
        ("headers", &config.headers),
        ("redirects", &config.redirects),
    ] {
        if let Some(value) = value {
            object[key] = json!(value);
        }
    }
    object.to_string()
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

/// A Cap'n Proto string literal.
fn text(value: &str) -> String {
    let mut out = String::with_capacity(value.len() + 2);
    out.push('"');
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_ascii_control() => {
                // Writing to a string cannot fail.
                let _infallible = write!(out, "\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_cannot_be_left() {
        assert_eq!(text("a\"),(b\\\n\u{1}é"), "\"a\\\"),(b\\\\\\n\\x01é\"");
    }

    #[test]
    fn dates_are_clamped_to_what_workerd_knows() {
        assert_eq!(clamped(Some("2027-01-01"), "2026-11-17"), "2026-11-17");
        assert_eq!(clamped(Some("2024-01-01"), "2026-11-17"), "2024-01-01");
        assert_eq!(clamped(None, "2026-11-17"), OLDEST_DATE);
    }
}

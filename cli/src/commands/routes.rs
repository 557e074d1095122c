//! `scafo routes`: the document that ingresses pull.

use std::io::Read as _;
use std::path::Path;

use scafo_core::routing::{FleetRouting, Upstream};

use crate::args::RoutesArgs;
use crate::error::{Failure, Outcome};
use crate::output::{self, Output, table};
use crate::target::Target;

/// Longest token file that is read.
const MAX_TOKEN_BYTES: u64 = 64 * 1024;

/// `scafo routes`
pub(super) async fn run(args: RoutesArgs, output: Output) -> Outcome {
    let target = Target::find(&args.target, output)?;
    let token = ingress_token(&args, &target)?;
    let mut path = match args.format.as_str() {
        "table" | "generic" => "/v1/ingress/routes".to_owned(),
        format => format!("/v1/ingress/routes/{}", segment(format)?),
    };
    if let Some(node) = &args.prefer {
        path.push_str(&format!("?prefer={node}"));
    }
    let document = target
        .client
        .get_with(&path, &token)
        .await
        .map_err(|error| error.into_failure("cannot read the routes", target.client.api()))?;
    if args.format != "table" || output.json() {
        return document_itself(&document);
    }
    let routing: FleetRouting = serde_json::from_slice(&document)
        .map_err(|error| Failure::because("the node's routing document cannot be read", &error))?;
    output::print(&render(&routing))?;
    if routing.routes.is_empty() {
        output.say("no application is served yet");
    }
    Ok(())
}

/// The bytes as they came, with a line end for a terminal.
fn document_itself(document: &[u8]) -> Outcome {
    let mut text = String::from_utf8_lossy(document).into_owned();
    if !text.ends_with('\n') {
        text.push('\n');
    }
    output::print(&text)
}

/// A format's name as a path segment; the node says which names there are.
fn segment(format: &str) -> Outcome<&str> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if !format.is_empty() && format.len() <= 64 && format.bytes().all(legal) {
        return Ok(format);
    }
    Err(Failure::usage("a format is a short name such as table, generic or traefik"))
}

fn ingress_token(args: &RoutesArgs, target: &Target) -> Outcome<String> {
    let own = target.local.as_ref().map(|node| node.ingress_token_file.as_path());
    let Some(file) = args.ingress_token_file.as_deref().or(own) else {
        return Err(Failure::usage("the routes of a node elsewhere need its ingress token")
            .hint("give it with --ingress-token-file FILE"));
    };
    read_token(file).map_err(|error| Failure::because(format!("cannot read {}", file.display()), &error))
}

/// Reads a token from a file.
///
/// # Errors
/// When the file cannot be read or holds nothing that could be a token.
pub(super) fn read_token(file: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    std::fs::File::open(file)?.take(MAX_TOKEN_BYTES).read_to_string(&mut text)?;
    let token = text.trim();
    // What no header can carry is no token; it is not quoted.
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(std::io::Error::other("it holds no token"));
    }
    Ok(token.to_owned())
}

fn render(routing: &FleetRouting) -> String {
    let upstreams = |upstreams: &[Upstream]| {
        let each: Vec<String> =
            upstreams.iter().map(|upstream| format!("{}={}", upstream.node, upstream.address)).collect();
        each.join(" ")
    };
    let mut rows: Vec<Vec<String>> = routing
        .routes
        .iter()
        .map(|route| vec![route.host.clone(), route.application.to_string(), upstreams(&route.upstreams)])
        .collect();
    if let Some(api) = &routing.api {
        rows.extend(api.hosts.iter().map(|host| vec![host.clone(), "(API)".to_owned(), upstreams(&api.upstreams)]));
    }
    if rows.is_empty() { String::new() } else { table(&["HOST", "APPLICATION", "UPSTREAMS"], &rows) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_as_a_table() {
        let routing: FleetRouting = serde_json::from_value(serde_json::json!({
            "v": 1,
            "routes": [
                { "host": "*.shop.example", "application": "shop", "upstreams": [{ "node": "a", "address": "10.0.0.1:24000" }] },
                { "host": "shop.dev.localhost", "application": "shop", "upstreams": [
                    { "node": "a", "address": "10.0.0.1:24000" }, { "node": "b", "address": "10.0.0.2:24002" }] },
            ],
            "api": { "hosts": ["dev.localhost"], "upstreams": [{ "node": "a", "address": "10.0.0.1:7400" }], "denied": [] },
        }))
        .unwrap();
        insta::assert_snapshot!(render(&routing), @r#"
HOST                APPLICATION  UPSTREAMS
*.shop.example      shop         a=10.0.0.1:24000
shop.dev.localhost  shop         a=10.0.0.1:24000 b=10.0.0.2:24002
dev.localhost       (API)        a=10.0.0.1:7400
"#);
    }

    #[test]
    fn a_format_cannot_lead_to_another_path() {
        for bad in ["", "../state", "a/b", "a?b", "a%2f"] {
            assert!(segment(bad).is_err(), "{bad}");
        }
        assert!(segment("traefik").is_ok());
    }

    #[test]
    fn a_token_file_without_a_token_is_refused_unquoted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        for (text, token) in [(" abc\n", Some("abc")), ("\n", None), ("a b", None), ("a\nb", None)] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(read_token(&file).ok().as_deref(), token, "{text:?}");
        }
    }
}

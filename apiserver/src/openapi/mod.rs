//! The `OpenAPI` 3.1 document, made from the table of routes.

use std::sync::LazyLock;

use bytes::Bytes;
use http::StatusCode;
use scafo_core::problem::{ProblemCode, ProblemDocument};
use serde_json::{Map, Value, json};

use crate::guard::{Access, Who};
use crate::surface::{Answer, Parameter, ROUTES, Route, Takes};

/// The schemas that the routes name.
const SCHEMAS: &str = include_str!("schemas.json");
const JSON: &str = "application/json";
const OCTETS: &str = "application/octet-stream";

/// The document, made once.
pub(crate) fn json() -> Bytes {
    static DOCUMENT: LazyLock<Bytes> =
        LazyLock::new(|| serde_json::to_vec(&document()).expect("JSON values always serialise").into());
    DOCUMENT.clone()
}

fn document() -> Value {
    let schemas: Value = serde_json::from_str(SCHEMAS).expect("a test reads the schemas");
    let mut paths = Map::new();
    for route in ROUTES {
        let path = paths.entry(route.path.replace("{*", "{")).or_insert_with(|| json!({}));
        let path = path.as_object_mut().expect("just made");
        path.insert(route.method().as_str().to_ascii_lowercase(), operation(route));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "scafo node API",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Every node of a fleet answers it. Refusals are problem documents (RFC 9457).",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": { "schemas": schemas, "securitySchemes": schemes() },
    })
}

fn schemes() -> Value {
    let bearer = |about: &str| json!({ "type": "http", "scheme": "bearer", "description": about });
    json!({
        "signed": bearer("A compact JWS (EdDSA) of a node or operator key, of at most 60 seconds and for one request"),
        "workload": bearer("An OpenID Connect token that the application's trust policy admits"),
        "ingress": bearer("An ingress token of the node"),
    })
}

fn operation(route: &Route) -> Value {
    let mut operation = json!({
        "operationId": operation_id(route),
        "summary": route.about,
        "security": security(route.access),
        "parameters": parameters(route),
        "responses": responses(route),
    });
    if let Some(body) = body(route.takes) {
        operation["requestBody"] = body;
    }
    operation
}

/// `get-v1-applications-name`.
fn operation_id(route: &Route) -> String {
    let words = route.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let method = route.method().as_str().to_ascii_lowercase();
    std::iter::once(method.as_str()).chain(words).collect::<Vec<_>>().join("-")
}

fn security(access: Access) -> Value {
    match access {
        Access::Open => json!([]),
        Access::Ingress => json!([{ "ingress": [] }]),
        Access::Signed(Who::Deployer, _) => json!([{ "signed": [] }, { "workload": [] }]),
        Access::Signed(Who::Member | Who::Operator | Who::Admin, _) => json!([{ "signed": [] }]),
    }
}

fn parameters(route: &Route) -> Vec<Value> {
    let one = |place: &str, name: &str, about: &str, schema: &str, required: bool| json!({ "in": place, "name": name, "description": about, "required": required, "schema": reference(schema) });
    let list = |place: &'static str, all: &'static [Parameter]| {
        all.iter().map(move |of| one(place, of.name, of.about, of.schema, of.required))
    };
    let of_path =
        names(route.path).map(|name| one("path", name, "A part of the path", of_name(route.path, name), true));
    of_path.chain(list("query", route.query)).chain(list("header", route.headers)).collect()
}

/// The schema of a parameter in a path.
fn of_name(path: &str, name: &str) -> &'static str {
    match (path.split('/').nth(2), name) {
        (Some("applications"), "name") => "ApplicationName",
        (Some("applications"), "host") => "Host",
        (Some("operators"), "id") => "Identity",
        (Some("deploys"), "id") => "DeployId",
        (Some("storage"), "key" | "name") => "StorageKey",
        (Some("ingress"), "format") => "RoutingFormat",
        _ => "Text",
    }
}

/// The parameters in a path.
fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name.trim_start_matches('*'))
}

fn body(takes: Takes) -> Option<Value> {
    match takes {
        Takes::Nothing => None,
        Takes::Json(schema) => Some(json!({ "required": true, "content": { JSON: { "schema": reference(schema) } } })),
        Takes::PerhapsJson(schema) => {
            Some(json!({ "required": false, "content": { JSON: { "schema": reference(schema) } } }))
        }
        Takes::Artifact => Some(json!({ "required": true, "content": { OCTETS: {} } })),
        Takes::Octets => Some(json!({ "required": false, "content": { OCTETS: {} } })),
    }
}

fn responses(route: &Route) -> Map<String, Value> {
    let mut responses = Map::new();
    responses.insert(route.status.to_string(), answered(route));
    if route.headers.iter().any(|header| header.name == "if-none-match") {
        responses.insert("304".to_owned(), json!({ "description": "The caller has it already" }));
    }
    for code in route.refusals() {
        let response = responses.entry(code.status().to_string()).or_insert_with(|| refused(code));
        let kinds = response.pointer_mut("/content/application~1problem+json/schema/allOf/1/properties/type/enum");
        kinds.and_then(Value::as_array_mut).expect("as it was made").push(format!("urn:scafo:{code}").into());
    }
    responses
}

fn answered(route: &Route) -> Value {
    let mut response = json!({ "description": reason(route.status) });
    match route.answer {
        Answer::Nothing => {}
        Answer::Json(schema) => response["content"] = json!({ JSON: { "schema": reference(schema) } }),
        Answer::Octets => response["content"] = json!({ OCTETS: {} }),
    }
    response
}

/// A refusal with this status, of kinds that are still to be named.
fn refused(code: ProblemCode) -> Value {
    let schema = json!({ "allOf": [reference("Problem"), { "properties": { "type": { "enum": [] } } }] });
    json!({ "description": reason(code.status()), "content": { ProblemDocument::CONTENT_TYPE: { "schema": schema } } })
}

fn reason(status: u16) -> &'static str {
    StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Answer")
}

fn reference(schema: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{schema}") })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(members) => {
                if let Some(Value::String(to)) = members.get("$ref") {
                    found.insert(to.clone());
                }
                members.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    #[test]
    fn every_reference_leads_to_a_schema_and_every_schema_is_referred_to() {
        let document = document();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        let defined = document["components"]["schemas"].as_object().unwrap().keys();
        let defined: BTreeSet<String> = defined.map(|name| format!("#/components/schemas/{name}")).collect();
        assert_eq!(found, defined);
    }

    #[test]
    fn every_route_is_described_once_with_all_its_parameters_and_refusals() {
        let document = document();
        let mut ids = BTreeSet::new();
        for route in ROUTES {
            let path = route.path.replace("{*", "{");
            let operation = &document["paths"][&path][route.method().as_str().to_ascii_lowercase()];
            assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{path}");
            let parameters = operation["parameters"].as_array().unwrap();
            assert_eq!(parameters.len(), names(route.path).count() + route.query.len() + route.headers.len());
            for code in route.refusals() {
                let response = &operation["responses"][code.status().to_string()];
                assert!(response.to_string().contains(&format!("urn:scafo:{code}")), "{path} {code}");
            }
        }
        let described = document["paths"].as_object().unwrap().values();
        let described: usize = described.map(|path| path.as_object().unwrap().len()).sum();
        assert_eq!(described, ROUTES.len());
    }
}

//! The metadata document of a deploy, `x-scafo-deploy`.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::problem::{Problem, ProblemCode};
use crate::record::{Replicas, Source};

/// The header's name.
pub const HEADER: &str = "x-scafo-deploy";
/// Longest header value, in characters.
pub const MAX_HEADER: usize = 8192;

/// What a deploy asks for beside its artifact.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Metadata {
    /// How many nodes shall serve the application; absent keeps what it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replicas: Option<Replicas>,
    /// Which nodes may; absent keeps what it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Where the code came from, as the caller says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
}

impl Metadata {
    /// Spells the header.
    pub fn encode(&self) -> String {
        let value = serde_json::to_value(self).expect("strings, numbers and maps with string keys always serialise");
        URL_SAFE_NO_PAD.encode(canonical(&value))
    }

    /// Reads the header.
    ///
    /// # Errors
    /// `invalid-input` unless the text is the unpadded base64url of a canonical JSON object without refused names.
    pub fn decode(header: &str) -> Result<Self, Problem> {
        let document = canonical_document(header)?;
        refuse_names(&document)?;
        Ok(Self {
            replicas: present(&document, "replicas")?,
            node_selector: present(&document, "nodeSelector")?,
            source: match document.get("source") {
                None => None,
                Some(source @ Value::Object(_)) => Some(read("source", source)?),
                Some(_) => return Err(malformed("`source` must be an object")),
            },
        })
    }
}

fn canonical_document(header: &str) -> Result<Value, Problem> {
    if header.len() > MAX_HEADER {
        return Err(malformed(format!("the header is longer than {MAX_HEADER} characters")));
    }
    let alphabet = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if header.is_empty() || !header.bytes().all(alphabet) {
        return Err(malformed("the header is not unpadded base64url"));
    }
    let bytes = URL_SAFE_NO_PAD.decode(header).map_err(|_| malformed("the header is not unpadded base64url"))?;
    let document: Value = serde_json::from_slice(&bytes).map_err(|_| malformed("the header does not hold JSON"))?;
    if !document.is_object() {
        return Err(malformed("the metadata must be a JSON object"));
    }
    if canonical(&document).as_bytes() != bytes {
        return Err(malformed(
            "the metadata is not canonical: sort the keys, leave out white space, use the shortest numbers",
        ));
    }
    Ok(document)
}

fn refuse_names(document: &Value) -> Result<(), Problem> {
    if document.get("application").is_some() {
        return Err(malformed("`application` belongs in the request path"));
    }
    if document.get("oidc").is_some() || document.get("source").and_then(|source| source.get("oidcSub")).is_some() {
        return Err(malformed("OIDC provenance is recorded from the verified token, never from metadata"));
    }
    Ok(())
}

/// An optional field: absent and `null` are the same.
fn present<T: for<'de> Deserialize<'de>>(document: &Value, name: &str) -> Result<Option<T>, Problem> {
    match document.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => read(name, value).map(Some),
    }
}

fn read<T: for<'de> Deserialize<'de>>(name: &str, value: &Value) -> Result<T, Problem> {
    T::deserialize(value).map_err(|error| malformed(format!("`{name}`: {error}")))
}

fn malformed(detail: impl Into<String>) -> Problem {
    Problem::new(ProblemCode::InvalidInput, detail)
}

/// Canonical JSON: keys sorted by code unit at every level, no white space, shortest numbers, UTF-8 unescaped.
///
/// `serde_json` keeps objects sorted by their UTF-8 bytes; UTF-16 code units order differently only above U+FFFF, which
/// is why the keys are sorted here once more.
pub fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write_canonical(value, &mut out);
    out
}

fn write_canonical(value: &Value, out: &mut String) {
    match value {
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            out.push('{');
            for (index, (name, member)) in sorted.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_canonical(&Value::String(name.clone()), out);
                out.push(':');
                write_canonical(member, out);
            }
            out.push('}');
        }
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        Value::Number(number) => out.push_str(&shortest(number)),
        Value::Null | Value::Bool(_) | Value::String(_) => out.push_str(&value.to_string()),
    }
}

/// A whole number has no fraction, however it was written (as ECMAScript prints it, RFC 8785 §3.2.2.3).
fn shortest(number: &serde_json::Number) -> String {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match number.as_f64() {
        Some(0.0) if number.is_f64() => "0".to_owned(),
        Some(float) if number.is_f64() && float.fract() == 0.0 && float.abs() < EXACT => format!("{float:.0}"),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(json: &str) -> Result<Metadata, Problem> {
        Metadata::decode(&URL_SAFE_NO_PAD.encode(json))
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same() {
        let metadata = Metadata {
            replicas: Some(Replicas::All),
            node_selector: Some(BTreeMap::from([("tier".to_owned(), "fast".to_owned())])),
            source: None,
        };
        assert_eq!(Metadata::decode(&metadata.encode()).unwrap(), metadata);
        assert_eq!(decode("{}").unwrap(), Metadata::default());
    }

    #[test]
    fn only_the_canonical_form_is_read() {
        for bad in [
            r#"{ }"#,
            r#"{"source":null}"#,
            r#"{"b":1,"a":2}"#,
            r#"{"a":1,"a":1}"#,
            r#"{"replicas":1.0}"#,
            r#"{"a":"\u0061"}"#,
            "[]",
            "1",
            "{",
        ] {
            assert_eq!(decode(bad).map_err(|p| p.code), Err(ProblemCode::InvalidInput), "{bad}");
        }
        assert!(Metadata::decode("e30=").is_err() && Metadata::decode("").is_err() && Metadata::decode("+/").is_err());
        assert!(Metadata::decode(&"A".repeat(8193)).is_err());
    }

    #[test]
    fn null_keeps_and_unknown_names_are_ignored() {
        assert_eq!(decode(r#"{"future":[1],"nodeSelector":null,"replicas":null}"#).unwrap(), Metadata::default());
    }

    #[test]
    fn a_refused_name_wins_even_when_its_value_is_null() {
        for bad in [r#"{"application":null}"#, r#"{"oidc":null}"#, r#"{"source":{"oidcSub":null}}"#] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn replicas_are_all_or_a_whole_number_of_at_least_one() {
        for (text, good) in
            [("1", true), ("\"all\"", true), ("0", false), ("1.5", false), ("\"1\"", false), ("-1", false)]
        {
            assert_eq!(decode(&format!(r#"{{"replicas":{text}}}"#)).is_ok(), good, "{text}");
        }
    }

    #[test]
    fn a_source_needs_its_four_names() {
        assert!(decode(r#"{"source":{"commit":"c","provider":"p","ref":"r","repo":"o"}}"#).is_ok());
        assert!(decode(r#"{"source":{"commit":"","provider":"p","ref":"r","repo":"o"}}"#).is_err());
        assert!(decode(r#"{"source":{"provider":"p"}}"#).is_err());
    }
}

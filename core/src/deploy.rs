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

/// A number as ECMAScript prints it (RFC 8785 §3.2.2.3), so that clients in that language, which spell the document with what
/// they have, are read. Whole numbers that fit 64 bits are kept to the last digit.
fn shortest(number: &serde_json::Number) -> String {
    match number.as_f64() {
        Some(float) if number.is_f64() => ecmascript(float),
        _ => number.to_string(),
    }
}

/// ECMA-262 §6.1.6.1.20, `Number::toString` with radix 10.
fn ecmascript(float: f64) -> String {
    if float == 0.0 {
        return "0".to_owned();
    }
    // The shortest digits that read back as the same number, and where the point stands among them.
    let scientific = format!("{:e}", float.abs());
    let (mantissa, exponent) = scientific.split_once('e').expect("this format always has an exponent");
    let exponent: i32 = exponent.parse().expect("this format has a whole exponent");
    let digits = mantissa.replace('.', "");
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or(0));
    let count = i32::try_from(digits.len()).expect("a double has at most 17 significant digits");
    let body = match exponent + 1 {
        point @ 1..=21 if count <= point => format!("{digits}{}", zeros(point - count)),
        point @ 1..=21 => {
            let (whole, fraction) = digits.split_at(point.unsigned_abs() as usize);
            format!("{whole}.{fraction}")
        }
        point @ -5..=0 => format!("0.{}{digits}", zeros(-point)),
        _ => format!("{mantissa}e{}{}", if exponent < 0 { "-" } else { "+" }, exponent.unsigned_abs()),
    };
    if float < 0.0 { format!("-{body}") } else { body }
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
    fn numbers_are_spelled_as_ecmascript_does() {
        for (float, text) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (-1.5, "-1.5"),
            (0.1, "0.1"),
            (0.000_001, "0.000001"),
            (0.000_000_1, "1e-7"),
            (123.456e-10, "1.23456e-8"),
            (1e20, "100000000000000000000"),
            (1e21, "1e+21"),
            (1.5e300, "1.5e+300"),
        ] {
            assert_eq!(ecmascript(float), text);
            assert_eq!(decode(&format!(r#"{{"a":{text}}}"#)).unwrap(), Metadata::default(), "{text}");
        }
        // With more digits the parser of this build may miss by the last one, and the document is refused.
        assert_eq!(ecmascript(f64::MIN_POSITIVE), "2.2250738585072014e-308");
        assert_eq!(ecmascript(5e-324), "5e-324");
        assert_eq!(ecmascript(-f64::MAX), "-1.7976931348623157e+308");
        for other in ["1.0", "1e3", "-0", "0.10", "1E5", "1e-6", "1e21", "1e+20", "-0.0"] {
            assert!(decode(&format!(r#"{{"a":{other}}}"#)).is_err(), "{other}");
        }
    }

    #[test]
    fn a_source_needs_its_four_names() {
        assert!(decode(r#"{"source":{"commit":"c","provider":"p","ref":"r","repo":"o"}}"#).is_ok());
        assert!(decode(r#"{"source":{"commit":"","provider":"p","ref":"r","repo":"o"}}"#).is_err());
        assert!(decode(r#"{"source":{"provider":"p"}}"#).is_err());
    }

    mod properties {
        use proptest::collection::btree_map;
        use proptest::prelude::*;

        use super::*;
        use crate::fuzz;

        /// Any JSON, not too deep.
        fn json() -> impl Strategy<Value = Value> {
            let leaf = prop_oneof![
                Just(Value::Null),
                any::<bool>().prop_map(Value::from),
                any::<i64>().prop_map(Value::from),
                // As many digits as every parser reads to the last one.
                (any::<i32>(), -20..9_i32)
                    .prop_map(|(digits, power)| format!("{digits}e{power}").parse::<f64>().unwrap().into()),
                "[ -~\\PC]{0,8}".prop_map(Value::from),
            ];
            leaf.prop_recursive(4, 24, 4, |inner| {
                prop_oneof![
                    prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                    btree_map(".{0,6}", inner, 0..4).prop_map(|members| members.into_iter().collect::<Value>()),
                ]
            })
        }

        fn metadata() -> impl Strategy<Value = Metadata> {
            let replicas =
                prop_oneof![Just("\"all\"".to_owned()), (1..=u32::MAX).prop_map(|number| number.to_string())];
            let replicas = replicas.prop_map(|text| serde_json::from_str::<Replicas>(&text).unwrap());
            let source = [".{1,9}", ".{1,9}", ".{1,9}", ".{1,9}"].prop_map(|[provider, repo, r#ref, commit]| {
                let source = serde_json::json!({ "provider": provider, "repo": repo, "ref": r#ref, "commit": commit });
                serde_json::from_value::<Source>(source).unwrap()
            });
            let labels = btree_map(".{0,6}", ".{0,6}", 0..4);
            (prop::option::of(replicas), prop::option::of(labels), prop::option::of(source))
                .prop_map(|(replicas, node_selector, source)| Metadata { replicas, node_selector, source })
        }

        #[test]
        fn whatever_is_encoded_decodes_to_the_same() {
            fuzz::holds(2000, &metadata(), |metadata| {
                prop_assert_eq!(Metadata::decode(&metadata.encode()).unwrap(), metadata);
                Ok(())
            });
        }

        #[test]
        fn the_canonical_form_is_json_for_the_same_and_its_own_canonical_form() {
            fuzz::holds(2000, &json(), |value| {
                let text = canonical(&value);
                let read: Value = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(canonical(&read), text);
                Ok(())
            });
        }

        #[test]
        fn a_header_that_is_read_is_the_only_spelling_of_its_document() {
            fuzz::holds(
                2000,
                &(json(), any::<prop::sample::Index>(), "[ 0-9a-z\"{}\\[\\],:.-]"),
                |(value, at, into)| {
                    let text = canonical(&value);
                    let at = at.index(text.len() + 1);
                    let changed =
                        if text.is_char_boundary(at) { format!("{}{into}{}", &text[..at], &text[at..]) } else { text };
                    if decode(&changed).is_ok() {
                        let read: Value = serde_json::from_str(&changed).unwrap();
                        prop_assert!(read.is_object());
                        prop_assert_eq!(canonical(&read), changed);
                    }
                    Ok(())
                },
            );
        }

        const WORDS: [&str; 20] = [
            "\"replicas\":1,",
            "\"replicas\":\"all\",",
            "\"nodeSelector\":{},",
            "\"source\":{",
            "\"application\":\"x\",",
            "\"oidc\":1,",
            "\"oidcSub\":1,",
            "\"commit\":\"\",",
            "null",
            "-0",
            "1e+21",
            "0.000001",
            "\\u0000",
            "\\ud800",
            "{}",
            "[",
            "]",
            "}",
            ",",
            "\u{e9}",
        ];

        #[test]
        fn what_became_of_a_header_is_read_only_in_its_one_spelling() {
            fuzz::holds(2000, &fuzz::mutated("header", &WORDS), |input| {
                let Ok(metadata) = Metadata::decode(&URL_SAFE_NO_PAD.encode(&input)) else { return Ok(()) };
                let text = String::from_utf8(input).unwrap();
                let read: Value = serde_json::from_str(&text).unwrap();
                prop_assert_eq!(canonical(&read), text);
                let refused = ["application", "oidc"].iter().any(|name| read.get(name).is_some());
                prop_assert!(!refused && read.pointer("/source/oidcSub").is_none());
                // What is not in it is nowhere in what was read.
                let given = |name: &str| read.get(name).is_some_and(|value| !value.is_null());
                prop_assert_eq!(metadata.replicas.is_some(), given("replicas"));
                prop_assert_eq!(metadata.node_selector.is_some(), given("nodeSelector"));
                prop_assert_eq!(metadata.source.is_some(), given("source"));
                Ok(())
            });
        }

        #[test]
        fn no_header_makes_it_panic() {
            fuzz::holds(2000, &("[A-Za-z0-9_-]{0,64}|.{0,32}", ".{0,64}"), |(header, json)| {
                let _ = Metadata::decode(&header);
                let _ = decode(&json);
                Ok(())
            });
        }
    }
}

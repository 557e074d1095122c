//! `wrangler.jsonc`, as far as the command line touches it: the name, the variables, and whether to bundle. Everything else
//! is the node's to judge and is handed on as it is.

use std::io::Read as _;
use std::path::Path;

use jsonc_parser::ParseOptions;
use serde_json::{Map, Value};

use crate::error::{Failure, Outcome};

/// Longest configuration that is read; the ones in use have a few KiB.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// A parsed configuration, and whether it was changed since it was read.
#[derive(Debug, Clone)]
pub(crate) struct WranglerConfig {
    members: Map<String, Value>,
    changed: bool,
}

impl WranglerConfig {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// When it cannot be read or is no JSON object (comments and trailing commas are allowed).
    pub(crate) fn read(path: &Path) -> Outcome<Self> {
        let mut text = String::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(MAX_BYTES).read_to_string(&mut text))
            .map_err(|error| Failure::because(format!("cannot read {}", path.display()), &error))?;
        Self::parse(&text).map_err(|why| {
            Failure::new(format!("{} cannot be read: {why}", path.display())).hint("correct the file and deploy again")
        })
    }

    fn parse(text: &str) -> Result<Self, String> {
        // Some editors begin a file with a byte order mark; RFC 8259 §8.1 lets a reader ignore it.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let value: Value = jsonc_parser::parse_to_serde_value(text, &jsonc()).map_err(|error| {
            format!("line {}, column {}: {}", error.line_display(), error.column_display(), error.kind())
        })?;
        match value {
            Value::Object(members) => Ok(Self { members, changed: false }),
            _ => Err("it must hold a JSON object".to_owned()),
        }
    }

    /// The Worker's name, when it is a text.
    pub(crate) fn name(&self) -> Option<&str> {
        self.members.get("name").and_then(Value::as_str)
    }

    /// Sets variables of the Worker, over those of the same names.
    ///
    /// # Errors
    /// When `vars` of the file is no object.
    pub(crate) fn set_vars(&mut self, vars: &[(String, String)]) -> Outcome {
        if vars.is_empty() {
            return Ok(());
        }
        let member = self.members.entry("vars").or_insert_with(|| Value::Object(Map::new()));
        let Value::Object(all) = member else {
            return Err(Failure::new("`vars` of the configuration is no object, so --var cannot add to it"));
        };
        for (name, value) in vars {
            all.insert(name.clone(), Value::String(value.clone()));
        }
        self.changed = true;
        Ok(())
    }

    /// Publishes `main` as it is.
    pub(crate) fn set_no_bundle(&mut self) {
        self.members.insert("no_bundle".to_owned(), Value::Bool(true));
        self.changed = true;
    }

    /// What to pack in place of the file; `None` when the file itself will do.
    pub(crate) fn replacement(&self) -> Option<Vec<u8>> {
        self.changed.then(|| {
            let mut text = serde_json::to_vec_pretty(&self.members).expect("parsed JSON always serialises");
            text.push(b'\n');
            text
        })
    }
}

/// JSON with comments and trailing commas, and nothing else that is not JSON.
const fn jsonc() -> ParseOptions {
    ParseOptions {
        allow_comments: true,
        allow_trailing_commas: true,
        allow_loose_object_property_names: false,
        allow_missing_commas: false,
        allow_single_quoted_strings: false,
        allow_hexadecimal_numbers: false,
        allow_unary_plus_numbers: false,
        allow_bare_decimal_point_numbers: false,
        allow_non_finite_numbers: false,
        allow_extended_string_escapes: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_trailing_commas_are_read_and_other_looseness_is_not() {
        let config =
            WranglerConfig::parse("{ /* a */ \"name\": \"shop\", // b\n \"vars\": {\"A\": \"1\",}, }").unwrap();
        assert_eq!(config.name(), Some("shop"));
        assert_eq!(
            WranglerConfig::parse("\u{feff}{\"name\":\"shop\"}").unwrap().name(),
            Some("shop"),
            "a byte order mark"
        );
        for bad in ["{name: 'a'}", "[]", "", "{\"a\":1 \"b\":2}", "{\"a\":+1}"] {
            assert!(WranglerConfig::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_unchanged_configuration_is_packed_as_it_is() {
        let mut config = WranglerConfig::parse("{\"name\":\"a\"}").unwrap();
        config.set_vars(&[]).unwrap();
        assert_eq!(config.replacement(), None);
    }

    #[test]
    fn variables_are_added_over_those_of_the_file_and_the_rest_is_kept() {
        let mut config = WranglerConfig::parse(r#"{"name":"a","main":"m.js","vars":{"A":"1","B":"2"}}"#).unwrap();
        config.set_vars(&[("B".to_owned(), "3=4".to_owned()), ("C".to_owned(), String::new())]).unwrap();
        config.set_no_bundle();
        let packed: Value = serde_json::from_slice(&config.replacement().unwrap()).unwrap();
        let expected = serde_json::json!({
            "name": "a", "main": "m.js", "no_bundle": true, "vars": {"A": "1", "B": "3=4", "C": ""}
        });
        assert_eq!(packed, expected);
    }

    #[test]
    fn variables_need_an_object_to_stand_in() {
        let mut config = WranglerConfig::parse(r#"{"vars":[]}"#).unwrap();
        assert!(config.set_vars(&[("A".to_owned(), "1".to_owned())]).is_err());
    }
}

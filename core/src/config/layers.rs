//! Flag over environment over file over default.

use std::collections::BTreeMap;
use std::fmt;

use super::keys::{ENVIRONMENT_PREFIX, KEYS, Key, nearest};
use super::value::{Raw, Refusal};

/// Where settings come from, strongest first. All of them are passed in, nothing is read here.
#[derive(Debug, Clone, Copy)]
pub struct Layers<'a> {
    /// Key → value, as in `--set node.address=10.0.0.1`.
    pub flags: &'a BTreeMap<String, String>,
    /// The process's environment, whole.
    pub environment: &'a BTreeMap<String, String>,
    /// The configuration file, when there is one.
    pub file: Option<File<'a>>,
    /// Key → value where the program's defaults differ from the table's, as in `scafo dev`.
    pub defaults: &'a BTreeMap<String, String>,
}

/// A configuration file.
#[derive(Debug, Clone, Copy)]
pub struct File<'a> {
    /// Its path, for messages.
    pub path: &'a str,
    /// What is in it.
    pub text: &'a str,
}

/// What is wrong with the configuration. Never shows a value: it may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// No such key.
    #[error("there is no setting `{name}` ({origin}){}", .nearest.as_ref().map(|near| format!("; did you mean `{near}`?")).unwrap_or_default())]
    Unknown {
        /// As it was written.
        name: String,
        /// Where.
        origin: Origin,
        /// The key that was probably meant.
        nearest: Option<String>,
    },
    /// The value cannot be used.
    #[error("`{key}` ({origin}) cannot be used: {rule}")]
    Value {
        /// The key.
        key: String,
        /// Where it stands.
        origin: Origin,
        /// What would be right.
        rule: String,
    },
    /// The file is no TOML.
    #[error("{path} is not TOML: line {line}: {message}")]
    File {
        /// Its path.
        path: String,
        /// Where, from 1.
        line: usize,
        /// Why.
        message: String,
    },
    /// Several settings do not fit together.
    #[error("{0}")]
    Conflict(String),
}

/// Which layer a setting comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A flag or `--set`.
    Flag,
    /// This environment variable.
    Environment(String),
    /// The file with this path.
    File(String),
    /// Nobody said anything.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag => f.write_str("from a flag"),
            Self::Environment(name) => write!(f, "from {name} in the environment"),
            Self::File(path) => write!(f, "from {path}"),
            Self::Default => f.write_str("by default"),
        }
    }
}

/// The layers, merged: for each key the strongest value.
pub(super) struct Merged {
    values: BTreeMap<&'static str, (Origin, Raw)>,
}

/// One key's value with the place it came from, so that a refusal can name both.
pub(super) struct Found<'a> {
    key: &'static Key,
    origin: &'a Origin,
    raw: &'a Raw,
}

impl Merged {
    pub(super) fn of(layers: &Layers<'_>) -> Result<Self, Error> {
        let mut values = BTreeMap::new();
        for key in KEYS {
            values.insert(key.name, (Origin::Default, Raw::Text(key.default.to_owned())));
        }
        for (name, value) in layers.defaults {
            values.insert(known(name, Origin::Default)?.name, (Origin::Default, Raw::Text(value.clone())));
        }
        if let Some(file) = layers.file {
            for (key, raw) in read_file(file)? {
                values.insert(key.name, (Origin::File(file.path.to_owned()), raw));
            }
        }
        for (variable, value) in layers.environment {
            if let Some(key) = known_variable(variable)?
                && counts(key, value)
            {
                values.insert(key.name, (Origin::Environment(variable.clone()), Raw::Text(value.clone())));
            }
        }
        for (name, value) in layers.flags {
            values.insert(known(name, Origin::Flag)?.name, (Origin::Flag, Raw::Text(value.clone())));
        }
        Ok(Self { values })
    }

    pub(super) fn get(&self, name: &str) -> Found<'_> {
        let key = Key::find(name).expect("only keys of the table are asked for; a test asks for all of them");
        let (origin, raw) = &self.values[key.name];
        Found { key, origin, raw }
    }
}

/// An empty variable counts as unset, as unit files leave them, but for tokens: an empty token that was meant to be one must
/// be refused and not replaced by a minted one in silence.
fn counts(key: &Key, value: &str) -> bool {
    !value.trim().is_empty() || key.name == "ingress.token"
}

impl Found<'_> {
    /// Whether there is anything to read.
    pub(super) fn is_set(&self) -> bool {
        match self.raw {
            Raw::Text(text) => !text.trim().is_empty(),
            Raw::List(_) | Raw::Map(_) => true,
        }
    }

    /// Whether nobody wrote it.
    pub(super) fn is_default(&self) -> bool {
        *self.origin == Origin::Default
    }

    /// Reads the value.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Raw) -> Result<T, Refusal>) -> Result<T, Error> {
        read(self.raw).map_err(|rule| self.refuse(rule))
    }

    /// Reads the value when there is one.
    pub(super) fn try_read<T>(&self, read: impl FnOnce(&Raw) -> Result<T, Refusal>) -> Result<Option<T>, Error> {
        if self.is_set() { self.read(read).map(Some) } else { Ok(None) }
    }

    pub(super) fn refuse(&self, rule: impl Into<String>) -> Error {
        Error::Value { key: self.key.name.to_owned(), origin: self.origin.clone(), rule: rule.into() }
    }
}

fn known(name: &str, origin: Origin) -> Result<&'static Key, Error> {
    Key::find(name).ok_or_else(|| Error::Unknown {
        name: name.to_owned(),
        origin,
        nearest: nearest(name, KEYS.iter().map(|key| key.name)).map(str::to_owned),
    })
}

/// The key that a variable sets. A variable that starts like one of ours (`SCAFO_NODE_…`) and is none is a typing error; others
/// with our prefix belong to the command line and to the log.
fn known_variable(variable: &str) -> Result<Option<&'static Key>, Error> {
    let Some(rest) = variable.strip_prefix(ENVIRONMENT_PREFIX) else { return Ok(None) };
    let spelled: Vec<(String, &'static Key)> = KEYS.iter().map(|key| (key.environment(), key)).collect();
    if let Some((_, key)) = spelled.iter().find(|(name, _)| name == variable) {
        return Ok(Some(key));
    }
    let section = rest.split('_').next().unwrap_or(rest);
    let ours = KEYS.iter().filter_map(|key| key.name.split_once('.')).any(|(s, _)| s.eq_ignore_ascii_case(section));
    if !ours {
        return Ok(None);
    }
    Err(Error::Unknown {
        name: variable.to_owned(),
        origin: Origin::Environment(variable.to_owned()),
        nearest: nearest(variable, spelled.iter().map(|(name, _)| name.as_str())).map(str::to_owned),
    })
}

fn read_file(file: File<'_>) -> Result<Vec<(&'static Key, Raw)>, Error> {
    let table: toml::Table = file.text.parse().map_err(|error: toml::de::Error| Error::File {
        path: file.path.to_owned(),
        line: error.span().map_or(1, |span| line_of(file.text, span.start)),
        message: error.message().to_owned(),
    })?;
    let mut found = Vec::new();
    flatten("", &table, file.path, &mut found)?;
    Ok(found)
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

/// Walks tables down to keys. A table is a value only where the key says so.
fn flatten(above: &str, table: &toml::Table, path: &str, found: &mut Vec<(&'static Key, Raw)>) -> Result<(), Error> {
    for (name, value) in table {
        let dotted = if above.is_empty() { name.clone() } else { format!("{above}.{name}") };
        let is_section =
            KEYS.iter().any(|key| key.name.strip_prefix(dotted.as_str()).is_some_and(|r| r.starts_with('.')));
        match value {
            toml::Value::Table(inner) if is_section => flatten(&dotted, inner, path, found)?,
            value => {
                let origin = Origin::File(path.to_owned());
                let key = known(&dotted, origin.clone())?;
                let raw = raw(value).ok_or_else(|| Error::Value {
                    key: dotted.clone(),
                    origin,
                    rule: "write text, numbers and lists or tables of them".to_owned(),
                })?;
                found.push((key, raw));
            }
        }
    }
    Ok(())
}

fn raw(value: &toml::Value) -> Option<Raw> {
    match value {
        toml::Value::Array(items) => items.iter().map(scalar).collect::<Option<_>>().map(Raw::List),
        toml::Value::Table(table) => {
            let pairs = table.iter().map(|(key, value)| scalar(value).map(|value| (key.clone(), value)));
            pairs.collect::<Option<_>>().map(Raw::Map)
        }
        value => scalar(value).map(Raw::Text),
    }
}

fn scalar(value: &toml::Value) -> Option<String> {
    match value {
        toml::Value::String(text) => Some(text.clone()),
        toml::Value::Integer(number) => Some(number.to_string()),
        toml::Value::Boolean(flag) => Some(flag.to_string()),
        toml::Value::Float(_) | toml::Value::Datetime(_) | toml::Value::Array(_) | toml::Value::Table(_) => None,
    }
}

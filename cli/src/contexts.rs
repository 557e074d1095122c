//! Named installations: where each one's API is, and which key is for it. `$XDG_CONFIG_HOME/scafo/contexts.toml`.
//!
//! The file holds no secret, only where the key's file is. It is written whole or not at all, by one command at a time. A member
//! that this build does not know is refused and not dropped by the next write.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use scafo_core::OperatorId;
use serde::{Deserialize, Serialize};

use crate::client::ApiUrl;
use crate::error::{Failure, Outcome};
use crate::files;
use crate::keys;

/// Longest file that is read: thousands of contexts.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// Longest name: one word in a table.
const NAME_MAX: usize = 63;
const FILE: &str = "contexts.toml";

/// The name of a context: 1 to 63 letters, digits, dots, hyphens and underscores, the first a letter or digit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct ContextName(String);

impl FromStr for ContextName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let starts_well = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
        if starts_well && text.len() <= NAME_MAX && text.bytes().all(legal) {
            return Ok(Self(text.to_owned()));
        }
        Err("a name has 1 to 63 letters, digits, dots, hyphens and underscores, the first a letter or digit".to_owned())
    }
}

impl TryFrom<String> for ContextName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ContextName> for String {
    fn from(name: ContextName) -> Self {
        name.0
    }
}

impl fmt::Display for ContextName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One installation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    /// Its API.
    pub(crate) url: ApiUrl,
    /// The key's file; absolute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
    /// The key's id, where the file does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) operator: Option<OperatorId>,
}

/// All of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Contexts {
    /// The one that is used where nothing else names a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) current: Option<ContextName>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) contexts: BTreeMap<ContextName, Context>,
}

impl Contexts {
    /// What is there; nothing when there is no file or no place for one.
    ///
    /// # Errors
    /// When the file cannot be read or understood.
    pub(crate) fn load() -> Outcome<Self> {
        match path() {
            Some(path) => read(&path),
            None => Ok(Self::default()),
        }
    }

    /// Changes what is there. Nothing is written when `change` fails.
    ///
    /// # Errors
    /// Those of `change`; when another command changes the file at this moment, or it cannot be read or written.
    pub(crate) fn change<T>(change: impl FnOnce(&mut Self) -> Outcome<T>) -> Outcome<T> {
        let path = path().ok_or_else(files::homeless)?;
        let directory = path.parent().unwrap_or(Path::new("/"));
        keys::private_directory(directory)?;
        let _lock = files::lock(directory)?;
        let mut contexts = read(&path)?;
        let changed = change(&mut contexts)?;
        let text = toml::to_string(&contexts).map_err(|error| Failure::because("cannot write the contexts", &error))?;
        files::replace(&path, text.as_bytes())?;
        Ok(changed)
    }

    /// The one with this name.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn get(&self, name: &ContextName) -> Outcome<&Context> {
        self.contexts.get(name).ok_or_else(|| {
            Failure::new(format!("there is no context `{name}`"))
                .hint("`scafo context list` shows those that there are; `scafo context add` makes one")
        })
    }
}

fn path() -> Option<PathBuf> {
    files::config_directory().map(|directory| directory.join(FILE))
}

fn read(path: &Path) -> Outcome<Contexts> {
    let unreadable = |error: &dyn std::error::Error| {
        Failure::because(format!("cannot read the contexts in {}", path.display()), error)
            .hint("correct the file, or remove it and add the contexts again")
    };
    let mut text = String::new();
    match File::open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text)) {
        Ok(_) => toml::from_str(&text).map_err(|error| unreadable(&error)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Contexts::default()),
        Err(error) => Err(unreadable(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_word() {
        for good in ["prod", "eu-west-1", "A.b_c", "1"] {
            assert!(good.parse::<ContextName>().is_ok(), "{good}");
        }
        for bad in ["", "-a", ".a", "a b", "a/b", "ä", &"a".repeat(64)] {
            assert!(bad.parse::<ContextName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn contexts_read_back_as_they_were_written() {
        let context = Context {
            url: "https://api.example".parse().unwrap(),
            key: Some("/k.pem".into()),
            operator: Some("ops".parse().unwrap()),
        };
        let name: ContextName = "eu.west".parse().unwrap();
        let contexts = Contexts { current: Some(name.clone()), contexts: BTreeMap::from([(name, context)]) };
        let text = toml::to_string(&contexts).unwrap();
        insta::assert_snapshot!(text, @r#"
        current = "eu.west"

        [contexts."eu.west"]
        url = "https://api.example"
        key = "/k.pem"
        operator = "ops"
        "#);
        assert_eq!(toml::from_str::<Contexts>(&text).unwrap(), contexts);
    }

    #[test]
    fn what_this_build_does_not_know_is_refused_and_not_lost() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(FILE);
        for text in
            ["later = 1", "[contexts.a]\nurl = \"http://a\"\nlater = 1", "[contexts.\"a/b\"]\nurl = \"http://a\"", "["]
        {
            std::fs::write(&file, text).unwrap();
            assert!(read(&file).err().is_some_and(|failure| failure.report().unwrap().next().is_some()), "{text}");
        }
        assert_eq!(read(&dir.path().join("none")).unwrap(), Contexts::default());
    }
}

//! Names that become keys in the bucket or paths on disk: having one proves that it was checked.

use std::{fmt, str::FromStr};

use crate::{Failure, failure::Outcome};

/// The id of a node: 1 to 128 of `[A-Za-z0-9._-]`, neither `.` nor `..`. It is the key of the node's lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeId(String);

impl NodeId {
    /// `node_` and 32 hexadecimal digits from the random number generator.
    pub(crate) fn random() -> Self {
        Self(format!("node_{}", hex::encode(rand::random::<[u8; 16]>())))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Where its lease is.
    pub(crate) fn lease_key(&self) -> String {
        format!("nodes/{}.json", self.0)
    }
}

impl FromStr for NodeId {
    type Err = Failure;

    fn from_str(text: &str) -> Outcome<Self> {
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if (1..=128).contains(&text.len()) && text.bytes().all(legal) && text != "." && text != ".." {
            return Ok(Self(text.to_owned()));
        }
        Err(Failure::new(format!("CELLD_NODE is {text:?}: a node id is 1 to 128 letters, digits, `.`, `_` and `-`")))
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The name of a script: 1 to 63 lower-case letters, digits and inner hyphens. It is a part of keys and paths.
pub(crate) fn is_script_name(name: &str) -> bool {
    let edge = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = name.as_bytes();
    (1..=63).contains(&bytes.len())
        && bytes.first().is_some_and(edge)
        && bytes.last().is_some_and(edge)
        && bytes.iter().all(|byte| edge(byte) || *byte == b'-')
}

/// A binding is a property of `env`: `[A-Za-z_$]`, then at most 127 of `[A-Za-z0-9_$]`.
pub(crate) fn is_binding_name(name: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || c == '$';
    let mut chars = name.chars();
    name.len() <= 128 && chars.next().is_some_and(first) && chars.all(|c| first(c) || c.is_ascii_digit())
}

/// A relative path in which every part is an ordinary name: safe to join to a directory or a key prefix.
pub(crate) fn is_plain_relative(path: &str) -> bool {
    !path.is_empty()
        && path.len() <= 1024
        && !path.contains(['\\', '\0'])
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

/// A whole SHA-256 in lower-case hexadecimal.
pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_id_is_a_safe_key() {
        let long = "n".repeat(128);
        for (id, legal) in [
            ("a", true),
            ("node_0.x-Y", true),
            (&*long, true),
            ("", false),
            (".", false),
            ("..", false),
            ("a/b", false),
        ] {
            assert_eq!(id.parse::<NodeId>().is_ok(), legal, "{id:?}");
        }
        assert!("n".repeat(129).parse::<NodeId>().is_err());
        assert!(NodeId::random().as_str().parse::<NodeId>().is_ok());
    }

    #[test]
    fn names_of_scripts_and_bindings_are_narrow() {
        for (name, legal) in [("a", true), ("a-1", true), ("-a", false), ("a-", false), ("A", false), ("", false)] {
            assert_eq!(is_script_name(name), legal, "{name:?}");
        }
        for (name, legal) in [("A", true), ("$x_9", true), ("9a", false), ("a-b", false), ("", false), ("é", false)] {
            assert_eq!(is_binding_name(name), legal, "{name:?}");
        }
    }

    #[test]
    fn relative_paths_stay_inside() {
        for (path, legal) in
            [("a/b.js", true), ("../a", false), ("/a", false), ("a//b", false), ("a/./b", false), ("", false)]
        {
            assert_eq!(is_plain_relative(path), legal, "{path:?}");
        }
    }
}

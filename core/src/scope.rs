//! Which applications an operator key reaches.

use serde::{Deserialize, Serialize};

use crate::id::{ApplicationName, is_label, quoted};
use crate::problem::{Problem, ProblemCode};

/// Everything, or a list of names and prefix globs. Never empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct ApplicationScope(Reach);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Reach {
    All,
    Some(Vec<Entry>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Exactly(ApplicationName),
    /// A prefix of names; the text before the `*`.
    StartingWith(String),
}

impl ApplicationScope {
    /// Every application.
    pub const fn all() -> Self {
        Self(Reach::All)
    }

    /// Whether it is [`ApplicationScope::all`].
    pub const fn is_all(&self) -> bool {
        matches!(self.0, Reach::All)
    }

    /// Whether it reaches `name`.
    pub fn reaches(&self, name: &ApplicationName) -> bool {
        match &self.0 {
            Reach::All => true,
            Reach::Some(entries) => entries.iter().any(|entry| match entry {
                Entry::Exactly(exact) => exact == name,
                Entry::StartingWith(prefix) => name.as_str().starts_with(prefix),
            }),
        }
    }

    /// Whether it reaches every name that starts with `prefix`.
    pub fn reaches_prefix(&self, prefix: &str) -> bool {
        match &self.0 {
            Reach::All => true,
            Reach::Some(entries) => entries.iter().any(|entry| match entry {
                Entry::Exactly(_) => false,
                Entry::StartingWith(own) => prefix.starts_with(own),
            }),
        }
    }

    /// Whether everything that `other` reaches is reached by this one too.
    pub fn covers(&self, other: &Self) -> bool {
        match &other.0 {
            Reach::All => self.is_all(),
            Reach::Some(entries) => entries.iter().all(|entry| match entry {
                Entry::Exactly(name) => self.reaches(name),
                Entry::StartingWith(prefix) => self.reaches_prefix(prefix),
            }),
        }
    }
}

impl TryFrom<Vec<String>> for ApplicationScope {
    type Error = Problem;

    /// # Errors
    /// `invalid-input` for an empty list, a `*` beside other entries, or a `*` anywhere but as one trailing character.
    fn try_from(entries: Vec<String>) -> Result<Self, Problem> {
        let refuse = |detail: String| Err(Problem::new(ProblemCode::InvalidInput, detail));
        if entries.is_empty() {
            return refuse("a scope needs at least one application, or `*` alone".to_owned());
        }
        if entries == ["*"] {
            return Ok(Self::all());
        }
        let mut reach = Vec::with_capacity(entries.len());
        for entry in entries {
            match entry.strip_suffix('*') {
                Some("") => return refuse("`*` stands alone or not at all in a scope".to_owned()),
                Some(prefix) if is_label(&format!("{prefix}x")) => reach.push(Entry::StartingWith(prefix.to_owned())),
                None if is_label(&entry) => reach.push(Entry::Exactly(entry.parse()?)),
                _ => {
                    return refuse(format!(
                        "{} is neither an application name nor a prefix with one trailing `*`",
                        quoted(&entry)
                    ));
                }
            }
        }
        Ok(Self(Reach::Some(reach)))
    }
}

impl From<ApplicationScope> for Vec<String> {
    fn from(scope: ApplicationScope) -> Self {
        match scope.0 {
            Reach::All => vec!["*".to_owned()],
            Reach::Some(entries) => entries
                .into_iter()
                .map(|entry| match entry {
                    Entry::Exactly(name) => name.into(),
                    Entry::StartingWith(prefix) => format!("{prefix}*"),
                })
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(entries: &[&str]) -> Result<ApplicationScope, Problem> {
        ApplicationScope::try_from(entries.iter().map(ToString::to_string).collect::<Vec<_>>())
    }

    #[test]
    fn a_prefix_glob_reaches_what_starts_with_it() {
        let shop = scope(&["shop-*"]).unwrap();
        for (name, reached) in [("shop", false), ("shop-a", true), ("shop2", false)] {
            assert_eq!(shop.reaches(&name.parse().unwrap()), reached, "{name}");
        }
        assert!(shop.reaches_prefix("shop-") && shop.reaches_prefix("shop-a-") && !shop.reaches_prefix("shop"));
    }

    #[test]
    fn a_star_stands_at_the_end_or_alone() {
        for bad in [&["s*op"][..], &["*-x"], &["**"], &["*", "shop"], &[], &[""], &["Shop"]] {
            assert!(scope(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_scope_covers_only_what_it_reaches_itself() {
        let own = scope(&["shop", "team-*"]).unwrap();
        assert!(own.covers(&scope(&["shop", "team-a", "team-b-*"]).unwrap()));
        assert!(!own.covers(&ApplicationScope::all()) && !own.covers(&scope(&["shop-*"]).unwrap()));
        assert!(ApplicationScope::all().covers(&own));
    }
}

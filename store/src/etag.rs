//! The entity tag of an object: compared without its quotes, sent back in the form in which the store gave it.

use std::{
    fmt,
    hash::{Hash, Hasher},
};

/// What a store calls one body of one object (RFC 9110, section 8.8.3).
///
/// Stores differ in the quotes, and some give one form in a listing and another in an answer. Two tags are equal if they
/// are equal without quotes and without a weakness mark; [`ETag::as_given`] is the store's own form.
///
/// In S3 the tag is a hash of the body: equal tags mean equal bytes, not the same write.
#[derive(Debug, Clone)]
pub struct ETag {
    given: String,
}

/// The form in which a store wants to see its tags in `If-Match`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ETagForm {
    /// As the store gave them: what nearly every store takes.
    #[default]
    AsGiven,
    /// In double quotes, however they came.
    Quoted,
    /// Without quotes, however they came.
    Unquoted,
}

impl ETag {
    /// The tag in `given`, or `None` where a store answers with an empty one, which names nothing.
    #[must_use]
    pub fn parse(given: &str) -> Option<Self> {
        let tag = Self { given: given.to_owned() };
        (!tag.opaque().is_empty()).then_some(tag)
    }

    /// The tag in the form in which the store gave it.
    #[must_use]
    pub fn as_given(&self) -> &str {
        &self.given
    }

    /// The tag without quotes and weakness mark: the same for every form.
    #[must_use]
    pub fn opaque(&self) -> &str {
        let strong = self.given.trim();
        let strong = strong.strip_prefix("W/").unwrap_or(strong);
        strong.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(strong)
    }

    /// The text of an `If-Match` header for a store that wants tags in this form.
    #[must_use]
    pub fn render(&self, form: ETagForm) -> String {
        match form {
            ETagForm::AsGiven => self.given.clone(),
            ETagForm::Quoted => format!("\"{}\"", self.opaque()),
            ETagForm::Unquoted => self.opaque().to_owned(),
        }
    }
}

impl PartialEq for ETag {
    fn eq(&self, other: &Self) -> bool {
        self.opaque() == other.opaque()
    }
}

impl Eq for ETag {}

impl Hash for ETag {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.opaque().hash(state);
    }
}

impl fmt::Display for ETag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.given)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_do_not_tell_tags_apart_but_are_kept() {
        let quoted = ETag::parse("\"abc-2\"").unwrap();
        let bare = ETag::parse("abc-2").unwrap();
        assert_eq!(quoted, bare);
        assert_eq!(quoted, ETag::parse("W/\"abc-2\"").unwrap());
        assert_ne!(quoted, ETag::parse("abc").unwrap());
        assert_eq!(quoted.as_given(), "\"abc-2\"");
        assert_eq!(bare.as_given(), "abc-2");
    }

    #[test]
    fn each_form_is_rendered_from_each_form() {
        for given in ["\"t\"", "t"] {
            let tag = ETag::parse(given).unwrap();
            assert_eq!(tag.render(ETagForm::AsGiven), given);
            assert_eq!(tag.render(ETagForm::Quoted), "\"t\"");
            assert_eq!(tag.render(ETagForm::Unquoted), "t");
        }
    }

    #[test]
    fn an_empty_tag_is_none() {
        for given in ["", "\"\"", "W/\"\"", "  "] {
            assert_eq!(ETag::parse(given), None, "{given:?}");
        }
    }
}

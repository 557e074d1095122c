//! Entity tags (RFC 9110, section 8.8.3) in their two forms.

use serde::Deserialize;

/// How a tag is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TagForm {
    /// In double quotes, as HTTP wants it.
    Quoted,
    /// Without.
    Bare,
}

impl TagForm {
    pub(super) fn of(tag: &str) -> Self {
        if tag.starts_with('"') { Self::Quoted } else { Self::Bare }
    }

    pub(super) fn render(self, opaque: &str) -> String {
        match self {
            Self::Quoted => format!("\"{opaque}\""),
            Self::Bare => opaque.to_owned(),
        }
    }
}

/// The tag without quotes.
pub(super) fn opaque(tag: &str) -> &str {
    tag.trim().trim_matches('"')
}

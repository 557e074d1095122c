//! Rendering, pure: a snapshot becomes the generic document, and that becomes what one kind of ingress reads natively.

pub mod generic;
pub mod traefik;

#[cfg(test)]
pub(crate) mod testing;

/// What a document can be rendered as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// The fleet's own document.
    Generic,
    /// Dynamic configuration of Traefik v3, for its http provider.
    Traefik,
}

impl Format {
    /// The native formats, as they are named in the API.
    pub const NATIVE: [Self; 1] = [Self::Traefik];

    /// The name; empty for the generic document.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Generic => "",
            Self::Traefik => "traefik",
        }
    }

    /// The format with this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Generic, Self::Traefik].into_iter().find(|format| format.as_str() == name)
    }
}

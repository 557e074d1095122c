//! Text that is cut to a bound in bytes, never within a character.

/// The beginning of `text`, at most `bytes` long.
#[must_use]
pub fn head(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// The end of `text`, at most `bytes` long.
#[must_use]
pub fn tail(text: &str, bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(bytes))..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_a_character_from_either_end() {
        for (text, bytes, first, last) in [
            ("", 3, "", ""),
            ("abc", 3, "abc", "abc"),
            ("abcd", 3, "abc", "bcd"),
            ("üü", 3, "ü", "ü"),
            ("xüü", 4, "xü", "üü"),
            ("ü", 1, "", ""),
            ("abc", 0, "", ""),
        ] {
            assert_eq!((head(text, bytes), tail(text, bytes)), (first, last), "{text} {bytes}");
        }
    }
}

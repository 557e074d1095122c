//! Lower-case hexadecimal, as ids and digests are spelled everywhere in scafo.

/// Whether `text` is exactly `length` lower-case hexadecimal digits.
pub fn is_lower_hex(text: &str, length: usize) -> bool {
    text.len() == length && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

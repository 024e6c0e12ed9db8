//! Bounds on text that a guest wrote, before it reaches a log, an answer or a person.

/// At most `max_bytes` of `text`, cut where a character ends, control characters replaced.
pub(crate) fn clip(text: &str, max_bytes: usize) -> String {
    let cut = text.floor_char_boundary(max_bytes);
    let mut clipped: String = text[..cut]
        .chars()
        .map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c })
        .collect();
    if cut < text.len() {
        clipped.push('…');
    }
    clipped
}

#[cfg(test)]
mod tests {
    use super::clip;

    #[test]
    fn cuts_between_characters_and_hides_control_codes() {
        for (text, max, want) in [
            ("short", 16, "short"),
            ("naïve", 3, "na…"),
            ("naïve", 4, "naï…"),
            ("a\u{1b}[31mb", 16, "a\u{fffd}[31mb"),
            ("", 0, ""),
        ] {
            assert_eq!(clip(text, max), want, "{text:?} cut at {max}");
        }
    }
}

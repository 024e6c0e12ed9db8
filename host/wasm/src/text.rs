//! Bounds on text that a guest wrote, before it reaches a log, a response or a person.

/// At most `max_bytes` of `text`, cut between characters, as one line: a line break by a guest could fake a
/// line of the host's, and control characters and bidirectional marks change what a terminal shows of the
/// rest.
pub(crate) fn clip(text: &str, max_bytes: usize) -> String {
    let cut = text.floor_char_boundary(max_bytes);
    let mut clipped: String = text[..cut]
        .chars()
        .map(|c| match c {
            '\n' | '\t' | '\u{2028}' | '\u{2029}' => ' ',
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
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
    fn text_is_cut_between_characters_to_one_line_without_control_codes() {
        for (text, max, want) in [
            ("short", 16, "short"),
            ("naïve", 3, "na…"),
            ("naïve", 4, "naï…"),
            ("a\u{1b}[31mb", 16, "a\u{fffd}[31mb"),
            ("said\n2026-01-01 INFO host: forged\r\n", 64, "said 2026-01-01 INFO host: forged\u{fffd} "),
            ("a\tb\u{2028}c\u{202e}d", 64, "a b c\u{fffd}d"),
            ("", 0, ""),
        ] {
            assert_eq!(clip(text, max), want, "{text:?} cut at {max}");
        }
    }
}

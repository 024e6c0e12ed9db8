//! Makes text from clients, policies and hosts safe to print on a terminal, digests short, and counts readable.

/// Replaces control characters by spaces and drops characters without a width of their own, so that the text
/// can't send escape sequences, reorder its neighbours or hide parts of itself.
#[must_use]
pub fn clean(text: &str) -> String {
    text.chars().filter(|&c| !is_invisible(c)).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Whether a character has no width of its own: soft hyphens, zero-width spaces and joiners, direction
/// overrides and isolates, variation selectors, byte order marks, tags.
#[must_use]
pub fn is_invisible(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// Escapes characters of a JSON text that control a terminal or change the writing direction. They occur only
/// within strings, so the value stays the same.
#[must_use]
pub(crate) fn escaped_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if matches!(c, '\u{7f}'..='\u{9f}') || (is_invisible(c) && c <= '\u{ffff}') {
            text.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            text.push(c);
        }
    }
    text
}

/// A policy's name, with the beginning of its configuration's digest if it is configured: that tells two
/// configurations of one policy apart.
#[must_use]
pub fn configured(name: &str, config_sha256: &str) -> String {
    if config_sha256.is_empty() {
        return name.to_owned();
    }
    format!("{name} (config {})", beginning(config_sha256))
}

/// The beginning of a digest; of a list of policies, of each one's.
#[must_use]
pub fn beginning(sha256: &str) -> String {
    let parts: Vec<&str> = sha256.split('+').map(|digest| digest.get(..10).unwrap_or(digest)).collect();
    parts.join("+")
}

/// `12,345`.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn json_for_a_terminal_keeps_its_value_and_has_no_control_characters() {
        let value = serde_json::json!({"user": "a\u{9b}31m\u{7f}\u{202e}é会\u{1b}"});
        let text = escaped_json(&value.to_string());
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        assert!(!text.chars().any(|c| c.is_control() || is_invisible(c)), "{text}");
        assert!(text.contains("é会") && text.contains("\\u009b31m"), "{text}");
    }
}

//! Makes text from clients, policies and hosts safe to print on a terminal, and digests short.

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

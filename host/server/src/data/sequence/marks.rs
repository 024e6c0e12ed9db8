//! The special tokens that divide an output into messages with heads, as gpt-oss writes it: in the text they are
//! characters that no other token can write, so nothing that a model or a user spells out is taken for them.

/// Begins a message's head.
pub const START: char = '\u{fdd0}';
/// Precedes the name of a channel in a head.
pub const CHANNEL: char = '\u{fdd1}';
/// Precedes the type of the content in a head.
pub const CONSTRAIN: char = '\u{fdd2}';
/// Ends a head.
pub const MESSAGE: char = '\u{fdd3}';
/// Ends a message, after which others follow.
pub const END: char = '\u{fdd4}';
/// Ends the last message.
pub const RETURN: char = '\u{fdd5}';
/// Ends a message that calls a function.
pub const CALL: char = '\u{fdd6}';

/// The tokens, each with its character.
pub const NAMES: [(&str, char); 7] = [
    ("<|start|>", START),
    ("<|channel|>", CHANNEL),
    ("<|constrain|>", CONSTRAIN),
    ("<|message|>", MESSAGE),
    ("<|end|>", END),
    ("<|return|>", RETURN),
    ("<|call|>", CALL),
];

/// The token of a character.
pub fn name(mark: char) -> &'static str {
    NAMES.iter().find(|(_, other)| *other == mark).map_or("", |(name, _)| name)
}

/// Whether a character stands for a token.
pub fn is_mark(letter: char) -> bool {
    (START..=CALL).contains(&letter)
}

/// Text with the names of these tokens replaced by their characters.
pub fn marked(text: &str) -> String {
    NAMES.iter().fold(text.to_owned(), |text, (name, mark)| text.replace(*name, &mark.to_string()))
}

/// Pieces of a text, each with the mark that follows it.
pub fn pieces(text: &str) -> impl Iterator<Item = (&str, Option<char>)> {
    text.split_inclusive(is_mark).map(|piece| match piece.chars().next_back().filter(|&last| is_mark(last)) {
        Some(mark) => (&piece[..piece.len() - mark.len_utf8()], Some(mark)),
        None => (piece, None),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_divided_at_its_marks() {
        let text = marked("<|channel|>final<|message|>a < |message|><|message|><|return|>b");
        let found: Vec<_> = pieces(&text).collect();
        let expected = [
            ("", Some(CHANNEL)),
            ("final", Some(MESSAGE)),
            ("a < |message|>", Some(MESSAGE)),
            ("", Some(RETURN)),
            ("b", None),
        ];
        assert_eq!(found, expected);
        assert_eq!(pieces("").count(), 0);
        assert_eq!((name(START), name(CALL), name('a')), ("<|start|>", "<|call|>", ""));
    }
}

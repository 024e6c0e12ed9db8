//! Splits PTX text into tokens. `::` belongs to a word (`L2::128B`), a single `:` doesn't.

use crate::Error;

/// A piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// A name, opcode, directive, register or number, with its sign.
    Word(&'a str),
    /// Anything else, one character.
    Mark(char),
    /// Without its quotes.
    Text(&'a str),
}

/// A token and its line, from 1.
pub(crate) type Placed<'a> = (Token<'a>, u32);

pub(crate) fn tokens(text: &str) -> Result<Vec<Placed<'_>>, Error> {
    let bytes = text.as_bytes();
    let (mut at, mut line) = (0, 1);
    let mut tokens = Vec::with_capacity(text.len() / 6);
    while at < bytes.len() {
        let start = at;
        match bytes[at] {
            b'\n' => {
                line += 1;
                at += 1;
            }
            b' ' | b'\t' | b'\r' => at += 1,
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                while at < bytes.len() && bytes[at] != b'\n' {
                    at += 1;
                }
            }
            b'"' => {
                let end = text[at + 1..].find('"').map(|length| at + 1 + length);
                let end = end.ok_or_else(|| Error::new(format!("line {line}: a text has no end")))?;
                tokens.push((Token::Text(&text[at + 1..end]), line));
                at = end + 1;
            }
            byte if in_word(byte) || byte == b'-' => {
                at += 1;
                while at < bytes.len() {
                    match bytes[at] {
                        byte if in_word(byte) => at += 1,
                        b':' if bytes.get(at + 1) == Some(&b':') => at += 2,
                        _ => break,
                    }
                }
                tokens.push((Token::Word(&text[start..at]), line));
            }
            byte if byte.is_ascii_punctuation() => {
                tokens.push((Token::Mark(char::from(byte)), line));
                at += 1;
            }
            byte => return Err(Error::new(format!("line {line}: unexpected byte {byte:#x}"))),
        }
    }
    Ok(tokens)
}

fn in_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'$' | b'%')
}

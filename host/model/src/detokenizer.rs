//! Incremental decoding: text from a stream of tokens, exactly what decoding them all at once would give, as early as it is
//! certain and never half a character.
//!
//! The decoder in `tokenizer.json` selects one of two schemes:
//!
//! * Byte-level vocabularies (GPT-2, Llama 3, Qwen): each token is a fixed run of bytes, so the only state is an unfinished
//!   UTF-8 sequence of at most three bytes.
//! * All others (SentencePiece and its byte fallback, word pieces): a token's text depends on its neighbours, so a short
//!   window is decoded with and without the new tokens, and the difference is the text. These decoders validate a run of byte
//!   tokens as a whole: one invalid byte spoils all its characters. So a run waits for its end, for at most `LONGEST_RUN`
//!   tokens.
//!
//! Decoders of the second kind drop a space at the start of a text. A continuation of a prompt must keep it, so its first
//! token is decoded after another token.
//!
//! A push costs a bounded amount of work, whatever came before.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::ModelError;
use crate::tokenizer::{Inner, decoded, vocabulary};

/// A run of byte tokens this long emits its complete characters without waiting for its end. Only then can the text differ
/// from decoding everything at once: a later invalid byte in the same run would have spoilt them.
pub const LONGEST_RUN: usize = 32;

/// A window of this many tokens is emitted even if its last character seems unfinished.
const LONGEST_WINDOW: usize = 64;

/// Incremental decoder of one stream. Special tokens have no text, except those that it spells or marks.
pub struct Detokenizer {
    inner: Arc<Inner>,
    state: State,
    /// Special tokens whose names are text.
    spelled: Vec<u32>,
    /// Special tokens that are written as a character of their own, and characters that nothing may write.
    marks: Vec<(Option<u32>, char)>,
}

enum State {
    Bytes { unfinished: Vec<u8> },
    Window(Window),
}

/// How a vocabulary's tokens become text.
pub(crate) enum Scheme {
    Bytes(BytePieces),
    Window(Neighbours),
}

/// What context-dependent decoding needs to know.
#[derive(Clone, Copy)]
pub(crate) struct Neighbours {
    /// There are byte tokens, and runs of them are validated as a whole.
    pub(crate) byte_fallback: bool,
    /// A token with text. Tokens decoded after it are not at the start of a text.
    plain: Option<u32>,
}

impl Detokenizer {
    /// Decodes a new text, or the continuation of one that has `begun`.
    pub(crate) fn new(inner: Arc<Inner>, begun: bool) -> Self {
        let state = match &inner.scheme {
            Scheme::Bytes(_) => State::Bytes { unfinished: Vec::new() },
            Scheme::Window(neighbours) => {
                let mut window = Window::default();
                if begun {
                    window.begin(*neighbours);
                }
                State::Window(window)
            }
        };
        Self { inner, state, spelled: Vec::new(), marks: Vec::new() }
    }

    /// Takes the names of these special tokens for text, as readers who look for them need it. Other names change nothing.
    #[must_use]
    pub fn spelling(mut self, names: &[&str]) -> Self {
        let library = &self.inner.library;
        let special = names.iter().filter(|name| library.get_added_vocabulary().is_special_token(name));
        self.spelled = special.filter_map(|name| library.token_to_id(name)).collect();
        self
    }

    /// Writes each of these special tokens as a character that no other token can write: where text has it, it becomes U+FFFD.
    /// So readers tell the tokens from text that spells their names. Nothing writes the character of a name that is no special
    /// token.
    #[must_use]
    pub fn marking(mut self, marks: &[(&str, char)]) -> Self {
        let library = &self.inner.library;
        let special = |name: &str| library.get_added_vocabulary().is_special_token(name);
        let id = |name: &str| library.token_to_id(name).filter(|_| special(name));
        self.marks = marks.iter().map(|(name, mark)| (id(name), *mark)).collect();
        self
    }

    /// Whether the token is written as a character of its own.
    #[must_use]
    pub fn marks(&self, token: u32) -> bool {
        self.mark(token).is_some()
    }

    fn mark(&self, token: u32) -> Option<char> {
        self.marks.iter().find(|(id, _)| *id == Some(token)).map(|(_, mark)| *mark)
    }

    /// Returns the text that `token` completes: empty while a character is unfinished.
    pub fn push(&mut self, token: u32) -> String {
        if let Some(mark) = self.mark(token) {
            let mut text = self.finish();
            if let (State::Window(window), Scheme::Window(neighbours)) = (&mut self.state, &self.inner.scheme)
            {
                *window = Window { failed: window.failed, ..Window::default() };
                window.begin(*neighbours);
            }
            text.push(mark);
            return text;
        }
        let is_spelled = self.spelled.contains(&token);
        let text = match (&mut self.state, &self.inner.scheme) {
            (State::Bytes { unfinished }, Scheme::Bytes(pieces)) => {
                if is_spelled {
                    unfinished.extend(self.inner.library.id_to_token(token).unwrap_or_default().bytes());
                } else {
                    unfinished.extend_from_slice(pieces.of(token));
                }
                complete_text(unfinished)
            }
            (State::Window(window), Scheme::Window(neighbours)) => {
                window.push(&self.inner.library, *neighbours, token, is_spelled)
            }
            _ => unreachable!("the state was made for this scheme"),
        };
        self.unmarked(text)
    }

    /// Returns the text still held back when no more tokens follow.
    pub fn finish(&mut self) -> String {
        let text = match &mut self.state {
            State::Bytes { unfinished } => {
                let text = String::from_utf8_lossy(unfinished).into_owned();
                unfinished.clear();
                text
            }
            State::Window(window) => window.take(&self.inner.library, true),
        };
        self.unmarked(text)
    }

    /// Whether the decoder failed on a token, whose text is therefore missing.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        matches!(&self.state, State::Window(Window { failed: true, .. }))
    }

    /// Text without the characters that stand for tokens.
    fn unmarked(&self, text: String) -> String {
        let is_mark = |letter: char| self.marks.iter().any(|(_, mark)| *mark == letter);
        match !self.marks.is_empty() && text.contains(is_mark) {
            true => text.replace(is_mark, "\u{fffd}"),
            false => text,
        }
    }
}

/// Removes all text but an unfinished character from the front of `bytes`. Invalid bytes become U+FFFD, as in
/// `String::from_utf8_lossy`.
fn complete_text(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut rest = bytes.as_slice();
    while let Some(chunk) = rest.utf8_chunks().next() {
        text.push_str(chunk.valid());
        let after = &rest[chunk.valid().len()..];
        let unfinished = std::str::from_utf8(after)
            .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none());
        if unfinished {
            rest = after;
            break;
        }
        if !chunk.invalid().is_empty() {
            text.push(char::REPLACEMENT_CHARACTER);
        }
        rest = &after[chunk.invalid().len()..];
    }
    let used = bytes.len() - rest.len();
    bytes.drain(..used);
    text
}

/// The bytes of every token of a byte-level vocabulary, concatenated.
pub(crate) struct BytePieces {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

/// Largest accepted number of ids: the table has an entry for every id up to the largest.
const MAX_IDS: u32 = 1 << 20;

impl BytePieces {
    fn new(library: &tokenizers::Tokenizer) -> Result<Self, ModelError> {
        let mut tokens: Vec<_> = vocabulary(library).into_iter().map(|(token, id)| (id, token)).collect();
        tokens.sort_unstable();
        if let Some((id, token)) = tokens.last().filter(|(id, _)| *id >= MAX_IDS) {
            return Err(ModelError::tokenizer(format!(
                "tokenizer.json: token {token:?} has id {id}; ids must be below {MAX_IDS}"
            )));
        }
        let special = library.get_added_vocabulary();
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for (id, token) in tokens {
            // Ids without a token have no text.
            ends.resize(id as usize, bytes.len());
            if !special.is_special_token(&token) {
                match token.chars().map(byte_of).collect::<Option<Vec<u8>>>() {
                    Some(piece) => bytes.extend(piece),
                    None => bytes.extend(token.as_bytes()),
                }
            }
            ends.push(bytes.len());
        }
        Ok(Self { bytes, ends })
    }

    pub(crate) fn of(&self, token: u32) -> &[u8] {
        let token = token as usize;
        let Some(&end) = self.ends.get(token) else { return &[] };
        let start = if token == 0 { 0 } else { self.ends[token - 1] };
        &self.bytes[start..end]
    }
}

/// The byte that a byte-level vocabulary writes as `letter` (GPT-2's table: printable Latin-1 maps to itself, the others to
/// U+0100 and up, in order).
fn byte_of(letter: char) -> Option<u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let code = u32::from(letter);
    if let Ok(byte) = u8::try_from(code) {
        return printable(byte).then_some(byte);
    }
    let index = usize::try_from(code.checked_sub(0x100)?).ok()?;
    (0..=u8::MAX).filter(|&byte| !printable(byte)).nth(index)
}

impl Scheme {
    pub(crate) fn of(library: &tokenizers::Tokenizer) -> Result<Self, ModelError> {
        let decoder = serde_json::to_value(library.get_decoder())
            .map_err(|error| ModelError::tokenizer(format!("the decoder in tokenizer.json: {error}")))?;
        let parts = match decoder.get("decoders").and_then(serde_json::Value::as_array) {
            Some(parts) => parts.iter().collect(),
            None => vec![&decoder],
        };
        let is = |part: &serde_json::Value, kind: &str| part.get("type").is_some_and(|found| found == kind);
        if parts.len() == 1 && is(parts[0], "ByteLevel") {
            return Ok(Self::Bytes(BytePieces::new(library)?));
        }
        let byte_fallback = parts.iter().any(|part| is(part, "ByteFallback"));
        // The library panics on some decoders; better here than while serving.
        let plain = catch_unwind(AssertUnwindSafe(|| plain(library)))
            .map_err(|_| ModelError::tokenizer("tokenizer.json: its decoder fails on a token"))?;
        Ok(Self::Window(Neighbours { byte_fallback, plain }))
    }
}

/// The first token with text: not a special one, and not a byte, which may be part of a character.
fn plain(library: &tokenizers::Tokenizer) -> Option<u32> {
    let count = u32::try_from(library.get_vocab_size(true)).unwrap_or(u32::MAX);
    (0..count.min(MAX_IDS)).find(|id| {
        let byte = library.id_to_token(*id).is_some_and(|written| fallback_byte(&written).is_some());
        let text = library.decode(&[*id], true).unwrap_or_default();
        !byte && !text.is_empty() && !text.contains(char::REPLACEMENT_CHARACTER)
    })
}

/// Tokens whose text is not sent yet, after some whose text is. A decoder treats the start of a text differently, so new
/// tokens are never decoded without one before them.
#[derive(Default)]
struct Window {
    tokens: Vec<u32>,
    /// Number of tokens at the front whose text was sent.
    sent: usize,
    /// Bytes of the run of byte tokens at the end.
    run: Vec<u8>,
    /// The decoder failed on some of the tokens so far.
    failed: bool,
}

impl Window {
    /// Makes the following tokens decode as the continuation of a text.
    fn begin(&mut self, neighbours: Neighbours) {
        self.tokens.extend(neighbours.plain);
        self.sent = self.tokens.len();
    }

    fn push(
        &mut self,
        library: &tokenizers::Tokenizer,
        neighbours: Neighbours,
        token: u32,
        is_spelled: bool,
    ) -> String {
        let byte_fallback = neighbours.byte_fallback;
        let Some(written) = library.id_to_token(token) else { return String::new() };
        if !is_spelled && library.get_added_vocabulary().is_special_token(&written) {
            return String::new();
        }
        self.tokens.push(token);
        match fallback_byte(&written).filter(|_| byte_fallback) {
            Some(byte) => {
                self.run.push(byte);
                if self.run.len() < LONGEST_RUN {
                    String::new()
                } else {
                    self.shorten_run(library, neighbours)
                }
            }
            None => {
                self.run.clear();
                self.take(library, byte_fallback)
            }
        }
    }

    /// Returns the text not sent yet; empty if it is not certain yet and `now` is false.
    fn take(&mut self, library: &tokenizers::Tokenizer, now: bool) -> String {
        // Special tokens are here only if they are spelled.
        let decode = |tokens: &[u32]| decoded(library, tokens, false);
        let (Ok(before), Ok(after)) = (decode(&self.tokens[..self.sent]), decode(&self.tokens)) else {
            *self = Self { failed: true, ..Self::default() };
            return String::new();
        };
        let now = now || self.tokens.len() >= LONGEST_WINDOW;
        let settled = after.starts_with(&before) && !after.ends_with(char::REPLACEMENT_CHARACTER);
        if !settled && !now {
            return String::new();
        }
        let common = before.chars().zip(after.chars()).take_while(|(a, b)| a == b);
        let common: usize = common.map(|(letter, _)| letter.len_utf8()).sum();
        self.tokens.drain(..self.sent);
        self.sent = self.tokens.len();
        after[common..].to_owned()
    }

    /// Emits the complete characters of a run that has grown long.
    fn shorten_run(&mut self, library: &tokenizers::Tokenizer, neighbours: Neighbours) -> String {
        let start = self.tokens.len() - self.run.len();
        let unfinished = self.tokens.split_off(start);
        let before = if start > self.sent { self.take(library, true) } else { String::new() };
        let text = complete_text(&mut self.run);
        if self.tokens.is_empty() {
            self.begin(neighbours);
        }
        self.tokens.extend(&unfinished[unfinished.len() - self.run.len()..]);
        before + &text
    }
}

/// The byte that a token such as `<0x0A>` stands for.
pub(crate) fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_text_holds_back_only_an_unfinished_character() {
        for (bytes, text, held) in [
            (&b"abc"[..], "abc", 0),
            (b"a\xe6\x9d", "a", 2),
            (b"\xe6\x9d\xb1b", "\u{6771}b", 0),
            (b"\xe6\x9db", "\u{fffd}b", 0),
            (b"\xff\xffa\xf0\x9f\x99", "\u{fffd}\u{fffd}a", 3),
            (b"\xf0\x9f\xf0", "\u{fffd}", 1),
        ] {
            let mut rest = bytes.to_vec();
            assert_eq!(complete_text(&mut rest), text, "{bytes:?}");
            assert_eq!(rest.len(), held, "{bytes:?}");
        }
    }

    #[test]
    fn every_byte_has_a_distinct_letter() {
        let letters = (0..0x200).filter_map(char::from_u32);
        let mut bytes: Vec<u8> = letters.filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
    }
}

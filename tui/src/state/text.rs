//! A line of text being typed, and the filters that such lines become.

use crate::input::Key;

/// Most characters in a line.
const MAX: usize = 4_096;

/// A line with a cursor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LineEdit {
    text: Vec<char>,
    cursor: usize,
}

impl LineEdit {
    /// Creates a line with the cursor at its end.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let text: Vec<char> = text.chars().take(MAX).collect();
        Self { cursor: text.len(), text }
    }

    /// Returns the text.
    #[must_use]
    pub fn text(&self) -> String {
        self.text.iter().collect()
    }

    /// Returns the number of characters before the cursor.
    #[must_use]
    pub fn cursor(&self) -> usize {
        self.cursor
    }

    /// Whether the line is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Inserts text at the cursor, as far as there is room.
    pub fn insert(&mut self, text: &str) {
        let room = MAX - self.text.len();
        let new: Vec<char> = text.chars().filter(|c| !c.is_control()).take(room).collect();
        let end = self.cursor + new.len();
        self.text.splice(self.cursor..self.cursor, new);
        self.cursor = end;
    }

    /// Takes a key; returns false if the key doesn't edit.
    pub fn on_key(&mut self, key: Key) -> bool {
        match key {
            Key::Char(c) if !c.is_control() && self.text.len() < MAX => {
                self.text.insert(self.cursor, c);
                self.cursor += 1;
            }
            Key::Backspace if self.cursor > 0 => {
                self.cursor -= 1;
                self.text.remove(self.cursor);
            }
            Key::Delete if self.cursor < self.text.len() => {
                self.text.remove(self.cursor);
            }
            Key::Wipe => {
                self.text.drain(..self.cursor);
                self.cursor = 0;
            }
            Key::Left => self.cursor = self.cursor.saturating_sub(1),
            Key::Right => self.cursor = (self.cursor + 1).min(self.text.len()),
            Key::Home => self.cursor = 0,
            Key::End => self.cursor = self.text.len(),
            Key::Char(_) | Key::Backspace | Key::Delete => {}
            _ => return false,
        }
        true
    }
}

/// Words that must all match. A word `field:text` is searched in one field, any other word in all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    text: String,
    words: Vec<(Option<String>, String)>,
}

impl Filter {
    /// Parses what was typed.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let text = text.trim().to_owned();
        let word = |word: &str| {
            let word = word.to_lowercase();
            match word.split_once(':') {
                Some((field, text)) if !field.is_empty() && !text.is_empty() => {
                    (Some(field.to_owned()), text.to_owned())
                }
                _ => (None, word),
            }
        };
        Self { words: text.split_whitespace().map(word).collect(), text }
    }

    /// Returns the filter as typed.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it matches everything.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The first field name in the filter that isn't `known`.
    #[must_use]
    pub fn unknown_field(&self, known: impl Fn(&str) -> bool) -> Option<&str> {
        self.words.iter().filter_map(|(name, _)| name.as_deref()).find(|name| !known(name))
    }

    /// Whether all words are found in the given fields (name and text). An unknown field name matches
    /// nothing.
    pub fn matches<'a>(&self, fields: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> bool {
        self.words.iter().all(|(name, word)| {
            fields.clone().any(|(field, text)| {
                name.as_ref().is_none_or(|name| field.starts_with(name.as_str())) && contains(text, word)
            })
        })
    }
}

/// Whether `text` contains `lower`, ignoring case; `lower` must be lower-case.
fn contains(text: &str, lower: &str) -> bool {
    if text.is_ascii() && lower.is_ascii() {
        let (text, lower) = (text.as_bytes(), lower.as_bytes());
        return lower.is_empty() || text.windows(lower.len()).any(|part| part.eq_ignore_ascii_case(lower));
    }
    text.to_lowercase().contains(lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_edited_at_the_cursor() {
        let mut line = LineEdit::new("ac");
        for key in [Key::Left, Key::Char('b'), Key::End, Key::Char('d'), Key::Home, Key::Delete] {
            assert!(line.on_key(key));
        }
        assert_eq!(line.text(), "bcd");
        line.on_key(Key::End);
        line.on_key(Key::Backspace);
        assert_eq!((line.text().as_str(), line.cursor()), ("bc", 2));
        line.on_key(Key::Wipe);
        assert!(line.is_empty());
        assert!(!line.on_key(Key::Enter));
    }

    #[test]
    fn inserted_text_ends_at_the_cursor_and_is_bounded() {
        let mut line = LineEdit::new("ad");
        line.on_key(Key::Left);
        line.insert("b\u{1b}c\t");
        assert_eq!((line.text().as_str(), line.cursor()), ("abcd", 3));
        line.insert(&"x".repeat(2 * MAX));
        assert_eq!((line.text().len(), line.cursor()), (MAX, MAX - 1));
    }

    #[test]
    fn every_word_must_match_and_may_name_a_field() {
        let fields = [("state", "waiting"), ("user", "Ada"), ("id", "1187")];
        let finds = |text: &str| Filter::new(text).matches(fields.iter().copied());
        for text in ["", "ada", "WAIT 118", "state:wait", "us:ada id:11"] {
            assert!(finds(text), "{text}");
        }
        for text in ["bob", "ada decode", "user:waiting", "weather:fine"] {
            assert!(!finds(text), "{text}");
        }
    }
}

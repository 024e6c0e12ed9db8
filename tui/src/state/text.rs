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

/// Words that must all match. A word `field:text` is searched in one field, any other word in all of them;
/// `field=text` is the whole text of a field, upper and lower case included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    text: String,
    words: Vec<Word>,
}

/// A word of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    /// The beginning of a field's name, in lower case; any field without it.
    field: Option<String>,
    /// What is searched, in lower case unless it is the field's whole text.
    text: String,
    whole: bool,
}

impl Word {
    /// Parses a word. The first `:` or `=` counts, so that the text may contain either.
    fn new(word: &str) -> Self {
        let at = word.find([':', '=']).filter(|&at| at > 0 && at + 1 < word.len());
        let Some(at) = at else { return Self { field: None, text: word.to_lowercase(), whole: false } };
        let (field, text) = (Some(word[..at].to_lowercase()), &word[at + 1..]);
        match word.as_bytes()[at] {
            b'=' => Self { field, text: text.to_owned(), whole: true },
            _ => Self { field, text: text.to_lowercase(), whole: false },
        }
    }

    fn is_in(&self, field: &str, text: &str) -> bool {
        let named = self.field.as_ref().is_none_or(|name| field.starts_with(name.as_str()));
        named && if self.whole { text == self.text } else { contains(text, &self.text) }
    }
}

impl Filter {
    /// Parses what was typed.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let text = text.trim().to_owned();
        Self { words: text.split_whitespace().map(Word::new).collect(), text }
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
        self.words.iter().filter_map(|word| word.field.as_deref()).find(|name| !known(name))
    }

    /// Whether all words are found in the given fields (name and text). An unknown field name matches
    /// nothing.
    pub fn matches<'a>(&self, fields: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> bool {
        self.words.iter().all(|word| fields.clone().any(|(field, text)| word.is_in(field, text)))
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

    #[test]
    fn an_equals_sign_asks_for_the_whole_text_of_a_field() {
        let fields = [("tenant", "7"), ("tenant_name", "Ab"), ("session", "k=v:w")];
        let finds = |text: &str| Filter::new(text).matches(fields.iter().copied());
        for text in
            ["tenant=Ab", "tenant_name=Ab", "TEN=7 tenant:b", "session=k=v:w", "session:k=V", "=v:", "Ab"]
        {
            assert!(finds(text), "{text}");
        }
        for text in ["tenant=A", "tenant=ab", "tenant_name=7", "tenant=Ab7", "session=k=v", "weather=Ab"] {
            assert!(!finds(text), "{text}");
        }
        assert_eq!(Filter::new("Weather=Fine").unknown_field(|_| false), Some("weather"));
    }

    #[test]
    fn a_field_without_text_is_searched_as_it_is_typed() {
        let fields = [("user", "a="), ("id", "b:")];
        for (text, found) in [("a=", true), ("b:", true), ("=b", false), (":", true), ("user=", false)] {
            assert_eq!(Filter::new(text).matches(fields.iter().copied()), found, "{text}");
        }
    }
}

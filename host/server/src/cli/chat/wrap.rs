//! Breaks the lines of an answer between words, where a terminal would break them within one.
//!
//! The current word is held back, because nobody knows yet whether it fits. Blocks of code are shown as they come,
//! since a line break means something in them. Only what is shown has the breaks, not the answer.

use unicode_width::UnicodeWidthChar as _;

/// Columns from one tab stop to the next.
const TAB: usize = 8;
/// What opens a block of code, at the beginning of a line.
const FENCES: [&str; 2] = ["```", "~~~"];
/// Bytes of a line that tell whether it ends a block.
const HEAD_BYTES: usize = 200;

/// The line that is being shown, and what is held back.
#[derive(Debug, Default)]
pub struct Wrap {
    /// Columns that are taken.
    column: usize,
    /// Whether they have more than blanks.
    has_words: bool,
    /// Held back, before the word.
    blanks: String,
    /// Held back.
    word: String,
    /// The word's columns.
    width: usize,
    /// The word is longer than a line, and shown as it comes.
    is_endless: bool,
    code: Option<Code>,
}

/// A block of code.
#[derive(Debug)]
struct Code {
    /// The character that opened it.
    mark: char,
    /// How many of them did; 0 as long as that line goes on.
    marks: usize,
    /// The beginning of the current line.
    line: String,
}

impl Wrap {
    /// Takes text, and returns what to show of it and of what was held back, on a terminal that is so wide.
    pub fn push(&mut self, text: &str, columns: usize) -> String {
        let mut shown = String::new();
        for c in text.chars() {
            match c {
                _ if self.code.is_some() => {
                    shown.push(c);
                    self.take_code(c);
                }
                '\n' => {
                    self.end_word(columns, &mut shown);
                    self.begin_line();
                    shown.push(c);
                }
                ' ' | '\t' => {
                    self.end_word(columns, &mut shown);
                    self.is_endless = false;
                    self.blanks.push(c);
                }
                _ => self.take_letter(c, columns, &mut shown),
            }
        }
        shown
    }

    /// Ends the text, and returns what was held back.
    pub fn finish(&mut self, columns: usize) -> String {
        let mut shown = String::new();
        self.end_word(columns, &mut shown);
        *self = Self::default();
        shown
    }

    fn take_letter(&mut self, c: char, columns: usize, shown: &mut String) {
        let width = c.width().unwrap_or(0);
        // An accent belongs to the letter before it, which may be shown already.
        let is_accent = width == 0 && self.word.is_empty() && self.blanks.is_empty();
        if self.is_endless || is_accent {
            shown.push(c);
            self.advance(width, columns);
            return;
        }
        // Scripts with wide letters have no blanks.
        let is_wide = width > 1;
        if is_wide {
            self.end_word(columns, shown);
        }
        self.word.push(c);
        self.width += width;
        if is_wide {
            self.end_word(columns, shown);
        } else if !self.has_words && FENCES.contains(&self.word.as_str()) {
            shown.push_str(&self.blanks);
            shown.push_str(&self.word);
            self.code = Some(Code { mark: c, marks: 0, line: std::mem::take(&mut self.word) });
        } else if self.width > columns {
            self.end_word(columns, shown);
            self.is_endless = true;
        }
    }

    fn take_code(&mut self, c: char) {
        let Some(code) = &mut self.code else { return };
        if c == '\n' {
            if code.ends() {
                self.code = None;
            }
            self.begin_line();
        } else if code.line.len() < HEAD_BYTES {
            code.line.push(c);
        }
    }

    fn begin_line(&mut self) {
        *self = Self { code: self.code.take(), ..Self::default() };
    }

    /// Shows the word: behind its blanks, or in a new line instead of them.
    fn end_word(&mut self, columns: usize, shown: &mut String) {
        if self.word.is_empty() {
            return;
        }
        let begin = self.blanks.chars().fold(self.column, |column, blank| match blank {
            '\t' => (column / TAB + 1) * TAB,
            _ => column + 1,
        });
        if self.has_words && begin + self.width > columns {
            shown.push('\n');
            self.column = 0;
        } else {
            shown.push_str(&self.blanks);
            self.column = begin;
        }
        shown.push_str(&self.word);
        self.advance(self.width, columns);
        self.has_words = true;
        self.blanks.clear();
        self.word.clear();
        self.width = 0;
    }

    /// Moves on as the terminal does, which breaks what is too long.
    fn advance(&mut self, width: usize, columns: usize) {
        let column = self.column + width;
        self.column = if column > columns { (column - 1) % columns + 1 } else { column };
    }
}

impl Code {
    /// Whether the block is over with the line that ends here.
    fn ends(&mut self) -> bool {
        let line = self.line.trim();
        let rest = line.trim_start_matches(self.mark);
        let marks = line.len() - rest.len();
        let ends = if self.marks == 0 {
            self.marks = marks;
            // A line with more backticks has code within it, and opens no block.
            self.mark == '`' && rest.contains('`')
        } else {
            marks >= self.marks && rest.is_empty()
        };
        self.line.clear();
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: usize = 10;

    #[test]
    fn lines_are_broken_between_words_and_nowhere_in_code() {
        let wide = "cargo build --release --all-features";
        for (text, shown) in [
            ("The quick brown fox", "The quick\nbrown fox"),
            ("12345 7890 12345", "12345 7890\n12345"),
            ("a  b\n\n  c", "a  b\n\n  c"),
            ("12345678   ab  \ncd", "12345678\nab\ncd"),
            ("  - item one two", "  - item\none two"),
            ("a\tb c", "a\tb\nc"),
            ("see http://example.org/x y", "see\nhttp://example.org/x\ny"),
            ("http://example.org/ y", "http://example.org/\ny"),
            ("caf\u{e9} cafe\u{301} z", "caf\u{e9} cafe\u{301}\nz"),
            (
                "\u{65e5}\u{301}\u{672c}\u{8a9e}\u{65e5}\u{672c}\u{8a9e} x",
                "\u{65e5}\u{301}\u{672c}\u{8a9e}\u{65e5}\u{672c}\n\u{8a9e} x",
            ),
            (
                &format!("Run:\n```sh\n{wide}\n```\nthen wait here"),
                &format!("Run:\n```sh\n{wide}\n```\nthen wait\nhere"),
            ),
            (
                &format!("1.\n   ```\n   {wide}\n   ``` \nand text again"),
                &format!("1.\n   ```\n   {wide}\n   ``` \nand text\nagain"),
            ),
            (
                &format!("````\n```\n{wide}\n```\n````\nand text again"),
                &format!("````\n```\n{wide}\n```\n````\nand text\nagain"),
            ),
            (&format!("~~~\n{wide}\n```\n{wide}"), &format!("~~~\n{wide}\n```\n{wide}")),
            ("```a``` is within this line\nand text again", "```a``` is within this line\nand text\nagain"),
            ("Use ```a``` here\nand text again", "Use\n```a```\nhere\nand text\nagain"),
        ] {
            let mut wrap = Wrap::default();
            let whole = wrap.push(text, COLUMNS) + &wrap.finish(COLUMNS);
            assert_eq!(whole, shown, "{text:?}");
            let mut pieces: String = text.chars().map(|c| wrap.push(&c.to_string(), COLUMNS)).collect();
            pieces += &wrap.finish(COLUMNS);
            assert_eq!(pieces, shown, "{text:?} letter by letter");
        }
    }

    #[test]
    fn only_the_current_word_is_held_back() {
        let mut wrap = Wrap::default();
        for (text, shown) in [
            ("Par", ""),
            ("is is", "Paris"),
            (" far", " is"),
            ("\n`", "\nfar\n"),
            ("``", "```"),
            ("sh", "sh"),
            ("\nls", "\nls"),
            (" -l", " -l"),
            ("\n```\nhttp://exam", "\n```\nhttp://exam"),
            ("ple", "ple"),
        ] {
            assert_eq!(wrap.push(text, COLUMNS), shown, "{text:?}");
        }
        assert_eq!(wrap.finish(COLUMNS), "");
        assert_eq!(wrap.push("end", COLUMNS) + &wrap.finish(COLUMNS), "end");
    }

    #[test]
    fn terminal_that_gets_narrower_counts_from_the_next_word() {
        let mut wrap = Wrap::default();
        let wide = wrap.push("one two three four ", 40);
        assert_eq!(wide + &wrap.push("five ", COLUMNS), "one two three four\nfive");
    }
}

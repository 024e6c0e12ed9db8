//! Separates a reply from the reasoning before it, which models write as `<think>..</think>`.
//!
//! A choice begins with its reasoning or has none. Blanks around the reasoning are dropped, because templates add
//! their own when they write it into the next prompt; but a required form keeps its blanks.

use std::sync::Arc;

use infer_model::Tokenizer;

use super::calls::longest_overlap;
use crate::data::structured::Prelude;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";
/// The tags of reasoning.
pub const TAGS: [&str; 2] = [OPEN, CLOSE];

/// Whether a choice begins with reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It does not, or the request wants it in the reply.
    Never,
    /// It does if it begins with the opening tag.
    Tagged,
    /// The prompt ends with the opening tag.
    Opened,
    /// The prompt ends with some of it.
    Within,
}

/// How a choice begins, and what precedes its required form, if it has one. The form holds from the first token if
/// the tags are not tokens of the model.
pub fn expect(expected: Expected, shaped: bool, tokenizer: &Tokenizer) -> (Expected, Prelude) {
    let none = (expected, Prelude::None);
    if !shaped {
        return none;
    }
    match (expected, tokenizer.id(OPEN), tokenizer.id(CLOSE)) {
        (Expected::Opened | Expected::Within, _, Some(close)) => (expected, Prelude::Opened { close }),
        (Expected::Opened | Expected::Within, _, None) => (Expected::Never, Prelude::None),
        (Expected::Tagged, Some(open), Some(close)) => {
            (expected, Prelude::Tagged { open: Arc::from([open]), close })
        }
        (Expected::Tagged | Expected::Never, _, _) => none,
    }
}

/// How a reply to a prompt begins, if the model reasons.
pub fn after_prompt(prompt: &str) -> Expected {
    if prompt.trim_end().ends_with(OPEN) { Expected::Opened } else { Expected::Tagged }
}

/// How what continues a text begins: its reasoning is behind it, or it ends within.
pub fn after_text(text: &str) -> Expected {
    let Some(open) = text.rfind(OPEN) else { return Expected::Never };
    let inside = &text[open + OPEN.len()..];
    match (inside.contains(CLOSE), inside.trim().is_empty()) {
        (true, _) => Expected::Never,
        (false, true) => Expected::Opened,
        (false, false) => Expected::Within,
    }
}

/// New text of a choice.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Separated {
    /// What belongs to the reasoning.
    pub reasoning: String,
    /// What belongs to the reply.
    pub reply: String,
}

/// Separates the text of one choice.
pub struct Reasoning {
    state: State,
    /// Whether a required form begins where the reasoning ends.
    shaped: bool,
    /// Blanks, and what may be the beginning of a tag.
    held: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Beginning,
    Inside {
        /// Whether all text so far was blank.
        blank: bool,
    },
    /// Between the reasoning and the reply's first letter.
    Behind,
    Reply,
}

impl Reasoning {
    /// Expects a choice to begin like this, and the reply to have a required form if it is `shaped`.
    pub fn new(expected: Expected, shaped: bool) -> Self {
        let state = match expected {
            Expected::Never => State::Reply,
            Expected::Tagged => State::Beginning,
            Expected::Opened => State::Inside { blank: true },
            Expected::Within => State::Inside { blank: false },
        };
        Self { state, shaped, held: String::new() }
    }

    /// Whether the reply has not begun, because the reasoning comes first.
    pub fn precedes_reply(&self) -> bool {
        matches!(self.state, State::Inside { .. } | State::Behind)
    }

    /// Whether the reasoning has begun and not ended.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Inside { .. })
    }

    /// Reads more text.
    pub fn push(&mut self, text: String) -> Separated {
        let mut found = Separated::default();
        if self.state == State::Reply {
            found.reply = text;
            return found;
        }
        self.held.push_str(&text);
        while self.advance(&mut found) {}
        found
    }

    /// Ends the text.
    pub fn finish(&mut self) -> Separated {
        let rest = std::mem::take(&mut self.held);
        match std::mem::replace(&mut self.state, State::Reply) {
            State::Inside { .. } => {
                Separated { reasoning: rest.trim_end().to_owned(), ..Separated::default() }
            }
            State::Beginning => Separated { reply: rest, ..Separated::default() },
            State::Behind | State::Reply => Separated::default(),
        }
    }

    /// Takes one step. Returns false if it needs more text.
    fn advance(&mut self, found: &mut Separated) -> bool {
        match self.state {
            State::Beginning => {
                let text = self.held.trim_start();
                if OPEN.starts_with(text) && text != OPEN {
                    return false;
                }
                match text.strip_prefix(OPEN).map(str::to_owned) {
                    Some(rest) => {
                        self.held = rest;
                        self.state = State::Inside { blank: true };
                    }
                    None => self.state = State::Reply,
                }
                true
            }
            State::Inside { blank } => {
                if blank {
                    self.trim_start();
                }
                let end = self.held.find(CLOSE);
                let inside = end.unwrap_or_else(|| self.held.len() - longest_overlap(&self.held, CLOSE));
                let settled = self.held[..inside].trim_end().len();
                found.reasoning.extend(self.held.drain(..settled));
                self.state = State::Inside { blank: blank && settled == 0 };
                if end.is_some() {
                    self.held.drain(..inside - settled + CLOSE.len());
                    self.state = if self.shaped { State::Reply } else { State::Behind };
                }
                end.is_some()
            }
            State::Behind => {
                self.trim_start();
                if !self.held.is_empty() {
                    self.state = State::Reply;
                }
                !self.held.is_empty()
            }
            State::Reply => {
                found.reply.push_str(&std::mem::take(&mut self.held));
                false
            }
        }
    }

    fn trim_start(&mut self) {
        let blanks = self.held.len() - self.held.trim_start().len();
        self.held.drain(..blanks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn separated(expected: Expected, text: &str, width: usize) -> (String, String) {
        separated_with(Reasoning::new(expected, false), text, width)
    }

    fn separated_with(mut reasoning: Reasoning, text: &str, width: usize) -> (String, String) {
        let letters: Vec<char> = text.chars().collect();
        let mut found: Vec<Separated> =
            letters.chunks(width).map(|piece| reasoning.push(piece.iter().collect())).collect();
        found.push(reasoning.finish());
        let whole = |of: fn(&Separated) -> &str| found.iter().map(of).collect();
        (whole(|one| &one.reasoning), whole(|one| &one.reply))
    }

    #[test]
    fn reasoning_is_separated_however_the_text_is_split() {
        let both = "<think>\nTwo and two,\n\n is < 5 </thin k> é.\n</think>\n\nFour.\n";
        let cases = [
            (Expected::Tagged, both, "Two and two,\n\n is < 5 </thin k> é.", "Four.\n"),
            (Expected::Opened, &both["<think>".len()..], "Two and two,\n\n is < 5 </thin k> é.", "Four.\n"),
            (Expected::Within, " and two.\n</think>\nFour.", " and two.", "Four."),
            (Expected::Never, both, "", both),
            (Expected::Tagged, " \n<think>a</think> b", "a", "b"),
            (Expected::Tagged, "<think>\n\n</think>\n\nb", "", "b"),
            (Expected::Tagged, "a <think>b</think> c", "", "a <think>b</think> c"),
            (Expected::Tagged, "<think>a</think>b <think>c</think>", "a", "b <think>c</think>"),
            (Expected::Tagged, "  <thimble>", "", "  <thimble>"),
            // Outputs that end early.
            (Expected::Tagged, " <thi", "", " <thi"),
            (Expected::Tagged, "<think>", "", ""),
            (Expected::Tagged, "<think> a </thi", "a </thi", ""),
            (Expected::Opened, "a\n", "a", ""),
            (Expected::Opened, "a</think>\n", "a", ""),
            (Expected::Opened, "", "", ""),
        ];
        for (expected, text, reasoning, reply) in cases {
            for width in [1, 2, 7, 1_000] {
                let found = separated(expected, text, width);
                assert_eq!(found, (reasoning.to_owned(), reply.to_owned()), "{text:?} by {width}");
            }
        }
    }

    #[test]
    fn required_form_keeps_its_blanks() {
        for width in [1, 3, 100] {
            let found = separated_with(Reasoning::new(Expected::Opened, true), "a\n</think> \n yes", width);
            assert_eq!(found, ("a".to_owned(), " \n yes".to_owned()));
        }
    }

    #[test]
    fn reasoning_is_open_between_its_tags() {
        let mut reasoning = Reasoning::new(Expected::Tagged, false);
        let open = ["<thi", "nk>", "a", "</think>", "b"].map(|text| {
            reasoning.push(text.to_owned());
            reasoning.is_open()
        });
        assert_eq!(open, [false, true, true, false, false]);
        assert_eq!(after_prompt("<|assistant|>\n<think>\n"), Expected::Opened);
        assert_eq!(after_prompt("<think>\n\n</think>\n\n"), Expected::Tagged);
    }
}

//! What a model says before a constrained output: its reasoning, or messages of its own.

use std::sync::Arc;

use infer_model::Tokenizer;

use crate::data::sequence::marks::{NAMES, pieces};
use crate::data::sequence::place::Place;

/// What comes before a constrained output. The automaton sees none of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prelude {
    /// Nothing.
    None,
    /// Reasoning from the tokens `open` to token `close`, if the model begins with `open`. The form has to allow all of `open`
    /// but the last.
    Tagged {
        /// The opening tag.
        open: Arc<[u32]>,
        /// The closing tag.
        close: u32,
    },
    /// Reasoning up to token `close`.
    Opened {
        /// The closing tag.
        close: u32,
    },
    /// Messages, up to the head of one in a certain channel.
    Messages(Messages),
}

/// Messages that precede one in a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages {
    /// The token before a channel's name.
    pub channel: u32,
    /// Whether the prompt ends with it.
    pub opened: bool,
    /// The tokens of that channel's name.
    pub name: Arc<[u32]>,
    /// The token that ends a head.
    pub message: u32,
    /// What may take the place of the form.
    pub call: Option<Calling>,
}

/// A call in the place of a form: a message for a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calling {
    /// The token that ends it, and the output.
    pub end: u32,
    /// The tokens that begin and end messages.
    pub bounds: [u32; 2],
    /// Where the prompt leaves its last message.
    pub opening: Place,
    /// The functions that are offered.
    pub functions: Arc<[String]>,
}

impl Prelude {
    /// What follows the prelude; `None` while it goes on.
    pub fn after<'a>(&self, output: &'a [u32]) -> Option<&'a [u32]> {
        let behind = |close: &u32| {
            let end = output.iter().position(|token| token == close)?;
            Some(&output[end + 1..])
        };
        match self {
            Self::Tagged { open, close } if output.starts_with(open) => behind(close),
            Self::Opened { close } => behind(close),
            Self::Messages(messages) => messages.after(output),
            Self::None | Self::Tagged { .. } => Some(output),
        }
    }

    /// The token that goes on to open the prelude, if the output has begun with nothing else.
    pub fn opening(&self, output: &[u32]) -> Option<u32> {
        match self {
            Self::Tagged { open, .. } if open.starts_with(output) => open.get(output.len()).copied(),
            _ => None,
        }
    }

    /// The token that may end an output that has nothing but a prelude so far.
    pub fn may_end(&self, output: &[u32], tokenizer: &Tokenizer) -> Option<u32> {
        match self {
            Self::Messages(messages) => messages.may_end(output, tokenizer),
            Self::None | Self::Tagged { .. } | Self::Opened { .. } => None,
        }
    }
}

impl Messages {
    fn after<'a>(&self, output: &'a [u32]) -> Option<&'a [u32]> {
        let (mut rest, mut is_name) = (output, self.opened);
        while !(is_name && rest.starts_with(&self.name)) {
            let at = rest.iter().position(|token| *token == self.channel)?;
            (rest, is_name) = (&rest[at + 1..], true);
        }
        let end = rest.iter().position(|token| *token == self.message)?;
        Some(&rest[end + 1..])
    }

    /// The end of a call, if the last message is one. Other messages go on until they end without it, reasoning above all.
    fn may_end(&self, output: &[u32], tokenizer: &Tokenizer) -> Option<u32> {
        let call = self.call.as_ref()?;
        let [start, end] = call.bounds;
        let last = |output: &[u32], among: &[u32]| output.iter().rposition(|token| among.contains(token));
        // Of the last message only its head is read, up to the first token that ends one.
        let mark = last(output, &[start, end, self.channel]);
        let after = mark.map_or(0, |at| at + 1);
        let body = output[after..].iter().position(|token| *token == self.message);
        let head_end = body.map_or(output.len(), |at| after + at + 1);
        let begin = match mark {
            // A channel goes on with the head that it is in, and begins one elsewhere.
            Some(at) if output[at] == self.channel => last(&output[..at], &[start, end, self.message]),
            other => other,
        };
        let (mut place, begin) = match begin {
            Some(at) => (Place::Between, at),
            None => (call.opening.clone(), 0),
        };
        let mut detokenizer = tokenizer.detokenizer().marking(&NAMES);
        for &token in &output[begin..head_end] {
            if detokenizer.marks(token) || !matches!(place, Place::Body(_)) {
                for (text, mark) in pieces(&detokenizer.push(token)) {
                    place.text(text);
                    mark.into_iter().for_each(|mark| place.mark(mark));
                }
            }
        }
        place.text(&detokenizer.finish());
        match &place {
            Place::Head(head) | Place::Body(head) => head.function(&call.functions).map(|_| call.end),
            Place::Between => None,
        }
    }
}

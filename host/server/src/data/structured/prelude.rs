//! What a model says before a constrained output: its reasoning, or messages of its own.

use std::sync::Arc;

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
    /// The end of the output that the form may be left out with.
    pub may_end: Option<u32>,
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

    /// The end of an output that has nothing but a prelude.
    pub fn may_end(&self) -> Option<u32> {
        match self {
            Self::Messages(messages) => messages.may_end,
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
}

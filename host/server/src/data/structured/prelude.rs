//! Reasoning that precedes a constrained output.

/// What comes before a constrained output. The automaton sees none of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prelude {
    /// Nothing.
    None,
    /// Reasoning from token `open` to token `close`, if the model begins with `open`.
    Tagged {
        /// The opening tag.
        open: u32,
        /// The closing tag.
        close: u32,
    },
    /// Reasoning up to token `close`.
    Opened {
        /// The closing tag.
        close: u32,
    },
}

impl Prelude {
    /// What follows the prelude; `None` while it goes on.
    pub fn after(self, output: &[u32]) -> Option<&[u32]> {
        let close = match self {
            Self::Tagged { open, close } if output.first() == Some(&open) => close,
            Self::Opened { close } => close,
            Self::None | Self::Tagged { .. } => return Some(output),
        };
        let end = output.iter().position(|&token| token == close)?;
        Some(&output[end + 1..])
    }
}

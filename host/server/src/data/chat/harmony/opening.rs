//! Where a prompt leaves its last message, which the output goes on with, and what then precedes a required form.

use std::sync::Arc;

use infer_model::Tokenizer;

use super::head::{Channel, Head};
use crate::data::sequence::marks::{CALL, CHANNEL, END, MESSAGE, NAMES, Place, RETURN, START, marked, name};
use crate::data::structured::{Messages, Prelude};
use crate::http::ApiError;

/// The end of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Between two messages.
    Between,
    /// Within a head.
    Head(Head),
    /// Within the message of a head.
    Body(Head),
}

/// What is required of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Required {
    /// A call, which follows the reasoning.
    Call,
    /// A form of the reply. A call may take its place if the prompt offers functions.
    Form {
        /// Whether it does.
        or_call: bool,
    },
}

impl Opening {
    /// The end of this prompt. Its special tokens are written out, and a tokenizer reads them so wherever they stand.
    pub fn after(prompt: &str) -> Self {
        let Some((_, last)) = prompt.rsplit_once(name(START)) else { return Self::Between };
        if [END, RETURN, CALL].into_iter().any(|end| last.contains(name(end))) {
            return Self::Between;
        }
        let (head, begun) = match last.split_once(name(MESSAGE)) {
            Some((head, _)) => (head, true),
            None => (last, false),
        };
        match Head::given(marked(head)) {
            Some(head) if begun => Self::Body(head),
            Some(head) => Self::Head(head),
            None => Self::Between,
        }
    }

    /// Where the output begins.
    pub fn place(&self) -> Place {
        match self {
            Self::Between | Self::Head(_) => Place::Head,
            Self::Body(_) => Place::Body,
        }
    }

    /// What precedes what is required.
    ///
    /// # Errors
    /// A call can't begin here.
    pub fn prelude(&self, required: Required, tokenizer: &Tokenizer) -> Result<Prelude, ApiError> {
        let or_call = match required {
            Required::Call => return self.before_call(tokenizer),
            Required::Form { or_call } => or_call,
        };
        Ok(match self {
            Self::Body(head) if matches!(head.channel(), Some(Channel::Final) | None) => Prelude::None,
            Self::Head(head) if head.channel() == Some(Channel::Final) => {
                Prelude::Opened { close: token(tokenizer, MESSAGE)? }
            }
            Self::Between | Self::Head(_) | Self::Body(_) => Prelude::Messages(Messages {
                channel: token(tokenizer, CHANNEL)?,
                opened: matches!(self, Self::Head(head) if head.ends_with_channel()),
                name: encoded(tokenizer, "final")?.into(),
                message: token(tokenizer, MESSAGE)?,
                may_end: if or_call { Some(token(tokenizer, CALL)?) } else { None },
            }),
        })
    }

    fn before_call(&self, tokenizer: &Tokenizer) -> Result<Prelude, ApiError> {
        let close = token(tokenizer, END)?;
        match self {
            Self::Body(head) if head.channel() == Some(Channel::Analysis) => Ok(Prelude::Opened { close }),
            Self::Body(_) => Err(cannot_call()),
            Self::Head(head) if head.has_channel() => Err(cannot_call()),
            Self::Between | Self::Head(_) => {
                // No other channel begins with the same token.
                let analysis = encoded(tokenizer, "analysis")?;
                let open = [token(tokenizer, CHANNEL)?, analysis[0]];
                Ok(Prelude::Tagged { open: Arc::from(open), close })
            }
        }
    }

    /// Checks that a tokenizer has the tokens that divide messages.
    ///
    /// # Errors
    /// It lacks one.
    pub fn check(tokenizer: &Tokenizer) -> Result<(), ApiError> {
        match NAMES.iter().find(|(name, _)| !tokenizer.is_special(name)) {
            None => Ok(()),
            Some((name, _)) => Err(lacks(name)),
        }
    }
}

fn token(tokenizer: &Tokenizer, mark: char) -> Result<u32, ApiError> {
    tokenizer.id(name(mark)).ok_or_else(|| lacks(name(mark)))
}

/// The tokens of a channel's name: at least one.
fn encoded(tokenizer: &Tokenizer, channel: &str) -> Result<Vec<u32>, ApiError> {
    let tokens = tokenizer.encode(channel, false).ok().filter(|tokens| !tokens.is_empty());
    tokens.ok_or_else(|| unsupported(&format!("the model's tokenizer can't write `{channel}`")))
}

fn lacks(name: &str) -> ApiError {
    unsupported(&format!(
        "the chat template writes messages with channels, and the tokenizer has no special token {name}"
    ))
}

fn unsupported(why: &str) -> ApiError {
    ApiError::invalid("messages", why).code("not_supported")
}

fn cannot_call() -> ApiError {
    let message = "no call can be forced here: the prompt has begun the reply's message";
    ApiError::invalid("tool_choice", message).code("not_supported")
}

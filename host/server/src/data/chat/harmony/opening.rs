//! Where a prompt leaves its last message, which the output goes on with, and what then precedes a required form.

use std::sync::Arc;

use infer_model::Tokenizer;

use crate::data::sequence::head::{Channel, Head};
use crate::data::sequence::marks::{CALL, CHANNEL, END, MESSAGE, NAMES, RETURN, START, marked, name};
pub use crate::data::sequence::place::Place as Opening;
use crate::data::structured::{Calling, Messages, Prelude};
use crate::http::ApiError;

/// What is required of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Required<'a> {
    /// A call, which follows the reasoning.
    Call,
    /// A form of the reply.
    Form {
        /// Functions of which a call may take its place: those that the prompt offers.
        functions: &'a [String],
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

    /// What precedes what is required.
    ///
    /// # Errors
    /// A call can't begin here.
    pub fn prelude(&self, required: Required<'_>, tokenizer: &Tokenizer) -> Result<Prelude, ApiError> {
        let functions = match required {
            Required::Call => return self.before_call(tokenizer),
            Required::Form { functions } => functions,
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
                call: if functions.is_empty() { None } else { Some(self.calling(functions, tokenizer)?) },
            }),
        })
    }

    fn calling(&self, functions: &[String], tokenizer: &Tokenizer) -> Result<Calling, ApiError> {
        Ok(Calling {
            end: token(tokenizer, CALL)?,
            bounds: [token(tokenizer, START)?, token(tokenizer, END)?],
            opening: self.clone(),
            functions: Arc::from(functions),
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

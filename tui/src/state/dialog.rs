//! What covers the screen and wants an answer, and the outcomes that the footer tells for a while.

use std::time::Duration;

use super::Effect;
use super::log::Level;
use super::swap::{Editing, Path, Picker, Plan};
use super::text::LineEdit;

/// Covers the screen and wants an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Dialog {
    /// Everything about one request.
    Details {
        /// Which.
        id: u64,
    },
    /// The policies that can be swapped in.
    Pick(Picker),
    /// A component's path.
    Path(Path),
    /// A configuration.
    Edit(Box<Editing>),
    /// Whether, and how, a policy comes in.
    Swap(Box<Plan>),
    /// A question.
    Confirm {
        /// What is asked.
        question: String,
        /// What happens on yes.
        effect: Effect,
    },
}

/// What is typed in the last line of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A filter, which applies while it is typed.
    Filter(LineEdit),
    /// A command, and what its last word could become.
    Command(LineEdit, Vec<String>),
}

/// An outcome, shown in the footer for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// How it went.
    pub level: Level,
    /// What happened.
    pub text: String,
    /// How long it stays, for whoever reads it: a recording's clock runs as fast as it is played.
    pub left: Duration,
}

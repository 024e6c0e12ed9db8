//! Dialogs over the screen, the input line at its bottom, and the notices in the footer.

use std::time::Duration;

use super::Effect;
use super::log::Level;
use super::swap::{Editing, Path, Picker, Plan};
use super::text::LineEdit;

/// A dialog over the screen.
#[derive(Clone, Debug, PartialEq)]
pub enum Dialog {
    /// Details of one request.
    Details {
        /// The request.
        id: u64,
    },
    /// The policies that can be swapped in.
    Pick(Picker),
    /// The path of a component.
    Path(Path),
    /// The form of a configuration.
    Edit(Box<Editing>),
    /// Confirmation of a swap, with its mode.
    Swap(Box<Plan>),
    /// Confirmation of anything else.
    Confirm {
        /// The text.
        question: String,
        /// What to do on yes.
        effect: Effect,
    },
}

/// The line being typed at the bottom of the screen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A filter, applied while it is typed.
    Filter(LineEdit),
    /// A command, and the completions of its last word.
    Command(LineEdit, Vec<String>),
}

/// An outcome, shown in the footer for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Its severity.
    pub level: Level,
    /// What happened.
    pub text: String,
    /// How long it stays, in the operator's time: a replay's clock runs at playback speed.
    pub left: Duration,
}

//! Why a policy can't be swapped in, and what a reload did to a slot.

use infer_api::admin::SwapAnswer;
use infer_core::policy::{PolicyFault, PolicyKind};
use infer_wasm::LoadError;

use crate::engine::EngineStopped;

/// Why a policy did not become live.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// No such name.
    #[error("there is no {kind} policy `{name}`{hint}; available are {known}")]
    Unknown {
        /// The slot.
        kind: PolicyKind,
        /// The requested name.
        name: String,
        /// The name that was probably meant, in brackets.
        hint: String,
        /// The available names.
        known: String,
    },
    /// The component's file can't be read.
    #[error("can't read the component {0}: {1}")]
    File(String, std::io::Error),
    /// It failed a check of the loader.
    #[error("{0}")]
    Load(#[from] LoadError),
    /// The prefix cache failed while it received the blocks that are cached already.
    #[error("the policy failed when it was given the blocks that are cached already: {0}")]
    Prime(PolicyFault),
    /// The policies can't form a list.
    #[error("{0}")]
    List(PolicyFault),
    /// A list was given a configuration that none of its policies can take.
    #[error("{0}")]
    ListConfig(String),
    /// It failed before.
    #[error("`{name}` is quarantined in the {kind} slot: {reason}; use `force` to swap it in anyway")]
    Quarantined {
        /// The policy's name.
        name: String,
        /// The slot.
        kind: String,
        /// Why it was quarantined.
        reason: String,
    },
    /// A canary runs in another slot.
    #[error(
        "a canary is running in the {0} slot, and a second one would make its verdict ambiguous; wait for it to \
         finish, promote it, or roll it back"
    )]
    OtherOnTrial(PolicyKind),
    /// The slot has neither a shadow nor a canary.
    #[error("the {0} slot has neither a shadow nor a canary")]
    NothingToPromote(PolicyKind),
    /// The slot has no shadow.
    #[error("the {0} slot has no shadow")]
    NoShadow(PolicyKind),
    /// The built-in was given a configuration.
    #[error("the built-in policy takes no configuration")]
    NoConfig,
    /// The slot has no earlier policy.
    #[error("the {0} slot has no previous policy to roll back to")]
    NoPrevious(PolicyKind),
    /// All earlier policies of the slot are quarantined.
    #[error(
        "the previous policy of the {kind} slot, `{name}`, is quarantined: {reason}; use `force` to swap it in anyway"
    )]
    PreviousQuarantined {
        /// The slot.
        kind: PolicyKind,
        /// The policy's name.
        name: String,
        /// Why it was quarantined.
        reason: String,
    },
    /// A fault, or a verdict on a canary, came before the change.
    #[error("the {kind} slot has just changed and runs `{found}`; see its history, then retry")]
    Overtaken {
        /// The slot.
        kind: PolicyKind,
        /// The name of the policy that the slot runs.
        found: String,
    },
    /// The slot does not run the policy that the caller saw.
    #[error("the {kind} slot now runs `{found}`, not `{expected}`; refresh and retry")]
    NotThere {
        /// The slot.
        kind: PolicyKind,
        /// The policy that the caller named.
        expected: String,
        /// The policy that the slot runs, by its tag if the caller named one, else by its name.
        found: String,
    },
    /// The engine thread has ended.
    #[error("{0}")]
    Stopped(#[from] EngineStopped),
}

impl PolicyError {
    /// Machine-readable name of the check that failed.
    pub fn check(&self) -> &'static str {
        match self {
            Self::Unknown { .. } => "name",
            Self::File(..) => "file",
            Self::Load(error) => error.check(),
            Self::Prime(_) => "prime",
            Self::NoConfig | Self::ListConfig(_) => "configure",
            Self::NoPrevious(_) | Self::PreviousQuarantined { .. } => "no_previous",
            Self::NotThere { .. } | Self::Overtaken { .. } => "not_there",
            Self::List(_) => "list",
            Self::Quarantined { .. } => "quarantined",
            Self::OtherOnTrial(_) => "on_trial",
            Self::NothingToPromote(_) => "nothing_to_promote",
            Self::NoShadow(_) => "no_shadow",
            Self::Stopped(_) => "engine_stopped",
        }
    }
}

/// What a reload did to a slot whose configuration changed.
#[derive(Debug)]
pub enum Reconfigured {
    /// The configured policy runs with its new configuration.
    Done(Box<SwapAnswer>),
    /// An operator swapped another policy in, which stays live.
    Stays {
        /// Its name.
        name: String,
    },
}

//! The screens and their names. What they show and which keys they take is not decided here.

/// The screens, in the order of their digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "named by what they show")]
pub enum Screen {
    #[default]
    Overview,
    Blocks,
    Requests,
    Policies,
    Cache,
    Log,
    Tenants,
}

impl Screen {
    /// All screens.
    pub const ALL: [Self; 7] =
        [Self::Overview, Self::Blocks, Self::Requests, Self::Policies, Self::Cache, Self::Log, Self::Tenants];

    /// Returns the title.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Blocks => "Blocks",
            Self::Requests => "Requests",
            Self::Policies => "Policies",
            Self::Cache => "Cache",
            Self::Log => "Log",
            Self::Tenants => "Tenants",
        }
    }

    /// Returns the title for narrow terminals.
    #[must_use]
    pub fn short_title(self) -> &'static str {
        match self {
            Self::Overview => "All",
            Self::Blocks => "KV",
            Self::Requests => "Req",
            Self::Policies => "Pol",
            Self::Cache => "Cac",
            Self::Log => "Log",
            Self::Tenants => "Ten",
        }
    }

    /// Returns the screen `by` tabs further, wrapping around.
    pub(super) fn step(self, by: usize) -> Self {
        Self::ALL[(self as usize + by) % Self::ALL.len()]
    }
}

//! A swap order: which policy goes into which slot, and how. The state builds it, the client sends it; it
//! lives here so that neither imports the other.

use serde_json::Value;

/// How a policy enters a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Live at once.
    #[default]
    Now,
    /// Beside the live policy, without effect.
    Shadow,
    /// Live on trial; the host rolls back if clients are worse off.
    Canary,
}

impl Mode {
    /// All modes, in the order in which the keys step through them.
    pub const ALL: [Self; 3] = [Self::Now, Self::Shadow, Self::Canary];

    /// The name on the wire.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Now => "now",
            Self::Shadow => "shadow",
            Self::Canary => "canary",
        }
    }

    /// One sentence for the confirmation.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Now => "live at once; running requests continue",
            Self::Shadow => "receives the live policy's calls; its answers have no effect",
            Self::Canary => "live on trial; rolled back automatically if clients are worse off",
        }
    }

    /// The mode `by` steps further, wrapping around.
    #[must_use]
    pub fn step(self, by: isize) -> Self {
        let len = Self::ALL.len().cast_signed();
        Self::ALL[((self as usize).cast_signed() + by).rem_euclid(len).cast_unsigned()]
    }
}

/// Where a policy comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A name that the host knows.
    Name(String),
    /// Path of a component on this machine.
    File(String),
}

impl Source {
    /// Text that ends in `.wasm` is a file, anything else a name.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let is_file = std::path::Path::new(text).extension().is_some_and(|e| e.eq_ignore_ascii_case("wasm"));
        if is_file { Self::File(text.to_owned()) } else { Self::Name(text.to_owned()) }
    }

    /// The name or path as typed.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Name(text) | Self::File(text) => text,
        }
    }
}

/// What the host is asked to do once the operator confirms.
#[derive(Clone, Debug, PartialEq)]
pub struct Order {
    /// The slot: `scheduler`, `admission` or `prefix-cache`.
    pub kind: String,
    /// The policy to swap in.
    pub source: Source,
    /// How it enters the slot.
    pub mode: Mode,
    /// Its configuration; `None` means the policy's defaults.
    pub config: Option<Value>,
    /// Swaps in a quarantined policy anyway.
    pub force: bool,
    /// Fails unless this policy is still live, given by its tag; `None` skips the check.
    pub of: Option<String>,
}

//! Why a component could not be loaded. Each variant is one check, and its message says what to do.

use infer_core::policy::{PolicyFault, PolicyKind};

/// A component that was refused, and by which check.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The Wasm engine itself could not be set up.
    #[error("the WebAssembly engine could not be set up: {0}")]
    Engine(String),
    /// The file is larger than `LoaderConfig::max_component_bytes`.
    #[error(
        "the component has {bytes} bytes, but the limit is {max}; build it in release mode and strip its debug info"
    )]
    TooLarge {
        /// Size of the file.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// Compiling it could take more time and memory than a policy's may.
    #[error(
        "the component has {found} {what}, but the limit is {max}; build it in release mode and remove what it does not need"
    )]
    TooComplex {
        /// What exceeds its limit.
        what: &'static str,
        /// How much there is.
        found: u64,
        /// The limit.
        max: u64,
    },
    /// A component inside of it does more than rename.
    #[error(
        "the component contains a component with modules, instances or functions of its own; a policy must be a single component as made by `wasm-tools component new`, not a composition"
    )]
    Nested,
    /// The file doesn't start like WebAssembly.
    #[error("this is not a WebAssembly file; pass a component built from one of the worlds in wit/")]
    NotWasm,
    /// A core module where a component is needed.
    #[error(
        "this is a core WebAssembly module, not a component; turn it into one with `wasm-tools component new` (a wasm32-unknown-unknown build made with wit-bindgen has the needed metadata inside)"
    )]
    CoreModule,
    /// The bytes can't be parsed.
    #[error("the component is damaged or incomplete: {0}")]
    Malformed(String),
    /// It imports something other than the policy host interface.
    #[error(
        "the component imports `{name}`; a policy may import only `infer:policy/host@0.1.0`{}",
        hint(.name)
    )]
    Import {
        /// The offending import.
        name: String,
    },
    /// Its exports fit no world, or more than one.
    #[error(
        "the component must export `infer:policy/lifecycle@0.1.0` and exactly one of `infer:policy/{{scheduler,admission,prefix-cache}}@0.1.0`; {found}"
    )]
    Exports {
        /// What it exports instead.
        found: String,
    },
    /// It belongs in another slot.
    #[error("the component is {} policy and does not fit the {expected} slot", with_article(.found))]
    WrongKind {
        /// The requested slot.
        expected: PolicyKind,
        /// What the component is.
        found: PolicyKind,
    },
    /// It could not be compiled.
    #[error("the component could not be compiled: {0}")]
    Compile(String),
    /// Its imports or exports have other types than this host's interface.
    #[error(
        "the component was built against an interface other than this host's infer:policy@0.1.0: {0}; rebuild it against this host's wit/, which `infer policy new` writes with the SDK"
    )]
    Interface(String),
    /// No instance could be made.
    #[error("the component could not be instantiated: {0}")]
    Instantiate(PolicyFault),
    /// The operating system refused what an instance needs. The component may be fine, and load at another moment.
    #[error("no instance of the component could be made: {0}")]
    Machine(String),
    /// `describe` faulted or answered nonsense.
    #[error("the policy's describe() is unusable: {0}")]
    Describe(PolicyFault),
    /// `configure` faulted.
    #[error("the policy's configure() failed: {0}")]
    ConfigureFault(PolicyFault),
    /// The policy refused its configuration.
    #[error("the policy refused its configuration: {0}")]
    Configure(String),
    /// It failed on a view that every policy must handle.
    #[error("the policy failed its self-test on the view `{view}`: {fault}")]
    SelfTest {
        /// Name of the view.
        view: &'static str,
        /// What happened.
        fault: PolicyFault,
    },
}

impl LoadError {
    /// A short name of the check that failed, for events and metrics.
    pub fn check(&self) -> &'static str {
        match self {
            Self::Engine(_) => "engine",
            Self::TooLarge { .. } | Self::TooComplex { .. } | Self::Nested => "size",
            Self::NotWasm | Self::CoreModule | Self::Malformed(_) => "format",
            Self::Import { .. } => "imports",
            Self::Exports { .. } | Self::WrongKind { .. } => "world",
            Self::Compile(_) => "compile",
            Self::Interface(_) => "interface",
            Self::Instantiate(_) => "instantiate",
            Self::Machine(_) => "memory",
            Self::Describe(_) => "describe",
            Self::ConfigureFault(_) | Self::Configure(_) => "configure",
            Self::SelfTest { .. } => "self-test",
        }
    }
}

fn with_article(kind: &PolicyKind) -> String {
    format!("{} {kind}", if *kind == PolicyKind::Admission { "an" } else { "a" })
}

fn hint(import: &str) -> &'static str {
    if import.starts_with("wasi:") {
        " and has no WASI: build for wasm32-unknown-unknown, not for a wasip target"
    } else if import.starts_with("infer:policy/") {
        "; if it was built for another version of the interface, rebuild it against this host's wit/, which `infer policy new` writes with the SDK"
    } else {
        ""
    }
}

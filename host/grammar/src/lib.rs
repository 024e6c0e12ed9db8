//! Tries out in a sandbox whether a grammar is fit to be compiled by the host.
//!
//! Clients send JSON schemas, regular expressions and grammars. llguidance compiles them to automata, and most steps of
//! that have a budget, but not all: a schema of some kilobytes can expand to gigabytes (keywords beside `anyOf` are copied
//! into each alternative, `patternProperties` are compared with one another) or keep a core busy for hours. Foreseeing
//! that from outside means modelling another library's every step. So the same library compiles the grammar first where
//! memory, stack and work have limits, as a WebAssembly module; what passes there is compiled again natively, which
//! takes the same steps and at most some three times the memory (`tests/memory.rs`).
//!
//! Deliberately absent: the native compiler, vocabularies and masks (`infer-server`).
#![forbid(unsafe_code)]

use std::path::Path;

use infer_sandbox::{Bounds, Failure, Instance, Program, SetupError};
use llguidance::api::{ParserLimits, TopLevelGrammar};

const COMPILER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/compiler.wasm"));

/// What one grammar may take. The fuel is about two seconds. `tests/limits.rs` has grammars that must fit and some that
/// must not.
const BOUNDS: Bounds = Bounds {
    memory_bytes: 64 << 20,
    memory_per_byte: 0,
    fuel: 10_000_000_000,
    fuel_per_byte: 0,
    stack_bytes: 1 << 20,
};

/// Bounds of one automaton, for the trial and for the native compiler. Fuel is work: about 20 ms to build one, about 5 ms
/// at worst for a mask.
pub fn limits() -> ParserLimits {
    ParserLimits {
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 70_000,
        step_max_items: 40_000,
        max_lexer_states: 20_000,
        max_grammar_size: 300_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// A message of llguidance without its marks. That it stopped where nothing can follow means that nothing can begin: only
/// the first mask is computed here.
pub fn explained(why: &str) -> String {
    if why.trim_start().starts_with("NoExtensionBias") {
        return UNSATISFIABLE.to_owned();
    }
    let marks = ["<backtrace>", "<non-verbose/>"];
    let end = marks.iter().filter_map(|mark| why.find(mark)).min().unwrap_or(why.len());
    why[..end].trim().to_owned()
}

/// What is wrong with a grammar that has no first token.
pub const UNSATISFIABLE: &str = "no text can satisfy it";

/// Why a grammar can't be compiled.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    /// What is wrong with the grammar, or which limit it reaches.
    #[error("{0}")]
    Grammar(String),
    /// The operating system refused something. The grammar may be fine, and compile at another moment.
    #[error("{0}")]
    Machine(String),
}

impl From<String> for Unfit {
    /// What is wrong with the grammar.
    fn from(why: String) -> Self {
        Self::Grammar(why)
    }
}

impl From<SetupError> for Unfit {
    fn from(error: SetupError) -> Self {
        Self::Machine(error.to_string())
    }
}

/// Stack that a thread needs for [`Rehearsal::check`].
pub const STACK_BYTES: usize = BOUNDS.stack_bytes + (1 << 20);

/// A sandbox in which grammars are compiled on trial. Clones share its code.
#[derive(Clone)]
pub struct Rehearsal(Program);

impl Rehearsal {
    /// Compiles the sandbox's module, or finds it in `cache_dir`, which must be private to this user. Blocks: without a
    /// cache this takes seconds.
    ///
    /// # Errors
    /// The machine refuses what wasmtime needs.
    pub fn new(cache_dir: Option<&Path>) -> Result<Self, SetupError> {
        Program::new("grammar compiler", COMPILER, BOUNDS, cache_dir).map(Self)
    }

    /// Compiles `grammar` under `limits` and returns the bytes that this took: about what its automaton takes natively.
    /// Blocks for at most some seconds, on a thread with [`STACK_BYTES`].
    ///
    /// # Errors
    /// [`Unfit`], mostly the grammar's fault.
    pub fn check(&self, limits: &ParserLimits, grammar: &TopLevelGrammar) -> Result<usize, Unfit> {
        let request = serde_json::to_vec(&(limits, grammar)).map_err(|error| error.to_string())?;
        let compile = || {
            let mut instance = Instance::new(&self.0)?;
            let before = instance.memory_bytes();
            let check = instance.function("check")?;
            instance.call(&check, &request)?;
            Ok(instance.memory_bytes() - before)
        };
        compile().map_err(|failure| match failure {
            // It asserts sizes that it was made for.
            Failure::Panicked(_) => Unfit::Grammar("it is too large for the compiler".to_owned()),
            Failure::Machine(why) => Unfit::Machine(why),
            failure => Unfit::Grammar(explained(&failure.why())),
        })
    }
}

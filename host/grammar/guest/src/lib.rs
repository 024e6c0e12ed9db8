//! Compiles a grammar as the host would, and forgets the result: what matters is whether it stays within the sandbox's
//! limits. `infer-grammar` runs this as a WebAssembly module.
//!
//! The vocabulary is the 256 bytes, one end token, and the tags of calls, which grammars may name. An automaton doesn't
//! depend on the vocabulary beyond that, only its masks do, and those have limits of their own in llguidance.
#![deny(unsafe_code)]

use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

const END: u32 = 256;
/// The special tokens, the end first.
const SPECIAL: [&str; 7] =
    ["end", "<tool_call>", "</tool_call>", "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"];

/// Compiles the grammar in `request`, which is JSON: a list of [`ParserLimits`] and [`TopLevelGrammar`].
///
/// # Errors
/// What the compiler says is wrong with the grammar, or that no text can satisfy it.
pub fn compile(request: &[u8]) -> Result<(), String> {
    let (limits, grammar): (ParserLimits, TopLevelGrammar) =
        serde_json::from_slice(request).map_err(|error| error.to_string())?;
    let mut words: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte]).collect();
    words.extend(SPECIAL.map(|name| [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat()));
    let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, END), &words);
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory =
        ParserFactory::new(&env, InferenceCapabilities::default(), &[]).map_err(|error| error.to_string())?;
    *factory.limits_mut() = limits;
    factory.quiet();
    let parser = factory.create_parser(grammar).map_err(|error| error.to_string())?;
    let first = Matcher::new(Ok(parser)).compute_mask_or_eos().map_err(|error| error.to_string())?;
    if first.is_zero() { Err("no text can satisfy it".to_owned()) } else { Ok(()) }
}

#[cfg(target_arch = "wasm32")]
#[allow(unsafe_code, reason = "a name that is exported as it stands is an unsafe attribute")]
mod exports {
    /// Compiles the grammar in the request.
    #[unsafe(no_mangle)]
    extern "C" fn check() -> u64 {
        infer_sandbox_guest::answer(|request| super::compile(&request).map(|()| String::new()))
    }
}

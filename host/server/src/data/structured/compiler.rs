//! Turns shapes into automata: on threads of its own with room for deep recursion, few at a time, within bounds
//! of size and work. What a client sends can cost it a 422 and nobody else anything.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use infer_model::Tokenizer;
use llguidance::api::ParserLimits;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory, earley::SlicedBiasComputer};
use tokio::sync::{Semaphore, oneshot};

use super::ahead::Ahead;
use super::mask::Mask;
use super::shape::Shape;
use crate::http::ApiError;

/// Compilations at once: they are processor time that tokens need too.
const AT_ONCE: usize = 2;
/// Longest wait for a compilation, its turn included. The thread itself ends by its fuel.
const PATIENCE: Duration = Duration::from_secs(20);
/// Compilers recurse over what clients wrote.
const STACK_BYTES: usize = 64 << 20;
/// Compiled shapes that are kept; the one used longest ago goes first.
const KEPT: usize = 32;
/// Longest message of a compiler that a client is shown.
const MESSAGE_BYTES: usize = 400;

/// Bounds of one automaton. Fuel is work: about 20 ms to build one, about 5 ms at worst for a mask.
fn limits() -> ParserLimits {
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

/// Compiles shapes for one model's vocabulary. Cheap to clone.
#[derive(Clone)]
pub struct Compiler {
    inner: Arc<Inner>,
}

struct Inner {
    tokenizer: Tokenizer,
    vocab_size: u32,
    ends: Arc<[u32]>,
    /// Made for the first request that asks: a large vocabulary takes a while.
    factory: OnceLock<Result<ParserFactory, String>>,
    /// Started with it.
    ahead: OnceLock<Result<Ahead, String>>,
    turns: Arc<Semaphore>,
    kept: Mutex<VecDeque<(String, Matcher)>>,
}

impl Compiler {
    /// For a model of `vocab_size` tokens that ends its output with one of `ends`.
    pub fn new(tokenizer: Tokenizer, vocab_size: u32, ends: Arc<[u32]>) -> Self {
        let (factory, ahead) = (OnceLock::new(), OnceLock::new());
        let (turns, kept) = (Arc::new(Semaphore::new(AT_ONCE)), Mutex::default());
        Self { inner: Arc::new(Inner { tokenizer, vocab_size, ends, factory, ahead, turns, kept }) }
    }

    /// A mask for each of `count` sequences, or the 422 that says what is wrong with the shape.
    pub async fn masks(&self, shape: &Shape, count: usize) -> Result<Vec<Arc<Mask>>, ApiError> {
        let ahead = self.inner.ahead()?;
        let key = shape.key();
        let matcher = match self.inner.find(&key) {
            Some(matcher) => matcher,
            None => {
                let matcher = tokio::time::timeout(PATIENCE, self.compile(shape)).await.map_err(|_| {
                    let message = format!("not compiled within {} s; make it simpler", PATIENCE.as_secs());
                    ApiError::invalid(shape.field, message)
                })??;
                self.inner.keep(key, &matcher);
                matcher
            }
        };
        Ok((0..count).map(|_| Arc::new(Mask::new(matcher.clone(), ahead.clone()))).collect())
    }

    async fn compile(&self, shape: &Shape) -> Result<Matcher, ApiError> {
        if self.inner.ends.is_empty() {
            let message = "this model has no end token, which structured output needs";
            return Err(ApiError::invalid(shape.field, message).code("not_supported"));
        }
        let turns = Arc::clone(&self.inner.turns);
        let turn = turns.acquire_owned().await.expect("the semaphore is never closed");
        let (inner, work) = (Arc::clone(&self.inner), shape.clone());
        let (reply, answer) = oneshot::channel();
        std::thread::Builder::new()
            .name("grammar".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || {
                let _ = reply.send(inner.compile(&work));
                drop(turn);
            })
            .map_err(no_thread)?;
        let compiled = answer.await.unwrap_or_else(|_| Err("the compiler failed on it".to_owned()));
        compiled.map_err(|why| {
            let mut why = why.split("<backtrace>").next().unwrap_or_default().trim().to_owned();
            why.truncate(why.floor_char_boundary(MESSAGE_BYTES));
            ApiError::invalid(shape.field, why)
        })
    }
}

fn no_thread(error: impl Display) -> ApiError {
    ApiError::internal("structured_output", format!("can't start a thread: {error}"))
}

impl Inner {
    fn ahead(&self) -> Result<&Ahead, ApiError> {
        let ahead = self.ahead.get_or_init(|| Ahead::start().map_err(|error| error.to_string()));
        ahead.as_ref().map_err(no_thread)
    }

    fn compile(&self, shape: &Shape) -> Result<Matcher, String> {
        let factory = self.factory.get_or_init(|| self.factory()).as_ref().map_err(Clone::clone)?;
        let parser = factory.create_parser(shape.grammar()).map_err(|error| error.to_string())?;
        let mut matcher = Matcher::new(Ok(parser));
        // What no output fulfils, or is too much work at its very start, is found out here.
        let first = matcher.compute_mask_or_eos().map_err(|error| error.to_string())?;
        if first.is_zero() {
            return Err("no output fulfils it".to_owned());
        }
        Ok(matcher)
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        let words: Vec<Vec<u8>> = (0..self.vocab_size).map(|token| self.word(token)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(self.vocab_size, self.ends[0]), &words);
        let trie = trie.with_eos_tokens(&self.ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|error| error.to_string())?;
        *factory.limits_mut() = limits();
        factory.quiet();
        Ok(factory)
    }

    /// A token's bytes; special ones are marked, so that no text is mistaken for them.
    fn word(&self, token: u32) -> Vec<u8> {
        let Some(written) = self.tokenizer.token(token) else { return Vec::new() };
        let bytes = self.tokenizer.token_bytes(token);
        if self.tokenizer.is_special(&written) || self.ends.contains(&token) {
            return [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes.as_slice()].concat();
        }
        bytes
    }

    fn find(&self, key: &str) -> Option<Matcher> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(other, _)| other == key)?;
        let entry = kept.remove(at)?;
        // A copy of its own: the caches that grow with use are its request's alone.
        let matcher = entry.1.deep_clone();
        kept.push_back(entry);
        Some(matcher)
    }

    fn keep(&self, key: String, matcher: &Matcher) {
        let copy = matcher.deep_clone();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(other, _)| *other != key);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back((key, copy));
    }
}

//! Which tokens may follow, for the sampler: one sequence's automaton, brought to where its output is. What
//! follows a drawn token is found out ahead, by other threads; whoever asks before they are done waits for them,
//! and whoever asks before they began does it alone. Either way the answer is the same.
//!
//! An output with alternatives has an automaton for each, which counts until the output leaves it. In one grammar of
//! all, a word of one would hide a shorter word of another that begins alike, as the head of a call does a reply's
//! first brace.

mod automata;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use infer_core::Constraint;
use infer_model::Tokenizer;
use llguidance::Matcher;

use super::ahead::{Ahead, Job};
use super::prelude::Prelude;
use super::room::Share;
use automata::Automata;

/// The last token was drawn without the automaton.
const UNASKED: usize = usize::MAX;

/// One sequence's automata.
pub struct Mask {
    prelude: Prelude,
    vocabulary: Vocabulary,
    state: Mutex<Automata>,
    /// Tokens of the constrained output that the automaton was asked about last, or `UNASKED`.
    asked: AtomicUsize,
    ahead: Ahead,
    /// Of the memory that automata share.
    _share: Share,
}

/// What is known of a model's tokens besides the automata.
#[derive(Clone)]
pub struct Vocabulary {
    /// Tells what they mean in a prelude.
    pub tokenizer: Tokenizer,
    /// Tokens that would end the output within its prelude.
    pub ends: Arc<[u32]>,
}

impl Mask {
    /// Of automata that have taken nothing, one for each alternative, whose memory is in `share`.
    pub fn new(
        prelude: Prelude,
        vocabulary: Vocabulary,
        matchers: Vec<Matcher>,
        ahead: Ahead,
        share: Share,
    ) -> Self {
        let (state, asked) = (Mutex::new(Automata::new(matchers)), AtomicUsize::new(0));
        Self { prelude, vocabulary, state, asked, ahead, _share: share }
    }

    /// Why it can't tell any more.
    pub fn fault(&self) -> Option<String> {
        self.lock().fault.clone()
    }

    /// What a mask cost on average, in microseconds.
    pub fn mean_us(&self) -> u64 {
        let costs = self.lock().costs;
        costs.computed.as_micros() as u64 / u64::from(costs.masks.max(1))
    }

    /// What a draw waited for its mask on average, in microseconds: the step with everybody in it did.
    pub fn mean_wait_us(&self) -> u64 {
        let costs = self.lock().costs;
        costs.waited.as_micros() as u64 / u64::from(costs.draws.max(1))
    }

    /// Finds out what may follow the output with `token`, unless a draw was there first. A draw may have come
    /// to nothing, and another one been made: an automaton that is told of a token it forbids is of no more use.
    pub(super) fn prepare(&self, after: usize, token: u32) {
        // Nothing follows an end. An automaton that has come to its own would refuse it.
        if self.vocabulary.ends.contains(&token) {
            return;
        }
        let mut state = self.lock();
        let may_follow = state.allowed.as_ref().is_some_and(|allowed| allowed.is_allowed(token));
        if state.taken.len() == after && may_follow {
            // What goes wrong is told when it is asked for: an automaton that failed keeps its fault.
            let _ = state.take(token).and_then(|()| state.find_out().map(drop));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Automata> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Constraint for Mask {
    fn restrict(&self, output: &[u32], logits: &mut [f32]) -> bool {
        let Some(shaped) = self.prelude.after(output) else {
            self.asked.store(UNASKED, Ordering::Relaxed);
            // What has to come must come.
            let Vocabulary { tokenizer, ends } = &self.vocabulary;
            let may_end = self.prelude.may_end(output, tokenizer);
            for &end in ends.iter().filter(|&&end| Some(end) != may_end) {
                if let Some(logit) = logits.get_mut(end as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
            return true;
        };
        // The model may open its reasoning instead of beginning with the shape.
        let opening = self.prelude.opening(output).map(|open| open as usize);
        let opening = opening.and_then(|open| Some((open, *logits.get(open)?)));
        let begun = Instant::now();
        let mut state = self.lock();
        let restricted = state.restrict(shaped, logits);
        if let Some((open, logit)) = opening {
            logits[open] = logit;
        }
        self.asked.store(shaped.len(), Ordering::Relaxed);
        state.costs.waited += begun.elapsed();
        state.costs.draws += 1;
        if let Err(why) = restricted {
            let why = why.split("<backtrace>").next().unwrap_or_default().trim().to_owned();
            state.fault = Some(format!("the structured output can't go on: {why}"));
            return false;
        }
        true
    }

    fn drawn(self: Arc<Self>, token: u32) {
        let (after, ahead) = (self.asked.load(Ordering::Relaxed), self.ahead.clone());
        if after != UNASKED {
            ahead.ask(Job { mask: self, after, token });
        }
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mask")
    }
}

#[cfg(test)]
mod tests;

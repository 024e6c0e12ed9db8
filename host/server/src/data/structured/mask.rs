//! Which tokens may follow, for the sampler: one sequence's automaton, brought to where its output is. What
//! follows a drawn token is found out ahead, by other threads; whoever asks before they are done waits for them,
//! and whoever asks before they began does it alone. Either way the answer is the same.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use infer_core::Constraint;
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use super::ahead::{Ahead, Job};

/// What comes before a constrained output. The automaton sees none of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prelude {
    /// Nothing.
    None,
    /// Reasoning from token `open` to token `close`, if the model begins with `open`.
    Tagged {
        /// The opening tag.
        open: u32,
        /// The closing tag.
        close: u32,
    },
    /// Reasoning up to token `close`.
    Opened {
        /// The closing tag.
        close: u32,
    },
}

impl Prelude {
    /// What follows the prelude; `None` while it goes on.
    fn after(self, output: &[u32]) -> Option<&[u32]> {
        let close = match self {
            Self::Tagged { open, close } if output.first() == Some(&open) => close,
            Self::Opened { close } => close,
            Self::None | Self::Tagged { .. } => return Some(output),
        };
        let end = output.iter().position(|&token| token == close)?;
        Some(&output[end + 1..])
    }
}

/// The last token was drawn without the automaton.
const UNASKED: usize = usize::MAX;

/// One sequence's automaton.
pub struct Mask {
    prelude: Prelude,
    /// Tokens that would end the output within its prelude.
    ends: Arc<[u32]>,
    state: Mutex<State>,
    /// Tokens of the constrained output that the automaton was asked about last, or `UNASKED`.
    asked: AtomicUsize,
    ahead: Ahead,
}

struct State {
    matcher: Matcher,
    /// Output that the automaton has taken.
    taken: Vec<u32>,
    /// What may follow it, once that is known.
    allowed: Option<SimpleVob>,
    fault: Option<String>,
    costs: Costs,
}

/// What masks cost.
#[derive(Clone, Copy, Debug, Default)]
struct Costs {
    computed: Duration,
    masks: u32,
    /// For whoever draws.
    waited: Duration,
    draws: u32,
}

impl Mask {
    /// Of an automaton that has taken nothing.
    pub fn new(prelude: Prelude, ends: Arc<[u32]>, matcher: Matcher, ahead: Ahead) -> Self {
        let (taken, costs) = (Vec::new(), Costs::default());
        let state = State { matcher, taken, allowed: None, fault: None, costs };
        Self { prelude, ends, state: Mutex::new(state), asked: AtomicUsize::new(0), ahead }
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
        let mut state = self.lock();
        let may_follow = state.allowed.as_ref().is_some_and(|allowed| allowed.is_allowed(token));
        if state.taken.len() == after && may_follow && !state.matcher.is_stopped() {
            // What goes wrong is told when it is asked for: the automaton keeps its error.
            let _ = state.take(token).and_then(|()| state.find_out().map(drop));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Brings the automaton to `output`. A draw that is made again finds it one token ahead.
    fn follow(&mut self, output: &[u32]) -> Result<(), String> {
        let common = self.taken.iter().zip(output).take_while(|(a, b)| a == b).count();
        let too_many = self.taken.len() - common;
        if too_many > 0 {
            self.allowed = None;
            self.matcher.rollback(too_many).map_err(|error| error.to_string())?;
            self.taken.truncate(common);
        }
        output[common..].iter().try_for_each(|&token| self.take(token))
    }

    fn take(&mut self, token: u32) -> Result<(), String> {
        self.allowed = None;
        self.matcher.consume_token(token).map_err(|error| error.to_string())?;
        self.taken.push(token);
        Ok(())
    }

    /// What may follow the output that was taken.
    fn find_out(&mut self) -> Result<&SimpleVob, String> {
        if self.allowed.is_none() {
            let begun = Instant::now();
            let allowed = self.matcher.compute_mask_or_eos().map_err(|error| error.to_string());
            self.costs.computed += begun.elapsed();
            self.costs.masks += 1;
            self.allowed = Some(allowed?);
        }
        Ok(self.allowed.as_ref().expect("it was just found out"))
    }

    fn restrict(&mut self, output: &[u32], logits: &mut [f32]) -> Result<(), String> {
        self.follow(output)?;
        let mask = self.find_out()?;
        let known = logits.len().min(mask.len());
        for (&allowed, logits) in mask.as_slice().iter().zip(logits.chunks_mut(32)) {
            match allowed {
                u32::MAX => {}
                // Most words of most masks.
                0 => logits.fill(f32::NEG_INFINITY),
                _ => {
                    let forbidden = (0..).zip(logits).filter(|(bit, _)| (allowed >> bit) & 1 == 0);
                    forbidden.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
                }
            }
        }
        logits[known..].fill(f32::NEG_INFINITY);
        Ok(())
    }
}

impl Constraint for Mask {
    fn restrict(&self, output: &[u32], logits: &mut [f32]) -> bool {
        let Some(shaped) = self.prelude.after(output) else {
            self.asked.store(UNASKED, Ordering::Relaxed);
            // What has to come must come.
            for &end in &*self.ends {
                if let Some(logit) = logits.get_mut(end as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
            return true;
        };
        // The model may open its reasoning instead of beginning with the shape.
        let opening = match self.prelude {
            Prelude::Tagged { open, .. } if output.is_empty() => {
                logits.get(open as usize).map(|&logit| (open as usize, logit))
            }
            _ => None,
        };
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
mod tests {
    use infer_model::{Source, Tokenizer};
    use serde_json::json;

    use super::super::{Compiler, Shape};
    use super::*;

    const VOCAB: u32 = 1_792;
    const END: u32 = 1;

    fn allowed(mask: &Mask, output: &[u32]) -> Vec<u32> {
        let mut logits = vec![0.0; VOCAB as usize];
        assert!(mask.restrict(output, &mut logits), "{:?}", mask.fault());
        (0..VOCAB).filter(|&token| logits[token as usize] == 0.0).collect()
    }

    #[tokio::test]
    async fn what_was_found_out_ahead_is_what_a_draw_would_find_out() {
        let tokenizer = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).unwrap();
        let compiler = Compiler::new(tokenizer, VOCAB, Arc::from([END]));
        let schema = json!({"type": "object", "required": ["a", "b"], "additionalProperties": false,
            "properties": {"a": {"type": "string", "maxLength": 8}, "b": {"type": "integer", "maximum": 999}}});
        let shape = Shape::of_outputs(json!({"json": schema}).as_object().unwrap().clone());
        let shape = shape.unwrap_or_else(|error| panic!("{}", error.message()));
        let masks = compiler
            .masks(&shape, 2, Prelude::None)
            .await
            .unwrap_or_else(|error| panic!("{}", error.message()));
        let [alone, ahead] = &masks[..] else { panic!("two were asked for") };
        let mut output = Vec::new();
        for turn in 0.. {
            let follow = allowed(ahead, &output);
            assert_eq!(follow, allowed(alone, &output), "after {output:?}");
            let token = follow[turn * 7 % follow.len()];
            if token == END {
                break;
            }
            if turn % 3 == 0 {
                // A draw that came to nothing: another one is made.
                Arc::clone(ahead).drawn(follow[turn * 5 % follow.len()]);
                assert_eq!(allowed(ahead, &output), follow);
            }
            Arc::clone(ahead).drawn(token);
            output.push(token);
            if turn % 2 == 0 {
                // The threads are given the time; on the other turns whoever is first does it.
                while ahead.lock().taken.len() < output.len() {
                    std::thread::yield_now();
                }
            }
        }
        let (ahead, alone) = (ahead.lock(), alone.lock());
        assert!(
            ahead.costs.masks >= alone.costs.masks && alone.costs.masks == alone.costs.draws,
            "{output:?}"
        );
    }

    #[tokio::test]
    async fn reasoning_precedes_the_shape_and_may_contain_all_but_its_end() {
        const OPEN: u32 = 100;
        const CLOSE: u32 = 101;
        let tokenizer = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).unwrap();
        let compiler = Compiler::new(tokenizer, VOCAB, Arc::from([END]));
        let shape = Shape::of_outputs(json!({"regex": "[0-9]{8}"}).as_object().unwrap().clone());
        let shape = shape.unwrap_or_else(|error| panic!("{}", error.message()));
        let mask = async |prelude| {
            let masks = compiler.masks(&shape, 1, prelude).await;
            masks.unwrap_or_else(|error| panic!("{}", error.message())).remove(0)
        };
        let all: Vec<u32> = (0..VOCAB).filter(|&token| token != END).collect();
        let plain = mask(Prelude::None).await;
        let shaped = allowed(&plain, &[]);
        let digit = shaped[0];
        let then = allowed(&plain, &[digit]);
        assert!(!shaped.contains(&OPEN) && shaped.len() < 1_000);

        let opened = mask(Prelude::Opened { close: CLOSE }).await;
        assert_eq!(allowed(&opened, &[]), all);
        assert_eq!(allowed(&opened, &[digit, 7]), all);
        assert_eq!(allowed(&opened, &[digit, 7, CLOSE]), shaped);
        assert_eq!(allowed(&opened, &[digit, 7, CLOSE, digit]), then);

        let tagged = mask(Prelude::Tagged { open: OPEN, close: CLOSE }).await;
        let mut either = shaped.clone();
        either.push(OPEN);
        either.sort_unstable();
        assert_eq!(allowed(&tagged, &[]), either);
        assert_eq!(allowed(&tagged, &[digit]), then, "without reasoning");
        Arc::clone(&tagged).drawn(digit);
        for reasoning in [&[OPEN][..], &[OPEN, digit], &[OPEN, digit, 9]] {
            assert_eq!(allowed(&tagged, reasoning), all);
            Arc::clone(&tagged).drawn(digit);
        }
        assert_eq!(allowed(&tagged, &[OPEN, digit, 9, CLOSE]), shaped);
        assert_eq!(allowed(&tagged, &[OPEN, digit, 9, CLOSE, digit]), then);
    }

    #[tokio::test]
    async fn a_draw_finds_a_mask_that_is_ready() {
        let tokenizer = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).unwrap();
        let compiler = Compiler::new(tokenizer, VOCAB, Arc::from([END]));
        let shape = Shape::of_outputs(json!({"regex": "[a-z]{40}"}).as_object().unwrap().clone());
        let shape = shape.unwrap_or_else(|error| panic!("{}", error.message()));
        let masks = compiler
            .masks(&shape, 1, Prelude::None)
            .await
            .unwrap_or_else(|error| panic!("{}", error.message()));
        let mask = &masks[0];
        let token = allowed(mask, &[])[0];
        Arc::clone(mask).drawn(token);
        while mask.lock().allowed.is_none() || mask.lock().taken.is_empty() {
            std::thread::yield_now();
        }
        let before = mask.lock().costs.masks;
        assert!(!allowed(mask, &[token]).is_empty());
        assert_eq!(mask.lock().costs.masks, before, "nothing was left to compute");
    }
}

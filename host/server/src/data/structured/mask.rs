//! Which tokens may follow, for the sampler: one sequence's automaton, brought to where its output is.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use infer_core::Constraint;
use llguidance::Matcher;

/// One sequence's automaton. The engine thread alone calls it; the lock is for what is told at the end.
pub struct Mask {
    state: Mutex<State>,
}

struct State {
    matcher: Matcher,
    /// Output that the automaton has taken.
    taken: Vec<u32>,
    fault: Option<String>,
    spent: Duration,
    masks: u32,
}

impl Mask {
    /// Of an automaton that has taken nothing.
    pub fn new(matcher: Matcher) -> Self {
        let state = State { matcher, taken: Vec::new(), fault: None, spent: Duration::ZERO, masks: 0 };
        Self { state: Mutex::new(state) }
    }

    /// Why it can't tell any more.
    pub fn fault(&self) -> Option<String> {
        self.lock().fault.clone()
    }

    /// What a mask cost on average, in microseconds.
    pub fn mean_us(&self) -> u64 {
        let state = self.lock();
        state.spent.as_micros() as u64 / u64::from(state.masks.max(1))
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
            self.matcher.rollback(too_many).map_err(|error| error.to_string())?;
            self.taken.truncate(common);
        }
        for &token in &output[common..] {
            self.matcher.consume_token(token).map_err(|error| error.to_string())?;
            self.taken.push(token);
        }
        Ok(())
    }

    fn restrict(&mut self, output: &[u32], logits: &mut [f32]) -> Result<(), String> {
        self.follow(output)?;
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| error.to_string())?;
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
        let begun = Instant::now();
        let mut state = self.lock();
        let restricted = state.restrict(output, logits);
        state.spent += begun.elapsed();
        state.masks += 1;
        if let Err(why) = restricted {
            let why = why.split("<backtrace>").next().unwrap_or_default().trim().to_owned();
            state.fault = Some(format!("the structured output can't go on: {why}"));
            return false;
        }
        true
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mask")
    }
}

//! The automata of one output, one for each alternative: brought to where the output is, and asked what may follow.

use std::fmt;
use std::time::{Duration, Instant};

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

/// What masks cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Costs {
    pub computed: Duration,
    pub masks: u32,
    /// For whoever draws.
    pub waited: Duration,
    pub draws: u32,
}

/// The automata, and what they have taken.
pub struct Automata {
    /// One for each alternative.
    pub ways: Vec<Way>,
    /// Output that some automaton has taken.
    pub taken: Vec<u32>,
    /// What may follow it, once that is known.
    pub allowed: Option<SimpleVob>,
    pub fault: Option<String>,
    pub costs: Costs,
}

/// An alternative's automaton.
pub struct Way {
    pub matcher: Matcher,
    /// Tokens that it has taken: all of the output, or those before the first one that it forbids.
    taken: usize,
    /// What ended it for good, such as a limit that it reached.
    fault: Option<String>,
}

impl Way {
    /// Goes back to the first `len` tokens, if it has taken more.
    fn go_back(&mut self, len: usize) {
        let back = self.taken.saturating_sub(len);
        if back > 0 && self.fault.is_none() && self.ask(|matcher| matcher.rollback(back)).is_some() {
            self.taken = len;
        }
    }

    /// Asks its automaton, and ends it if that fails.
    fn ask<T, E: fmt::Display>(&mut self, what: impl FnOnce(&mut Matcher) -> Result<T, E>) -> Option<T> {
        what(&mut self.matcher).inspect_err(|error| self.fault = Some(error.to_string())).ok()
    }
}

impl Automata {
    /// Those that have taken nothing.
    pub fn new(matchers: Vec<Matcher>) -> Self {
        let ways = matchers.into_iter().map(|matcher| Way { matcher, taken: 0, fault: None }).collect();
        Self { ways, taken: Vec::new(), allowed: None, fault: None, costs: Costs::default() }
    }

    /// The automata that have taken the whole output and can go on.
    fn open(&mut self) -> impl Iterator<Item = &mut Way> {
        let taken = self.taken.len();
        self.ways.iter_mut().filter(move |way| way.taken == taken && way.fault.is_none())
    }

    /// Why no automaton can go on: what ended the first that failed, or else what the output does.
    fn stuck(&self, otherwise: impl FnOnce() -> String) -> String {
        self.ways.iter().find_map(|way| way.fault.clone()).unwrap_or_else(otherwise)
    }

    /// Brings the automata to `output`. A draw that is made again finds them one token ahead.
    fn follow(&mut self, output: &[u32]) -> Result<(), String> {
        let common = self.taken.iter().zip(output).take_while(|(a, b)| a == b).count();
        if self.taken.len() > common {
            self.allowed = None;
            self.ways.iter_mut().for_each(|way| way.go_back(common));
            self.taken.truncate(common);
        }
        output[common..].iter().try_for_each(|&token| self.take(token))
    }

    /// Fails where no automaton takes the token. One that fails beside others is left out from there on.
    pub fn take(&mut self, token: u32) -> Result<(), String> {
        self.allowed = None;
        let alone = self.open().count() == 1;
        let mut took = 0;
        for way in self.open() {
            // One of several may forbid it.
            let one = way.ask(|matcher| match alone {
                true => matcher.consume_token(token).map(|()| 1),
                false => matcher.try_consume_tokens(&[token]),
            });
            let one = one.unwrap_or(0);
            way.taken += one;
            took += one;
        }
        if took == 0 {
            return Err(self.stuck(|| format!("no alternative allows token {token}")));
        }
        self.taken.push(token);
        Ok(())
    }

    /// What may follow the output that was taken.
    pub fn find_out(&mut self) -> Result<&SimpleVob, String> {
        if self.allowed.is_none() {
            let begun = Instant::now();
            let allowed = self.union();
            self.costs.computed += begun.elapsed();
            self.costs.masks += 1;
            self.allowed = Some(allowed?);
        }
        Ok(self.allowed.as_ref().expect("it was just found out"))
    }

    /// What any of the automata allows. One that fails beside others is left out from there on.
    fn union(&mut self) -> Result<SimpleVob, String> {
        let mut all: Option<SimpleVob> = None;
        for way in self.open() {
            let Some(allowed) = way.ask(Matcher::compute_mask_or_eos) else { continue };
            match &mut all {
                Some(all) => all.or(&allowed),
                None => all = Some(allowed),
            }
        }
        all.ok_or_else(|| self.stuck(|| "no alternative allows it".to_owned()))
    }

    /// Forbids what may not follow `output`.
    pub fn restrict(&mut self, output: &[u32], logits: &mut [f32]) -> Result<(), String> {
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

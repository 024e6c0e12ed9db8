//! Which tokens may follow, for the sampler: one sequence's automaton, brought to where its output is. What
//! follows a drawn token is found out ahead, by other threads; whoever asks before they are done waits for them,
//! and whoever asks before they began does it alone. Either way the answer is the same.
//!
//! An output with alternatives has an automaton for each, which counts until the output leaves it. In one grammar of
//! all, a word of one would hide a shorter word of another that begins alike, as the head of a call does a reply's
//! first brace.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use infer_core::Constraint;
use infer_model::Tokenizer;
use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use super::ahead::{Ahead, Job};
use super::prelude::Prelude;
use super::room::Share;

/// The last token was drawn without the automaton.
const UNASKED: usize = usize::MAX;

/// One sequence's automata.
pub struct Mask {
    prelude: Prelude,
    vocabulary: Vocabulary,
    state: Mutex<State>,
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

struct State {
    /// One for each alternative.
    ways: Vec<Way>,
    /// Output that some automaton has taken.
    taken: Vec<u32>,
    /// What may follow it, once that is known.
    allowed: Option<SimpleVob>,
    fault: Option<String>,
    costs: Costs,
}

/// An alternative's automaton.
struct Way {
    matcher: Matcher,
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
    /// Of automata that have taken nothing, one for each alternative, whose memory is in `share`.
    pub fn new(
        prelude: Prelude,
        vocabulary: Vocabulary,
        matchers: Vec<Matcher>,
        ahead: Ahead,
        share: Share,
    ) -> Self {
        let ways = matchers.into_iter().map(|matcher| Way { matcher, taken: 0, fault: None }).collect();
        let (taken, costs) = (Vec::new(), Costs::default());
        let state = State { ways, taken, allowed: None, fault: None, costs };
        let (state, asked) = (Mutex::new(state), AtomicUsize::new(0));
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

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
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
    fn take(&mut self, token: u32) -> Result<(), String> {
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
    fn find_out(&mut self) -> Result<&SimpleVob, String> {
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
mod tests {
    use infer_model::{Source, Tokenizer};
    use serde_json::json;

    use super::super::{Calling, Compiler, Messages, Shape};
    use super::*;
    use crate::data::sequence::head::Head;
    use crate::data::sequence::place::Place;

    const VOCAB: u32 = 1_792;
    const END: u32 = 1;

    fn allowed(mask: &Mask, output: &[u32]) -> Vec<u32> {
        let mut logits = vec![0.0; VOCAB as usize];
        assert!(mask.restrict(output, &mut logits), "{:?}", mask.fault());
        (0..VOCAB).filter(|&token| logits[token as usize] == 0.0).collect()
    }

    fn compiler() -> Compiler {
        let tokenizer = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).unwrap();
        Compiler::new(tokenizer, VOCAB, Arc::from([END]))
    }

    fn regex(regex: &str) -> Shape {
        let shape = Shape::of_outputs(json!({"regex": regex}).as_object().unwrap().clone());
        shape.unwrap_or_else(|error| panic!("{}", error.message()))
    }

    async fn masks(compiler: &Compiler, shape: &Shape, count: usize, prelude: Prelude) -> Vec<Arc<Mask>> {
        let masks = compiler.masks(shape, count, prelude).await;
        masks.unwrap_or_else(|error| panic!("{}", error.message()))
    }

    #[tokio::test]
    async fn what_was_found_out_ahead_is_what_a_draw_would_find_out() {
        let compiler = compiler();
        let schema = json!({"type": "object", "required": ["a", "b"], "additionalProperties": false,
            "properties": {"a": {"type": "string", "maxLength": 8}, "b": {"type": "integer", "maximum": 999}}});
        let shape = Shape::of_outputs(json!({"json": schema}).as_object().unwrap().clone());
        let shape = shape.unwrap_or_else(|error| panic!("{}", error.message()));
        let masks = masks(&compiler, &shape, 2, Prelude::None).await;
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
    async fn output_keeps_to_one_of_its_alternatives_and_to_either_until_a_token_tells() {
        let compiler = compiler();
        let mask = async |shape: &Shape| masks(&compiler, shape, 1, Prelude::None).await.remove(0);
        let (digits, letters) = (regex("x[0-9]{3}"), regex("x[a-z]{40}|x"));
        let either = mask(&digits.clone().or(letters.clone())).await;
        let (digits, letters) = (mask(&digits).await, mask(&letters).await);
        let both = |output: &[u32]| {
            let mut both = [allowed(&digits, output), allowed(&letters, output)].concat();
            both.sort_unstable();
            both.dedup();
            both
        };
        assert_eq!(allowed(&either, &[]), both(&[]));
        let begin = allowed(&letters, &[]);
        let common = *allowed(&digits, &[]).iter().find(|token| begin.contains(token)).unwrap();
        assert_eq!(allowed(&either, &[common]), both(&[common]), "either");
        let digit = allowed(&digits, &[common])[0];
        let letter = *allowed(&letters, &[common]).iter().find(|&&token| token != END).unwrap();
        // Also after a draw that was made again, with another outcome.
        for (told, alone) in [(digit, &digits), (letter, &letters), (digit, &digits)] {
            let output = [common, told];
            assert_eq!(allowed(&either, &output), allowed(alone, &output));
            let next = *allowed(alone, &output).iter().find(|&&token| token != END).unwrap();
            Arc::clone(&either).drawn(next);
            // So that it is ahead when it is asked again.
            while either.lock().taken.len() == output.len() {
                std::thread::yield_now();
            }
        }
        assert_eq!(allowed(&either, &[common]), both(&[common]), "either again");

        // An end may be drawn, and another token in its place.
        let masks = either.lock().costs.masks;
        assert!(both(&[common]).contains(&END));
        either.prepare(1, END);
        assert_eq!(allowed(&either, &[common]), both(&[common]), "either after an end");
        assert_eq!(either.lock().costs.masks, masks, "nothing was asked about an end");
        assert_eq!(allowed(&either, &[common, digit]), allowed(&digits, &[common, digit]));
    }

    #[tokio::test]
    async fn output_goes_on_in_the_alternatives_that_are_left_when_one_fails() {
        let compiler = compiler();
        let mask = async |shape: &Shape| masks(&compiler, shape, 1, Prelude::None).await.remove(0);
        let (digits, letters) = (regex("x[0-9]{3}"), regex("x[a-z]{40}"));
        let union = digits.clone().or(letters.clone());
        let (digits, letters) = (mask(&digits).await, mask(&letters).await);
        let begin = allowed(&letters, &[]);
        let common = *allowed(&digits, &[]).iter().find(|token| begin.contains(token)).unwrap();
        let follow = [&digits, &letters].map(|mask| [allowed(mask, &[]), allowed(mask, &[common])].concat());
        let follow = follow.concat();
        let never = (200..VOCAB).find(|token| !follow.contains(token));
        let fail = |mask: &Mask, way: usize| {
            let told = mask.lock().ways[way].matcher.consume_token(never.unwrap());
            told.expect_err("it forbids the token");
        };
        // Found out when the token is taken, or by the mask that follows it, or when the output goes back.
        for (failed, left) in [(0, &letters), (1, &digits)] {
            let taking = mask(&union).await;
            assert!(!allowed(&taking, &[]).is_empty());
            fail(&taking, failed);
            assert_eq!(allowed(&taking, &[common]), allowed(left, &[common]), "{failed}");
            assert_eq!(allowed(&taking, &[]), allowed(left, &[]), "{failed}: for good");
            let asking = mask(&union).await;
            fail(&asking, failed);
            assert_eq!(allowed(&asking, &[]), allowed(left, &[]), "{failed}");
            let going_back = mask(&union).await;
            assert!(!allowed(&going_back, &[common]).is_empty());
            fail(&going_back, failed);
            assert_eq!(allowed(&going_back, &[]), allowed(left, &[]), "{failed}");
        }
        let none = mask(&union).await;
        fail(&none, 0);
        fail(&none, 1);
        assert!(!none.restrict(&[], &mut vec![0.0; VOCAB as usize]));
        assert!(!none.fault().unwrap().contains("no alternative"), "{:?}", none.fault());
    }

    #[tokio::test]
    async fn many_sequences_have_all_alternatives_each_after_its_own_reasoning() {
        const CLOSE: u32 = 101;
        let compiler = compiler();
        let (digits, letters) = (regex("[0-9]{9}"), regex("[a-z]{40}"));
        let mask = async |shape: &Shape| masks(&compiler, shape, 1, Prelude::None).await.remove(0);
        let alone = [mask(&digits).await, mask(&letters).await];
        // More than share an automaton, and each on its own way.
        let all = masks(&compiler, &digits.or(letters), 9, Prelude::Opened { close: CLOSE }).await;
        for (at, mask) in all.iter().enumerate() {
            let alone = &alone[at % 2];
            let token = allowed(alone, &[])[at];
            assert!(allowed(mask, &[token]).contains(&CLOSE), "{at}: reasoning");
            let begin = allowed(mask, &[token, CLOSE]);
            assert!(begin.contains(&token), "{at}");
            assert!(begin.len() > allowed(alone, &[]).len(), "{at}: either");
            assert_eq!(allowed(mask, &[token, CLOSE, token]), allowed(alone, &[token]), "{at}");
        }
    }

    #[tokio::test]
    async fn reasoning_precedes_the_shape_and_may_contain_all_but_its_end() {
        const OPEN: u32 = 100;
        const CLOSE: u32 = 101;
        let compiler = compiler();
        let shape = regex("[0-9]{8}");
        let mask = async |prelude| masks(&compiler, &shape, 1, prelude).await.remove(0);
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

        let tagged = mask(Prelude::Tagged { open: Arc::from([OPEN]), close: CLOSE }).await;
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
    async fn tag_of_several_tokens_opens_the_reasoning_beside_a_form_that_begins_alike() {
        const CLOSE: u32 = 101;
        let compiler = compiler();
        let shape = regex("[0-9]{8}");
        let mask = async |prelude| masks(&compiler, &shape, 1, prelude).await.remove(0);
        let plain = mask(Prelude::None).await;
        let digit = allowed(&plain, &[])[0];
        let then = allowed(&plain, &[digit]);
        let second = (200..VOCAB).find(|token| !then.contains(token)).unwrap();
        let tagged = mask(Prelude::Tagged { open: Arc::from([digit, second]), close: CLOSE }).await;
        for _ in 0..2 {
            assert_eq!(allowed(&tagged, &[]), allowed(&plain, &[]));
            Arc::clone(&tagged).drawn(digit);
            let mut either = [&then[..], &[second]].concat();
            either.sort_unstable();
            assert_eq!(allowed(&tagged, &[digit]), either);
            Arc::clone(&tagged).drawn(second);
            let reasoning = [digit, second, digit];
            assert!(allowed(&tagged, &reasoning).contains(&CLOSE));
            let after = [&reasoning[..], &[CLOSE]].concat();
            assert_eq!(allowed(&tagged, &after), allowed(&plain, &[]));
            assert_eq!(allowed(&tagged, &[&after[..], &[digit]].concat()), then);
            assert_eq!(allowed(&tagged, &[digit, then[0]]), allowed(&plain, &[digit, then[0]]));
        }
    }

    #[tokio::test]
    async fn form_is_that_of_the_message_in_a_channel() {
        let [channel, message, end] = [100, 101, END];
        let name: Arc<[u32]> = Arc::from([102, 103]);
        let compiler = compiler();
        let shape = regex("[0-9]{8}");
        let mask = async |opened, call| {
            let messages = Messages { channel, opened, name: Arc::clone(&name), message, call };
            masks(&compiler, &shape, 1, Prelude::Messages(messages)).await.remove(0)
        };
        let calling = |to: &str| {
            let opening = Place::Body(Head::given(format!("assistant to={to}")).unwrap());
            Calling { end, bounds: [105, 106], opening, functions: Arc::from(["f".to_owned()]) }
        };
        let plain = masks(&compiler, &shape, 1, Prelude::None).await.remove(0);
        let digits = allowed(&plain, &[]);
        let all = |may_end| (0..VOCAB).filter(|&token| token != end || may_end).collect::<Vec<u32>>();
        for (call, may_end) in
            [(None, false), (Some(calling("python")), false), (Some(calling("functions.f")), true)]
        {
            let mask = mask(false, call).await;
            let all = all(may_end);
            for before in [
                &[][..],
                &[channel, 102, message, 7],
                &[channel, 7, message, 102, 103, message, 9],
                &[channel, 102, 103],
                &[channel, 7, channel, 102, 103, 104],
            ] {
                assert_eq!(allowed(&mask, before), all, "{before:?}");
            }
            let begun = [channel, 7, message, channel, 102, 103, 104, message];
            assert_eq!(allowed(&mask, &begun), digits);
            let more = [&begun[..], &[digits[0]]].concat();
            assert_eq!(allowed(&mask, &more), allowed(&plain, &[digits[0]]));
        }
        // The prompt ends where the channel's name follows.
        let mask = mask(true, None).await;
        for before in [&[102][..], &[102, 103], &[102, message], &[7, message, 102, 103, message]] {
            assert_eq!(allowed(&mask, before), all(false), "{before:?}");
        }
        for begun in [&[102, 103, message][..], &[7, message, channel, 102, 103, message]] {
            assert_eq!(allowed(&mask, begun), digits, "{begun:?}");
        }
    }

    #[tokio::test]
    async fn a_draw_finds_a_mask_that_is_ready() {
        let compiler = compiler();
        let shape = regex("[a-z]{40}");
        let masks = masks(&compiler, &shape, 1, Prelude::None).await;
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

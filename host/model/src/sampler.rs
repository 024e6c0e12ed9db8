//! Draws one token from logits. The random number is a pure function of the request's seed and the token's
//! index, so neither the batch nor a preemption changes a draw. Order: forbidden tokens, repetition penalty,
//! temperature, top-k, top-p.

use infer_core::SamplingParams;
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

/// What a draw depends on besides the logits.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// How it is drawn.
    pub params: &'a SamplingParams,
    /// Index of the token: 0 for the first generated one.
    pub index: u32,
    /// Prompt and output so far, for the repetition penalty.
    pub history: &'a [u32],
    /// Tokens that can't be drawn.
    pub forbidden: &'a [u32],
}

/// Keeps scratch between draws.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Whether a token was penalized already; all false between draws.
    seen: Vec<bool>,
    candidates: Vec<(u32, f32)>,
}

/// First guess of how many tokens a nucleus needs.
const NUCLEUS_GUESS: usize = 64;

impl Sampler {
    /// Draws a token; `logits` is used up. `None` where they hold a NaN or +infinity, or leave no choice.
    pub fn draw(&mut self, logits: &mut [f32], draw: Draw<'_>) -> Option<u32> {
        for token in draw.forbidden {
            if let Some(logit) = logits.get_mut(*token as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        self.penalize(logits, draw.history, draw.params.repetition_penalty);
        let (best, largest) = best(logits)?;
        let params = draw.params;
        if params.temperature <= 0.0 || params.top_k == 1 {
            return Some(best);
        }
        let uniform = uniform(params.seed, draw.index);
        let weight = |logit: f32| (f64::from(logit - largest) / f64::from(params.temperature)).exp();
        if params.top_k == 0 && params.top_p >= 1.0 {
            let total: f64 = logits.iter().map(|logit| weight(*logit)).sum();
            let tokens = logits.iter().enumerate().map(|(token, logit)| (token as u32, weight(*logit)));
            return Some(pick(tokens, uniform * total).unwrap_or(best));
        }
        self.nucleus(logits, params, weight);
        let chosen = || self.candidates.iter().map(|(token, logit)| (*token, weight(*logit)));
        let total: f64 = chosen().map(|(_, weight)| weight).sum();
        Some(pick(chosen(), uniform * total).unwrap_or(best))
    }

    /// Each token that occurred is made less likely, once.
    fn penalize(&mut self, logits: &mut [f32], history: &[u32], penalty: f32) {
        if penalty == 1.0 {
            return;
        }
        self.seen.resize(logits.len(), false);
        for token in history {
            let Some(seen) = self.seen.get_mut(*token as usize) else { continue };
            if !std::mem::replace(seen, true) {
                let logit = &mut logits[*token as usize];
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        for token in history {
            if let Some(seen) = self.seen.get_mut(*token as usize) {
                *seen = false;
            }
        }
    }

    /// Leaves in `candidates` the tokens that top-k and top-p allow, likeliest first.
    fn nucleus(&mut self, logits: &[f32], params: &SamplingParams, weight: impl Fn(f32) -> f64) {
        let likelier = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let all = &mut self.candidates;
        all.clear();
        all.extend(logits.iter().enumerate().map(|(token, logit)| (token as u32, *logit)));
        let k = match params.top_k as usize {
            0 => all.len(),
            k => k.min(all.len()),
        };
        if k < all.len() {
            all.select_nth_unstable_by(k, likelier);
            all.truncate(k);
        }
        if params.top_p >= 1.0 {
            all.sort_unstable_by(likelier);
            return;
        }
        let goal = f64::from(params.top_p) * all.iter().map(|(_, logit)| weight(*logit)).sum::<f64>();
        let mut sorted = NUCLEUS_GUESS;
        loop {
            if sorted < all.len() {
                all.select_nth_unstable_by(sorted, likelier);
            }
            let head = sorted.min(all.len());
            all[..head].sort_unstable_by(likelier);
            let mut reached = 0.0;
            let enough = all[..head].iter().position(|(_, logit)| {
                reached += weight(*logit);
                reached >= goal
            });
            match enough {
                Some(last) => return all.truncate(last + 1),
                None if head == all.len() => return,
                None => sorted *= 8,
            }
        }
    }
}

/// The largest logit and its lowest token. `None` where a logit is NaN or +infinity, or all are -infinity.
fn best(logits: &[f32]) -> Option<(u32, f32)> {
    let mut best = (0, f32::NEG_INFINITY);
    let mut sound = true;
    for (token, logit) in logits.iter().enumerate() {
        sound &= *logit < f32::INFINITY;
        if *logit > best.1 {
            best = (token, *logit);
        }
    }
    (sound && best.1 > f32::NEG_INFINITY).then_some((best.0 as u32, best.1))
}

/// The token in whose share of the total `at` falls; the last possible one if rounding left it beyond.
fn pick(tokens: impl Iterator<Item = (u32, f64)>, at: f64) -> Option<u32> {
    let (mut reached, mut last) = (0.0, None);
    for (token, weight) in tokens {
        if weight > 0.0 {
            reached += weight;
            last = Some(token);
            if reached > at {
                break;
            }
        }
    }
    last
}

/// A number in `[0, 1)` for the `index`-th token of a seed: its own ChaCha stream.
fn uniform(seed: u64, index: u32) -> f64 {
    let mut random = ChaCha12Rng::seed_from_u64(seed);
    random.set_stream(u64::from(index));
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

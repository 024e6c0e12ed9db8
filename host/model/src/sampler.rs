//! Samples one token from logits. The random number is a pure function of the request's seed and the token's index, so
//! neither the batch nor a preemption changes the result. Order: constraint, logit bias, forbidden tokens, repetition,
//! frequency and presence penalty, temperature, min-p, top-k, top-p.

use infer_core::{SamplingParams, TokenLogprobs};
use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

/// What a sample depends on besides the logits.
#[derive(Clone, Copy, Debug)]
pub struct Draw<'a> {
    /// Sampling parameters.
    pub params: &'a SamplingParams,
    /// Index of the token: 0 for the first generated one.
    pub index: u32,
    /// Prompt and output so far, for penalties; the output is its last `index` tokens.
    pub history: &'a [u32],
    /// Tokens that can't be sampled.
    pub forbidden: &'a [u32],
}

/// Sampler with reusable scratch.
#[derive(Debug, Default)]
pub struct Sampler {
    /// Whether a token was penalized already; all false between samples.
    seen: Vec<bool>,
    candidates: Vec<(u32, f32)>,
    /// Logits of forbidden tokens, restored if nothing else is left.
    withheld: Vec<(u32, f32)>,
    /// The output, sorted, to count tokens.
    output: Vec<u32>,
}

/// Initial estimate of the size of a nucleus.
const NUCLEUS_GUESS: usize = 64;

impl Sampler {
    /// Samples a token, overwriting `logits`. `None` if they contain NaN or +infinity, or leave no choice.
    pub fn draw(&mut self, logits: &mut [f32], draw: Draw<'_>) -> Option<u32> {
        let params = draw.params;
        if let Some(extras) = &params.extras {
            for (token, bias) in &extras.logit_bias {
                if let Some(logit) = logits.get_mut(*token as usize) {
                    *logit += bias;
                }
            }
        }
        self.forbid(logits, draw);
        self.penalize(logits, draw.history, params.repetition_penalty);
        let output = draw.history.len().saturating_sub(draw.index as usize);
        self.discourage(logits, &draw.history[output..], params);
        let (best, largest) = best(logits)?;
        if params.temperature <= 0.0 || params.top_k == 1 {
            return Some(best);
        }
        let uniform = uniform(params.seed, draw.index);
        let weight = |logit: f32| (f64::from(logit - largest) / f64::from(params.temperature)).exp();
        // A device takes a limit that nothing reaches for none, too, and so draws in the order of ids.
        let takes_all = params.top_k == 0 || params.top_k as usize >= logits.len();
        if takes_all && params.top_p >= 1.0 && params.min_p <= 0.0 {
            let total: f64 = logits.iter().map(|logit| weight(*logit)).sum();
            let tokens = logits.iter().enumerate().map(|(token, logit)| (token as u32, weight(*logit)));
            return Some(pick(tokens, uniform * total).unwrap_or(best));
        }
        self.nucleus(logits, params, weight);
        let chosen = || self.candidates.iter().map(|(token, logit)| (*token, weight(*logit)));
        let total: f64 = chosen().map(|(_, weight)| weight).sum();
        Some(pick(chosen(), uniform * total).unwrap_or(best))
    }

    /// Excludes forbidden tokens, unless a constraint leaves nothing else.
    fn forbid(&mut self, logits: &mut [f32], draw: Draw<'_>) {
        self.withheld.clear();
        for token in draw.forbidden {
            if let Some(logit) = logits.get_mut(*token as usize) {
                self.withheld.push((*token, std::mem::replace(logit, f32::NEG_INFINITY)));
            }
        }
        let constrained = draw.params.extras.as_ref().is_some_and(|extras| extras.constraint.is_some());
        if constrained && logits.iter().all(|logit| *logit == f32::NEG_INFINITY) {
            for (token, logit) in self.withheld.drain(..) {
                logits[token as usize] = logits[token as usize].max(logit);
            }
        }
    }

    /// Frequency and presence penalty: lowers the logit of each output token by its count, and once for occurring.
    #[allow(clippy::float_cmp, reason = "0 is the exact value that turns the penalties off")]
    fn discourage(&mut self, logits: &mut [f32], output: &[u32], params: &SamplingParams) {
        if params.frequency_penalty == 0.0 && params.presence_penalty == 0.0 {
            return;
        }
        self.output.clear();
        self.output.extend_from_slice(output);
        self.output.sort_unstable();
        for same in self.output.chunk_by(|a, b| a == b) {
            if let Some(logit) = logits.get_mut(same[0] as usize) {
                *logit -= params.frequency_penalty * same.len() as f32 + params.presence_penalty;
            }
        }
    }

    /// Repetition penalty: makes each token that occurred less likely, once.
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

    /// Leaves in `candidates` the tokens that min-p, top-k and top-p allow, likeliest first.
    fn nucleus(&mut self, logits: &[f32], params: &SamplingParams, weight: impl Fn(f32) -> f64) {
        let likelier = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let all = &mut self.candidates;
        all.clear();
        let tokens = logits.iter().enumerate().map(|(token, logit)| (token as u32, *logit));
        if params.min_p > 0.0 {
            all.extend(tokens.filter(|(_, logit)| weight(*logit) >= f64::from(params.min_p)));
        } else {
            all.extend(tokens);
        }
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

/// Log-probabilities of `token` and of the `count` likeliest tokens; among equals the lower id comes first.
pub fn logprobs(logits: &[f32], token: u32, count: usize) -> TokenLogprobs {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    let norm = f64::from(largest) + total.ln();
    let of = |logit: f32| (f64::from(logit) - norm) as f32;
    // The best so far, likeliest first: most logits are below the last of them.
    let mut top: Vec<(u32, f32)> = Vec::with_capacity(count + 1);
    for (token, &logit) in logits.iter().enumerate() {
        if count == 0 || (top.len() == count && logit <= top[count - 1].1) {
            continue;
        }
        let at = top.partition_point(|(_, other)| *other >= logit);
        top.insert(at, (token as u32, logit));
        top.truncate(count);
    }
    top.iter_mut().for_each(|(_, logit)| *logit = of(*logit));
    TokenLogprobs { logprob: logits.get(token as usize).map_or(f32::NEG_INFINITY, |&logit| of(logit)), top }
}

/// The largest logit and its lowest token. `None` if a logit is NaN or +infinity, or all are -infinity.
fn best(logits: &[f32]) -> Option<(u32, f32)> {
    // The compiler vectorizes sixteen running maxima; these can lose a NaN, so it is detected separately.
    let (mut largest, mut sound) = ([f32::NEG_INFINITY; 16], true);
    let (parts, rest) = logits.as_chunks::<16>();
    for part in parts {
        for (largest, logit) in largest.iter_mut().zip(part) {
            *largest = if *logit > *largest { *logit } else { *largest };
            sound &= *logit < f32::INFINITY;
        }
    }
    sound &= rest.iter().all(|logit| *logit < f32::INFINITY);
    let largest = largest.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max);
    if !sound || largest == f32::NEG_INFINITY {
        return None;
    }
    let token = logits.iter().position(|logit| *logit == largest)?;
    Some((token as u32, largest))
}

/// The token whose share of the total contains `at`; the last possible one if rounding puts it beyond.
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

/// A number in `[0, 1)` for the `index`-th token of a seed, from a separate ChaCha stream.
pub(crate) fn uniform(seed: u64, index: u32) -> f64 {
    let mut random = ChaCha12Rng::seed_from_u64(seed);
    random.set_stream(u64::from(index));
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

//! A device as it was measured: what a step costs by what is in it, and how much that varies.

use serde::{Deserialize, Serialize};

use super::Work;
use crate::random::Random;

/// Of the file's layout.
const FORMAT: u32 = 3;

/// A model on a device, measured. This is what a profile file holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitted {
    /// Of the file's layout.
    pub format: u32,
    /// What was measured, in a few words.
    pub name: String,
    /// Tokens in a block of its pool.
    pub block_size: u32,
    /// Blocks of its pool.
    pub total_blocks: u32,
    /// What steps cost.
    pub cost: Cost,
    /// Measured times over computed ones at equal steps from the quickest to the slowest, so that steps drawn
    /// from it take as long in all as they took. Empty where steps don't vary.
    pub spread: Vec<f64>,
    /// How well the costs describe what was measured.
    pub fit: Fit,
}

/// What a step costs, in microseconds: the sum of these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Whatever is in it: launches, the policy, the host.
    pub step_us: f64,
    /// For each sequence.
    pub row_us: f64,
    /// Where any token is drawn: the output projection reads its weights, which pieces inside of prompts
    /// leave alone.
    pub drawing_us: f64,
    /// For each token drawn.
    pub drawn_us: f64,
    /// For each token of context that a sequence reads to compute one token.
    pub decode_context_us: f64,
    /// The same where another sequence of the step reads that token, too: caches hold it.
    pub repeated_context_us: f64,
    /// For each token that a token of a longer piece attends to.
    pub chunk_attended_us: f64,
    /// For computing tokens: from so many tokens in the step on, each costs so much.
    pub tokens: Vec<Segment>,
}

/// A stretch of equal cost per token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segment {
    /// Tokens in the step where it begins.
    pub from: f64,
    /// Microseconds a token.
    pub us: f64,
}

/// How well a profile describes what it was fitted to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fit {
    /// Steps measured.
    pub steps: u64,
    /// How far a step's computed time is from its measured one, in percent of the latter: the median.
    pub error_p50_percent: f64,
    /// The same, 95th percentile.
    pub error_p95_percent: f64,
    /// Computed time of all steps over measured time, in percent less 100.
    pub total_percent: f64,
}

/// What every layout of the file says of itself.
#[derive(Deserialize)]
struct Layout {
    format: u32,
}

/// A profile that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ProfileError(pub(super) String);

impl Cost {
    /// Microseconds that a step takes.
    pub fn step_us(&self, work: &Work) -> f64 {
        let mut us = self.step_us
            + self.row_us * work.rows
            + if work.drawn > 0.0 { self.drawing_us } else { 0.0 }
            + self.drawn_us * work.drawn
            + self.decode_context_us * (work.decode_context - work.repeated).max(0.0)
            + self.repeated_context_us * work.repeated
            + self.chunk_attended_us * (work.attended - work.decode_context).max(0.0);
        for (at, segment) in self.tokens.iter().enumerate() {
            let end = self.tokens.get(at + 1).map_or(f64::INFINITY, |next| next.from);
            us += segment.us * (work.tokens.min(end) - segment.from).max(0.0);
        }
        us
    }
}

impl Fitted {
    /// A profile of this layout.
    pub fn new(name: String, pool: (u32, u32), cost: Cost, spread: Vec<f64>, fit: Fit) -> Self {
        let (block_size, total_blocks) = pool;
        Self { format: FORMAT, name, block_size, total_blocks, cost, spread, fit }
    }

    /// Reads what `to_json` wrote.
    pub fn from_json(text: &str) -> Result<Self, ProfileError> {
        let no_profile = |error: serde_json::Error| ProfileError(format!("it is no profile: {error}"));
        let Layout { format } = serde_json::from_str(text).map_err(no_profile)?;
        if format != FORMAT {
            let message = format!("it has format {format}, this is {FORMAT}; calibrate again");
            return Err(ProfileError(message));
        }
        let fitted: Self = serde_json::from_str(text).map_err(no_profile)?;
        let cost = &fitted.cost;
        let costs = [
            cost.step_us,
            cost.row_us,
            cost.drawing_us,
            cost.drawn_us,
            cost.decode_context_us,
            cost.repeated_context_us,
            cost.chunk_attended_us,
        ];
        let segments = cost.tokens.iter().flat_map(|segment| [segment.from, segment.us]);
        let numbers = costs.into_iter().chain(segments).chain(fitted.spread.iter().copied());
        let faults = [
            (
                numbers.clone().any(|number| !(0.0..1e12).contains(&number)),
                "a cost is negative or absurdly large".to_owned(),
            ),
            (costs[0] <= 0.0, "`step_us` must be more than 0: a step takes time".to_owned()),
            (
                !cost.tokens.iter().is_sorted_by(|a, b| a.from < b.from),
                "`tokens` must be in ascending order of `from`".to_owned(),
            ),
            (fitted.spread.len() == 1, "`spread` needs none or several values".to_owned()),
            (fitted.block_size == 0 || fitted.total_blocks == 0, "its pool is empty".to_owned()),
        ];
        match faults.into_iter().find(|(is_fault, _)| *is_fault) {
            Some((_, message)) => Err(ProfileError(message)),
            None => Ok(fitted),
        }
    }

    /// As a file.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a profile is JSON") + "\n"
    }

    /// Blocks of this size in its pool.
    pub fn blocks(&self, block_size: u32) -> u32 {
        let tokens = u64::from(self.total_blocks) * u64::from(self.block_size);
        u32::try_from(tokens / u64::from(block_size.max(1))).unwrap_or(u32::MAX)
    }

    /// How much slower than computed a step is this time.
    pub(super) fn draw_spread(&self, random: &mut Random) -> f64 {
        let Some(last) = self.spread.len().checked_sub(1).filter(|last| *last > 0) else { return 1.0 };
        #[expect(clippy::cast_precision_loss, reason = "a few dozen")]
        let at = random.unit() * last as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the table")]
        let low = (at as usize).min(last - 1);
        #[expect(clippy::cast_precision_loss, reason = "a few dozen")]
        let part = at - low as f64;
        self.spread[low] + part * (self.spread[low + 1] - self.spread[low])
    }
}

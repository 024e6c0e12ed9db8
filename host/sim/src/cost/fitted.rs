//! A measured device: the cost of a step by its work, and the variation of that cost.

use serde::{Deserialize, Serialize};

use super::Work;
use crate::random::Random;

/// Version of the file's layout.
const FORMAT: u32 = 3;

/// A measured model on a device; the contents of a profile file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fitted {
    /// Version of the file's layout.
    pub format: u32,
    /// Short description of what was measured.
    pub name: String,
    /// Tokens per block of its pool.
    pub block_size: u32,
    /// Blocks in its pool.
    pub total_blocks: u32,
    /// Costs of a step.
    pub cost: Cost,
    /// Quantiles of measured over computed time, evenly spaced from the fastest to the slowest step. Steps sampled from
    /// it take the measured time in total. Empty if steps don't vary.
    pub spread: Vec<f64>,
    /// How well the costs fit the measurements.
    pub fit: Fit,
}

/// Cost of a step in microseconds, as a sum of these terms.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Per step: launches, the policy, the host.
    pub step_us: f64,
    /// Per sequence.
    pub row_us: f64,
    /// Per step that samples any token: it reads the weights of the output projection, which chunks inside a prompt
    /// don't need.
    pub drawing_us: f64,
    /// Per token sampled.
    pub drawn_us: f64,
    /// Per token of context read by a sequence that computes a single token.
    pub decode_context_us: f64,
    /// The same for context that another sequence of the step has already read, so that caches hold it.
    pub repeated_context_us: f64,
    /// Per token attended to by a token of a longer chunk.
    pub chunk_attended_us: f64,
    /// Per token computed, piecewise linear in the step's number of tokens.
    pub tokens: Vec<Segment>,
}

/// A segment of constant cost per token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Segment {
    /// Number of tokens in the step from which on it applies.
    pub from: f64,
    /// Microseconds per token.
    pub us: f64,
}

/// How well a profile fits its measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fit {
    /// Steps measured.
    pub steps: u64,
    /// Median error of a step's computed time, in percent of its measured time.
    pub error_p50_percent: f64,
    /// The 95th percentile of that error.
    pub error_p95_percent: f64,
    /// Deviation of the total computed time from the total measured time, in percent.
    pub total_percent: f64,
}

/// The field that all layouts share.
#[derive(Deserialize)]
struct Layout {
    format: u32,
}

/// Why a profile can't be fitted or read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ProfileError(pub(super) String);

impl Cost {
    /// Mean duration of a step in microseconds.
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
    /// Creates a profile in the current layout.
    pub fn new(name: String, pool: (u32, u32), cost: Cost, spread: Vec<f64>, fit: Fit) -> Self {
        let (block_size, total_blocks) = pool;
        Self { format: FORMAT, name, block_size, total_blocks, cost, spread, fit }
    }

    /// Reads and validates a profile file.
    pub fn from_json(text: &str) -> Result<Self, ProfileError> {
        let no_profile = |error: serde_json::Error| ProfileError(format!("not a profile: {error}"));
        let Layout { format } = serde_json::from_str(text).map_err(no_profile)?;
        if format != FORMAT {
            let message = format!("format {format} is not supported, only {FORMAT}; calibrate again");
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
                "a cost is negative or not below 10^12".to_owned(),
            ),
            (costs[0] <= 0.0, "`step_us` must be more than 0".to_owned()),
            (
                !cost.tokens.iter().is_sorted_by(|a, b| a.from < b.from),
                "`tokens` must be in ascending order of `from`".to_owned(),
            ),
            (fitted.spread.len() == 1, "`spread` must be empty or have several values".to_owned()),
            (fitted.block_size == 0 || fitted.total_blocks == 0, "the pool is empty".to_owned()),
        ];
        match faults.into_iter().find(|(is_fault, _)| *is_fault) {
            Some((_, message)) => Err(ProfileError(message)),
            None => Ok(fitted),
        }
    }

    /// The contents of a profile file.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a profile is JSON") + "\n"
    }

    /// Number of blocks if its pool is divided into blocks of `block_size` tokens.
    pub fn blocks(&self, block_size: u32) -> u32 {
        let tokens = u64::from(self.total_blocks) * u64::from(self.block_size);
        u32::try_from(tokens / u64::from(block_size.max(1))).unwrap_or(u32::MAX)
    }

    /// Samples the ratio of a step's actual to its computed time.
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

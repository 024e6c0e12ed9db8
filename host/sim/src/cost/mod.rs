//! Cost of a step: from a roofline of a nominal device, or fitted to measurements of a real one.

mod calibrate;
mod fitted;
mod roofline;
mod shape;

use infer_core::batch::Batch;

pub use calibrate::{Calibration, Observation, calibrate};
pub use fitted::{Cost, Fit, Fitted, ProfileError};
pub use roofline::{Hardware, Roofline};
pub use shape::ModelShape;

use crate::random::Random;

/// Work of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Sequences in it.
    pub rows: f64,
    /// Tokens sampled.
    pub drawn: f64,
    /// Tokens computed.
    pub tokens: f64,
    /// Context read, in tokens, counted once per row.
    pub context: f64,
    /// Part of `context` read by sequences that compute a single token.
    pub decode_context: f64,
    /// Part of `decode_context` that another of these sequences has already read in the same step.
    pub repeated: f64,
    /// Sum over the computed tokens of the tokens that each attends to.
    pub attended: f64,
}

impl Work {
    /// Work of a batch, with `repeated` 0.
    pub fn of(batch: &Batch) -> Self {
        let mut work = Self::default();
        for row in &batch.rows {
            work.add(row.token_len, row.context_len, row.sample);
        }
        work
    }

    /// Adds a sequence that computes `tokens` tokens, has `context` tokens afterwards, and may sample one.
    pub fn add(&mut self, tokens: u32, context: u32, draws: bool) {
        self.rows += 1.0;
        self.drawn += f64::from(u8::from(draws));
        if tokens == 0 {
            return;
        }
        let (new, context) = (f64::from(tokens), f64::from(context));
        self.tokens += new;
        self.context += context;
        self.decode_context += if tokens == 1 { context } else { 0.0 };
        self.attended += new * (context - (new - 1.0) / 2.0);
    }

    /// Work of `rows` sequences that each decode a token with `context` tokens of context.
    pub fn decode(rows: f64, context: f64) -> Self {
        let context = rows * context;
        Self {
            rows,
            drawn: rows,
            tokens: rows,
            context,
            decode_context: context,
            repeated: 0.0,
            attended: context,
        }
    }

    /// Work of a chunk of a prompt that has `context` tokens afterwards.
    pub fn chunk(tokens: f64, context: f64) -> Self {
        let attended = tokens * (context - (tokens - 1.0) / 2.0);
        Self { rows: 1.0, drawn: 0.0, tokens, context, attended, ..Self::default() }
    }
}

/// A model on a device.
#[derive(Clone, Debug, PartialEq)]
pub enum Profile {
    /// From peak rates and efficiencies.
    Roofline(Roofline),
    /// Fitted to measurements.
    Fitted(Fitted),
}

impl Profile {
    /// A device and a model by name.
    pub fn named(hardware: &str, model: &str) -> Option<Self> {
        let (hardware, model) = (Hardware::named(hardware)?, ModelShape::named(model)?);
        Some(Self::Roofline(Roofline { hardware, model }))
    }

    /// Describes the profile for the head of a report.
    pub fn about(&self) -> String {
        match self {
            Self::Roofline(r) => format!("{} with a model of shape {}", r.hardware.name, r.model.name),
            Self::Fitted(fitted) => format!("{} (measured)", fitted.name),
        }
    }

    /// Whether context shared by several sequences has a price of its own.
    pub fn knows_sharing(&self) -> bool {
        matches!(self, Self::Fitted(fitted) if fitted.cost.repeated_context_us != fitted.cost.decode_context_us)
    }

    /// Mean duration of a step in microseconds.
    pub fn step_us(&self, work: &Work) -> f64 {
        match self {
            Self::Roofline(roofline) => roofline.step_us(work),
            Self::Fitted(fitted) => fitted.cost.step_us(work),
        }
    }

    /// Sampled duration of a step in microseconds, with the variation of a measured device.
    pub fn draw_us(&self, work: &Work, random: &mut Random) -> f64 {
        match self {
            Self::Roofline(roofline) => roofline.step_us(work),
            Self::Fitted(fitted) => fitted.cost.step_us(work) * fitted.draw_spread(random),
        }
    }

    /// Bytes of a block; `None` if they were not measured.
    pub fn block_bytes(&self, block_size: u32) -> Option<f64> {
        match self {
            Self::Roofline(roofline) => Some(roofline.block_bytes(block_size)),
            Self::Fitted(_) => None,
        }
    }

    /// Time to copy a block to the machine's memory or back, in microseconds; 0 if it was not measured.
    pub fn copy_us(&self, block_size: u32) -> f64 {
        match self {
            Self::Roofline(roofline) => roofline.copy_us(block_size),
            Self::Fitted(_) => 0.0,
        }
    }

    /// Default number of blocks in the pool.
    pub fn blocks(&self, block_size: u32) -> u32 {
        match self {
            Self::Roofline(roofline) => roofline.blocks(block_size),
            Self::Fitted(fitted) => fitted.blocks(block_size),
        }
    }
}

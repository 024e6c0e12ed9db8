//! What a step costs: by a roofline of a device that isn't there, or as it was measured on one that is.

mod calibrate;
mod fitted;
mod roofline;

use infer_core::batch::Batch;

pub use calibrate::{Calibration, Observation, calibrate};
pub use fitted::{Cost, Fit, Fitted, ProfileError};
pub use roofline::{Hardware, ModelShape, Roofline};

use crate::random::Random;

/// What a step asks of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Sequences in it.
    pub rows: f64,
    /// Tokens drawn.
    pub drawn: f64,
    /// Tokens computed.
    pub tokens: f64,
    /// Keys and values read, in tokens, counted once per row.
    pub context: f64,
    /// The part of `context` that sequences read which compute one token.
    pub decode_context: f64,
    /// The part of `decode_context` that another of these sequences reads, too, from the second on.
    pub repeated: f64,
    /// Sum over the computed tokens of what each attends to.
    pub attended: f64,
}

impl Work {
    /// Of a batch, of which nothing is known to be read twice.
    pub fn of(batch: &Batch) -> Self {
        let mut work = Self::default();
        for row in &batch.rows {
            work.add(row.token_len, row.context_len, row.sample);
        }
        work
    }

    /// One more sequence: it computes `tokens`, after which its context is so long, and draws one or not.
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

    /// So many sequences that draw their next token, with so long a context each.
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

    /// A piece of one prompt, after which its context is so long.
    pub fn chunk(tokens: f64, context: f64) -> Self {
        let attended = tokens * (context - (tokens - 1.0) / 2.0);
        Self { rows: 1.0, drawn: 0.0, tokens, context, attended, ..Self::default() }
    }
}

/// A model on a device.
#[derive(Clone, Debug, PartialEq)]
pub enum Profile {
    /// By peaks and efficiencies.
    Roofline(Roofline),
    /// As it was measured.
    Fitted(Fitted),
}

impl Profile {
    /// A device and a model by name.
    pub fn named(hardware: &str, model: &str) -> Option<Self> {
        let (hardware, model) = (Hardware::named(hardware)?, ModelShape::named(model)?);
        Some(Self::Roofline(Roofline { hardware, model }))
    }

    /// What it is, for the head of a report.
    pub fn about(&self) -> String {
        match self {
            Self::Roofline(r) => format!("{} with a model of shape {}", r.hardware.name, r.model.name),
            Self::Fitted(fitted) => format!("{} (measured)", fitted.name),
        }
    }

    /// Whether context that several sequences read costs other than as much again for each.
    pub fn knows_sharing(&self) -> bool {
        matches!(self, Self::Fitted(fitted) if fitted.cost.repeated_context_us != fitted.cost.decode_context_us)
    }

    /// Microseconds that a step takes.
    pub fn step_us(&self, work: &Work) -> f64 {
        match self {
            Self::Roofline(roofline) => roofline.step_us(work),
            Self::Fitted(fitted) => fitted.cost.step_us(work),
        }
    }

    /// Microseconds that a step takes this time: measured devices vary.
    pub fn draw_us(&self, work: &Work, random: &mut Random) -> f64 {
        match self {
            Self::Roofline(roofline) => roofline.step_us(work),
            Self::Fitted(fitted) => fitted.cost.step_us(work) * fitted.draw_spread(random),
        }
    }

    /// Blocks of the pool, where nobody says otherwise.
    pub fn blocks(&self, block_size: u32) -> u32 {
        match self {
            Self::Roofline(roofline) => roofline.blocks(block_size),
            Self::Fitted(fitted) => fitted.blocks(block_size),
        }
    }
}

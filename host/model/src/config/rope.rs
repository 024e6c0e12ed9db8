//! Inverse frequencies of rotary embeddings under the supported scaling rules.

use infer_kernels::RopeTable;

/// A position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// How they are scaled.
    pub scaling: RopeScaling,
    /// The share of a head's dimensions that is rotated: the first ones.
    pub share: f64,
}

/// How frequencies are scaled to support longer contexts than in training.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Unscaled.
    None,
    /// Nothing is rotated: the position embedding of layers that have none.
    Absent,
    /// Every frequency divided by `factor`.
    Linear {
        /// How far.
        factor: f64,
    },
    /// Llama 3.1: long wavelengths are stretched, short ones kept, with a ramp in between.
    Llama3 {
        /// How far.
        factor: f64,
        /// Wavelengths above `original / low` are stretched.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// Positions of the original training.
        original: f64,
    },
    /// Long wavelengths are stretched, short ones kept, with a ramp over dimensions in between, and sharper attention.
    Yarn(Yarn),
    /// Every frequency divided by its own factor, one per pair of dimensions.
    Factors(Vec<f32>),
    /// The same with other factors for long sequences.
    Long(LongRope),
}

/// The settings of LongRoPE (Ding et al. 2024).
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    /// Factors if no sequence can be longer than the original training's, one per pair of dimensions that is rotated.
    pub short: Vec<f32>,
    /// Factors otherwise, for all sequences.
    pub long: Vec<f32>,
    /// Positions of the original training.
    pub original: usize,
    /// Factor of queries and keys, as far as they are rotated.
    pub attention: f64,
}

/// The settings of YaRN (Peng et al. 2023, section 3).
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    /// How far.
    pub factor: f64,
    /// Positions of the original training.
    pub original: f64,
    /// Wavelengths with more turns than this within `original` positions are kept.
    pub fast: f64,
    /// Wavelengths with fewer turns are stretched.
    pub slow: f64,
    /// Factor of queries and keys.
    pub attention: f64,
    /// Whether the ramp begins and ends at whole dimensions.
    pub truncate: bool,
}

impl RopeConfig {
    /// Dimensions of a head that are rotated.
    pub fn rotated(&self, head_dim: usize) -> usize {
        (head_dim as f64 * self.share) as usize
    }

    /// One inverse frequency per pair of dimensions, if sequences have up to `positions` tokens. Those of pairs that aren't
    /// rotated are 0, and last.
    pub fn inverse_frequencies(&self, head_dim: usize, positions: usize) -> Vec<f32> {
        let rotated = self.rotated(head_dim);
        let plain = |i: usize| self.theta.powf(-((2 * i) as f64) / rotated as f64) as f32;
        let scaled = |i: usize| match &self.scaling {
            RopeScaling::Long(long) => f64::from(plain(i)) / f64::from(long.factors(positions)[i]),
            _ => self.stretch(i, f64::from(plain(i)), rotated),
        };
        let others = std::iter::repeat_n(0.0, (head_dim - rotated) / 2);
        (0..rotated / 2).map(|i| scaled(i) as f32).chain(others).collect()
    }

    /// Cosines and sines of the first `positions` positions, the longest sequence.
    pub fn table(&self, head_dim: usize, positions: usize) -> RopeTable {
        let scale = match &self.scaling {
            RopeScaling::Yarn(yarn) => yarn.attention as f32,
            RopeScaling::Long(long) => long.attention as f32,
            _ => 1.0,
        };
        RopeTable::new(&self.inverse_frequencies(head_dim, positions), positions, scale)
    }

    /// The scaled frequency of pair `pair`.
    fn stretch(&self, pair: usize, frequency: f64, head_dim: usize) -> f64 {
        match self.scaling {
            RopeScaling::None | RopeScaling::Long(_) => frequency,
            RopeScaling::Absent => 0.0,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Factors(ref factors) => frequency / f64::from(factors[pair]),
            RopeScaling::Yarn(ref yarn) => {
                let kept = yarn.kept(pair, self.theta, head_dim);
                frequency * kept + frequency / yarn.factor * (1.0 - kept)
            }
            RopeScaling::Llama3 { factor, low, high, original } => {
                let wave = std::f64::consts::TAU / frequency;
                if wave < original / high {
                    frequency
                } else if wave > original / low {
                    frequency / factor
                } else {
                    let kept = (original / wave - low) / (high - low);
                    (1.0 - kept) * frequency / factor + kept * frequency
                }
            }
        }
    }
}

impl LongRope {
    /// The factors if sequences have up to `positions` tokens. Its authors choose by the sequence, and again when it grows
    /// past the original positions, but then a token would depend on what follows it, and neither keys that were computed
    /// before nor those of a cached prefix would do. So all sequences have the same, as in vLLM.
    fn factors(&self, positions: usize) -> &[f32] {
        if self.takes_long(positions) { &self.long } else { &self.short }
    }

    /// Whether sequences have the factors for long texts if they have up to `positions` tokens.
    pub fn takes_long(&self, positions: usize) -> bool {
        positions > self.original
    }
}

impl Yarn {
    /// The fraction of the frequency of pair `pair` that is kept, from 0 to 1.
    fn kept(&self, pair: usize, theta: f64, head_dim: usize) -> f64 {
        let dimension = |turns: f64| {
            let wave = self.original / (turns * std::f64::consts::TAU);
            head_dim as f64 * wave.ln() / (2.0 * theta.ln())
        };
        let (low, high) = match self.truncate {
            true => (dimension(self.fast).floor(), dimension(self.slow).ceil()),
            false => (dimension(self.fast), dimension(self.slow)),
        };
        let (low, high) = (low.max(0.0), high.min(head_dim as f64 - 1.0));
        let width = if low == high { 0.001 } else { high - low };
        1.0 - ((pair as f64 - low) / width).clamp(0.0, 1.0)
    }
}

impl RopeScaling {
    /// Positions that the rule scales `trained` ones to, if it says so. Llama 3.1 declares its positions after scaling.
    pub(super) fn reach(&self, trained: usize) -> Option<usize> {
        let reach = match self {
            Self::Linear { factor } => trained as f64 * factor,
            Self::Yarn(yarn) => yarn.original * yarn.factor,
            _ => return None,
        };
        Some(reach.min(f64::from(u32::MAX)) as usize)
    }
}

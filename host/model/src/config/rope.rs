//! Inverse frequencies of rotary embeddings under the supported scaling rules.

use infer_kernels::RopeTable;

/// A position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// How they are scaled.
    pub scaling: RopeScaling,
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
    /// One inverse frequency per pair of dimensions.
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f32> {
        let plain = |i: usize| self.theta.powf(-((2 * i) as f64) / head_dim as f64) as f32;
        (0..head_dim / 2).map(|i| self.stretch(i, f64::from(plain(i)), head_dim) as f32).collect()
    }

    /// Cosines and sines of the first `positions` positions.
    pub fn table(&self, head_dim: usize, positions: usize) -> RopeTable {
        let scale = match &self.scaling {
            RopeScaling::Yarn(yarn) => yarn.attention as f32,
            _ => 1.0,
        };
        RopeTable::new(&self.inverse_frequencies(head_dim), positions, scale)
    }

    /// The scaled frequency of pair `pair`.
    fn stretch(&self, pair: usize, frequency: f64, head_dim: usize) -> f64 {
        match self.scaling {
            RopeScaling::None => frequency,
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

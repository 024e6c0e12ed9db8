//! Inverse frequencies of rotary embeddings under the scaling rules that this host knows.

/// A position embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// How they are stretched.
    pub scaling: RopeScaling,
}

/// How frequencies are stretched to reach further than the model was trained.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// How far.
        factor: f64,
    },
    /// Llama 3.1: long waves stretched, short ones kept, a ramp between.
    Llama3 {
        /// How far.
        factor: f64,
        /// Waves longer than `original / low` are stretched.
        low: f64,
        /// Waves shorter than `original / high` are kept.
        high: f64,
        /// Positions of the original training.
        original: f64,
    },
    /// Every frequency divided by a factor of its own, one per pair of dimensions.
    Factors(Vec<f32>),
}

impl RopeConfig {
    /// One inverse frequency per pair of dimensions.
    pub fn inverse_frequencies(&self, head_dim: usize) -> Vec<f32> {
        (0..head_dim / 2)
            .map(|i| {
                let plain = self.theta.powf(-((2 * i) as f64) / head_dim as f64) as f32;
                self.scaling.apply(i, f64::from(plain)) as f32
            })
            .collect()
    }
}

impl RopeScaling {
    /// What becomes of the frequency of pair `pair`.
    fn apply(&self, pair: usize, frequency: f64) -> f64 {
        match *self {
            Self::None => frequency,
            Self::Linear { factor } => frequency / factor,
            Self::Factors(ref factors) => frequency / f64::from(factors[pair]),
            Self::Llama3 { factor, low, high, original } => {
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

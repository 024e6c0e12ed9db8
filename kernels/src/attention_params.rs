//! What all attention implementations share: scaling, soft cap, sinks and the positions that a token sees.

/// How scores are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionParams<'a> {
    /// Query heads; a multiple of the key heads, which consecutive query heads share.
    pub heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// If set, then `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// A token sees itself and the `window - 1` tokens before it; all earlier tokens without a window.
    pub window: Option<u32>,
    /// If set, a score for each query head that takes part in its softmax, but has no value: a sink (Xiao and others 2023, in
    /// the learned form of gpt-oss).
    pub sinks: Option<&'a [f32]>,
}

impl AttentionParams<'_> {
    /// The first position that a token at `position` sees.
    pub fn first_position(&self, position: u32) -> u32 {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// The sink of a query head.
    pub(crate) fn sink(&self, head: usize) -> Option<f32> {
        self.sinks.map(|sinks| sinks[head])
    }

    /// Scales and caps a raw product of query and key: the scalar form.
    pub fn score(&self, product: f32) -> f32 {
        let score = product * self.scale;
        match self.soft_cap {
            Some(cap) => cap * (score / cap).tanh(),
            None => score,
        }
    }
}

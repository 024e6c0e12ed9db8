//! What all attention implementations share: scaling, soft cap and the positions that a token sees.

/// How scores are computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionParams {
    /// Query heads; a multiple of the key heads, which consecutive query heads share.
    pub heads: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// If set, then `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// A token sees itself and the `window - 1` tokens before it; all earlier tokens without a window.
    pub window: Option<u32>,
}

impl AttentionParams {
    /// The first position that a token at `position` sees.
    pub fn first_position(&self, position: u32) -> u32 {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
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

//! What all attention implementations agree on: scaling, soft cap and which positions a token sees.

/// How scores are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionParams {
    /// Query heads; a multiple of the key heads, which consecutive query heads share.
    pub heads: usize,
    /// Scores are multiplied by it.
    pub scale: f32,
    /// Then `cap * tanh(score / cap)`, where there is one.
    pub soft_cap: Option<f32>,
    /// A token sees itself and the `window - 1` tokens before it; all where there is none.
    pub window: Option<u32>,
}

impl AttentionParams {
    /// The first position that a token at `position` sees.
    pub fn first_position(&self, position: u32) -> u32 {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// A raw product of query and key, scaled and capped: the scalar form.
    pub fn score(&self, product: f32) -> f32 {
        let score = product * self.scale;
        match self.soft_cap {
            Some(cap) => cap * (score / cap).tanh(),
            None => score,
        }
    }
}

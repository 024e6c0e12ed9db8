//! Rotary position embedding (Su et al. 2021), in the half-split layout of Hugging Face checkpoints: dimension `i` turns
//! together with `i + head_dim / 2`. Angles come as tables; scaling rules are the model's business.

use super::Cpu;
use super::norm::HeadRows;

/// Cosines and sines of every position, in f32 whatever the weights are.
#[derive(Clone, Debug)]
pub struct RopeTable {
    half: usize,
    /// `[position][half]`, each position's cosines, then its sines.
    table: Vec<f32>,
}

impl RopeTable {
    /// Tables for `positions` positions; `scale` multiplies both functions.
    pub fn new(inverse_frequencies: &[f32], positions: usize, scale: f32) -> Self {
        let half = inverse_frequencies.len();
        let mut table = Vec::with_capacity(2 * half * positions);
        for position in 0..positions {
            // The angle is rounded to f32 as the checkpoints' own code does; its functions are exact.
            let angles = inverse_frequencies.iter().map(|f| f64::from(position as f32 * f));
            table.extend(angles.clone().map(|angle| angle.cos() as f32 * scale));
            table.extend(angles.map(|angle| angle.sin() as f32 * scale));
        }
        Self { half, table }
    }

    /// Numbers of a head.
    pub fn head_dim(&self) -> usize {
        2 * self.half
    }

    /// Cosines and sines of a position.
    ///
    /// # Panics
    /// Where the table does not reach that far.
    pub fn at(&self, position: u32) -> (&[f32], &[f32]) {
        self.table[position as usize * 2 * self.half..][..2 * self.half].split_at(self.half)
    }
}

impl Cpu {
    /// Turns each head of each row in place; row `i` is at `positions[i]`.
    ///
    /// # Panics
    /// Where a position is beyond the table or the heads don't lie in the buffer.
    pub fn rope(&self, data: &mut [f32], heads: HeadRows, positions: &[u32], table: &RopeTable) {
        assert_eq!(positions.len(), heads.rows, "one position per row");
        let width = table.head_dim();
        for (row, position) in positions.iter().enumerate() {
            let (cos, sin) = table.at(*position);
            let start = heads.offset + row * heads.stride;
            for head in data[start..start + heads.heads * width].chunks_exact_mut(width) {
                let (low, high) = head.split_at_mut(width / 2);
                for i in 0..low.len() {
                    let (x, y) = (low[i], high[i]);
                    low[i] = x * cos[i] - y * sin[i];
                    high[i] = y * cos[i] + x * sin[i];
                }
            }
        }
    }
}

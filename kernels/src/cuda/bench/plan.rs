//! What a benchmark of kernels measures: shapes of models, batches and lengths.

use super::experts;
use crate::cuda::{AttentionShape, ExpertShape, Type};

/// Several times the L2 cache of any device.
const CYCLE_BYTES: usize = 512 << 20;

/// The shape of a model.
#[derive(Clone, Copy, Debug)]
pub struct ModelShape {
    /// Its name in the tables.
    pub name: &'static str,
    /// Query heads.
    pub heads: u32,
    /// Key heads.
    pub kv_heads: u32,
    /// Dimensions of a head.
    pub head_dim: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width of the feed-forward layer.
    pub intermediate: u32,
    /// Rows of the embedding.
    pub vocab: u32,
}

impl ModelShape {
    pub(super) fn attention(&self, ty: Type) -> AttentionShape {
        AttentionShape { ty, heads: self.heads, kv_heads: self.kv_heads, head_dim: self.head_dim }
    }

    /// Numbers of a token's queries.
    pub(super) fn q_width(&self) -> u32 {
        self.heads * self.head_dim
    }

    /// Numbers of a token's keys.
    pub(super) fn kv_width(&self) -> u32 {
        self.kv_heads * self.head_dim
    }

    /// Numbers of a token's queries, keys and values.
    pub(super) fn qkv_width(&self) -> u32 {
        self.q_width() + 2 * self.kv_width()
    }

    /// Outputs and inputs of a layer's products.
    pub(super) fn products(&self) -> [(u32, u32); 4] {
        [
            (self.qkv_width(), self.hidden),
            (self.hidden, self.q_width()),
            (2 * self.intermediate, self.hidden),
            (self.hidden, self.intermediate),
        ]
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// Attention in these shapes.
    pub attention: &'a [ModelShape],
    /// All other kernels in these.
    pub others: &'a [ModelShape],
    /// In which sizes.
    pub extent: &'a Extent,
}

/// The sizes to measure.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub(super) copy_bytes: usize,
    /// Bytes of weights that products cycle through, and of keys and values that decodes do.
    pub(super) cycle_bytes: usize,
    /// Side of the square product.
    pub(super) width: u32,
    pub(super) batches: &'static [u32],
    /// The shortest first; the last one is also the longest allowed context, which decides how contexts are cut.
    pub(super) contexts: &'static [u32],
    pub(super) prompts: &'static [u32],
    pub(super) rows: &'static [u32],
    /// Rows of small kernels. 2,048 of some kernels fit the L2 cache, so repeats wouldn't read memory; 16,384 don't.
    pub(super) small: &'static [u32],
    pub(super) draws: &'static [u32],
    /// Layers of experts, in these shapes whatever the models are.
    pub(super) experts: &'static [(&'static str, ExpertShape)],
}

impl Extent {
    /// Everything. Contexts of 300 and 5,000 end within a unit of decode attention.
    pub const ALL: Self = Self {
        copy_bytes: 2 << 30,
        cycle_bytes: CYCLE_BYTES,
        width: 8_192,
        batches: &[1, 8, 32, 128, 256],
        contexts: &[256, 300, 1_024, 4_096, 5_000, 16_384],
        prompts: &[512, 2_048, 8_192, 16_384],
        rows: &[1, 4, 8, 16, 32, 64, 128, 512, 2_048],
        small: &[1, 32, 2_048, 16_384],
        draws: &[1, 32, 256],
        experts: experts::LAYERS,
    };
    /// A few sizes of each.
    pub const FEW: Self = Self {
        batches: &[1, 32],
        contexts: &[256, 300, 5_000, 16_384],
        prompts: &[2_048],
        rows: &[1, 16, 2_048],
        small: &[1, 16_384],
        draws: &[1, 256],
        ..Self::ALL
    };
    /// Small enough for the emulated device; the figures mean nothing.
    pub const SMALLEST: Self = Self {
        copy_bytes: 1 << 18,
        cycle_bytes: 1 << 17,
        width: 256,
        batches: &[2],
        contexts: &[40],
        prompts: &[70],
        rows: &[1, 40],
        small: &[3],
        draws: &[2],
        experts: experts::SMALLEST,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_a_layer_follow_from_the_shape() {
        let llama_8b = ModelShape {
            name: "llama-8b",
            heads: 32,
            kv_heads: 8,
            head_dim: 128,
            hidden: 4_096,
            intermediate: 14_336,
            vocab: 128_256,
        };
        let products = [(6_144, 4_096), (4_096, 4_096), (28_672, 4_096), (4_096, 14_336)];
        assert_eq!(llama_8b.products(), products);
        // Its queries are wider than its residual stream.
        let qwen = ModelShape { heads: 16, hidden: 1_024, intermediate: 3_072, ..llama_8b };
        assert_eq!(qwen.products(), [(4_096, 1_024), (1_024, 2_048), (6_144, 1_024), (1_024, 3_072)]);
    }
}

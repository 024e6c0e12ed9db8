//! Low-rank adapters (LoRA, Hu and others 2021): an adapter adds `scale * B (A x)` to what a projection makes of `x`, for the
//! tokens of requests that name it. `A` has few outputs, its rank, and `B` has as many inputs, so an adapter costs little
//! memory, and tokens of many adapters and of none share the products of the model.
//!
//! The model's own products are the same whatever adapters a batch has; what adapters add comes after them. An adapter's tokens
//! are gathered, and each is computed from its own inputs in one order, so a token's bits depend on that token alone, as without
//! adapters. On a device `cuda/adapters.rs` does the same with copies of these matrices.

pub(crate) mod apply;
mod load;
mod loaded;
mod loader;
mod names;
mod random;

use infer_kernels::{Format, Matrix};

pub(crate) use self::apply::{Adapting, Buffers, Origin};
pub(crate) use self::loaded::Loaded;
pub use self::loader::{AdapterFiles, AdapterLoader, AdapterSize};
pub(crate) use self::loader::{boxed, unboxed};
use crate::WeightType;

/// What an adapter adds, by layer.
pub(crate) struct Adapter {
    pub layers: Vec<AdaptedLayer>,
}

/// What is added to a layer's products; to some, nothing.
#[derive(Default)]
pub(crate) struct AdaptedLayer {
    pub qkv: Option<Delta>,
    pub output: Option<Delta>,
    pub gate_up: Option<Delta>,
    pub down: Option<Delta>,
}

/// What is added to a product of stacked projections, which read the same input.
pub(crate) struct Delta {
    /// The matrices `A` of all parts, stacked.
    pub narrow: Matrix,
    pub parts: Vec<Part>,
}

/// What is added to one of the projections.
pub(crate) struct Part {
    /// The matrix `B`.
    pub wide: Matrix,
    pub scale: f32,
    /// The projection's first output in the product.
    pub first: usize,
}

impl Adapter {
    /// Bytes of its matrices.
    pub(crate) fn bytes(&self) -> usize {
        self.layers.iter().flat_map(AdaptedLayer::deltas).map(Delta::bytes).sum()
    }

    /// What it takes.
    pub(crate) fn size(&self) -> AdapterSize {
        let parts = self.layers.iter().flat_map(AdaptedLayer::deltas).flat_map(|delta| &delta.parts);
        let rank = parts.map(|part| part.wide.inputs()).max().unwrap_or(0);
        AdapterSize { rank: rank as u32, bytes: self.bytes() as u64 }
    }
}

impl AdaptedLayer {
    fn deltas(&self) -> impl Iterator<Item = &Delta> {
        [&self.qkv, &self.output, &self.gate_up, &self.down].into_iter().flatten()
    }
}

impl Delta {
    fn bytes(&self) -> usize {
        self.narrow.bytes() + self.parts.iter().map(|part| part.wide.bytes()).sum::<usize>()
    }
}

/// The format of the adapters of a model with such weights. Integers would save little, and lose what was learnt.
pub(crate) fn format(weights: WeightType) -> Format {
    match weights {
        WeightType::F32 | WeightType::F16 => Format::F32,
        WeightType::Bf16 | WeightType::Q8 | WeightType::Q4 | WeightType::Mxfp4 => Format::Bf16,
    }
}

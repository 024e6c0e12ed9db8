//! Operations on plain slices: matrix products, norms, rope, activations, KV writes, attention and the choice of experts.
//!
//! Two implementations: [`reference`] (scalar, f64 sums, the tests' oracle) and [`Cpu`] (vectorized, threaded). All of
//! [`Cpu`] guarantees that **a row's bits depend on that row's inputs alone**, never on other rows of the batch, on how a
//! prompt was cut, or on the number of threads: every output element is one fixed chain of operations, whatever the tile
//! shapes and work splitting. The feature `cuda` adds a third implementation, [`cuda`], for GPUs, with weaker guarantees.
//! Not here: allocation policy, ownership of blocks, and sampling on the CPU.

mod attention_params;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod element;
pub mod group4;
mod inputs;
pub mod matrix;
pub mod memory;
pub mod mx4;
mod packer;
pub mod paged;
#[doc(hidden)]
pub mod random;
pub mod reference;
mod simd;

pub use attention_params::AttentionParams;
pub use cpu::Cpu;
pub use cpu::activation::{Activation, Targets};
pub use cpu::attention::{MAX_HEAD_DIM, PagedQuery, QueryRun};
pub use cpu::contiguous::{ContiguousLayer, ContiguousQuery};
pub use cpu::experts::{Choice, Router, Routes, Share};
pub use cpu::matmul::{Aside, Gating, Then};
pub use cpu::norm::{HeadRows, Norm};
pub use cpu::rope::{Qkv, RopeTable};
pub use element::Element;
pub use group4::Group4;
pub use inputs::Inputs;
pub use matrix::{Format, GROUP, Group, Matrix};
pub use memory::{Arena, OutOfMemory, Pages};
pub use mx4::Mx4;
pub use packer::Packer;
pub use paged::{PagedLayer, PagedLayout};
#[doc(hidden)]
pub use random::Random;
pub use simd::Isa;

/// Rows of `width` numbers inside a wider row-major buffer: row `i` starts at `offset + i * stride`.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The whole buffer.
    pub data: &'a [f32],
    /// First number of row 0.
    pub offset: usize,
    /// Numbers from one row to the next.
    pub stride: usize,
    /// Numbers of a row.
    pub width: usize,
}

impl<'a> Rows<'a> {
    /// Contiguous rows.
    pub fn dense(data: &'a [f32], width: usize) -> Self {
        Self { data, offset: 0, stride: width, width }
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> &'a [f32] {
        let start = self.offset + i * self.stride;
        &self.data[start..start + self.width]
    }

    /// Panics unless `count` rows lie inside the buffer: the check that later pointer accesses rely on.
    pub(crate) fn check(&self, count: usize) {
        assert!(self.width <= self.stride || count <= 1, "rows overlap");
        if count > 0 {
            let last = (count - 1).checked_mul(self.stride).and_then(|last| last.checked_add(self.offset));
            let end = last.and_then(|last| last.checked_add(self.width));
            assert!(
                end.is_some_and(|end| end <= self.data.len()),
                "{count} rows of {} from {} on, {} apart, are not in a buffer of {}",
                self.width,
                self.offset,
                self.stride,
                self.data.len()
            );
        }
    }
}

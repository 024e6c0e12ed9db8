//! Operations on plain slices: matrix products, norms, rope, activations, KV writes and attention.
//!
//! Two implementations: [`reference`] (scalar, f64 sums, the oracle) and [`Cpu`] (vectorized, threaded).
//! One law holds for all of [`Cpu`]: **a row's bits depend on that row's inputs alone**, never on the rows
//! beside it, on how a prompt was cut, or on the number of threads. Every output element is one fixed
//! chain of operations, so tile shapes and work splitting can't show. With the feature `cuda` there is a third,
//! [`cuda`], on devices and with fewer promises. Not here: allocation policy, block tables' ownership, the CPU's sampling.

mod attention_params;
pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod element;
pub mod inputs;
pub mod matrix;
pub mod memory;
mod packer;
pub mod paged;
pub mod reference;
mod simd;

pub use attention_params::AttentionParams;
pub use cpu::Cpu;
pub use cpu::activation::Activation;
pub use cpu::attention::{MAX_HEAD_DIM, PagedQuery, QueryRun};
pub use cpu::contiguous::{ContiguousLayer, ContiguousQuery};
pub use cpu::matmul::Then;
pub use cpu::norm::{HeadRows, Norm};
pub use cpu::rope::{Qkv, RopeTable};
pub use element::Element;
pub use inputs::Inputs;
pub use matrix::{Format, Matrix};
pub use memory::{Arena, OutOfMemory, Pages};
pub use packer::Packer;
pub use paged::{PagedLayer, PagedLayout};
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
    /// Rows that follow each other without a gap.
    pub fn dense(data: &'a [f32], width: usize) -> Self {
        Self { data, offset: 0, stride: width, width }
    }

    /// Row `i`.
    pub fn row(&self, i: usize) -> &'a [f32] {
        let start = self.offset + i * self.stride;
        &self.data[start..start + self.width]
    }

    /// Panics unless `count` rows lie inside the buffer: the check before pointers take over.
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

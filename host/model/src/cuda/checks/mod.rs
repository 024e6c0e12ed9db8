//! Checks of the whole decoder on a device: golden logits of every family, recorded decodes against launched ones, scattered
//! blocks against contiguous ones, memory that runs out. The same on the emulated device and in `infer gpu-check`.

mod golden;
mod same;
mod walk;

pub use golden::{Extent, golden};
pub use same::{contiguous_is_paged, graphs_are_eager, memory_runs_out, tokens_stand_alone};

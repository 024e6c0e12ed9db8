//! Where keys and values live while sequences run. Two backends behind one trait: the paged pool, and one
//! full-length slot per sequence, which shares neither storage nor attention code with it.

mod contiguous;
mod paged;

use infer_core::{Batch, DeviceFault, SequenceId};
use infer_kernels::{AttentionParams, Cpu, Qkv};

pub(crate) use contiguous::{ContiguousCache, ContiguousShape};
pub(crate) use paged::PagedCache;

/// Keys and values of all layers.
pub(crate) trait KvStore: Send {
    /// Forgets sequences that ended: a batch says so once, whatever becomes of it.
    fn release(&mut self, sequences: &[SequenceId]);

    /// Takes up a batch: copies, and who writes where. Nothing is computed yet.
    fn begin(&mut self, batch: &Batch) -> Result<(), DeviceFault>;

    /// Turns queries and keys to their positions, stores keys and values in a layer, then attends to what is
    /// stored.
    fn attend(
        &mut self,
        cpu: &Cpu,
        layer: usize,
        params: &AttentionParams,
        batch: &Batch,
        qkv: Qkv<'_>,
        out: &mut [f32],
    );
}

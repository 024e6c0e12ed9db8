//! Storage of keys and values while sequences run. Two backends behind one trait: the paged pool, and one full-length slot
//! per sequence, which shares neither storage nor attention code with the pool.

mod contiguous;
mod paged;

use infer_core::{Batch, BlockId, DeviceFault, SequenceId};
use infer_kernels::{AttentionParams, Cpu, Qkv};

pub(crate) use contiguous::{ContiguousCache, ContiguousShape};
pub(crate) use paged::PagedCache;

/// Keys and values of all layers.
pub(crate) trait KvStore: Send {
    /// Forgets ended sequences. A batch lists them once, whether or not it succeeds.
    fn release(&mut self, sequences: &[SequenceId]);

    /// Prepares a batch: copies blocks and records where rows write. Computes nothing.
    fn begin(&mut self, batch: &Batch) -> Result<(), DeviceFault>;

    /// Applies rope to queries and keys, stores keys and values in a layer, then computes attention over what is stored.
    fn attend(
        &mut self,
        cpu: &Cpu,
        layer: usize,
        params: &AttentionParams<'_>,
        batch: &Batch,
        qkv: Qkv<'_>,
        out: &mut [f32],
    );

    /// Bytes of a block in all layers; 0 if there are no blocks.
    fn block_bytes(&self) -> usize {
        0
    }

    /// Copies a block's keys and values, layer after layer. Only if there are blocks.
    fn read_block(&self, block: BlockId, _to: &mut [u8]) {
        unreachable!("{block:?} is not in blocks");
    }

    /// Overwrites a block with what `read_block` copied.
    fn write_block(&mut self, block: BlockId, _from: &[u8]) {
        unreachable!("{block:?} is not in blocks");
    }
}

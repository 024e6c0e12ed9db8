//! The paged pool: blocks of all layers, read through the batch's block tables.

use infer_core::{Batch, BlockId, DeviceFault, SequenceId};
use infer_kernels::{
    Arena, AttentionParams, Cpu, Element, PagedLayer, PagedLayout, PagedQuery, Qkv, QueryRun,
};

use super::KvStore;
use crate::error::ModelError;

/// Keys and values in blocks.
pub(crate) struct PagedCache<T> {
    layers: Vec<PagedLayer<T>>,
    /// Block tables of the batch, as plain numbers.
    tables: Vec<u32>,
    /// The batch's rows, split into runs for threads.
    runs: Vec<QueryRun>,
    scratch: Vec<f32>,
}

impl<T: Element> PagedCache<T> {
    pub(crate) fn new(layout: PagedLayout, blocks: usize, layers: usize) -> Result<Self, ModelError> {
        let mut arena = Arena::default();
        let layers =
            (0..layers).map(|_| PagedLayer::new(layout, blocks, &mut arena)).collect::<Result<_, _>>();
        let layers = layers.map_err(|error| {
            ModelError::machine(format!("no memory for {blocks} KV blocks ({error}); use fewer"))
        })?;
        Ok(Self { layers, tables: Vec::new(), runs: Vec::new(), scratch: Vec::new() })
    }

    /// Bytes of a block in one layer.
    fn layer_bytes(&self) -> usize {
        self.layers[0].block_bytes()
    }
}

impl<T: Element> KvStore for PagedCache<T> {
    /// Does nothing: the pool has no state per sequence.
    fn release(&mut self, _sequences: &[SequenceId]) {}

    fn begin(&mut self, batch: &Batch) -> Result<(), DeviceFault> {
        for copy in &batch.copies {
            for layer in &mut self.layers {
                layer.copy_block(copy.from.0, copy.to.0, copy.tokens);
            }
        }
        self.tables.clear();
        self.tables.extend(batch.block_tables.iter().map(|block| block.0));
        self.runs.clear();
        for row in &batch.rows {
            let run = QueryRun {
                first: row.token_start,
                count: row.token_len,
                table_start: row.table_start,
                table_len: row.table_len,
            };
            run.split(&mut self.runs);
        }
        Ok(())
    }

    fn attend(
        &mut self,
        cpu: &Cpu,
        layer: usize,
        params: &AttentionParams<'_>,
        batch: &Batch,
        mut qkv: Qkv<'_>,
        out: &mut [f32],
    ) {
        let layer = &mut self.layers[layer];
        cpu.rope_and_store(&mut qkv, &batch.slots, layer);
        let query =
            PagedQuery { q: qkv.q(), positions: &batch.positions, runs: &self.runs, tables: &self.tables };
        cpu.paged_attention(layer, params, query, &mut self.scratch, out);
    }

    fn block_bytes(&self) -> usize {
        self.layers.iter().map(PagedLayer::block_bytes).sum()
    }

    fn read_block(&self, block: BlockId, to: &mut [u8]) {
        for (layer, to) in self.layers.iter().zip(to.chunks_exact_mut(self.layer_bytes())) {
            layer.read_block(block.0, to);
        }
    }

    fn write_block(&mut self, block: BlockId, from: &[u8]) {
        let bytes = self.layer_bytes();
        for (layer, from) in self.layers.iter_mut().zip(from.chunks_exact(bytes)) {
            layer.write_block(block.0, from);
        }
    }
}

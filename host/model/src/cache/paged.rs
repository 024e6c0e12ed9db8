//! The paged pool: blocks of all layers, read through the batch's block tables. It keeps nothing per
//! sequence, so releases mean nothing to it.

use infer_core::{Batch, DeviceFault};
use infer_kernels::{AttentionParams, Cpu, Element, PagedLayer, PagedLayout, PagedQuery};

use super::{KvStore, Projections};
use crate::error::ModelError;

/// Keys and values in blocks.
pub(crate) struct PagedCache<T> {
    layers: Vec<PagedLayer<T>>,
    /// Block tables of the batch, as plain numbers.
    tables: Vec<u32>,
    /// Each token's table.
    spans: Vec<(u32, u32)>,
}

impl<T: Element> PagedCache<T> {
    pub(crate) fn new(layout: PagedLayout, blocks: usize, layers: usize) -> Result<Self, ModelError> {
        let layers = (0..layers).map(|_| PagedLayer::try_new(layout, blocks)).collect::<Result<_, _>>();
        let layers = layers.map_err(|error| {
            ModelError::unsupported(format!("no memory for {blocks} KV blocks ({error}); use fewer"))
        })?;
        Ok(Self { layers, tables: Vec::new(), spans: Vec::new() })
    }
}

impl<T: Element> KvStore for PagedCache<T> {
    fn begin(&mut self, batch: &Batch) -> Result<(), DeviceFault> {
        for copy in &batch.copies {
            for layer in &mut self.layers {
                layer.copy_block(copy.from.0, copy.to.0, copy.tokens);
            }
        }
        self.tables.clear();
        self.tables.extend(batch.block_tables.iter().map(|block| block.0));
        self.spans.clear();
        for row in &batch.rows {
            let span = (row.table_start, row.table_len);
            self.spans.extend(std::iter::repeat_n(span, row.token_len as usize));
        }
        Ok(())
    }

    fn attend(
        &mut self,
        cpu: &Cpu,
        layer: usize,
        params: &AttentionParams,
        batch: &Batch,
        projections: Projections<'_>,
        out: &mut [f32],
    ) {
        let layer = &mut self.layers[layer];
        layer.write(&batch.slots, projections.k, projections.v);
        let query = PagedQuery {
            q: projections.q,
            positions: &batch.positions,
            spans: &self.spans,
            tables: &self.tables,
        };
        cpu.paged_attention(layer, params, query, out);
    }
}

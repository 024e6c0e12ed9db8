//! Where keys and values live while sequences run. Two backends behind one trait: the paged pool, and one
//! full-length slot per sequence, which shares neither storage nor attention code with it.

mod contiguous;
mod paged;

use infer_core::{Batch, DeviceFault};
use infer_kernels::{AttentionParams, Cpu, Rows};

pub(crate) use contiguous::{ContiguousCache, ContiguousShape};
pub(crate) use paged::PagedCache;

/// What a layer hands over: queries, keys and values of all tokens of the batch.
#[derive(Clone, Copy)]
pub(crate) struct Projections<'a> {
    pub q: Rows<'a>,
    pub k: Rows<'a>,
    pub v: Rows<'a>,
}

/// Keys and values of all layers.
pub(crate) trait KvStore: Send {
    /// Takes up a batch: releases, copies, and who writes where. Nothing is computed yet.
    fn begin(&mut self, batch: &Batch) -> Result<(), DeviceFault>;

    /// Stores the batch's keys and values in a layer, then attends to what is stored.
    fn attend(
        &mut self,
        cpu: &Cpu,
        layer: usize,
        params: &AttentionParams,
        batch: &Batch,
        projections: Projections<'_>,
        out: &mut [f32],
    );
}

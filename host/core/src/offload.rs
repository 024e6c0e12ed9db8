//! An executor with a second level of the prefix cache: it makes a batch's copies before the batch is computed, block by
//! block, so no executor needs to know of them.
//!
//! Blocks are only copied while no batch is in flight. A batch with copies that comes while one is (`plan_ahead`) is not
//! submitted but executed in its turn, and the device waits for it; all others pass through.
//!
//! Deliberately absent: where the bytes are (`OffloadStore`).

use crate::batch::{Batch, OffloadCopy};
use crate::executor::{AdapterWeights, DeviceFault, DeviceFaultKind, Executor, StepOutput};
use crate::ids::{AdapterId, BlockId, OffloadSlot};

/// The bytes of the slots.
pub trait OffloadStore {
    /// Fills a slot with a block's bytes.
    ///
    /// # Errors
    /// Why the store can't be used any more.
    fn store(&mut self, slot: OffloadSlot, bytes: &[u8]) -> Result<(), String>;

    /// Fetches the bytes that `store` was given for this slot.
    ///
    /// # Errors
    /// As for `store`.
    fn fetch(&mut self, slot: OffloadSlot, bytes: &mut [u8]) -> Result<(), String>;

    /// A copy failed, and the engine names no more of them: gives the place back. A batch in flight may still have some,
    /// which fail, too.
    fn end(&mut self);
}

/// An executor, and a store for what its pool has no room for.
#[derive(Debug)]
pub struct Offloading<E: ?Sized, S> {
    /// Its second level.
    pub store: S,
    block: Vec<u8>,
    /// Batches that the executor has.
    submitted: u32,
    /// The step whose copies were made last.
    copied: u64,
    /// The executor itself.
    pub inner: Box<E>,
}

impl<E: Executor + ?Sized, S: OffloadStore> Offloading<E, S> {
    /// Adds a store to an executor whose blocks can be copied (`Executor::block_bytes`).
    pub fn new(inner: Box<E>, store: S) -> Self {
        let block = vec![0; inner.block_bytes()];
        Self { store, block, submitted: 0, copied: 0, inner }
    }

    fn copy(&mut self, batch: &Batch) -> Result<(), DeviceFault> {
        if batch.offload.is_empty() || self.copied == batch.step {
            return Ok(());
        }
        self.copied = batch.step;
        let made = batch.offload.iter().try_for_each(|copy| self.make(*copy));
        if let Err(fault) = &made
            && fault.kind == DeviceFaultKind::Offload
        {
            self.store.end();
        }
        made
    }

    fn make(&mut self, copy: OffloadCopy) -> Result<(), DeviceFault> {
        match copy {
            OffloadCopy::Out { block, slot } => {
                self.inner.read_block(block, &mut self.block).map_err(failed_copy)?;
                self.store.store(slot, &self.block).map_err(failed)
            }
            OffloadCopy::In { slot, block } => {
                self.store.fetch(slot, &mut self.block).map_err(failed)?;
                self.inner.write_block(block, &self.block).map_err(failed_copy)
            }
        }
    }
}

/// No row is at fault.
fn failed(message: String) -> DeviceFault {
    DeviceFault { kind: DeviceFaultKind::Offload, message, rows: Some(Vec::new()) }
}

fn failed_copy(fault: DeviceFault) -> DeviceFault {
    match fault.kind {
        DeviceFaultKind::Lost => fault,
        _ => failed(fault.message),
    }
}

impl<E: Executor + ?Sized, S: OffloadStore> Executor for Offloading<E, S> {
    fn execute(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        output.reset(batch.rows.len());
        self.copy(batch)?;
        self.inner.execute(batch, output)
    }

    fn submit(&mut self, batch: &Batch) -> Result<bool, DeviceFault> {
        if !batch.offload.is_empty() && self.submitted > 0 {
            return Ok(false);
        }
        self.copy(batch)?;
        let submitted = self.inner.submit(batch)?;
        self.submitted += u32::from(submitted);
        Ok(submitted)
    }

    fn plans_ahead(&self) -> bool {
        self.inner.plans_ahead()
    }

    fn collect(&mut self, batch: &Batch, output: &mut StepOutput) -> Result<(), DeviceFault> {
        self.submitted = self.submitted.saturating_sub(1);
        self.inner.collect(batch, output)
    }

    fn block_bytes(&self) -> usize {
        self.inner.block_bytes()
    }

    fn read_block(&mut self, block: BlockId, bytes: &mut [u8]) -> Result<(), DeviceFault> {
        self.inner.read_block(block, bytes)
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) -> Result<(), DeviceFault> {
        self.inner.write_block(block, bytes)
    }

    fn load_adapter(&mut self, adapter: AdapterId, weights: AdapterWeights) -> Result<(), DeviceFault> {
        self.inner.load_adapter(adapter, weights)
    }

    fn unload_adapter(&mut self, adapter: AdapterId) -> Option<AdapterWeights> {
        self.inner.unload_adapter(adapter)
    }
}

//! Golden checkpoints, and executors driven by hand.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::ops::ControlFlow;
use std::path::PathBuf;

use infer_core::{Batch, BlockId, DeviceFault, Executor, LogitsSlot, StepOutput};
pub use infer_model::walk::Chunk;
use infer_model::walk::{Draws, Walk};
use infer_model::{DType, ExecutorOptions, KvCacheKind, LoadOptions, Model, ModelExecutor, Quantize, Source};

/// Logits that the driver can ask for in one batch.
pub const SLOTS: u32 = 256;
/// Longest sequence.
pub const MAX_SEQ_LEN: u32 = 400;

/// The directory of a golden checkpoint.
pub fn golden(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

/// The golden checkpoint that has adapters.
pub const ADAPTED: &str = "qwen3-bf16";

/// Its adapter `all` or `some`.
pub fn adapter(name: &str) -> Source<'static> {
    Source::Directory(golden("qwen3-lora").join(name))
}

/// A golden checkpoint.
pub fn model(name: &str, dtype: DType) -> Model {
    stored_as(name, dtype, Quantize::Off)
}

/// A golden checkpoint whose weights may be integers.
pub fn stored_as(name: &str, dtype: DType, quantize: Quantize) -> Model {
    let options = LoadOptions { dtype: Some(dtype), quantize, ..LoadOptions::default() };
    let model =
        Model::load_with(&Source::Directory(golden(name)), &options, &mut |_| ControlFlow::Continue(()));
    model.expect("golden checkpoints load")
}

/// An executor, its sequences' blocks, and slots for the logits of a batch.
pub struct Driver {
    pub walk: Walk<ModelExecutor>,
}

/// Logits of each chunk's last position, and the greedy token there.
pub type Outcome = Vec<(Vec<f32>, u32)>;

impl Driver {
    pub fn new(model: &Model, kind: KvCacheKind, block_size: u32, threads: usize) -> Self {
        let total_blocks = 8_192 / block_size.next_power_of_two();
        let options = ExecutorOptions {
            kv_cache: kind,
            block_size,
            total_blocks,
            max_running: 32,
            max_seq_len: MAX_SEQ_LEN,
            prompt_cache_entries: SLOTS,
            threads,
        };
        let executor = model.executor(options).expect("a small KV cache fits");
        Self { walk: Walk::new(executor, block_size, total_blocks) }
    }

    /// Frees a sequence's blocks.
    pub fn release(&mut self, sequence: u64) {
        self.walk.release(sequence);
    }

    /// A batch of these chunks, sampling greedily after the last token of each.
    pub fn batch(&mut self, chunks: &[Chunk<'_>]) -> Batch {
        self.walk.batch(chunks, Draws::KEPT)
    }

    /// Runs a batch of these chunks.
    pub fn run(&mut self, chunks: &[Chunk<'_>]) -> Outcome {
        let tokens = self.walk.run(chunks, Draws::KEPT).expect("sound batches run").to_vec();
        let token = |(i, token): (usize, Option<u32>)| {
            (self.kept(i as u32).to_vec(), token.expect("every row draws"))
        };
        tokens.into_iter().enumerate().map(token).collect()
    }

    /// A sequence's blocks.
    pub fn table(&self, sequence: u64) -> Vec<BlockId> {
        self.walk.table(sequence)
    }

    /// Logits that row `index` of the last batch kept.
    pub fn kept(&self, index: u32) -> &[f32] {
        self.walk.executor.kept_logits(LogitsSlot(index)).expect("every row keeps")
    }

    /// Runs a batch and returns the raw result.
    pub fn try_run(&mut self, batch: &Batch) -> (StepOutput, Result<(), DeviceFault>) {
        let mut output = StepOutput::default();
        let result = self.walk.executor.execute(batch, &mut output);
        (output, result)
    }
}

//! A device's executor, driven by hand.

use infer_core::LogitsSlot;

use crate::cuda::{DeviceExecutor, DeviceModel, DeviceOptions};
pub(super) use crate::walk::{Chunk, Draws};

/// Rows and kept logits of a batch.
const ROWS: u32 = 32;

/// How an executor computes.
#[derive(Clone, Copy)]
pub(super) struct Mode {
    /// Decodes are recorded.
    pub graphs: bool,
    /// See `DeviceOptions`.
    pub deterministic: bool,
}

impl Mode {
    pub(super) const LAUNCHED: Self = Self { graphs: false, deterministic: false };
    pub(super) const RECORDED: Self = Self { graphs: true, deterministic: false };
}

/// An executor and its sequences' blocks.
pub(super) struct Walk {
    pub inner: crate::walk::Walk<DeviceExecutor>,
}

impl Walk {
    pub(super) fn new(
        model: &DeviceModel,
        block_size: u32,
        max_seq_len: u32,
        mode: Mode,
    ) -> Result<Self, String> {
        let total_blocks = ROWS * max_seq_len.div_ceil(block_size);
        let options = DeviceOptions {
            block_size,
            total_blocks,
            max_rows: ROWS,
            max_tokens: 4_096,
            max_seq_len,
            prompt_cache_entries: ROWS,
            deterministic: mode.deterministic,
            graphs: mode.graphs,
        };
        let executor = model.executor(options).map_err(|error| error.to_string())?;
        Ok(Self { inner: crate::walk::Walk::new(executor, block_size, total_blocks) })
    }

    /// Runs a batch of these chunks, sampling after the last token of each. Returns the tokens.
    pub(super) fn run(&mut self, chunks: &[Chunk<'_>], draws: Draws) -> Result<Vec<u32>, String> {
        let drawn = self.inner.run(chunks, draws)?.iter();
        drawn.map(|token| token.ok_or_else(|| "a row sampled nothing".to_owned())).collect()
    }

    /// Runs a batch of these chunks, whose last tokens are draft tokens. Returns for each the tokens sampled, the due one and
    /// those after its draft tokens.
    pub(super) fn draft(&mut self, chunks: &[Chunk<'_>], draws: Draws) -> Result<Vec<Vec<u32>>, String> {
        let mut drawn: Vec<Vec<u32>> =
            self.run(chunks, draws)?.into_iter().map(|token| vec![token]).collect();
        for (row, token) in self.inner.after_guesses() {
            drawn[*row].push(token.ok_or_else(|| "nothing was sampled after a draft token".to_owned())?);
        }
        let wanted = 1 + draws.guesses as usize;
        match drawn.iter().all(|tokens| tokens.len() == wanted) {
            true => Ok(drawn),
            false => Err(format!("{wanted} tokens were to be sampled for each sequence: {drawn:?}")),
        }
    }

    /// Logits that row `index` of the last batch kept.
    pub(super) fn kept(&mut self, index: usize) -> Result<Vec<f32>, String> {
        let kept =
            self.inner.executor.kept_logits(LogitsSlot(index as u32)).map_err(|fault| fault.message)?;
        kept.ok_or_else(|| "a row kept nothing".to_owned())
    }
}

//! Rows of public files without prompt or output tokens, counted while they are read: readers leave them out or give
//! them a token, and whoever reads the results must know.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of a file's rows: the highest of all its readers.
#[derive(Clone, Debug, Default)]
pub struct Empty {
    rows: Arc<AtomicU64>,
    prompts: Arc<AtomicU64>,
    outputs: Arc<AtomicU64>,
}

impl Empty {
    /// Rows that were read.
    pub fn rows(&self) -> u64 {
        self.rows.load(Ordering::Relaxed)
    }

    /// Those without prompt tokens.
    pub fn prompts(&self) -> u64 {
        self.prompts.load(Ordering::Relaxed)
    }

    /// Those without output tokens.
    pub fn outputs(&self) -> u64 {
        self.outputs.load(Ordering::Relaxed)
    }
}

/// The same, as far as one reader has come.
pub(super) struct Rows {
    read: u64,
    prompts: u64,
    outputs: u64,
    most: Empty,
}

impl Rows {
    pub fn new(most: &Empty) -> Self {
        Self { read: 0, prompts: 0, outputs: 0, most: most.clone() }
    }

    /// A row with so many tokens was read. Returns whether it has both.
    pub fn add(&mut self, prompt_tokens: u64, output_tokens: u64) -> bool {
        let (has_prompt, has_output) = (prompt_tokens > 0, output_tokens > 0);
        self.read += 1;
        self.prompts += u64::from(!has_prompt);
        self.outputs += u64::from(!has_output);
        self.most.rows.fetch_max(self.read, Ordering::Relaxed);
        self.most.prompts.fetch_max(self.prompts, Ordering::Relaxed);
        self.most.outputs.fetch_max(self.outputs, Ordering::Relaxed);
        has_prompt && has_output
    }
}

//! Handwritten batches of one row.

use infer_core::{Batch, BlockId, LogitsSlot, Row, SamplingParams, SequenceId};

/// Tokens per block.
pub const BLOCK: u32 = 16;
/// Tokens that the test's pool holds.
pub const LONGEST: u32 = 1_024;

/// A batch that computes `input` after `computed` tokens, in blocks from 0 on, and samples greedily; the logits can
/// be kept.
pub fn single_row(input: &[u32], computed: u32, logits_to: Option<LogitsSlot>) -> Batch {
    let count = u32::try_from(input.len()).expect("short");
    let context = computed + count;
    assert!(context <= LONGEST, "the test's pool holds {LONGEST} tokens");
    let blocks = context.div_ceil(BLOCK);
    let row = Row {
        sequence: SequenceId(1),
        token_start: 0,
        token_len: count,
        context_len: context,
        table_start: 0,
        table_len: blocks,
        sample: true,
        sampling: SamplingParams { temperature: 0.0, ..SamplingParams::default() },
        logits_to,
        ..Row::default()
    };
    Batch {
        step: 1,
        tokens: input.to_vec(),
        positions: (computed..context).collect(),
        slots: (computed..context).collect(),
        block_tables: (0..blocks).map(BlockId).collect(),
        rows: vec![row],
        ..Batch::default()
    }
}

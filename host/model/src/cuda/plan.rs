//! From a batch to the words that kernels read: where tokens go, how they attend, and which ones are sampled.

use infer_core::{Batch, Row};
use infer_kernels::cuda::{AdapterRows, AttentionShape, NONE, PrefillForm};

use super::layout::StepLayout;
use crate::rows::samples;

/// The sizes of a step's launches; everything else is in its words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Rows of every product, padding included.
    pub tokens: u32,
    /// Tokens that attend one by one, padding included.
    pub items: u32,
    /// Tiles of neighbouring tokens that attend together.
    pub tiles: u32,
    /// Of tiles.
    pub form: Option<PrefillForm>,
    /// Tokens whose logits are computed, padding included.
    pub logits: u32,
    /// Block tables' words.
    pub blocks: usize,
    /// Rows with adapters, if there are any.
    pub adapted: Option<AdapterRows>,
}

/// The recorded size of a decode batch: batches are padded, so that few sizes need to be recorded.
pub(super) fn bucket(rows: u32, most: u32) -> u32 {
    let size = match rows {
        0..=2 => rows,
        3..=4 => 4,
        5..=64 => rows.next_multiple_of(8),
        65..=128 => rows.next_multiple_of(16),
        _ => rows.next_multiple_of(32),
    };
    size.min(most)
}

/// Padded rows of a step that isn't recorded: the vendor's library plans products for each number of rows, so few different
/// numbers are better. Short steps are not padded, since it would cost too much.
fn even(tokens: u32, most: u32) -> u32 {
    let rows = if tokens > 64 { tokens.next_multiple_of(16) } else { tokens };
    rows.min(most).max(tokens)
}

/// Whether a row computes logits.
pub(super) fn wants_logits(row: &Row) -> bool {
    row.token_len > 0 && (samples(row) || row.logits_to.is_some())
}

/// Whether every token of a row is sampled after: the due one and the draft tokens behind it, which are computed as if they
/// were sequences of their own with a common block table.
pub(super) fn is_decode(row: &Row) -> bool {
    row.sample && row.token_len == 1 + row.guesses
}

/// How consecutive tokens of a sequence attend together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tiles {
    pub form: PrefillForm,
    /// Maximum tokens of a tile.
    pub tokens: u32,
    /// Whether single tokens are tiles too: then they go through the same kernel and get the same sums.
    pub alone: bool,
}

/// The form of a step's tiles: the one of most rows of which there are enough blocks for each multiprocessor.
pub(super) fn form(
    shape: &AttentionShape,
    most: PrefillForm,
    multiprocessors: u32,
    batch: &Batch,
) -> PrefillForm {
    let is_enough = |form: &PrefillForm| {
        // Single tokens attend one by one, or are alone in a block of any form.
        let prompts = batch.rows.iter().filter(|row| row.token_len > 1 && !is_decode(row));
        let tiles: u32 = prompts.map(|row| row.token_len.div_ceil(form.tokens(shape))).sum();
        tiles * shape.kv_heads >= form.least_blocks() * multiprocessors
    };
    most.and_smaller(shape).find(is_enough).unwrap_or_else(|| most.least(shape))
}

/// Writes everything but samples and rows with adapters. Without `tiling` all tokens attend one by one; `padded` is the number
/// of tokens to pad to, if every row is a decode.
pub(super) fn write(
    words: &mut [u32],
    layout: &StepLayout,
    batch: &Batch,
    tiling: Option<Tiles>,
    padded: Option<u32>,
) -> Plan {
    let count = batch.tokens.len();
    let tokens = padded.unwrap_or_else(|| even(count as u32, layout.max_tokens));
    words[layout.tokens..][..count].copy_from_slice(&batch.tokens);
    words[layout.positions..][..count].copy_from_slice(&batch.positions);
    words[layout.slots..][..count].copy_from_slice(&batch.slots);
    for (to, block) in words[layout.blocks..].iter_mut().zip(&batch.block_tables) {
        *to = block.0;
    }
    let (mut items, mut tiles, mut logits) = (0, 0, 0);
    for row in batch.rows.iter().filter(|row| row.token_len > 0) {
        let (first, len) = (row.token_start as usize, row.token_len as usize);
        words[layout.tables + first..][..len].fill(row.table_start);
        match tiling {
            Some(Tiles { tokens: most, alone, .. }) if alone || !is_decode(row) && len > 1 => {
                // Longest contexts first, so that no long tile runs alone at the end.
                for start in (0..len).step_by(most as usize).rev() {
                    let at = layout.tiles + 2 * tiles;
                    words[at] = (first + start) as u32;
                    words[at + 1] = (len - start).min(most as usize) as u32;
                    tiles += 1;
                }
            }
            _ => {
                for token in first..first + len {
                    words[layout.items + items] = token as u32;
                    items += 1;
                }
            }
        }
        if wants_logits(row) {
            // The due token is sampled from the position before the draft tokens, the others from theirs.
            for token in first + len - 1 - row.guesses as usize..first + len {
                words[layout.select + logits] = token as u32;
                logits += 1;
            }
        }
    }
    let mut plan = Plan {
        tokens,
        items: items as u32,
        tiles: tiles as u32,
        form: tiling.map(|tiles| tiles.form),
        logits: logits as u32,
        blocks: batch.block_tables.len(),
        adapted: None,
    };
    let missing = count..tokens as usize;
    for (array, nothing) in
        [(layout.tokens, NONE), (layout.slots, NONE), (layout.positions, 0), (layout.tables, 0)]
    {
        words[array..][missing.clone()].fill(nothing);
    }
    if padded.is_some() {
        for array in [layout.items, layout.select] {
            words[array..][missing.clone()].fill(NONE);
        }
        plan.logits = tokens;
        if tiles > 0 {
            words[layout.tiles..][2 * tiles..2 * missing.end].fill(NONE);
            plan.tiles = tokens;
        } else {
            plan.items = tokens;
        }
    }
    plan
}

/// Cuts copies into runs whose copies can happen in any order: a block written in a run is neither read nor written again in
/// it. Calls `each` with the pairs of a run.
pub(super) fn copy_runs<E>(
    batch: &Batch,
    most: usize,
    mut each: impl FnMut(&[[u32; 2]]) -> Result<(), E>,
) -> Result<(), E> {
    let mut run: Vec<[u32; 2]> = Vec::new();
    for copy in &batch.copies {
        let (from, to) = (copy.from.0, copy.to.0);
        let clash = run.iter().any(|[read, written]| *written == from || *written == to || *read == to);
        if clash || run.len() == most {
            each(&run)?;
            run.clear();
        }
        run.push([from, to]);
    }
    if run.is_empty() { Ok(()) } else { each(&run) }
}

#[cfg(test)]
mod tests {
    use infer_core::{BlockCopy, BlockId};
    use infer_kernels::cuda::Type;

    use super::*;

    #[test]
    fn buckets_hold_their_batches_and_are_few() {
        let sizes: std::collections::BTreeSet<u32> = (1..=256).map(|rows| bucket(rows, 256)).collect();
        assert!((1..=256).all(|rows| bucket(rows, 256) >= rows));
        assert!(sizes.len() < 24, "{sizes:?}");
        assert_eq!(bucket(30, 31), 31);
    }

    #[test]
    fn step_with_prompts_is_padded_and_starts_with_the_longest_contexts() {
        let options = crate::cuda::layout::tests::OPTIONS;
        let layout = StepLayout::new(Some(64), &options, 0);
        let planned = |prompt: u32| {
            let count = prompt as usize + 1;
            let row = |token_start, token_len| Row { token_start, token_len, ..Row::default() };
            let batch = Batch {
                rows: vec![row(0, prompt), row(prompt, 1)],
                tokens: vec![3; count],
                positions: (0..prompt).chain([9]).collect(),
                slots: vec![5; count],
                ..Batch::default()
            };
            let mut words = vec![7; layout.end];
            let plan = write(
                &mut words,
                &layout,
                &batch,
                Some(Tiles { form: PrefillForm::Rows64, tokens: 64, alone: false }),
                None,
            );
            (plan, words)
        };
        let (plan, words) = planned(140);
        assert_eq!((plan.tokens, plan.tiles, plan.items), (144, 3, 1));
        assert_eq!(words[layout.tiles..][..6], [128, 12, 64, 64, 0, 64]);
        assert_eq!(words[layout.slots..][140..145], [5, NONE, NONE, NONE, 7]);
        assert_eq!(words[layout.tokens..][140..145], [3, NONE, NONE, NONE, 7]);
        assert_eq!(words[layout.items..][..2], [140, 7]);
        assert_eq!([planned(40), planned(198)].map(|(plan, _)| plan.tokens), [41, 200]);
    }

    #[test]
    fn draft_tokens_are_decodes_that_share_a_table() {
        let layout = StepLayout::new(Some(64), &crate::cuda::layout::tests::OPTIONS, 0);
        let row = |token_start, guesses, table_start| Row {
            token_start,
            token_len: 1 + guesses,
            guesses,
            table_start,
            sample: true,
            ..Row::default()
        };
        let batch = Batch {
            rows: vec![row(0, 3, 7), row(4, 0, 9)],
            tokens: vec![3; 5],
            positions: vec![20, 21, 22, 23, 8],
            slots: vec![5; 5],
            ..Batch::default()
        };
        let written = |alone, padded| {
            let mut words = vec![7; layout.end];
            let tiles = Tiles { form: PrefillForm::Rows64, tokens: 2, alone };
            (write(&mut words, &layout, &batch, Some(tiles), padded), words)
        };
        let (plan, words) = written(false, Some(8));
        assert_eq!((plan.tokens, plan.items, plan.tiles, plan.logits), (8, 8, 0, 8));
        for array in [layout.items, layout.select] {
            assert_eq!(words[array..][..8], [0, 1, 2, 3, 4, NONE, NONE, NONE]);
        }
        assert_eq!(words[layout.tables..][..5], [7, 7, 7, 7, 9]);
        // In tiles, as a prompt's tokens would be.
        let (plan, words) = written(true, Some(8));
        assert_eq!((plan.tokens, plan.items, plan.tiles, plan.logits), (8, 0, 8, 8));
        assert_eq!(words[layout.tiles..][..8], [2, 2, 0, 2, 4, 1, NONE, NONE]);
        assert_eq!(words[layout.tiles + 8..][..9], [NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, 7]);
        let (plan, _) = written(false, None);
        assert_eq!((plan.tokens, plan.items, plan.tiles, plan.logits), (5, 5, 0, 5));
    }

    #[test]
    fn long_prompts_attend_in_larger_blocks() {
        use PrefillForm::{Rows64, Rows128, Wgmma64, Wgmma128, Wgmma192};
        let shape = AttentionShape { ty: Type::Bf16, heads: 32, kv_heads: 8, head_dim: 128 };
        let of_lengths = |most, lengths: &[u32]| {
            let rows = lengths.iter().map(|len| Row { token_len: *len, ..Row::default() }).collect();
            let shape = AttentionShape { head_dim: if most == Wgmma192 { 64 } else { 128 }, ..shape };
            form(&shape, most, 132, &Batch { rows, ..Batch::default() })
        };
        // 33 tiles of 32 tokens and eight key heads are 264 blocks.
        assert_eq!(of_lengths(Rows128, &[512]), Rows64);
        assert_eq!(of_lengths(Rows128, &[32 * 32]), Rows64);
        assert_eq!(of_lengths(Rows128, &[32 * 32 + 1]), Rows128);
        assert_eq!(of_lengths(Rows128, &[512, 513]), Rows128);
        assert_eq!(of_lengths(Rows128, &[512, 512, 1]), Rows64);
        assert_eq!(of_lengths(Rows64, &[4_096]), Rows64);
        // 17 tiles of 32 or of 48 tokens are 136 blocks.
        assert_eq!(of_lengths(Wgmma128, &[512]), Wgmma64);
        assert_eq!(of_lengths(Wgmma128, &[513]), Wgmma128);
        assert_eq!(of_lengths(Wgmma192, &[16 * 48]), Wgmma128);
        assert_eq!(of_lengths(Wgmma192, &[16 * 48 + 1]), Wgmma192);
    }

    #[test]
    fn dependent_copies_go_to_separate_runs() {
        let copy = |from, to| BlockCopy { from: BlockId(from), to: BlockId(to), tokens: 1 };
        let copies = vec![copy(1, 2), copy(1, 3), copy(2, 4), copy(5, 1), copy(6, 7)];
        let batch = Batch { copies, ..Batch::default() };
        let mut runs = Vec::new();
        let done: Result<(), ()> = copy_runs(&batch, 8, |run| {
            runs.push(run.to_vec());
            Ok(())
        });
        assert_eq!(done, Ok(()));
        assert_eq!(runs, [vec![[1, 2], [1, 3]], vec![[2, 4], [5, 1], [6, 7]]]);
        let mut most = 0;
        let _ = copy_runs(&batch, 1, |run| {
            most = most.max(run.len());
            Ok::<(), ()>(())
        });
        assert_eq!(most, 1);
    }
}

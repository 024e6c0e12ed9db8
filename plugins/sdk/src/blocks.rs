//! Block arithmetic, so that no policy writes it again and gets the rounding wrong.

use crate::scheduler::Sequence;

/// Blocks that `tokens` take.
pub fn blocks_for(tokens: u32, block_size: u32) -> u32 {
    tokens.div_ceil(block_size.max(1))
}

/// Tokens that `blocks` hold.
pub fn tokens_in(blocks: u32, block_size: u32) -> u32 {
    blocks.saturating_mul(block_size)
}

/// Blocks that a running sequence must be given to compute `tokens` more.
pub fn blocks_to_run(running: Sequence<'_>, tokens: u32, block_size: u32) -> u32 {
    let (needed, blocks) = (running.computed_tokens().saturating_add(tokens), running.blocks());
    // A decode mostly fits into its last block, and a multiplication is cheaper than a division.
    if needed <= tokens_in(blocks, block_size) {
        return 0;
    }
    blocks_for(needed, block_size).saturating_sub(blocks)
}

/// Blocks that a waiting sequence takes from the allocatable ones if it starts and computes `tokens`: new
/// ones, and cached ones that were idle. A prefix that ends inside a block is copied, so its last block is a
/// new one.
pub fn blocks_to_start(waiting: Sequence<'_>, tokens: u32, block_size: u32) -> u32 {
    let computed = waiting.computed_tokens();
    blocks_for(computed.saturating_add(tokens), block_size)
        .saturating_sub(computed / block_size.max(1))
        .saturating_add(waiting.idle_blocks())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Row, Sequences};

    #[test]
    fn blocks_round_up_and_tokens_saturate() {
        assert_eq!([0, 1, 16, 17].map(|t| blocks_for(t, 16)), [0, 1, 1, 2]);
        assert_eq!(blocks_for(5, 0), 5, "a block size of zero must not trap");
        assert_eq!(tokens_in(u32::MAX, 16), u32::MAX);
    }

    #[test]
    fn a_running_sequence_needs_a_block_only_when_its_last_one_is_full() {
        let rows = Sequences::from_iter([
            Row { computed_tokens: 31, blocks: 2, ..Row::default() },
            Row { computed_tokens: 32, blocks: 2, ..Row::default() },
        ]);
        assert_eq!(rows.iter().map(|s| blocks_to_run(s, 1, 16)).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(blocks_to_run(rows.get(1), 33, 16), 3);
    }

    #[test]
    fn starting_takes_new_blocks_idle_ones_and_a_copy_of_a_partial_one() {
        let rows = Sequences::from_iter([
            Row { prompt_tokens: 40, ..Row::default() },
            Row { prompt_tokens: 40, computed_tokens: 32, idle_blocks: 2, ..Row::default() },
            Row { prompt_tokens: 40, computed_tokens: 32, idle_blocks: 0, ..Row::default() },
            Row { prompt_tokens: 40, computed_tokens: 40, idle_blocks: 1, ..Row::default() },
        ]);
        let cost = |row: usize, tokens| blocks_to_start(rows.get(row), tokens, 16);
        assert_eq!([cost(0, 40), cost(1, 8), cost(2, 8), cost(3, 0)], [3, 3, 1, 2]);
    }
}

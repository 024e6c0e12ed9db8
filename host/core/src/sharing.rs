//! How much context the decodes of a batch have in common.

use crate::batch::Batch;

/// Counts context that several decodes of a batch read: what a cache may serve more cheaply than memory.
///
/// Deliberately absent: any influence on a step. Recordings and virtual devices use it.
#[derive(Clone, Debug, Default)]
pub struct SharedContext {
    /// By block, the last count in which a row read it.
    seen: Vec<u64>,
    counts: u64,
}

impl SharedContext {
    /// Tokens of context in blocks that an earlier row of the batch reads too; rows that compute one token
    /// count. Takes time in proportion to the blocks of their tables.
    pub fn repeated(&mut self, batch: &Batch) -> u64 {
        self.counts += 1;
        let decodes = batch.rows.iter().filter(|row| row.token_len == 1);
        decodes
            .map(|row| {
                let table = batch.table(row);
                let repeated = table.iter().filter(|block| self.mark(block.0 as usize)).count() as u64;
                // All blocks of a row hold equally many tokens except the last, which is its own.
                repeated * u64::from(row.context_len) / (table.len() as u64).max(1)
            })
            .sum()
    }

    /// Whether the block was marked in this count already.
    fn mark(&mut self, block: usize) -> bool {
        if self.seen.len() <= block {
            self.seen.resize(block + 1, 0);
        }
        std::mem::replace(&mut self.seen[block], self.counts) == self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{BlockId, SequenceId};
    use crate::{Row, SamplingParams};

    fn batch(rows: &[(u32, u32, &[u32])]) -> Batch {
        let mut batch = Batch::default();
        for (at, &(token_len, context_len, table)) in rows.iter().enumerate() {
            let table_start = batch.block_tables.len() as u32;
            batch.block_tables.extend(table.iter().map(|&block| BlockId(block)));
            let table_len = table.len() as u32;
            batch.rows.push(Row {
                sequence: SequenceId(at as u64),
                token_len,
                context_len,
                table_start,
                table_len,
                sampling: SamplingParams::default(),
                ..Row::default()
            });
        }
        batch
    }

    #[test]
    fn blocks_count_from_their_second_reader_on_and_chunks_do_not() {
        let mut sharing = SharedContext::default();
        let shared = batch(&[(1, 64, &[3, 7, 1, 2]), (1, 64, &[3, 7, 5, 6]), (1, 48, &[3, 8, 9])]);
        assert_eq!(sharing.repeated(&shared), 32 + 16);
        let with_chunk = batch(&[(16, 64, &[3, 7, 1, 2]), (1, 64, &[3, 7, 5, 6])]);
        assert_eq!(sharing.repeated(&with_chunk), 0, "and the batch before is forgotten");
        assert_eq!(sharing.repeated(&Batch::default()), 0);
    }
}

//! What operators look at closely. Nothing here changes anything.

use std::ops::Range;

use super::Engine;
use crate::ids::{BlockId, Micros, SequenceId};
use crate::inspect::{BlockCells, BlockColumn, BlockDetail, CacheTree, MAX_HOLDERS, SequenceDetail};
use crate::snapshot::RequestSnapshot;

impl Engine {
    /// The state of each of these blocks and one number per block; for a range, as much of it as the pool
    /// has.
    pub fn block_cells(&self, places: Range<usize>, column: BlockColumn, now: Micros) -> BlockCells {
        self.kv.cells(places, column, now)
    }

    /// One block; `None` if the pool has no such block.
    pub fn block_detail(&self, id: BlockId) -> Option<BlockDetail> {
        let mut detail = self.kv.detail(id)?;
        let holders = self.slab.iter().filter(|(_, sequence)| sequence.table.contains(&id));
        detail.holders = holders.take(MAX_HOLDERS).map(|(_, sequence)| sequence.id).collect();
        Some(detail)
    }

    /// One live sequence; `None` if there is none with this id.
    pub fn sequence_detail(&self, id: SequenceId) -> Option<(RequestSnapshot, SequenceDetail)> {
        let ix = self.slab.find(id)?;
        let sequence = &self.slab[ix];
        let place = |&id: &BlockId| {
            let block = self.kv.blocks.get(id);
            (id, block.refs, block.in_tree())
        };
        let waits = !sequence.is_running();
        let detail = SequenceDetail {
            table: sequence.table.iter().map(place).collect(),
            max_blocks: sequence.max_blocks,
            expected_tokens: sequence.expected,
            reusable_tokens: if waits { self.kv.reusable_tokens(sequence) } else { sequence.reused },
            pending_tokens: if waits { self.kv.pending_tokens(sequence) } else { 0 },
            deadline: sequence.request.deadline,
            overtaken: sequence.overtaken.is_some(),
        };
        Some((self.request(ix), detail))
    }

    /// Everything the prefix cache can find.
    pub fn cache_tree(&self) -> CacheTree {
        self.kv.tree()
    }
}

//! The engine's policy traits for instances: one file per kind, nothing but translation.

mod admission;
mod prefix_cache;
mod scheduler;

use infer_core::policy::Memory;

use crate::bindings::scheduler::infer::policy::types;

fn memory(memory: &Memory) -> types::Memory {
    types::Memory {
        block_size: memory.block_size,
        total_blocks: memory.total_blocks,
        free_blocks: memory.free_blocks,
        cached_blocks: memory.cached_blocks,
    }
}

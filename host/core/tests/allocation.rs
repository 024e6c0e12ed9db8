//! A step in which nothing starts or ends makes the same few allocations however many sequences run: otherwise every
//! token would cost allocations.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use infer_core::engine::Policies;
use infer_core::testing::{LoadShape, SteadyLoad};

/// Block size of `SteadyLoad`.
const BLOCK: u32 = 16;
/// Nine full blocks: a sequence's list of block hashes, which grows by doubling, then has room for 16.
const PROMPT: u32 = 9 * BLOCK;
/// Steps in which buffers grow: each sequence begins a block, and fills one.
const WARM_UP: usize = 32;
/// Steps that are counted. No sequence reaches a 17th block, and the slice of half a second in which the engine
/// measures itself goes on: a step takes a millisecond here.
const STEPS: usize = 64;

/// A plan of the built-in scheduler: ids and token counts, a list each.
const OF_THE_PLAN: usize = 2;
/// A debug build checks the invariants after each step, with four lists by block or sequence: holders, unshared blocks,
/// free blocks, kept prompts.
const OF_THE_CHECK: usize = if cfg!(debug_assertions) { 4 } else { 0 };
const OF_A_STEP: usize = OF_THE_PLAN + OF_THE_CHECK;

struct Counting;

thread_local! {
    /// This thread's alone: the test harness allocates in others.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: all calls are forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Decodes `running` sequences and drains the events of each step, as a host does. With `ahead` a batch is always in
/// flight while the next one is made. Returns the allocations of steps that leave all sequences within their blocks,
/// and of those in which some sequence begins a block or fills one.
fn allocations(running: u32, ahead: bool) -> [Vec<usize>; 2] {
    let shape = LoadShape { running, waiting: 0, prompt_tokens: PROMPT, steps: 128 };
    let mut load = SteadyLoad::new(shape, Policies::builtin());
    let mut counts = [Vec::with_capacity(STEPS), Vec::with_capacity(STEPS)];
    let mut flight = ahead.then(|| load.begin());
    // With two batches in turn, the other one has to hold the longer tables in the step after.
    let first = 1..=1 + u32::from(ahead);
    for step in 0..WARM_UP + STEPS {
        let before = ALLOCATIONS.get();
        let begun = load.begin();
        let begins = begun.rows.iter().any(|row| first.contains(&(row.context_len % BLOCK)));
        let batch = match ahead {
            true => flight.replace(begun).expect("a batch is in flight"),
            false => begun,
        };
        let fills = batch.rows.iter().any(|row| row.context_len.is_multiple_of(BLOCK));
        assert_eq!(batch.rows.len(), running as usize);
        load.answer(&batch);
        load.finish(batch);
        let count = ALLOCATIONS.get() - before;
        if step >= WARM_UP {
            counts[usize::from(begins || fills)].push(count);
        }
    }
    counts
}

#[test]
fn step_allocates_no_more_for_more_sequences() {
    for (running, ahead) in [(8, false), (64, false), (8, true), (64, true)] {
        let [within, across] = allocations(running, ahead);
        assert!(!within.is_empty() && !across.is_empty());
        // Rows, tables, tokens, events and notes are in buffers that come back.
        let same = within.iter().all(|&count| count == OF_A_STEP);
        assert!(same, "{running} sequences, ahead: {ahead}: {within:?}");
        // New blocks come from a list, their content goes to tables of fixed size, and a sequence's own table has room
        // for its last token. Only the batch's list of all tables may have to grow.
        let few = across.iter().all(|&count| (OF_A_STEP..=OF_A_STEP + 1).contains(&count));
        assert!(few, "{running} sequences, ahead: {ahead}, at a block's border: {across:?}");
    }
}

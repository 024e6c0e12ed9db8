//! A run's memory doesn't grow with its number of requests: a million must fit as well as a thousand.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use infer_core::config::EngineConfig;
use infer_core::engine::Policies;
use infer_core::ids::Micros;
use infer_sim::{Predictions, Profile, Settings, Slo, Workload, simulate};

struct Counting;

thread_local! {
    /// Bytes that this thread holds, and the most that it held.
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: isize) {
    let (held, most) = HELD.get();
    HELD.set((held + bytes, most.max(held + bytes)));
}

// SAFETY: all calls are forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The most bytes that a run holds beyond those before it.
fn most(workload: &str, requests: u64) -> isize {
    let settings = Settings {
        engine: EngineConfig { total_blocks: 8_000, max_seq_len: 8_192, ..EngineConfig::default() },
        profile: Profile::named("h100", "8b").expect("a known profile"),
        host: Micros::ZERO,
        load: 0.5,
        slo: Slo::default(),
        seed: 1,
        tenants: Vec::new(),
        predictions: Predictions::Learned,
    };
    let workload = Workload::named(workload, requests).expect("a known workload");
    let before = HELD.get().0;
    HELD.set((before, before));
    let outcome = simulate(&settings, Policies::builtin(), &workload, |_| {});
    assert_eq!(outcome.requests, requests);
    HELD.get().1 - before
}

#[test]
fn memory_of_a_run_is_bounded() {
    // Conversations last for many requests, so it takes longer until as many end as begin.
    for (workload, requests) in [("chat", 3_000), ("repeat", 1_500), ("tenants", 1_500)] {
        let (few, many) = (most(workload, requests), most(workload, 4 * requests));
        assert!(many < few + few / 8, "{workload}: {few} bytes at first, {many} for four times the requests");
    }
}

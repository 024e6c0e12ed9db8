//! The pool with real threads.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Pool;

#[test]
fn every_item_of_consecutive_jobs_runs_exactly_once() {
    for helpers in [0, 1, 3] {
        let mut pool = Pool::new(helpers).unwrap();
        for items in (0..200).chain([5_000, 1]) {
            let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
            pool.run(items, &|range: Range<usize>| {
                range.for_each(|i| _ = counts[i].fetch_add(1, Ordering::Relaxed));
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{items} items");
        }
    }
}

#[test]
fn sleeping_helpers_and_waiting_callers_are_woken() {
    let mut pool = Pool::new(1).unwrap();
    let barrier = std::sync::Barrier::new(2);
    for _ in 0..20 {
        while pool.sleepers() == 0 {
            std::thread::yield_now();
        }
        // Two items that only two threads can finish.
        pool.run(2, &|range: Range<usize>| range.for_each(|_| _ = barrier.wait()));
    }
}

#[test]
fn panic_reaches_the_caller_after_all_other_items_and_the_pool_survives() {
    let mut pool = Pool::new(2).unwrap();
    let done = AtomicUsize::new(0);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        pool.run(100, &|range: Range<usize>| {
            for i in range {
                assert_ne!(i, 99, "the last item");
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }));
    assert!(outcome.is_err());
    assert_eq!(done.load(Ordering::Relaxed), 99);
    pool.run(1, &|_: Range<usize>| _ = done.fetch_add(1, Ordering::Relaxed));
    assert_eq!(done.load(Ordering::Relaxed), 100);
}

//! The kernels' thread pool: a job, sleeping helpers, a waiting caller.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::world;
use world::{AtomicUsize, Condvar, Mutex, Ordering, check};

use protocol::Pool;

#[path = "../../../kernels/src/cpu/pool/protocol.rs"]
#[allow(dead_code, unreachable_pub, reason = "its own crate uses more of it, and in other places")]
mod protocol;

fn counted(pool: &mut Pool, items: usize) {
    let counts: Vec<AtomicUsize> = (0..items).map(|_| AtomicUsize::new(0)).collect();
    // Relaxed, because the pool itself must make them visible to the caller.
    pool.run(items, &|range: Range<usize>| range.for_each(|i| _ = counts[i].fetch_add(1, Ordering::Relaxed)));
    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "each item is done once");
}

#[test]
fn caller_wakes_and_sees_the_results() {
    check(3, || {
        let mut pool = Pool::new(1).unwrap();
        counted(&mut pool, 2);
        counted(&mut pool, 1);
    });
}

#[test]
fn three_threads_share_a_job() {
    check(1, || counted(&mut Pool::new(2).unwrap(), 3));
}

/// Either thread may run the piece that panics. The pool is dropped while its helper may still be looking for work.
#[test]
fn panic_reaches_the_caller_after_the_other_piece_is_done() {
    check(3, || {
        let mut pool = Pool::new(1).unwrap();
        let done = AtomicUsize::new(0);
        let pieces = |range: Range<usize>| {
            range.for_each(|piece| match piece {
                0 => resume_unwind(Box::new("piece 0")),
                _ => _ = done.fetch_add(1, Ordering::Relaxed),
            });
        };
        let thrown = catch_unwind(AssertUnwindSafe(|| pool.run(2, &pieces))).expect_err("it panics");
        assert_eq!(thrown.downcast_ref(), Some(&"piece 0"));
        assert_eq!(done.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn sleeping_helper_wakes_for_a_job() {
    check(3, || {
        let mut pool = Pool::new(1).unwrap();
        for _ in 0..2 {
            let (arrived, all) = (Mutex::new(0), Condvar::new());
            // Each item waits for the other, so it takes two threads.
            pool.run(2, &|range: Range<usize>| {
                range.for_each(|_| {
                    let mut arrived = arrived.lock().unwrap();
                    *arrived += 1;
                    all.notify_all();
                    while *arrived < 2 {
                        arrived = all.wait(arrived).unwrap();
                    }
                });
            });
        }
    });
}

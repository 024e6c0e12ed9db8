//! Copies that are not made: a lost batch's, and those of a second level that fails.

use infer_core::OffloadCopy;
use infer_core::testing::solo;

use super::{Tiered, coming, fault, next_turn, tiny};
use crate::common::scripted::VOCAB;

#[test]
fn a_lost_batch_takes_its_copies_along() {
    for rows in [Some(Vec::new()), None] {
        let mut host = Tiered::after(tiny(16), 1..3);
        let id = host.submit(next_turn(1));
        let batch = host.engine.begin_step(host.now).expect("it starts");
        assert_eq!(coming(&batch).len(), 3);
        assert!(batch.offload.iter().any(|copy| matches!(copy, OffloadCopy::Out { .. })));
        // Nothing is copied, and whoever reads what should have been gets other tokens.
        host.engine.finish_step(batch, Err(fault(rows.clone())), host.now);
        host.engine.check_invariants();
        host.run();
        if rows.is_some() {
            assert_eq!(host.tokens(id), solo(&next_turn(1), VOCAB));
        }
        host.ask(next_turn(1));
        host.ask(next_turn(2));
        assert_eq!(host.counters().device_faults, 1);
    }
}

#[test]
fn a_second_level_that_fails_is_not_used_any_more() {
    let mut host = Tiered::after(tiny(16), 1..3);
    host.executor.store.broken = true;
    for seed in [1, 2, 3, 1] {
        host.ask(next_turn(seed));
    }
    assert!(host.executor.store.slots.is_empty(), "its place is given back");
    let snapshot = host.engine.snapshot(host.now);
    assert_eq!((snapshot.offload.total, snapshot.offload.used), (0, 0));
    assert_eq!((snapshot.counters.offload_failures, snapshot.counters.device_faults), (1, 0));
    assert_eq!(snapshot.counters.failed, 0);
}

//! Devices that fail: what the fault names fails, and everything else goes on. Faults with a step in flight are in
//! `ahead.rs`.

use crate::common::scripted::{Bench, VOCAB, prompt, request, small};
use infer_core::testing::solo;
use infer_core::{DeviceFault, DeviceFaultKind, Event};

#[test]
fn a_device_fault_fails_only_the_rows_it_names() {
    for (rows, failed) in [(Some(vec![1]), 1), (None, 3)] {
        let mut bench = Bench::new(small());
        let requests: Vec<_> = (1..4).map(|i| request(prompt(i, 9), 6)).collect();
        let ids: Vec<_> = requests.iter().map(|r| bench.submit(r.clone())).collect();
        bench.step();
        bench.step();
        let message = "out of memory".to_owned();
        bench.executor.fail_next(DeviceFault { kind: DeviceFaultKind::OutOfMemory, message, rows });
        bench.step();
        // The engine still serves, and finds no garbage from the fault.
        let again = requests[1].clone();
        let id = bench.submit(again.clone());
        bench.run();
        assert_eq!(bench.tokens(id), solo(&again, VOCAB));
        let failures = bench
            .events
            .iter()
            .filter(|e| matches!(e, Event::Failed { message, .. } if message == "out of memory"));
        assert_eq!(failures.count(), failed);
        for (id, request) in ids.iter().zip(&requests) {
            let alone = solo(request, VOCAB);
            assert!(alone.starts_with(&bench.tokens(*id)));
        }
        assert_eq!(bench.engine.snapshot(bench.now).counters.device_faults, 1);
    }
}

//! Devices that fail: what the fault names fails, and everything else goes on. Faults with a step in flight are in
//! `ahead.rs`.

use crate::common::scripted::{Bench, VOCAB, prompt, request, small};
use infer_core::testing::solo;
use infer_core::{DeviceFault, DeviceFaultKind, Event, Executor, Micros, SequenceId, StepOutput};

#[test]
fn a_device_fault_fails_only_the_rows_it_names() {
    for rows in [Some(vec![1]), None] {
        let mut bench = Bench::new(small());
        let requests: Vec<_> = (1..4).map(|i| request(prompt(i, 9), 6)).collect();
        let ids: Vec<_> = requests.iter().map(|r| bench.submit(r.clone())).collect();
        bench.step();
        bench.step();
        let batch = bench.engine.begin_step(bench.now).expect("all of them run");
        let at: Vec<SequenceId> = batch.rows.iter().map(|row| row.sequence).collect();
        assert_eq!(at.len(), 3);
        let named =
            rows.as_ref().map_or(at.clone(), |rows| rows.iter().map(|&row: &usize| at[row]).collect());
        let message = "out of memory".to_owned();
        bench.executor.fail_next(DeviceFault { kind: DeviceFaultKind::OutOfMemory, message, rows });
        let mut output = StepOutput::default();
        let result = bench.executor.execute(&batch, &mut output);
        bench.now = bench.now.plus(Micros(1_000));
        bench.engine.finish_step(batch, result.map(|()| &output), bench.now);
        bench.engine.drain_events(&mut bench.events);
        bench.engine.check_invariants();
        // The engine still serves, and finds no garbage from the fault.
        let again = requests[1].clone();
        let id = bench.submit(again.clone());
        bench.run();
        assert_eq!(bench.tokens(id), solo(&again, VOCAB));
        let failure = |e: &Event| match e {
            Event::Failed { id, message, .. } => Some((*id, message.clone())),
            _ => None,
        };
        let failures: Vec<_> = bench.events.iter().filter_map(failure).collect();
        let expected: Vec<_> = named.iter().map(|id| (*id, "out of memory".to_owned())).collect();
        assert_eq!(failures, expected);
        for (id, request) in ids.iter().zip(&requests) {
            let (alone, told) = (solo(request, VOCAB), bench.tokens(*id));
            if named.contains(id) {
                assert!(
                    alone.starts_with(&told) && told.len() < alone.len(),
                    "{id:?}: {told:?} of {alone:?}"
                );
            } else {
                assert_eq!(told, alone, "{id:?} goes on");
            }
        }
        assert_eq!(bench.engine.snapshot(bench.now).counters.device_faults, 1);
    }
}

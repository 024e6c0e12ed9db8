//! Swapping policies while tokens stream changes no token and loses no request.

use infer_core::engine::Policies;
use infer_core::policy::{AnyPolicy, PolicyKind};
use infer_core::{EngineConfig, Event, SequenceId};
use infer_tests::{Driver, Ended, bundled, request, tokenizer};

const STREAMS: u32 = 16;

fn shipped(scheduler: &str) -> Policies {
    let AnyPolicy::Scheduler(scheduler) = bundled(PolicyKind::Scheduler, scheduler, "{}") else {
        unreachable!()
    };
    let AnyPolicy::Admission(admission) = bundled(PolicyKind::Admission, "memory-aware", "{}") else {
        unreachable!()
    };
    let AnyPolicy::PrefixCache(prefix_cache) = bundled(PolicyKind::PrefixCache, "lru", "{}") else {
        unreachable!()
    };
    Policies { scheduler, admission, prefix_cache }
}

fn submit_mixed(driver: &mut Driver) -> Vec<SequenceId> {
    let tokenizer = tokenizer();
    let text = "What is a prefix cache? How does continuous batching work? Why is decode bound by memory? ";
    (0..STREAMS)
        .map(|i| {
            let prompt =
                tokenizer.encode(&text.repeat(1 + i as usize % 5)[i as usize..], true).expect("encodes");
            driver.submit(request(prompt, 100 + 13 * i)).expect("admitted")
        })
        .collect()
}

fn config() -> EngineConfig {
    EngineConfig { total_blocks: 600, max_seq_len: 1_024, ..EngineConfig::default() }
}

#[test]
fn two_hundred_scheduler_swaps_leave_sixteen_streams_identical() {
    let mut plain = Driver::new(config(), shipped("continuous"));
    submit_mixed(&mut plain);
    plain.run();

    let mut swapped = Driver::new(config(), shipped("continuous"));
    let ids = submit_mixed(&mut swapped);
    let mut swaps = 0;
    loop {
        let alive = swapped.step();
        if swaps < 200 {
            let name = if swaps % 2 == 0 { "static-batch" } else { "continuous" };
            let report = swapped.engine.swap(bundled(PolicyKind::Scheduler, name, "{}"), swapped.now);
            assert_eq!(report.to, name);
            swaps += 1;
        } else if !alive {
            break;
        }
    }
    assert_eq!(swaps, 200);
    assert_eq!(plain.streams(), swapped.streams());
    assert!(swapped.faults().is_empty(), "{:?}", swapped.faults());
    for id in ids {
        assert!(matches!(swapped.ended[&id].0, Ended::Finished(_)), "{id:?}: {:?}", swapped.ended[&id]);
    }
}

#[test]
fn every_slot_can_be_swapped_and_rolled_back_under_load() {
    let mut plain = Driver::new(config(), shipped("continuous"));
    submit_mixed(&mut plain);
    plain.run();

    let mut swapped = Driver::new(config(), shipped("continuous"));
    submit_mixed(&mut swapped);
    let slots = [
        (PolicyKind::Scheduler, "continuous", "static-batch"),
        (PolicyKind::Admission, "memory-aware", "tenant-cap"),
        (PolicyKind::PrefixCache, "lru", "s3-fifo"),
    ];
    let mut made = Vec::new();
    // All three are swapped in turn, and then all are rolled back.
    for round in 0.. {
        if !swapped.step() {
            break;
        }
        let (kind, first, other) = slots[round % slots.len()];
        let (report, from, to) = if (round / slots.len()).is_multiple_of(2) {
            (swapped.engine.swap(bundled(kind, other, "{}"), swapped.now), first, other)
        } else {
            let report = swapped.engine.rollback(kind, swapped.now);
            (report.expect("it was swapped"), other, first)
        };
        let change = (kind, from.to_owned(), to.to_owned());
        assert_eq!((report.kind, report.from, report.to), change, "round {round}");
        made.push(change);
    }
    assert!(made.len() > 4 * slots.len(), "{} changes", made.len());
    assert_eq!(plain.streams(), swapped.streams());
    assert!(swapped.faults().is_empty(), "{:?}", swapped.faults());
    let told = |event: &Event| match event {
        Event::PolicyChanged { kind, from, to, .. } => Some((*kind, from.clone(), to.clone())),
        _ => None,
    };
    assert_eq!(swapped.events.iter().filter_map(told).collect::<Vec<_>>(), made);
}

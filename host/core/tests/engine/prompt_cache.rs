//! Kept logits of whole prompts: an exact repetition is answered without prefill.

use std::sync::{Arc, Mutex};

use crate::common::scripted::{Bench, Scheduler, fcfs, prompt, request, small, started};
use infer_core::engine::Policies;
use infer_core::{EngineConfig, Event, Micros, PrefixEvent};

#[test]
fn the_prompt_cache_is_bounded_and_drops_the_least_recently_used() {
    let config = EngineConfig { prompt_cache_entries: 2, prompt_cache_ttl: Micros(1_000_000), ..small() };
    let ask = |bench: &mut Bench, seed| {
        let id = bench.submit(request(prompt(seed, 9), 1));
        bench.run();
        started(bench, id).0 == PrefixEvent::FullHitNoPrefillNeeded
    };
    let mut bench = Bench::new(config);
    assert!(!ask(&mut bench, 1));
    assert!(!ask(&mut bench, 2));
    assert!(ask(&mut bench, 1), "used, so younger than the other");
    assert!(!ask(&mut bench, 3), "it replaces the oldest");
    assert!(ask(&mut bench, 1));
    assert!(!ask(&mut bench, 2));
    bench.now.0 += 900_000;
    assert!(ask(&mut bench, 1));
    bench.now.0 += 900_000;
    assert!(ask(&mut bench, 1), "the time counts from the last use");
    bench.now.0 += 1_000_001;
    assert!(!ask(&mut bench, 1));
}

#[test]
fn no_sequence_waits_for_a_prompt_without_a_logits_slot() {
    let views = Arc::new(Mutex::new(Vec::new()));
    let seen = views.clone();
    let mut bench = Bench::scheduled(EngineConfig { prompt_cache_entries: 1, ..small() }, move |step| {
        let rows = &step.waiting;
        let row = |at| (rows.id[at], rows.computed_tokens[at], rows.pending_tokens[at]);
        seen.lock().unwrap().extend((0..rows.len()).map(row));
        Ok(fcfs(step))
    });
    bench.submit(request(prompt(1, 8), 20));
    bench.submit(request(prompt(2, 8), 20));
    bench.step();
    views.lock().unwrap().clear();
    for seed in [1, 2] {
        bench.submit(request(prompt(seed, 8), 1));
    }
    bench.step();
    assert_eq!(*views.lock().unwrap(), [(3, 8, 0), (4, 4, 0)]);
}

#[test]
fn truncated_row_keeps_its_full_prompt_hit() {
    let mut tried = false;
    let scheduler = Scheduler("greedy", move |step: &infer_core::policy::StepView| {
        let rows = &step.waiting;
        if rows.len() < 2 {
            return Ok(fcfs(step));
        }
        let mut plan = infer_core::policy::Plan::default();
        let rows = [(&step.running, 0..step.running.len()), (rows, usize::from(tried)..2)];
        tried = true;
        for (rows, range) in rows {
            for at in range {
                let all = rows.prompt_tokens[at] + rows.generated_tokens[at];
                plan.run.push(infer_core::SequenceId(rows.id[at]));
                plan.tokens.push(all - rows.computed_tokens[at]);
            }
        }
        Ok(plan)
    });
    let policies = Policies { scheduler: Box::new(scheduler), ..Policies::builtin() };
    let mut bench = Bench::with(EngineConfig { total_blocks: 8, ..small() }, policies);
    bench.submit(request(prompt(1, 8), 1));
    bench.run();
    bench.submit(request(prompt(2, 16), 8));
    bench.step();
    let large = bench.submit(request(prompt(3, 14), 1));
    let whole = bench.submit(request(prompt(1, 8), 1));
    bench.step();
    assert_eq!(bench.engine.snapshot(bench.now).counters.cut_rows, 2, "{large:?} needs more than there is");
    bench.run();
    assert_eq!(started(&bench, whole), (PrefixEvent::FullHitNoPrefillNeeded, 8, 0));
    assert_eq!(bench.faults(), []);
}

#[test]
fn peak_blocks_include_a_fully_cached_prompt() {
    let mut bench = Bench::new(small());
    for _ in 0..2 {
        bench.submit(request(prompt(1, 8), 1));
        bench.run();
    }
    let peaks = bench.events.iter().filter_map(|event| match event {
        Event::Finished { usage, .. } => Some((usage.cached_tokens, usage.peak_blocks)),
        _ => None,
    });
    assert_eq!(peaks.collect::<Vec<_>>(), [(0, 2), (8, 2)]);
}

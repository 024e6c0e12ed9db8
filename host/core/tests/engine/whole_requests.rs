//! Admission of requests of several sequences: all or none, charged once as a whole.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::common::scripted::{Admission, Bench, prompt, request, small};
use infer_core::engine::Policies;
use infer_core::policy::{AdmissionRequest, Load, Memory, Verdict};
use infer_core::request::RefusalReason;
use infer_core::{EngineConfig, Refusal};

/// Tokens left of a rate, and the ids that were charged.
type Purse = Arc<Mutex<(u32, BTreeSet<u64>)>>;

/// Admits what was charged or can be, if it fits the pool, as shipped policies do.
fn charging(config: EngineConfig, purse: u32) -> (Bench, Purse) {
    let purse = Arc::new(Mutex::new((purse, BTreeSet::new())));
    let shared = purse.clone();
    let admission = Admission(move |request: &AdmissionRequest, load: &Load| {
        let tokens = request.prompt_tokens + request.max_new_tokens;
        if tokens > load.memory.total_blocks * load.memory.block_size {
            let message = "it never fits".to_owned();
            return Ok(Verdict::Refuse(Refusal {
                reason: RefusalReason::Memory,
                message,
                retry_after_ms: 0,
            }));
        }
        let mut purse = shared.lock().unwrap();
        if purse.1.contains(&request.id.0) {
            return Ok(Verdict::Admit);
        }
        let Some(left) = purse.0.checked_sub(tokens) else {
            let message = format!("{tokens} of {}", purse.0);
            return Ok(Verdict::Refuse(Refusal { reason: RefusalReason::Rate, message, retry_after_ms: 9 }));
        };
        purse.0 = left;
        purse.1.insert(request.id.0);
        Ok(Verdict::Admit)
    });
    (Bench::with(config, Policies { admission: Box::new(admission), ..Policies::builtin() }), purse)
}

#[test]
fn a_request_of_several_sequences_is_charged_once_as_a_whole_or_not_at_all() {
    // Together they need more than the pool holds, but not at once.
    let (mut bench, purse) = charging(EngineConfig { total_blocks: 8, ..small() }, 95);
    let four = || (1..5).map(|seed| request(prompt(seed, 4), 20)).collect::<Vec<_>>();
    for _ in 0..3 {
        let refusal = bench.engine.submit_all(four(), bench.now).unwrap_err();
        assert_eq!((refusal.reason, &*refusal.message), (RefusalReason::Rate, "96 of 95"));
        assert_eq!(purse.lock().unwrap().0, 95);
    }
    assert!(!bench.engine.has_work());
    purse.lock().unwrap().0 = 100;
    let all = bench.engine.submit_all(four(), bench.now).unwrap();
    assert_eq!(purse.lock().unwrap().0, 4);
    bench.run();
    assert_eq!(all.iter().map(|&id| bench.tokens(id).len()).collect::<Vec<_>>(), [20; 4]);
    let counters = bench.engine.snapshot(bench.now).counters;
    assert_eq!((counters.submitted, counters.refused.iter().sum::<u64>()), (16, 12));
}

#[test]
fn if_one_sequence_is_refused_those_before_it_are_removed() {
    for (at, verdict) in [(0, Verdict::Admit), (2, Verdict::Admit), (2, Verdict::Wait), (4, Verdict::Wait)] {
        let mut asked = 0;
        let said = verdict.clone();
        let admission = Admission(move |_: &_, _: &_| {
            asked += 1;
            let refusal = Refusal { reason: RefusalReason::Other, message: "no".into(), retry_after_ms: 3 };
            // The first call is about all of them.
            Ok(if asked == at + 1 { Verdict::Refuse(refusal) } else { said.clone() })
        });
        let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
        let mut bench = Bench::with(small(), policies);
        let four = (1..5).map(|seed| request(prompt(seed, 9), 20)).collect();
        let refusal = bench.engine.submit_all(four, bench.now).unwrap_err();
        assert_eq!(refusal.retry_after_ms, 3, "{at} {verdict:?}");
        bench.engine.check_invariants();
        let queue = bench.engine.snapshot(bench.now).queue;
        assert_eq!((queue.waiting, queue.held, bench.engine.has_work()), (0, 0, false), "{at} {verdict:?}");
    }
}

#[test]
fn the_queue_admits_all_sequences_of_a_request_or_none() {
    let mut bench = Bench::new(EngineConfig { max_waiting: 5, ..small() });
    let some = |n: u32| (0..n).map(|seed| request(prompt(seed, 4), 4)).collect::<Vec<_>>();
    bench.engine.submit_all(some(3), bench.now).unwrap();
    let refusal = bench.engine.submit_all(some(3), bench.now).unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::QueueFull);
    assert_eq!(bench.engine.submit_all(some(2), bench.now).unwrap().len(), 2);
    bench.run();
}

/// One call of `admit`: the request's id, prompt tokens and longest output; then the running and waiting
/// sequences, in all and of its tenant, and the prompt and expected output tokens of the load.
type Shown = ([u64; 3], [u64; 6]);

#[test]
fn a_whole_request_is_asked_about_on_the_host_that_its_last_sequence_meets() {
    let calls = Arc::new(Mutex::new(Vec::<(Shown, Memory)>::new()));
    let seen = calls.clone();
    let admission = Admission(move |request: &AdmissionRequest, load: &Load| {
        let asked = [request.id.0, u64::from(request.prompt_tokens), u64::from(request.max_new_tokens)];
        let counts = [load.running, load.tenant_running, load.waiting, load.tenant_waiting].map(u64::from);
        let [running, own_running, waiting, own_waiting] = counts;
        let (prompts, outputs) = (load.waiting_prompt_tokens, load.expected_output_tokens);
        let shown = (asked, [running, own_running, waiting, own_waiting, prompts, outputs]);
        seen.lock().unwrap().push((shown, load.memory));
        Ok(Verdict::Admit)
    });
    let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
    let mut bench = Bench::with(small(), policies);
    bench.submit(request(prompt(1, 8), 9));
    bench.step();
    let three = vec![request(prompt(2, 4), 5); 3];
    bench.engine.submit_all(three, bench.now).unwrap();
    let shown: Vec<Shown> = calls.lock().unwrap().iter().map(|(shown, _)| *shown).collect();
    let each = ([2, 4, 5], [1, 1, 3, 3, 12, 8 + 15]);
    let all = ([2, 12, 15], [1, 1, 2, 0, 0, 8 + 10]);
    assert_eq!(shown, [([1, 8, 9], [0; 6]), all, each, each, each]);
    let calls = calls.lock().unwrap();
    let (ample, real) = (calls[1].1, calls[2].1);
    let used = |memory: Memory| memory.total_blocks - memory.free_blocks - memory.cached_blocks;
    assert_eq!((real.total_blocks, used(ample)), (64, used(real)));
    assert!(ample.free_blocks > ample.total_blocks / 10 * 9 + 7, "nine tenths may be reserved: {ample:?}");
}

#[test]
fn a_whole_request_is_refused_for_the_load_before_anything_is_charged() {
    let purse = Arc::new(Mutex::new((1_000, BTreeSet::new())));
    let shared = purse.clone();
    let mut known = 0;
    // Refuses what has to wait for a slot, and charges for the rest, as `slo` and `token-bucket` do in a list.
    let admission = Admission(move |request: &AdmissionRequest, load: &Load| {
        let is_queued = request.id.0 <= known;
        known = known.max(request.id.0);
        if load.running + load.waiting - u32::from(is_queued) >= load.max_running {
            let refusal =
                Refusal { reason: RefusalReason::Backpressure, message: "late".into(), retry_after_ms: 3 };
            return Ok(Verdict::Refuse(refusal));
        }
        let mut purse = shared.lock().unwrap();
        if purse.1.insert(request.id.0) {
            purse.0 -= request.prompt_tokens + request.max_new_tokens;
        }
        Ok(Verdict::Admit)
    });
    let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
    let mut bench = Bench::with(small(), policies);
    let some = |n: u32| vec![request(prompt(n, 4), 20); n as usize];
    bench.engine.submit_all(some(3), bench.now).unwrap();
    bench.step();
    let left = 1_000 - 3 * 24;
    assert_eq!(purse.lock().unwrap().0, left);
    for n in [2, 3, 4, 2] {
        bench.engine.submit_all(some(n), bench.now).unwrap_err();
        assert_eq!(purse.lock().unwrap().0, left, "{n} sequences beside three that run in four slots");
    }
    bench.engine.submit_all(some(1), bench.now).unwrap();
    assert_eq!(purse.lock().unwrap().0, left - 24);
}

#[test]
fn a_request_refused_as_a_whole_stores_only_its_first_sequence() {
    let (mut bench, _) = charging(small(), 50);
    let before = bench.submit(request(prompt(1, 4), 1));
    bench.engine.submit_all(vec![request(prompt(2, 9), 20); 8], bench.now).unwrap_err();
    let after = bench.submit(request(prompt(3, 4), 1));
    assert_eq!(after.0, before.0 + 2, "one id went to the refused request");
    let counters = bench.engine.snapshot(bench.now).counters;
    assert_eq!((counters.submitted, counters.refused.iter().sum::<u64>()), (10, 8));
}

#[test]
fn a_whole_request_that_has_to_wait_is_charged_once_wherever_the_waiting_member_is() {
    for waits_first in [true, false] {
        let charges = Arc::new(Mutex::new(Vec::new()));
        let (shared, mut paid) = (charges.clone(), BTreeSet::new());
        let admission = Admission(move |request: &AdmissionRequest, load: &Load| {
            let waits = load.running > 0;
            if !(waits && waits_first) && paid.insert(request.id.0) {
                shared.lock().unwrap().push(request.prompt_tokens + request.max_new_tokens);
            }
            Ok(if waits { Verdict::Wait } else { Verdict::Admit })
        });
        let policies = Policies { admission: Box::new(admission), ..Policies::builtin() };
        let mut bench = Bench::with(small(), policies);
        bench.submit(request(prompt(1, 4), 9));
        bench.step();
        bench.engine.submit_all(vec![request(prompt(2, 4), 6); 3], bench.now).unwrap();
        assert_eq!(bench.engine.snapshot(bench.now).queue.held, 3);
        bench.run();
        assert_eq!(*charges.lock().unwrap(), [13, 30], "waits first: {waits_first}");
    }
}

//! What happens to plans: bad ones, ones that don't fit in memory, ones that lead nowhere.

use std::sync::Arc;

use crate::common::scripted::{Bench, VOCAB, fcfs, prompt, request, small, trap};
use infer_core::policy::{FaultKind, FaultView, Plan, PolicyFault, StepView};
use infer_core::testing::solo;
use infer_core::{EngineConfig, Event, FailureCause, FinishReason, Limits, Micros, Request, SequenceId};

type Spoil = fn(&StepView, &mut Plan) -> Result<(), PolicyFault>;

#[test]
fn a_bad_plan_costs_no_token_and_leaves_its_view_behind() {
    let cases: [(&str, FaultKind, Spoil); 11] = [
        ("it fell over", FaultKind::Trap, |_, _| Err(trap())),
        ("no sequence 999 is known", FaultKind::InvalidDecision, |_, p| {
            p.run.push(SequenceId(999));
            p.tokens.push(1);
            Ok(())
        }),
        ("named twice", FaultKind::InvalidDecision, |_, p| {
            p.run.extend_from_within(..1);
            p.tokens.extend_from_within(..1);
            Ok(())
        }),
        ("but 3 token counts", FaultKind::InvalidDecision, |_, p| {
            p.tokens = vec![1; 3];
            Ok(())
        }),
        ("is given 100 tokens, but has", FaultKind::InvalidDecision, |_, p| {
            p.tokens[0] = 100;
            Ok(())
        }),
        ("is given no tokens", FaultKind::InvalidDecision, |_, p| {
            p.tokens.iter_mut().for_each(|t| *t = 0);
            Ok(())
        }),
        ("but does not run", FaultKind::InvalidDecision, |s, p| {
            p.preempt.extend(s.waiting.id.iter().map(|&id| SequenceId(id)));
            p.run.clear();
            p.tokens.clear();
            Ok(())
        }),
        ("a chunk of", FaultKind::InvalidDecision, |s, p| {
            p.tokens[0] = s.limits.prefill_chunk + 1;
            Ok(())
        }),
        ("prompts, over 1", FaultKind::InvalidDecision, |s, p| {
            p.run = s.waiting.id.iter().map(|&id| SequenceId(id)).collect();
            p.tokens = vec![1; p.run.len()];
            Ok(())
        }),
        ("prompt tokens, over 5", FaultKind::InvalidDecision, |_, p| {
            p.tokens[0] = 6;
            Ok(())
        }),
        ("named twice", FaultKind::InvalidDecision, |s, p| {
            p.preempt.extend(s.running.id.iter().map(|&id| SequenceId(id)));
            p.run.clone_from(&p.preempt);
            p.tokens = vec![1; p.run.len()];
            if p.run.is_empty() {
                Err(PolicyFault::new(FaultKind::InvalidDecision, "named twice"))
            } else {
                Ok(())
            }
        }),
    ];
    let limits =
        Limits { prefill_chunk: 8, max_prefill_sequences: 1, max_prefill_tokens: 5, ..small().limits };
    for (says, kind, spoil) in cases {
        let mut bench =
            Bench::scheduled(EngineConfig { limits, max_strikes: 1_000, ..small() }, move |step| {
                let mut plan = fcfs(step);
                spoil(step, &mut plan)?;
                Ok(plan)
            });
        let requests: Vec<_> = (1..4).map(|i| request(prompt(i, 10), 5)).collect();
        let ids: Vec<_> = requests.iter().map(|r| bench.submit(r.clone())).collect();
        assert!(bench.step(), "{says}: the built-in plans the same step");
        bench.run();
        for (id, request) in ids.iter().zip(&requests) {
            assert_eq!(bench.tokens(*id), solo(request, VOCAB), "{says}");
        }
        let fault =
            bench.events.iter().find_map(|e| if let Event::PolicyFault(f) = e { Some(f) } else { None });
        let fault = fault.expect(says);
        assert_eq!(fault.fault.kind, kind, "{says}");
        assert!(fault.fault.message.contains(says), "{says}: {}", fault.fault.message);
        let FaultView::Schedule(view) = &fault.view else { panic!("{:?}", fault.view) };
        assert_eq!(view.number, fault.step);
        assert!(!view.waiting.is_empty() || !view.running.is_empty());
    }
}

#[test]
fn a_tail_that_does_not_fit_in_memory_is_cut_without_a_fault() {
    // Three prompts of four blocks in a pool of nine: the third start doesn't fit.
    let config = EngineConfig { total_blocks: 9, ..small() };
    let mut bench = Bench::scheduled(config, |step| {
        let mut plan = Plan { wake: Micros::NEVER, ..Plan::default() };
        for rows in [&step.running, &step.waiting] {
            for at in 0..rows.len() {
                plan.run.push(SequenceId(rows.id[at]));
                let left = rows.prompt_tokens[at] + rows.generated_tokens[at] - rows.computed_tokens[at];
                plan.tokens.push(left.min(13));
            }
        }
        Ok(plan)
    });
    let requests: Vec<_> = (1..4).map(|i| request(prompt(i, 13), 4)).collect();
    let ids: Vec<_> = requests.iter().map(|r| bench.submit(r.clone())).collect();
    bench.step();
    let snapshot = bench.engine.snapshot(bench.now);
    assert_eq!((snapshot.queue.running, snapshot.queue.waiting), (2, 1));
    assert_eq!(snapshot.counters.cut_rows, 1);
    bench.run();
    assert_eq!(bench.faults(), []);
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(bench.tokens(*id), solo(request, VOCAB));
    }
}

#[test]
fn running_sequences_that_block_each_other_are_preempted_until_one_can_run() {
    // Both grow until the pool is full, and the policy never preempts.
    let config = EngineConfig { total_blocks: 8, prefix_caching: false, ..small() };
    let mut bench = Bench::scheduled(config, |step| {
        let mut plan = fcfs(step);
        plan.preempt.clear();
        plan.run.clear();
        plan.tokens.clear();
        for rows in [&step.running, &step.waiting] {
            for at in 0..rows.len() {
                plan.run.push(SequenceId(rows.id[at]));
                let left = rows.prompt_tokens[at] + rows.generated_tokens[at] - rows.computed_tokens[at];
                plan.tokens.push(left.min(16));
            }
        }
        // The hungriest row comes first, so that nothing before it can continue.
        Ok(plan)
    });
    let requests: Vec<_> = (1..3).map(|i| request(prompt(i, 8), 20)).collect();
    let ids: Vec<_> = requests.iter().map(|r| bench.submit(r.clone())).collect();
    bench.run();
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(bench.tokens(*id), solo(request, VOCAB));
    }
    assert!(bench.events.iter().any(|e| matches!(e, Event::Preempted { .. })));
}

#[test]
fn long_prompts_run_in_chunks_and_can_be_cancelled_between_them() {
    let mut bench = Bench::new(small());
    let id = bench.submit(request(prompt(1, 60), 4));
    bench.step();
    assert_eq!(bench.executor.computed, 16);
    bench.step();
    assert!(bench.engine.finish(id, FinishReason::Cancelled, bench.now));
    bench.step();
    assert_eq!(bench.executor.computed, 32);
    let memory = bench.engine.snapshot(bench.now).memory;
    assert_eq!((memory.used, memory.cached), (0, 8), "its blocks can be found again");
}

#[test]
fn a_sequence_that_ends_in_flight_keeps_its_blocks_until_the_batch_returns() {
    for reason in [FinishReason::Cancelled, FinishReason::Stop] {
        let mut bench = Bench::new(EngineConfig { prefix_caching: false, ..small() });
        let id = bench.submit(request(prompt(1, 6), 9));
        bench.step();
        let mut used = 0;
        bench.step_with(|engine, now| {
            assert!(engine.finish(id, reason, now));
            assert!(!engine.has_work());
            used = engine.snapshot(now).memory.used;
        });
        assert_eq!(used, 2);
        assert_eq!(bench.engine.snapshot(bench.now).memory.used, 0);
        assert_eq!(bench.tokens(id).len(), 1, "the token that was out is dropped");
        assert!(bench.events.iter().any(|e| matches!(e, Event::Finished { reason: r, .. } if *r == reason)));
    }
}

#[test]
fn an_overdue_sequence_fails_in_any_state() {
    let limits = Limits { max_running: 1, ..small().limits };
    let mut bench = Bench::new(EngineConfig { limits, ..small() });
    let running = bench.submit(request(prompt(1, 6), 9));
    let waiting = bench.submit(request(prompt(2, 6), 9));
    bench.step();
    for id in [waiting, running] {
        assert!(bench.engine.expire(id, format!("{id:?} is late"), bench.now));
        assert!(!bench.engine.expire(id, String::new(), bench.now), "it has ended");
    }
    bench.step();
    for id in [waiting, running] {
        let ends = bench.events.iter().filter(|event| {
            matches!(event, Event::Failed { id: of, cause: FailureCause::Overdue, message, .. }
                if *of == id && *message == format!("{id:?} is late"))
        });
        assert_eq!(ends.count(), 1, "{id:?}");
    }
    let snapshot = bench.engine.snapshot(bench.now);
    assert_eq!((snapshot.memory.used, snapshot.counters.failed), (0, 2));
    assert!(!bench.engine.has_work());
}

#[test]
fn ends_are_drawn_counted_and_held_back() {
    let plain = request(prompt(4, 7), 12);
    let alone = solo(&plain, VOCAB);
    let with = |stop: u32, min: u32| Request {
        stop_tokens: Arc::from([stop]),
        min_new_tokens: min,
        ..plain.clone()
    };
    for (request, reason, tokens) in [
        (plain.clone(), FinishReason::Length, 12),
        (with(alone[3], 0), FinishReason::Eos, alone.iter().position(|&t| t == alone[3]).unwrap() + 1),
        (with(alone[0], 0), FinishReason::Eos, 1),
    ] {
        let mut bench = Bench::new(small());
        let id = bench.submit(request.clone());
        bench.run();
        assert_eq!(bench.tokens(id), solo(&request, VOCAB));
        assert_eq!(bench.tokens(id).len(), tokens);
        let end = bench.events.iter().find_map(|e| match e {
            Event::Finished { reason, usage, .. } => Some((*reason, usage.generated_tokens)),
            _ => None,
        });
        assert_eq!(end, Some((reason, tokens as u32)));
    }
    let mut bench = Bench::new(small());
    let id = bench.submit(with(alone[0], 5));
    bench.run();
    assert!(!bench.tokens(id)[..5].contains(&alone[0]), "no end before the fifth token");
}

#[test]
fn released_names_every_sequence_that_freed_its_blocks() {
    let mut bench = Bench::new(small());
    let first = bench.submit(request(prompt(1, 4), 1));
    bench.step();
    bench.submit(request(prompt(2, 4), 2));
    let mut released = Vec::new();
    let batch = bench.engine.begin_step(bench.now).unwrap();
    released.extend(batch.released.iter().copied());
    assert_eq!(released, [first]);
}

#[test]
fn a_wake_in_the_past_does_not_spin_the_driver() {
    let mut bench = Bench::scheduled(small(), |_| Ok(Plan { wake: Micros(0), ..Plan::default() }));
    bench.submit(request(prompt(1, 4), 1));
    assert!(bench.engine.begin_step(bench.now).is_none());
    assert!(bench.engine.next_wake().unwrap() >= bench.now.plus(Micros(1_000)));
}

//! How a prefix comes back over several steps: in which pieces, who waits for it, and for how long.

use std::sync::{Arc, Mutex};

use infer_core::engine::Policies;
use infer_core::policy::{CacheEventKind, StepView};
use infer_core::testing::solo;
use infer_core::{Batch, EngineConfig, FinishReason, Micros, SequenceId};

use super::{Tiered, coming, next_turn, tiny, turn};
use crate::common::scripted::{Ask, Say, Scheduler, VOCAB, fcfs, prompt, request, scripted};

#[test]
fn a_prefix_comes_back_in_pieces_while_others_run() {
    let config = EngineConfig { total_blocks: 20, offload_step_blocks: 2, ..tiny(32) };
    let mut host = Tiered::after(config, 1..5);
    let running = host.submit(request(prompt(5, 4), 20));
    let batch = host.engine.begin_step(host.now).expect("it starts");
    let waiting = host.submit(next_turn(1));
    let pieces = host.steps_until(batch, running, waiting);
    assert_eq!(pieces, [2, 2, 2, 1]);
    assert_eq!(host.cached(waiting), 28);
    assert_eq!(host.tokens(waiting), solo(&next_turn(1), VOCAB));
    assert_eq!(host.tokens(running), solo(&request(prompt(5, 4), 20), VOCAB));
}

#[test]
fn nothing_but_the_first_prefix_comes_back_at_once_on_an_idle_host() {
    let config = EngineConfig { total_blocks: 24, offload_step_blocks: 2, ..tiny(64) };
    let mut host = Tiered::after(config, 1..6);
    let both = [1, 2].map(|seed| host.submit(next_turn(seed)));
    let batch = host.engine.begin_step(host.now).expect("one of them starts");
    assert_eq!(batch.rows.iter().map(|row| row.sequence).collect::<Vec<_>>(), both[..1]);
    assert_eq!(coming(&batch).len(), 7);
    host.compute(batch);
    let batch = host.engine.begin_step(host.now).expect("it goes on");
    assert_eq!(coming(&batch).len(), 2);
    host.compute(batch);
    host.run();
    for (id, seed) in both.into_iter().zip(1..) {
        assert_eq!(host.tokens(id), solo(&next_turn(seed), VOCAB));
    }
}

#[test]
fn a_prefix_is_waited_for_while_others_start() {
    // Starts what it can, and then nothing else runs in that step.
    let schedule = |step: &StepView| {
        let mut plan = fcfs(step);
        let starts = |id: &SequenceId| step.waiting.id.contains(&id.0);
        if plan.run.iter().any(starts) {
            let rows = std::mem::take(&mut plan.run).into_iter().zip(std::mem::take(&mut plan.tokens));
            (plan.run, plan.tokens) = rows.filter(|(id, _)| starts(id)).unzip();
        }
        Ok(plan)
    };
    let scheduler = Box::new(Scheduler("starts first", schedule));
    let config = EngineConfig { total_blocks: 20, offload_step_blocks: 2, ..tiny(32) };
    let mut host = Tiered::with(config, Policies { scheduler, ..Policies::builtin() });
    for seed in 1..5 {
        host.ask(turn(seed));
    }
    host.submit(request(prompt(5, 4), 20));
    let mut batch = host.engine.begin_step(host.now).expect("it starts");
    let waiting = host.submit(next_turn(1));
    let finish = |host: &mut Tiered, batch: Batch| {
        host.compute(batch);
    };
    for seed in 6.. {
        finish(&mut host, batch);
        host.submit(request(prompt(seed, 4), 1));
        batch = host.engine.begin_step(host.now).expect("one of them starts");
        if batch.rows.iter().any(|row| row.sequence == waiting) {
            break;
        }
    }
    finish(&mut host, batch);
    host.run();
    assert_eq!(host.cached(waiting), 28);
}

#[test]
fn the_first_of_many_that_wait_for_a_prefix_starts_with_it() {
    let mut host = Tiered::after(EngineConfig { max_waiting: 400, ..tiny(16) }, 1..3);
    let ids: Vec<_> = (0..300).map(|_| host.submit(next_turn(1))).collect();
    let batch = host.engine.begin_step(host.now).expect("it starts");
    assert_eq!(coming(&batch).len(), 3);
    host.engine.drain_events(&mut host.events);
    assert_eq!(host.cached(ids[0]), 28);
}

#[test]
fn a_prefix_that_takes_too_long_to_come_back_is_not_waited_for() {
    let long = |seed| request(prompt(seed, 61), 3);
    let starvation_bound = Micros(5_000);
    let config = EngineConfig { total_blocks: 32, offload_step_blocks: 1, starvation_bound, ..tiny(64) };
    let mut host = Tiered::new(config);
    for seed in 1..5 {
        host.ask(long(seed));
    }
    let running = host.submit(request(prompt(5, 4), 30));
    let batch = host.engine.begin_step(host.now).expect("it starts");
    let next_turn = request([prompt(1, 61), prompt(40, 4)].concat(), 3);
    let waiting = host.submit(next_turn.clone());
    let pieces = host.steps_until(batch, running, waiting);
    // More than the bound has passed, and more steps than the watchdog wants to have seen.
    assert_eq!(pieces.iter().sum::<usize>(), 9, "of fifteen");
    assert_eq!(host.cached(waiting), 36);
    assert_eq!(host.tokens(waiting), solo(&next_turn, VOCAB));
}

#[test]
fn what_came_back_is_not_used_later_than_what_it_follows() {
    // Cached blocks and what they follow as a policy that evicts the least recently used knows them, those first.
    let order = Arc::new(Mutex::new(Vec::<(u32, u32)>::new()));
    let book = Arc::clone(&order);
    let policies = scripted(move |ask| {
        if let Ask::Observe(events) = ask {
            let mut order = book.lock().unwrap();
            for at in 0..events.len() {
                order.retain(|&(block, _)| block != events.block[at]);
                if events.kind[at] == CacheEventKind::Idle as u8 {
                    order.push((events.block[at], events.parent[at]));
                }
            }
        }
        Ok(Say::Default)
    });
    let config = EngineConfig { total_blocks: 20, offload_step_blocks: 2, ..tiny(32) };
    let mut host = Tiered::with(config, policies);
    for seed in 1..5 {
        host.ask(turn(seed));
    }
    host.submit(request(prompt(5, 4), 20));
    let mut batch = host.engine.begin_step(host.now).expect("it starts");
    let waiting = host.submit(next_turn(1));
    let mut came = 0;
    for _ in 0..3 {
        came += coming(&batch).len();
        host.compute(batch);
        batch = host.engine.begin_step(host.now).expect("one of them runs");
    }
    assert_eq!(came, 4, "in two pieces");
    // It is given up before all of its prefix is there.
    assert!(host.engine.finish(waiting, FinishReason::Cancelled, host.now));
    host.compute(batch);
    host.run();
    let order = order.lock().unwrap();
    assert_eq!(order.len() as u32, host.engine.memory().cached);
    for (at, (_, parent)) in order.iter().enumerate() {
        assert!(order[..at].iter().all(|(before, _)| before != parent), "{order:?}");
    }
    let list = host.engine.cached_blocks(host.now);
    assert_eq!(list.len(), order.len());
    for (at, block) in list.iter().enumerate() {
        assert!(block.parent.is_none_or(|parent| parent < at), "{at}: {block:?}");
    }
}

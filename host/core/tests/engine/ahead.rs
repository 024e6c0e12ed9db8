//! Planning ahead: the same streams with the device never waiting, what is shown beforehand, and what becomes
//! of rows that turn out to be needless.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use crate::common::scripted::{Bench, Scheduler, VOCAB, fcfs, prompt, request, small};
use infer_core::engine::Policies;
use infer_core::policy::{Plan, StepView};
use infer_core::request::Usage;
use infer_core::testing::{solo, solo_embedding};
use infer_core::{
    Batch, DeviceFault, DeviceFaultKind, EngineConfig, Event, Executor, FailureCause, FinishReason, Micros,
    Request, SamplingExtras, SamplingParams, SequenceId, StepOutput,
};

fn ahead() -> EngineConfig {
    EngineConfig { plan_ahead: true, ..small() }
}

/// A bench whose driver makes a batch while another is in flight, if possible.
struct Host {
    bench: Bench,
    out: VecDeque<Batch>,
    batches: u32,
    behind: u32,
}

impl Host {
    fn new(bench: Bench) -> Self {
        Self { bench, out: VecDeque::new(), batches: 0, behind: 0 }
    }

    /// Makes a batch. False if that isn't possible now.
    fn begin(&mut self) -> bool {
        let Some(batch) = self.bench.engine.begin_step(self.bench.now) else { return false };
        self.batches += 1;
        self.behind += self.out.len() as u32;
        self.out.push_back(batch);
        self.bench.engine.check_invariants();
        true
    }

    /// Computes the batch that has been in flight longest.
    fn end(&mut self) {
        let batch = self.out.pop_front().expect("a batch is out");
        let mut output = StepOutput::default();
        let result = self.bench.executor.execute(&batch, &mut output);
        self.bench.now = self.bench.now.plus(Micros(1_000));
        self.bench.engine.finish_step(batch, result.map(|()| &output), self.bench.now);
        self.bench.engine.drain_events(&mut self.bench.events);
        self.bench.engine.check_invariants();
    }

    fn run(&mut self) {
        for _ in 0..1_000 {
            while self.out.len() < 2 && self.begin() {}
            if self.out.is_empty() {
                assert!(!self.bench.engine.has_work(), "a sequence hangs");
                return;
            }
            self.end();
        }
        panic!("work is left");
    }
}

fn usages(events: &[Event]) -> BTreeMap<SequenceId, (FinishReason, Usage)> {
    let ended = |event: &Event| match event {
        Event::Finished { id, reason, usage } => Some((*id, (*reason, *usage))),
        _ => None,
    };
    events.iter().filter_map(ended).collect()
}

fn sampled(seed: u64) -> SamplingParams {
    SamplingParams { temperature: 0.8, seed, ..SamplingParams::default() }
}

/// Of every kind: greedy and sampled, with end tokens, with a minimum, with a penalty, twice the same prompt.
fn mixture() -> Vec<Request> {
    let stops: Arc<[u32]> = (0..8).collect();
    let mut all: Vec<Request> = (0..10).map(|seed| request(prompt(seed, 5 + 3 * seed), 20)).collect();
    for (at, request) in all.iter_mut().enumerate() {
        if at % 2 == 1 {
            request.sampling = sampled(at as u64);
        }
        if at % 3 == 1 {
            (request.stop_tokens, request.min_new_tokens) = (Arc::clone(&stops), 3);
        }
    }
    all[8].sampling.repetition_penalty = 1.3;
    all.push(request(prompt(3, 14), 9));
    all
}

#[test]
fn planning_ahead_changes_neither_streams_nor_usage() {
    let requests = mixture();
    let mut plain = Bench::new(small());
    let mut host = Host::new(Bench::new(ahead()));
    let ids: Vec<_> = requests.iter().map(|request| plain.submit(request.clone())).collect();
    for request in &requests {
        host.bench.submit(request.clone());
    }
    plain.run();
    host.run();
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(host.bench.tokens(*id), solo(request, VOCAB), "{id:?}");
    }
    let [before, after] = [&plain.events, &host.bench.events].map(|events| usages(events));
    assert_eq!(before.len(), requests.len());
    for (id, (reason, usage)) in before {
        let (other, cost) = after[&id];
        assert_eq!(
            (other, cost.prompt_tokens, cost.generated_tokens, cost.prefilled_tokens + cost.cached_tokens),
            (reason, usage.prompt_tokens, usage.generated_tokens, usage.prompt_tokens),
            "{id:?}"
        );
    }
    assert_eq!(host.bench.engine.memory().used, 0);
    assert!(host.behind > 10 && host.behind < host.batches, "{} of {}", host.behind, host.batches);
}

#[test]
fn the_device_never_waits_while_all_sequences_decode() {
    let mut host = Host::new(Bench::new(ahead()));
    for seed in 0..4 {
        host.bench.submit(request(prompt(seed, 9), 30));
    }
    host.run();
    assert_eq!(host.behind, host.batches - 1);
    let counters = host.bench.engine.snapshot(host.bench.now).counters;
    // Ends by length are foreseen: no row is wasted.
    assert_eq!(counters.computed_tokens, 4 * (9 + 29));
}

/// A plan as the built-in makes it, and the view that it was made for.
fn watched(config: EngineConfig) -> (Bench, Arc<Mutex<Vec<StepView>>>) {
    let views = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&views);
    let schedule = move |step: &StepView| {
        seen.lock().unwrap().push(step.clone());
        Ok(fcfs(step))
    };
    (Bench::scheduled(config, schedule), views)
}

#[test]
fn the_scheduler_is_shown_the_state_after_the_batch_in_flight() {
    let (mut plain, seen) = watched(small());
    let (bench, foreseen) = watched(ahead());
    let mut host = Host::new(bench);
    for bench in [&mut plain, &mut host.bench] {
        for seed in 0..3 {
            let expected_output = (seed == 1).then_some(6);
            bench.submit(Request { expected_output, ..request(prompt(seed, 30 + seed), 25) });
        }
    }
    (0..20).for_each(|_| assert!(plain.step()));
    host.begin();
    for _ in 1..20 {
        assert!(host.begin());
        host.end();
    }
    let (seen, foreseen) = (seen.lock().unwrap(), foreseen.lock().unwrap());
    assert_eq!(seen.len(), 20);
    for (at, (is, will_be)) in seen.iter().zip(foreseen.iter()).enumerate() {
        // The last step that was timed is another one.
        let will_be = StepView {
            now: is.now,
            last_step: is.last_step,
            last_prefill_tokens: is.last_prefill_tokens,
            last_decodes: is.last_decodes,
            ..will_be.clone()
        };
        assert_eq!(will_be, *is, "step {}", at + 1);
    }
}

#[test]
fn a_sequence_sampling_its_last_token_keeps_its_row_with_nothing_left() {
    let mut config = ahead();
    config.limits.max_running = 1;
    let (bench, views) = watched(config);
    let mut host = Host::new(bench);
    host.bench.submit(request(prompt(1, 6), 2));
    host.bench.submit(request(prompt(2, 6), 2));
    assert!(host.begin() && host.begin(), "the second step is certain");
    host.end();
    assert!(!host.begin(), "the first has no third step, and the second no slot");
    let view = views.lock().unwrap().last().cloned().unwrap();
    let (running, waiting) = (&view.running, &view.waiting);
    assert_eq!((running.computed_tokens[0], running.generated_tokens[0]), (7, 1));
    assert_eq!((running.len(), waiting.len()), (1, 1));
    host.end();
    assert!(host.begin());
    assert_eq!(host.out[0].rows[0].sequence, SequenceId(2));
}

#[test]
fn a_plan_may_name_a_sequence_sampling_its_last_token() {
    let all = |step: &StepView| {
        let ids = step.running.id.iter().chain(&step.waiting.id);
        let run: Vec<_> = ids.map(|&id| SequenceId(id)).collect();
        let tokens = run.iter().map(|_| if step.number == 1 { 6 } else { 1 }).collect();
        Ok(Plan { run, tokens, wake: Micros::NEVER, ..Plan::default() })
    };
    let mut host = Host::new(Bench::scheduled(ahead(), all));
    host.bench.submit(request(prompt(1, 6), 2));
    host.bench.submit(request(prompt(2, 6), 4));
    host.run();
    assert_eq!(host.bench.faults(), []);
    let rows_of_both = host.bench.engine.snapshot(host.bench.now).counters.computed_tokens;
    assert_eq!(rows_of_both, 7 + 9);
}

#[test]
fn a_row_of_a_sequence_that_ends_unexpectedly_is_wasted() {
    for cancelled in [false, true] {
        let mut host = Host::new(Bench::new(EngineConfig { prefix_caching: false, ..ahead() }));
        let greedy = request(prompt(1, 8), 20);
        let first = solo(&greedy, VOCAB)[0];
        let stop_tokens: Arc<[u32]> = if cancelled { Arc::from([]) } else { Arc::from([first]) };
        let id = host.bench.submit(Request { stop_tokens, ..greedy });
        assert!(host.begin() && host.begin());
        assert_eq!(host.out[1].rows[0].input_from, Some(0));
        if cancelled {
            let now = host.bench.now;
            assert!(host.bench.engine.finish(id, FinishReason::Cancelled, now));
        }
        host.end();
        assert!(!host.bench.engine.has_work());
        // Two blocks hold the prompt, a third what the needless row computes.
        assert_eq!(host.bench.engine.memory().used, 3, "the device may still write there");
        host.end();
        assert_eq!(host.bench.engine.memory().used, 0);
        assert_eq!(host.bench.tokens(id), if cancelled { vec![] } else { vec![first] });
        assert_eq!(usages(&host.bench.events)[&id].1.generated_tokens, u32::from(!cancelled));
        let ends = host.bench.events.iter().filter(|event| matches!(event, Event::Finished { .. }));
        assert_eq!(ends.count(), 1);
    }
}

fn fault(rows: Option<Vec<usize>>) -> DeviceFault {
    DeviceFault { kind: DeviceFaultKind::Failed, message: "it failed".to_owned(), rows }
}

#[test]
fn a_batch_behind_a_lost_one_is_lost_and_retried() {
    let mut host = Host::new(Bench::new(ahead()));
    let requests = [request(prompt(1, 8), 6), request(prompt(2, 8), 6)];
    let ids = requests.each_ref().map(|request| host.bench.submit(request.clone()));
    assert!(host.begin());
    let late = request(prompt(3, 8), 6);
    let third = host.bench.submit(late.clone());
    assert!(host.begin(), "the third starts behind them");
    host.bench.executor.fail_next(fault(Some(vec![0])));
    host.end();
    assert!(!host.begin(), "what was lost must be back before anything is planned on it");
    // Whatever the device reports for the batch behind, no sequence fails because of it.
    host.bench.executor.fail_next(fault(None));
    host.end();
    host.run();
    assert_eq!(host.bench.tokens(ids[0]), []);
    assert_eq!(host.bench.tokens(ids[1]), solo(&requests[1], VOCAB));
    assert_eq!(host.bench.tokens(third), solo(&late, VOCAB));
    let failed: Vec<_> = host
        .bench
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Failed { id, cause, .. } => Some((*id, *cause)),
            _ => None,
        })
        .collect();
    assert_eq!(failed, [(ids[0], FailureCause::Device)]);
    assert_eq!(host.bench.engine.snapshot(host.bench.now).counters.device_faults, 1);
    assert_eq!(host.bench.engine.memory().used, 0);
}

#[test]
fn a_prompt_answered_from_logits_in_a_lost_batch_is_answered_again() {
    let mut host = Host::new(Bench::new(ahead()));
    let greedy = request(prompt(1, 10), 5);
    host.bench.submit(greedy.clone());
    host.run();
    let again = host.bench.submit(greedy.clone());
    assert!(host.begin() && host.begin());
    assert!(host.out[0].rows[0].logits_from.is_some() && host.out[1].rows[0].logits_from.is_none());
    host.bench.executor.fail_next(fault(Some(Vec::new())));
    host.run();
    assert_eq!(host.bench.tokens(again), solo(&greedy, VOCAB));
}

#[test]
fn nothing_is_planned_behind_tokens_that_the_host_samples() {
    let extras = |extras| Some(Arc::new(extras));
    let asks = SamplingExtras { logprobs: Some(1), ..SamplingExtras::default() };
    let bias = SamplingExtras { logit_bias: vec![(1, 2.0)], ..SamplingExtras::default() };
    let of_the_host = [
        SamplingParams { repetition_penalty: 1.2, ..sampled(1) },
        SamplingParams { presence_penalty: 0.5, ..sampled(1) },
        SamplingParams { frequency_penalty: 0.5, ..sampled(1) },
        SamplingParams { extras: extras(asks), ..sampled(1) },
        SamplingParams { extras: extras(bias), ..sampled(1) },
    ];
    for sampling in of_the_host {
        let mut host = Host::new(Bench::new(ahead()));
        host.bench.submit(Request { sampling: sampling.clone(), ..request(prompt(1, 6), 5) });
        host.run();
        assert_eq!((host.batches, host.behind), (5, 0), "{sampling:?}");
    }
    let mut host = Host::new(Bench::new(EngineConfig { speculate: 4, ..ahead() }));
    host.bench.submit(request(prompt(1, 6), 5));
    host.run();
    assert_eq!(host.behind, 0, "draft tokens need known tokens");
}

#[test]
fn a_vector_is_computed_behind_others_and_nothing_behind_it() {
    let embed = SamplingExtras { embed: true, ..SamplingExtras::default() };
    let sampling = SamplingParams { extras: Some(Arc::new(embed)), ..sampled(1) };
    let mut host = Host::new(Bench::new(ahead()));
    let talk = request(prompt(1, 6), 8);
    let talks = host.bench.submit(talk.clone());
    assert!(host.begin());
    let id = host.bench.submit(Request { sampling, ..request(prompt(2, 6), 1) });
    assert!(host.begin(), "the batch with the vector is planned behind one in flight");
    assert!(host.out[1].rows.iter().any(|row| row.sequence == id));
    host.run();
    assert_eq!(host.bench.tokens(talks), solo(&talk, VOCAB));
    let vectors: Vec<_> = host.bench.events.iter().filter(|e| matches!(e, Event::Embedding { .. })).collect();
    let wanted = solo_embedding(&prompt(2, 6));
    assert!(matches!(&vectors[..], [Event::Embedding { id: of, vector }] if *of == id && *vector == wanted));
}

#[test]
fn a_plan_that_preempts_waits_for_the_batch_in_flight() {
    let schedule = |step: &StepView| {
        let mut plan = fcfs(step);
        if step.number == 2 {
            plan.run.retain(|&id| id != SequenceId(1));
            plan.tokens.truncate(plan.run.len());
            plan.preempt = vec![SequenceId(1)];
        }
        Ok(plan)
    };
    let scheduler = Box::new(Scheduler("preempts", schedule));
    let mut host = Host::new(Bench::with(ahead(), Policies { scheduler, ..Policies::builtin() }));
    let requests = [request(prompt(1, 6), 5), request(prompt(2, 6), 5)];
    let ids = requests.each_ref().map(|request| host.bench.submit(request.clone()));
    assert!(host.begin());
    assert!(!host.begin(), "its blocks are written to");
    host.end();
    assert!(host.begin());
    assert_eq!(host.out[0].rows.len(), 1);
    host.run();
    for (id, request) in ids.iter().zip(&requests) {
        assert_eq!(host.bench.tokens(*id), solo(request, VOCAB));
    }
    assert_eq!(host.bench.engine.snapshot(host.bench.now).counters.preemptions, 1);
}

#[test]
#[should_panic(expected = "finish_step must take the last batch first")]
fn without_planning_ahead_one_batch_is_in_flight() {
    let mut host = Host::new(Bench::new(small()));
    host.bench.submit(request(prompt(1, 6), 5));
    assert!(host.begin());
    host.begin();
}

#[test]
#[should_panic(expected = "finish_step must take the last batch first")]
fn two_batches_are_out_at_most() {
    let mut host = Host::new(Bench::new(ahead()));
    host.bench.submit(request(prompt(1, 6), 5));
    assert!(host.begin() && host.begin());
    host.begin();
}

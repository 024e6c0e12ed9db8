//! Log-probabilities of a request's tokens: all of them, once, in order.

use std::sync::Arc;

use crate::common::scripted::{Bench, VOCAB, fcfs, request, small};
use infer_core::policy::Plan;
use infer_core::testing::solo;
use infer_core::{Event, Request, SamplingExtras, SamplingParams, SequenceId};

fn asking(request: Request) -> Request {
    let extras = SamplingExtras { logprobs: Some(0), prompt_logprobs: Some(0), ..SamplingExtras::default() };
    let sampling = SamplingParams { extras: Some(Arc::new(extras)), ..request.sampling };
    Request { sampling, ..request }
}

/// The scripted device reports a token's negative id as its log-probability.
fn told(bench: &Bench, of: SequenceId) -> Vec<u32> {
    let ids = |likely: f32| -likely as u32;
    let mut told = Vec::new();
    for event in &bench.events {
        match event {
            Event::Prompt { id, logprobs } if *id == of => {
                told.extend(logprobs.iter().map(|l| ids(l.logprob)));
            }
            Event::Token { id, logprobs: Some(l), .. } if *id == of => told.push(ids(l.logprob)),
            _ => {}
        }
    }
    told
}

#[test]
fn prompt_logprobs_are_reported_once_whatever_is_cached_or_preempted() {
    let mut steps = 0;
    let mut bench = Bench::scheduled(small(), move |step| {
        steps += 1;
        if steps % 4 == 0 {
            let running = step.running.id.iter().map(|&id| SequenceId(id)).collect();
            return Ok(Plan { preempt: running, ..Plan::default() });
        }
        Ok(fcfs(step))
    });
    let plain = request((0..41).map(|i| (i * 7 + 1) % VOCAB).collect(), 8);
    let other = request((0..39).map(|i| (i * 5 + 2) % VOCAB).collect(), 8);
    bench.submit(plain.clone());
    bench.run();
    // The first prompt is cached as a whole.
    let requests = [asking(plain.clone()), asking(other), plain];
    let ids: Vec<SequenceId> = requests.iter().map(|request| bench.submit(request.clone())).collect();
    bench.run();
    assert!(bench.engine.snapshot(bench.now).counters.preemptions > 2);
    for (id, request) in ids.iter().zip(&requests) {
        let asked = request.sampling.extras.is_some();
        let all = request.prompt[1..].iter().copied().chain(solo(request, VOCAB));
        assert_eq!(told(&bench, *id), if asked { all.collect() } else { Vec::new() }, "{id:?}");
    }
}

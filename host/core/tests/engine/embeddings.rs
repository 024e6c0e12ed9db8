//! Requests that embed: a vector for each, whatever happens to them on the way, and no token.

use std::sync::{Arc, Mutex};

use crate::common::scripted::{Admission, Bench, VOCAB, fcfs, prompt, request, small, started};
use infer_core::engine::Policies;
use infer_core::policy::{AdmissionRequest, Plan, Verdict};
use infer_core::request::RefusalReason;
use infer_core::testing::{solo, solo_embedding};
use infer_core::{
    DeviceFault, DeviceFaultKind, Event, FailureCause, FinishReason, Micros, PrefixEvent, Request,
    SamplingExtras, SamplingParams, SequenceId, StepOutput, Usage,
};

fn embed(prompt: Vec<u32>) -> Request {
    let extras = SamplingExtras { embed: true, ..SamplingExtras::default() };
    let plain = request(prompt, 1);
    Request { sampling: SamplingParams { extras: Some(Arc::new(extras)), ..plain.sampling }, ..plain }
}

fn vectors(bench: &Bench, of: SequenceId) -> Vec<Vec<f32>> {
    let vector = |event: &Event| match event {
        Event::Embedding { id, vector } if *id == of => Some(vector.clone()),
        _ => None,
    };
    bench.events.iter().filter_map(vector).collect()
}

fn finished(bench: &Bench, of: SequenceId) -> (FinishReason, Usage) {
    let end = bench.events.iter().find_map(|event| match event {
        Event::Finished { id, reason, usage } if *id == of => Some((*reason, *usage)),
        _ => None,
    });
    end.expect("it finished")
}

#[test]
fn each_prompt_gets_its_vector_whatever_the_chunks_the_batch_and_preemptions() {
    let mut steps = 0;
    let mut bench = Bench::scheduled(small(), move |step| {
        steps += 1;
        if steps % 3 == 0 {
            let running = step.running.id.iter().map(|&id| SequenceId(id)).collect();
            return Ok(Plan { preempt: running, ..Plan::default() });
        }
        Ok(fcfs(step))
    });
    let talk = request(prompt(9, 11), 12);
    let prompts: Vec<Vec<u32>> =
        [1, 3, 4, 17, 41, 64].iter().zip(1..).map(|(&len, seed)| prompt(seed, len)).collect();
    let talks = bench.submit(talk.clone());
    let ids: Vec<SequenceId> = prompts.iter().map(|p| bench.submit(embed(p.clone()))).collect();
    bench.run();
    assert!(bench.engine.snapshot(bench.now).counters.preemptions > 2);
    assert_eq!(bench.tokens(talks), solo(&talk, VOCAB));
    for (id, prompt) in ids.into_iter().zip(&prompts) {
        assert_eq!(vectors(&bench, id), [solo_embedding(prompt)], "{} tokens", prompt.len());
        assert!(bench.tokens(id).is_empty());
        let (reason, usage) = finished(&bench, id);
        assert_eq!((reason, usage.generated_tokens), (FinishReason::Stop, 0));
        assert!(usage.first_token != Micros::NEVER && usage.first_token == usage.ended);
    }
}

#[test]
fn cached_prefixes_are_reused_and_the_last_token_is_always_computed() {
    let mut bench = Bench::new(small());
    // Five full blocks: the last token ends a block that is cached.
    for (round, cached) in [0, 16, 16].into_iter().enumerate() {
        let id = bench.submit(embed(prompt(1, 20)));
        bench.run();
        assert_eq!(vectors(&bench, id), [solo_embedding(&prompt(1, 20))], "round {round}");
        let (event, found, computed) = started(&bench, id);
        assert_eq!((found, computed), (cached, 20 - cached), "round {round}");
        assert_ne!(event, PrefixEvent::FullHitNoPrefillNeeded);
    }
    // What was computed for a vector serves a completion, which has no kept logits to begin from.
    let same = request(prompt(1, 20), 3);
    let id = bench.submit(same.clone());
    bench.run();
    assert_eq!((bench.tokens(id), started(&bench, id).1), (solo(&same, VOCAB), 16));
    assert_eq!(bench.executor.answered, 0);
}

#[test]
fn kept_logits_are_neither_used_nor_displaced() {
    let mut bench = Bench::new(small());
    let kept = request(prompt(1, 18), 3);
    bench.submit(kept.clone());
    bench.run();
    let same = bench.submit(embed(prompt(1, 18)));
    bench.run();
    assert_eq!(started(&bench, same), (PrefixEvent::CrossRequestHit, 16, 2));
    // More than there are slots for logits.
    for seed in 2..10 {
        bench.submit(embed(prompt(seed, 18)));
    }
    bench.run();
    let again = bench.submit(kept.clone());
    bench.run();
    assert_eq!(started(&bench, again).0, PrefixEvent::FullHitNoPrefillNeeded);
    assert_eq!(bench.tokens(again), solo(&kept, VOCAB));
}

#[test]
fn a_fault_or_a_missing_vector_fails_the_request() {
    let mut bench = Bench::new(small());
    let lost = bench.submit(embed(prompt(1, 6)));
    let kind = DeviceFaultKind::Failed;
    bench.executor.fail_next(DeviceFault { kind, message: "it broke".to_owned(), rows: None });
    bench.run();
    let silent = bench.submit(embed(prompt(2, 6)));
    let batch = bench.engine.begin_step(bench.now).expect("it runs");
    let output = StepOutput { sampled: vec![Some(1)], ..StepOutput::default() };
    bench.engine.finish_step(batch, Ok(&output), bench.now);
    bench.engine.drain_events(&mut bench.events);
    for (id, why) in [(lost, "it broke"), (silent, "the device computed no usable vector")] {
        let failed = |event: &Event| match event {
            Event::Failed { id: of, cause, message, .. } => {
                *of == id && *cause == FailureCause::Device && message == why
            }
            _ => false,
        };
        assert!(bench.events.iter().any(failed), "{why}: {:?}", bench.events);
        assert!(vectors(&bench, id).is_empty() && bench.tokens(id).is_empty());
    }
}

#[test]
fn a_cancelled_request_frees_its_blocks() {
    let mut bench = Bench::new(small());
    let id = bench.submit(embed(prompt(1, 40)));
    bench.step_with(|engine, now| assert!(engine.finish(id, FinishReason::Cancelled, now)));
    bench.run();
    assert_eq!(finished(&bench, id).0, FinishReason::Cancelled);
    assert!(vectors(&bench, id).is_empty());
    assert_eq!(bench.engine.memory().used, 0);
}

#[test]
fn a_prompt_may_fill_the_context() {
    let mut bench = Bench::new(small());
    let longest = bench.submit(embed(prompt(1, 128)));
    let refusal = bench.engine.submit(embed(prompt(1, 129)), bench.now).unwrap_err();
    assert_eq!(refusal.reason, RefusalReason::TooLong);
    bench.run();
    assert_eq!(vectors(&bench, longest), [solo_embedding(&prompt(1, 128))]);
}

#[test]
fn vectors_teach_nothing_about_the_length_of_outputs() {
    let expected = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&expected);
    let admission = Admission(move |request: &AdmissionRequest, _: &_| {
        seen.lock().unwrap().push((request.max_new_tokens, request.expected_tokens));
        Ok(Verdict::Admit)
    });
    let mut bench = Bench::with(small(), Policies { admission: Box::new(admission), ..Policies::builtin() });
    bench.submit(request(prompt(1, 5), 8));
    bench.run();
    for seed in 2..6 {
        bench.submit(embed(prompt(seed, 5)));
        bench.run();
    }
    bench.submit(request(prompt(7, 5), 50));
    bench.run();
    assert_eq!(*expected.lock().unwrap(), [(8, 8), (1, 1), (1, 1), (1, 1), (1, 1), (50, 8)]);
}

//! What prefix caching and load must do to traffic, on the real engine with its built-in policies.

use infer_core::config::EngineConfig;
use infer_core::engine::Policies;
use infer_core::ids::Micros;
use infer_sim::workload::{Lengths, Text};
use infer_sim::{Outcome, Profile, Settings, Slo, Workload, simulate};

fn settings(load: f64, seed: u64) -> Settings {
    let profile = Profile::named("h100", "8b").expect("a known profile");
    let engine = EngineConfig { total_blocks: 8_000, max_seq_len: 8_192, ..EngineConfig::default() };
    Settings { engine, profile, host: Micros::ZERO, load, seed, slo: Slo::default() }
}

fn run(workload: &str, load: f64) -> Outcome {
    let workload = Workload::named(workload, 600).expect("a known workload");
    simulate(&settings(load, 1), Policies::builtin(), &workload, |_| {})
}

fn run_without_cache(workload: &str, load: f64) -> Outcome {
    let workload = Workload::named(workload, 600).expect("a known workload");
    let mut settings = settings(load, 1);
    settings.engine.prefix_caching = false;
    settings.engine.prompt_cache_entries = 0;
    simulate(&settings, Policies::builtin(), &workload, |_| {})
}

#[test]
fn a_seed_repeats_a_run_and_another_seed_gives_another() {
    let workload = Workload::named("bursty", 300).expect("a known workload");
    let run = |seed| simulate(&settings(0.8, seed), Policies::builtin(), &workload, |_| {});
    let (first, again, other) = (run(1), run(1), run(2));
    assert_eq!(first, again);
    assert_ne!(first.fingerprint, other.fingerprint);
}

#[test]
fn a_load_of_1_is_what_the_device_can_finish() {
    let h100 = ("h100", "8b");
    for ((device, model), name, requests) in [
        (h100, "diverse", 2_000),
        (h100, "instruct", 2_000),
        (h100, "few-shot", 2_000),
        (h100, "heavy-tail", 3_000),
        (("cpu", "demo"), "diverse", 2_000),
        (("cpu", "demo"), "instruct", 2_000),
    ] {
        let finished_per_s = |load| {
            let mut settings = settings(load, 1);
            settings.profile = Profile::named(device, model).expect("a known profile");
            // Places and the device are the only bounds.
            settings.engine.total_blocks = 60_000;
            settings.engine.max_waiting = requests as u32;
            let workload = Workload::named(name, requests).expect("a known workload");
            let outcome = simulate(&settings, Policies::builtin(), &workload, |_| {});
            outcome.finished as f64 / outcome.seconds
        };
        // With so little load all that is offered is finished; with so much, as much as can be. At the beginning and
        // at the end of a run some places are free.
        let part = finished_per_s(1.3) / (finished_per_s(0.25) / 0.25);
        assert!((0.9..1.03).contains(&part), "{device} {model} {name}: {part:.3}");
    }
}

#[test]
fn every_request_ends_on_every_workload() {
    for name in Workload::NAMES {
        let outcome = run(name, 0.8);
        assert_eq!(outcome.finished + outcome.refused + outcome.failed, outcome.requests, "{name}");
        assert!(outcome.requests >= 500 && outcome.failed == 0, "{name}: {} requests", outcome.requests);
        assert!(outcome.samples.iter().all(|s| s.used + s.cached + s.free == 8_000), "{name}: blocks add up");
        assert!(outcome.ttft_ms.p50 <= outcome.ttft_ms.p99 && outcome.ttft_ms.p50 > 0.0, "{name}");
    }
}

#[test]
fn conversations_find_what_their_turns_left_and_answer_sooner() {
    let chat = run("chat", 0.5);
    let cache = chat.cache;
    assert!(cache.conversational_rate > 0.6, "{cache:?}");
    assert!(cache.prefilled_ratio < 0.4, "{cache:?}");
    assert!(cache.mean_cached.unwrap() > 5.0 * cache.mean_prefilled.unwrap(), "{cache:?}");
    let without = run_without_cache("chat", 0.5);
    assert_eq!(without.cache.prefilled_ratio, 1.0);
    assert!(chat.ttft_ms.mean < 0.8 * without.ttft_ms.mean, "{:?} {:?}", chat.ttft_ms, without.ttft_ms);
}

#[test]
fn the_longer_the_new_question_the_less_the_history_saves() {
    let prefilled = |question| {
        let mut chat = Workload::named("chat", 600).expect("a known workload");
        chat.streams[0].prompt = Lengths::Fixed(question);
        simulate(&settings(0.5, 1), Policies::builtin(), &chat, |_| {}).cache.prefilled_ratio
    };
    let (short, middle, long) = (prefilled(20), prefilled(100), prefilled(400));
    assert!(short < middle && middle < long, "{short} {middle} {long}");
}

#[test]
fn every_use_of_a_shared_instruction_but_the_first_hits() {
    // So little load that nobody arrives while another one is computed.
    for prefixes in [1, 4, 16] {
        let mut instruct = Workload::named("instruct", 300).expect("a known workload");
        instruct.streams[0].text = Text::Shared { prefixes, tokens: 800 };
        let outcome = simulate(&settings(0.02, 1), Policies::builtin(), &instruct, |_| {});
        let [_, cross, miss, ..] = outcome.cache.events;
        assert_eq!((cross, miss), (300 - u64::from(prefixes), u64::from(prefixes)), "{prefixes}");
        let cache = outcome.cache;
        assert!(cache.hit_ttft_ms.unwrap() < 0.7 * cache.miss_ttft_ms.unwrap(), "{cache:?}");
    }
}

#[test]
fn shared_instructions_and_examples_hit_under_load() {
    let instruct = run("instruct", 0.5);
    // Four instructions; who arrives while one is computed for the first time may miss it too.
    assert!(instruct.cache.cross_request_rate > 0.95, "{:?}", instruct.cache);
    let few_shot = run("few-shot", 0.5);
    assert!((0.8..0.97).contains(&few_shot.cache.cross_request_rate), "{:?}", few_shot.cache);
    // The more there is of a prompt's own, the less a shared beginning saves.
    let saved = |own| {
        let mut workload = Workload::named("instruct", 300).expect("a known workload");
        workload.streams[0].prompt = Lengths::Fixed(own);
        simulate(&settings(0.3, 1), Policies::builtin(), &workload, |_| {}).cache.prefilled_ratio
    };
    let (short, long) = (saved(40), saved(800));
    assert!(short < 0.15 && (0.45..0.6).contains(&long), "{short} {long}");
}

#[test]
fn diverse_prompts_gain_nothing_and_lose_nothing() {
    let (diverse, without) = (run("diverse", 0.5), run_without_cache("diverse", 0.5));
    assert!(diverse.cache.hit_rate == 0.0 && diverse.cache.prefilled_ratio == 1.0, "{:?}", diverse.cache);
    assert_eq!(diverse.cache.events[2], diverse.requests, "each is a full miss");
    assert_eq!((diverse.ttft_ms, diverse.itl_ms), (without.ttft_ms, without.itl_ms));
}

#[test]
fn a_window_that_slides_loses_what_was_cached() {
    let (window, chat) = (run("window", 0.5).cache, run("chat", 0.5).cache);
    assert!(window.prefilled_ratio > 1.5 * chat.prefilled_ratio, "{window:?} {chat:?}");
    // Whose first turn is gone shares no prefix with what its session left.
    assert!(window.events[4] > 20, "{window:?}");
    // As long as nothing is cut, nothing of the kind happens.
    assert_eq!(chat.events[4], 0, "{chat:?}");
}

#[test]
fn more_load_means_later_first_tokens_and_more_work_done() {
    let (light, heavy) = (run("diverse", 0.3), run("diverse", 1.2));
    assert!(heavy.ttft_ms.p95 > 2.0 * light.ttft_ms.p95, "{:?} {:?}", heavy.ttft_ms, light.ttft_ms);
    assert!(heavy.output_per_second > 1.5 * light.output_per_second);
}

#[test]
fn the_pool_evicts_when_it_is_small_and_hits_get_fewer() {
    let workload = Workload::named("few-shot", 600).expect("a known workload");
    let hits = |total_blocks| {
        let mut settings = settings(0.5, 1);
        settings.engine.total_blocks = total_blocks;
        simulate(&settings, Policies::builtin(), &workload, |_| {})
    };
    let (small, large) = (hits(1_500), hits(60_000));
    assert!(small.evicted_blocks > 0 && large.evicted_blocks == 0);
    assert!(small.cache.hit_rate < large.cache.hit_rate);
}

#[test]
fn planning_ahead_hides_what_a_step_costs_the_host() {
    let workload = Workload::named("diverse", 600).expect("a known workload");
    let run = |host_us, plan_ahead| {
        let mut settings = settings(0.5, 1);
        settings.host = Micros(host_us);
        settings.engine.plan_ahead = plan_ahead;
        simulate(&settings, Policies::builtin(), &workload, |_| {})
    };
    let (free, waiting, ahead) = (run(0, false), run(2_000, false), run(2_000, true));
    let gap = |outcome: &Outcome| outcome.itl_ms.p50;
    let gaps = [&free, &waiting, &ahead].map(gap);
    assert!(gaps[1] > gaps[0] + 1.8, "the device waits for it: {gaps:?}");
    assert!(gaps[2] < gaps[0] + 0.2, "the device has the next step already: {gaps:?}");
    assert_eq!(ahead.finished, free.finished);
}

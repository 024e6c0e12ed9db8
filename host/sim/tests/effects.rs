//! What prefix caching and load must do to traffic, on the real engine with its built-in policies.

use infer_core::config::EngineConfig;
use infer_core::engine::Policies;
use infer_sim::{Outcome, Profile, Settings, Slo, Workload, simulate};

fn settings(load: f64, seed: u64) -> Settings {
    let profile = Profile::named("h100", "8b").expect("a known profile");
    let engine = EngineConfig { total_blocks: 8_000, max_seq_len: 8_192, ..EngineConfig::default() };
    Settings { engine, profile, load, seed, slo: Slo::default() }
}

fn run(workload: &str, load: f64) -> Outcome {
    let workload = Workload::named(workload, 600).expect("a known workload");
    simulate(&settings(load, 1), Policies::builtin(), &workload, |_| {})
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
    let chat = run("chat", 0.5).cache;
    assert!(chat.conversational_rate > 0.6, "{chat:?}");
    assert!(chat.prefilled_ratio < 0.4, "{chat:?}");
    assert!(chat.mean_cached > 5.0 * chat.mean_prefilled, "{chat:?}");
    let long = Workload::named("instruct", 600).expect("a known workload");
    let cached = simulate(&settings(0.3, 1), Policies::builtin(), &long, |_| {}).cache;
    assert!(cached.hit_ttft_ms < cached.miss_ttft_ms, "{cached:?}");
}

#[test]
fn shared_instructions_hit_after_their_first_use() {
    let instruct = run("instruct", 0.5);
    // Four instructions; who arrives while one is computed for the first time may miss it too.
    assert!(instruct.cache.cross_request_rate > 0.95, "{:?}", instruct.cache);
    let few_shot = run("few-shot", 0.5);
    assert!((0.8..0.97).contains(&few_shot.cache.cross_request_rate), "{:?}", few_shot.cache);
}

#[test]
fn diverse_prompts_gain_nothing() {
    let diverse = run("diverse", 0.5).cache;
    assert!(diverse.hit_rate == 0.0 && diverse.prefilled_ratio == 1.0, "{diverse:?}");
}

#[test]
fn a_window_that_slides_loses_what_was_cached() {
    let (window, chat) = (run("window", 0.5).cache, run("chat", 0.5).cache);
    assert!(window.prefilled_ratio > 1.5 * chat.prefilled_ratio, "{window:?} {chat:?}");
    // Whose first turn is gone shares no prefix with what its session left.
    assert!(window.events[4] > 20, "{window:?}");
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

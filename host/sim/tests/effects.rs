//! Effects that prefix caching and load must have, on the real engine with its built-in policies.

use std::collections::BTreeMap;
use std::sync::Arc;

use infer_core::builtin::FirstComeFirstServed;
use infer_core::config::EngineConfig;
use infer_core::engine::Policies;
use infer_core::ids::Micros;
use infer_core::policy::{Plan, Policy, PolicyFault, PolicyInfo, SchedulerPolicy, StepView};
use infer_sim::metrics::Sample;
use infer_sim::workload::{Capacity, Lengths, System, Text};
use infer_sim::{
    Outcome, Profile, RequestOutcome, Settings, Slo, Watch, Workload, simulate, simulate_watched,
};

fn settings(load: f64, seed: u64) -> Settings {
    let profile = Profile::named("h100", "8b").expect("a known profile");
    let engine = EngineConfig { total_blocks: 8_000, max_seq_len: 8_192, ..EngineConfig::default() };
    Settings { engine, profile, host: Micros::ZERO, load, seed, slo: Slo::default(), tenants: Vec::new() }
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
fn seed_determines_a_run() {
    for name in ["bursty", "templates", "assistants"] {
        let workload = Workload::named(name, 300).expect("a known workload");
        let run = |seed| simulate(&settings(0.8, seed), Policies::builtin(), &workload, |_| {});
        let (first, again, other) = (run(1), run(1), run(2));
        assert_eq!(first, again, "{name}");
        assert_ne!(first.fingerprint, other.fingerprint, "{name}");
    }
}

#[test]
fn load_of_1_is_the_capacity_of_the_device() {
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
            // Running sequences and the device are the only limits.
            settings.engine.total_blocks = 60_000;
            settings.engine.max_waiting = requests as u32;
            let workload = Workload::named(name, requests).expect("a known workload");
            let outcome = simulate(&settings, Policies::builtin(), &workload, |_| {});
            outcome.finished as f64 / outcome.seconds
        };
        // At the low load everything offered is finished, at the high load as much as the device can. The tolerance
        // covers the start and the end of a run, when the batch isn't full.
        let part = finished_per_s(1.3) / (finished_per_s(0.25) / 0.25);
        assert!((0.9..1.03).contains(&part), "{device} {model} {name}: {part:.3}");
    }
}

/// The conversations of the report run among others, from the first to the last.
#[test]
fn conversations_offer_their_load_all_along() {
    for name in ["chat", "window", "flood", "assistants"] {
        let workload = Workload::named(name, 1_500).expect("a known workload");
        let settings = settings(0.5, 1);
        let outcome = simulate(&settings, Policies::builtin(), &workload, |_| {});
        assert_eq!((outcome.requests, outcome.refused), (1_500, 0), "{name}");
        let offered = 0.5 * Capacity::of(&workload, &settings).requests_per_second();
        // Half a load meets all targets.
        let good = outcome.goodput_per_second / offered;
        assert!((0.8..1.2).contains(&good), "{name}: {good:.3}");
        // Sequences run until the last conversation of the report ends, as many as in the middle.
        let running = |from: usize, to: usize| -> f64 {
            let samples =
                &outcome.samples[from * outcome.samples.len() / 10..to * outcome.samples.len() / 10];
            samples.iter().map(|sample| f64::from(sample.running)).sum::<f64>() / samples.len() as f64
        };
        let (start, middle, end) = (running(0, 2), running(4, 6), running(8, 10));
        assert!(start > 0.6 * middle && end > 0.6 * middle, "{name}: {start:.1} {middle:.1} {end:.1}");
    }
}

#[test]
fn refused_turns_end_no_conversation() {
    let chat = Workload::named("chat", 600).expect("a known workload");
    let mut crowded = settings(1.5, 1);
    crowded.engine.max_waiting = 1;
    let outcome = simulate(&crowded, Policies::builtin(), &chat, |_| {});
    assert!(outcome.refused > 50, "{} refused", outcome.refused);
    assert_eq!(outcome.requests, 600);
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
fn conversations_hit_their_history_and_answer_sooner() {
    let chat = run("chat", 0.5);
    let cache = chat.cache;
    assert!(cache.conversational_rate > 0.6, "{cache:?}");
    assert!(cache.prefilled_ratio.unwrap() < 0.4, "{cache:?}");
    assert!(cache.mean_cached.unwrap() > 5.0 * cache.mean_prefilled.unwrap(), "{cache:?}");
    let without = run_without_cache("chat", 0.5);
    assert_eq!(without.cache.prefilled_ratio, Some(1.0));
    assert!(chat.ttft_ms.mean < 0.8 * without.ttft_ms.mean, "{:?} {:?}", chat.ttft_ms, without.ttft_ms);
}

struct Rows<'a>(&'a mut Vec<RequestOutcome>);

impl Watch for Rows<'_> {
    fn progress(&mut self, _ended: u64) {}

    fn request(&mut self, request: &RequestOutcome) {
        self.0.push(request.clone());
    }
}

/// The requests of conversations at a moderate load, in the order of their ends.
fn chats() -> Vec<RequestOutcome> {
    let chat = Workload::named("chat", 600).expect("a known workload");
    let (settings, mut rows) = (settings(0.5, 1), Vec::new());
    let capacity = Capacity::of(&chat, &settings);
    simulate_watched(&settings, Policies::builtin(), &chat, &capacity, Rows(&mut rows));
    assert_eq!(rows.len(), 600);
    rows
}

#[test]
fn later_turns_are_the_history_and_what_is_new() {
    /// Longest prompt of the workload.
    const WINDOW: u32 = 3_000;
    let (mut histories, mut continued) = (BTreeMap::new(), 0);
    for row in chats() {
        let id = row.conversation.expect("it converses");
        // The end of an output is no text.
        let history = histories.insert(id, row.prompt_tokens + row.output_tokens - 1);
        let repeated = row.prompt_tokens - row.new_tokens;
        match history {
            None => assert_eq!(repeated, 0, "a first turn is all new"),
            Some(history) if history + row.new_tokens <= WINDOW => {
                assert_eq!(repeated, history, "{row:?}");
                continued += 1;
            }
            Some(history) => assert!(repeated < history, "the oldest turns are left out: {row:?}"),
        }
    }
    assert!(continued > 200, "{continued}");
}

#[test]
fn little_more_than_what_is_new_to_a_conversation_is_prefilled() {
    let rows = chats();
    let sum = |read: fn(&RequestOutcome) -> u32| rows.iter().map(|row| u64::from(read(row))).sum::<u64>();
    let (whole, new, prefilled) =
        (sum(|row| row.prompt_tokens), sum(|row| row.new_tokens), sum(|row| row.prefilled_tokens));
    assert!(rows.iter().all(|row| row.prefilled_tokens >= row.new_tokens), "{new}");
    assert!(new * 8 < whole && prefilled * 2 < new * 3, "{new} new, {prefilled} prefilled of {whole}");
}

#[test]
fn history_saves_less_for_longer_new_prompts() {
    let prefilled = |tokens| {
        let mut chat = Workload::named("chat", 600).expect("a known workload");
        chat.streams[0].prompt = Lengths::Fixed(tokens);
        simulate(&settings(0.5, 1), Policies::builtin(), &chat, |_| {}).cache.prefilled_ratio.unwrap()
    };
    let (short, middle, long) = (prefilled(20), prefilled(100), prefilled(400));
    assert!(short < middle && middle < long, "{short} {middle} {long}");
}

#[test]
fn every_use_of_a_shared_prefix_but_the_first_hits() {
    // A load so low that no request arrives while another one is computed.
    for prefixes in [1, 4, 16] {
        let mut instruct = Workload::named("instruct", 300).expect("a known workload");
        instruct.streams[0].text = Text::Shared { prefixes, tokens: 800, zipf: 0.0 };
        let outcome = simulate(&settings(0.02, 1), Policies::builtin(), &instruct, |_| {});
        let [_, cross, miss, ..] = outcome.cache.events;
        assert_eq!((cross, miss), (300 - u64::from(prefixes), u64::from(prefixes)), "{prefixes}");
        let cache = outcome.cache;
        assert!(cache.hit_ttft_ms.unwrap() < 0.7 * cache.miss_ttft_ms.unwrap(), "{cache:?}");
    }
}

#[test]
fn first_turns_hit_the_system_prompts_that_conversations_share() {
    let run = |system| {
        let mut chat = Workload::named("assistants", 600).expect("a known workload");
        let Text::Conversation { system: own, .. } = &mut chat.streams[0].text else {
            panic!("it converses")
        };
        *own = system;
        simulate(&settings(0.3, 1), Policies::builtin(), &chat, |_| {}).cache
    };
    let of = |prompts| run(Some(System { prompts, tokens: 1_000, zipf: 0.0 }));
    let (without, few, many) = (run(None), of(4), of(1_000));
    let [_, cross, miss, ..] = without.events;
    assert!(cross == 0 && miss > 50, "{without:?}");
    // The conversations before those of the report have computed all four.
    assert_eq!((few.events[1], few.events[2]), (miss, 0), "{few:?}");
    assert!(many.events[1] * 10 < miss, "most are new: {many:?}");
    assert!(many.prefilled_ratio.unwrap() > 2.0 * few.prefilled_ratio.unwrap(), "{few:?} {many:?}");
}

/// The same requests but for the texts that they share, in a pool that can't hold all of these.
#[test]
fn popular_texts_stay_cached_in_a_small_pool() {
    for name in ["templates", "assistants"] {
        let prefilled = |exponent| {
            let mut workload = Workload::named(name, 600).expect("a known workload");
            match &mut workload.streams[0].text {
                Text::Shared { zipf, .. } | Text::Conversation { system: Some(System { zipf, .. }), .. } => {
                    *zipf = exponent;
                }
                text => panic!("{text:?} shares nothing"),
            }
            let mut settings = settings(0.5, 1);
            settings.engine.total_blocks = 5_000;
            simulate(&settings, Policies::builtin(), &workload, |_| {}).cache.prefilled_ratio.unwrap()
        };
        let (even, usual, steep) = (prefilled(0.0), prefilled(1.0), prefilled(2.0));
        assert!(usual < 0.75 * even && steep < 0.6 * usual, "{name}: {even:.3} {usual:.3} {steep:.3}");
    }
}

#[test]
fn shared_prefixes_hit_under_load() {
    let instruct = run("instruct", 0.5);
    // Four prefixes; a request that arrives while one is computed for the first time may miss it, too.
    assert!(instruct.cache.cross_request_rate > 0.95, "{:?}", instruct.cache);
    let few_shot = run("few-shot", 0.5);
    assert!((0.8..0.97).contains(&few_shot.cache.cross_request_rate), "{:?}", few_shot.cache);
    // The longer the rest of a prompt, the less its shared prefix saves.
    let prefilled = |own| {
        let mut workload = Workload::named("instruct", 300).expect("a known workload");
        workload.streams[0].prompt = Lengths::Fixed(own);
        simulate(&settings(0.3, 1), Policies::builtin(), &workload, |_| {}).cache.prefilled_ratio.unwrap()
    };
    let (short, long) = (prefilled(40), prefilled(800));
    assert!(short < 0.15 && (0.45..0.6).contains(&long), "{short} {long}");
}

#[test]
fn longer_shared_prefixes_save_more() {
    let prefilled = |prefixes, tokens| {
        let mut few_shot = Workload::named("few-shot", 600).expect("a known workload");
        few_shot.streams[0].text = Text::Shared { prefixes, tokens, zipf: 0.0 };
        simulate(&settings(0.3, 1), Policies::builtin(), &few_shot, |_| {}).cache.prefilled_ratio.unwrap()
    };
    let (short, middle, long) = (prefilled(20, 200), prefilled(20, 800), prefilled(20, 2_400));
    assert!(short > 1.5 * middle && middle > 1.5 * long, "{short} {middle} {long}");
    let (few, many) = (prefilled(4, 800), prefilled(200, 800));
    assert!(few < middle && middle < many, "the first use of each has to be computed: {few} {middle} {many}");
}

#[test]
fn repeated_prompts_need_no_prefill_while_the_prompt_cache_holds_them() {
    let run = |prompts, entries| {
        let mut repeat = Workload::named("repeat", 600).expect("a known workload");
        repeat.streams[0].text = Text::Repeated { prompts, zipf: 0.0 };
        repeat.streams[0].prompt = Lengths::Uniform(1_000, 1_500);
        let mut settings = settings(0.3, 1);
        settings.engine.prompt_cache_entries = entries;
        let outcome = simulate(&settings, Policies::builtin(), &repeat, |_| {});
        let [.., full, _] = outcome.cache.events;
        (full, outcome.cache)
    };
    let ((few, cache), (many, _), (none, without)) = (run(20, 100), run(400, 100), run(20, 0));
    // The first request of each prompt misses, and the next ones if they arrive before it is computed.
    assert!((560..=580).contains(&few), "{few}");
    assert!(cache.hit_ttft_ms.unwrap() < 0.5 * cache.miss_ttft_ms.unwrap(), "{cache:?}");
    assert!(many < few / 2, "four hundred prompts don't fit: {many}");
    assert_eq!(none, 0);
    assert!(without.mean_cached.unwrap() > 0.0, "blocks are found without the prompt cache, too");
}

#[test]
fn caching_neither_helps_nor_hurts_distinct_prompts() {
    let (diverse, without) = (run("diverse", 0.5), run_without_cache("diverse", 0.5));
    assert_eq!((diverse.cache.hit_rate, diverse.cache.prefilled_ratio), (0.0, Some(1.0)));
    assert_eq!(diverse.cache.events[2], diverse.requests, "each is a full miss");
    assert_eq!((diverse.ttft_ms, diverse.itl_ms), (without.ttft_ms, without.itl_ms));
}

#[test]
fn sliding_window_loses_cached_prefixes() {
    let (window, chat) = (run("window", 0.5).cache, run("chat", 0.5).cache);
    assert!(window.prefilled_ratio.unwrap() > 1.5 * chat.prefilled_ratio.unwrap(), "{window:?} {chat:?}");
    // Without its first turn, a prompt shares no prefix with its session's cached blocks.
    assert!(window.events[4] > 20, "{window:?}");
    // That never happens while no turn is dropped, as only the longest chats do.
    assert!(chat.events[4] < 5, "{chat:?}");
}

#[test]
fn more_load_raises_ttft_and_throughput() {
    let (light, heavy) = (run("diverse", 0.3), run("diverse", 1.2));
    assert!(heavy.ttft_ms.p95 > 2.0 * light.ttft_ms.p95, "{:?} {:?}", heavy.ttft_ms, light.ttft_ms);
    assert!(heavy.output_per_second > 1.5 * light.output_per_second);
}

#[test]
fn small_pool_evicts_and_hits_less() {
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
fn a_second_level_brings_back_what_a_small_pool_evicts() {
    let workload = Workload::named("chat", 600).expect("a known workload");
    let run = |offload_slots, host_bandwidth| {
        let mut settings = settings(0.3, 1);
        (settings.engine.total_blocks, settings.engine.offload_slots) = (1_500, offload_slots);
        let Profile::Roofline(roofline) = &mut settings.profile else { panic!("it has a name") };
        roofline.hardware.host_bandwidth = host_bandwidth;
        simulate(&settings, Policies::builtin(), &workload, |_| {})
    };
    let (without, fast, slow) = (run(0, 1e9), run(60_000, 100e9), run(60_000, 1e9));
    assert!(without.evicted_blocks > 0 && without.onloaded_blocks == 0);
    assert!(fast.onloaded_blocks > 100, "{}", fast.onloaded_blocks);
    assert!(
        fast.cache.prefilled_ratio < without.cache.prefilled_ratio,
        "{:?} {:?}",
        fast.cache,
        without.cache
    );
    let [without, fast, slow] = [without, fast, slow].map(|outcome| outcome.ttft_ms.mean);
    assert!(fast < without && fast < slow, "{without} without, {fast} and {slow} with");
}

#[test]
fn hit_rate_and_length_of_hits_multiply_to_the_tokens_saved() {
    // In `window`, prompts also diverge from their conversation after what they share with others.
    for name in ["chat", "window", "few-shot"] {
        let Outcome { cache, finished, requests, .. } = run(name, 0.5);
        assert_eq!(finished, requests, "{name}: each started");
        let prefilled = cache.mean_prefilled.unwrap() * requests as f64;
        let saved = prefilled / cache.prefilled_ratio.unwrap() - prefilled;
        let counted = cache.hit_rate * cache.mean_cached.unwrap() * requests as f64;
        assert!((counted / saved - 1.0).abs() < 1e-9, "{name}: {counted} of {saved}");
    }
}

#[test]
fn samples_over_time_show_idle_times_as_idle() {
    let idle = |load| {
        let diverse = Workload::named("diverse", 60).expect("a known workload");
        let samples = simulate(&settings(load, 1), Policies::builtin(), &diverse, |_| {}).samples;
        let idle = samples.iter().filter(|sample| sample.running == 0 && sample.used == 0).count();
        idle as f64 / samples.len() as f64
    };
    let (light, heavy) = (idle(0.002), idle(0.9));
    assert!((0.5..1.0).contains(&light) && heavy < 0.2, "{light} {heavy}");
}

#[test]
fn occupancy_agrees_with_the_samples() {
    let Outcome { pool, samples, .. } = run("chat", 0.5);
    let mean = |read: fn(&Sample) -> u32| {
        samples.iter().map(|sample| f64::from(read(sample)) / 8_000.0).sum::<f64>() / samples.len() as f64
    };
    let (used, cached) = (mean(|sample| sample.used), mean(|sample| sample.cached));
    assert!((used - pool.used_mean).abs() < 0.02 && (cached - pool.cached_mean).abs() < 0.02, "{pool:?}");
    assert!(pool.used_mean > 0.0 && pool.used_peak > pool.used_mean, "{pool:?}");
    assert!(pool.cached_mean > 0.0 && pool.cached_peak > pool.cached_mean, "{pool:?}");
}

/// Schedules first come, first served for some calls, and nothing after that.
struct Tired {
    fresh: FirstComeFirstServed,
    calls: u32,
}

impl Policy for Tired {
    fn info(&self) -> Arc<PolicyInfo> {
        Arc::new(PolicyInfo { name: "tired".to_owned(), ..PolicyInfo::default() })
    }
}

impl SchedulerPolicy for Tired {
    fn schedule(&mut self, step: &StepView) -> Result<Plan, PolicyFault> {
        match self.calls.checked_sub(1) {
            Some(left) => {
                self.calls = left;
                self.fresh.schedule(step)
            }
            None => Ok(Plan { wake: Micros::NEVER, ..Plan::default() }),
        }
    }
}

#[test]
fn outcome_tells_how_much_the_built_in_decided_for_a_removed_policy() {
    let diverse = Workload::named("diverse", 200).expect("a known workload");
    let run = |calls| {
        let tired = Tired { fresh: FirstComeFirstServed::default(), calls };
        let policies = Policies { scheduler: Box::new(tired), ..Policies::builtin() };
        simulate(&settings(0.5, 1), policies, &diverse, |_| {})
    };
    let well = run(u32::MAX);
    assert_eq!((well.policy_faults, well.builtin_share, &well.fault), (0, 0.0, &None));
    let (early, late) = (run(0), run(400));
    for outcome in [&early, &late] {
        let fault = outcome.fault.as_ref().expect("the watchdog removed it");
        assert_eq!((fault.kind, fault.policy.as_str(), outcome.policy_faults), ("scheduler", "tired", 1));
        assert!(fault.message.starts_with("starvation: nothing ran"), "{fault:?}");
        assert_eq!(outcome.finished, 200);
    }
    assert_eq!(early.builtin_share, 1.0);
    let share = 1.0 - 400.0 / late.steps as f64;
    assert!((late.builtin_share - share).abs() < 0.02, "{} {share}", late.builtin_share);
    assert!(late.fault.unwrap().at_s > 5.0, "it did nothing for five seconds");
}

#[test]
fn planning_ahead_hides_host_time() {
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
    assert!(gaps[1] > gaps[0] + 1.8, "the device waits for the host: {gaps:?}");
    assert!(gaps[2] < gaps[0] + 0.2, "the device has the next step queued: {gaps:?}");
    assert_eq!(ahead.finished, free.finished);
}

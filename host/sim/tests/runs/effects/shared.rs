//! Prefixes and whole prompts that requests share, and prompts that share nothing.

use infer_sim::workload::{Lengths, System, Text};

use super::{run, run_without_cache, served};
use crate::{named, settings};

#[test]
fn every_use_of_a_shared_prefix_but_the_first_hits() {
    // A load so low that no request arrives while another one is computed.
    for prefixes in [1, 4, 16] {
        let mut instruct = named("instruct", 300);
        instruct.streams[0].text = Text::Shared { prefixes, tokens: 800, zipf: 0.0 };
        let outcome = served(&settings(0.02, 1), &instruct);
        let [_, cross, miss, ..] = outcome.cache.events;
        assert_eq!((cross, miss), (300 - u64::from(prefixes), u64::from(prefixes)), "{prefixes}");
        let cache = outcome.cache;
        assert!(cache.hit_ttft_ms.unwrap() < 0.7 * cache.miss_ttft_ms.unwrap(), "{cache:?}");
    }
}

#[test]
fn first_turns_hit_the_system_prompts_that_conversations_share() {
    let run = |system| {
        let mut chat = named("assistants", 600);
        let Text::Conversation { system: own, .. } = &mut chat.streams[0].text else {
            panic!("it converses")
        };
        *own = system;
        served(&settings(0.3, 1), &chat).cache
    };
    let of = |prompts| run(Some(System { prompts, tokens: 1_000, zipf: 0.0 }));
    let (without, few, many) = (run(None), of(4), of(1_000));
    let [_, cross, miss, ..] = without.events;
    assert!(cross == 0 && miss > 50, "{without:?}");
    // The conversations before those of the report have computed all four. How many of its requests are first turns
    // depends on how long others took.
    assert!(few.events[2] == 0 && few.events[1].abs_diff(miss) * 10 < miss, "{few:?}");
    assert!(many.events[1] * 10 < miss, "most are new: {many:?}");
    assert!(many.prefilled_ratio.unwrap() > 2.0 * few.prefilled_ratio.unwrap(), "{few:?} {many:?}");
}

/// The same requests but for the texts that they share, in a pool that can't hold all of these.
#[test]
fn popular_texts_stay_cached_in_a_small_pool() {
    for name in ["templates", "assistants"] {
        let prefilled = |exponent| {
            let mut workload = named(name, 600);
            match &mut workload.streams[0].text {
                Text::Shared { zipf, .. } | Text::Conversation { system: Some(System { zipf, .. }), .. } => {
                    *zipf = exponent;
                }
                text => panic!("{text:?} shares nothing"),
            }
            let mut settings = settings(0.5, 1);
            settings.engine.total_blocks = 5_000;
            served(&settings, &workload).cache.prefilled_ratio.unwrap()
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
        let mut workload = named("instruct", 300);
        workload.streams[0].prompt = Lengths::Fixed(own);
        served(&settings(0.3, 1), &workload).cache.prefilled_ratio.unwrap()
    };
    let (short, long) = (prefilled(40), prefilled(800));
    assert!(short < 0.15 && (0.45..0.6).contains(&long), "{short} {long}");
}

#[test]
fn longer_shared_prefixes_save_more() {
    let prefilled = |prefixes, tokens| {
        let mut few_shot = named("few-shot", 600);
        few_shot.streams[0].text = Text::Shared { prefixes, tokens, zipf: 0.0 };
        served(&settings(0.3, 1), &few_shot).cache.prefilled_ratio.unwrap()
    };
    let (short, middle, long) = (prefilled(20, 200), prefilled(20, 800), prefilled(20, 2_400));
    assert!(short > 1.5 * middle && middle > 1.5 * long, "{short} {middle} {long}");
    let (few, many) = (prefilled(4, 800), prefilled(200, 800));
    assert!(few < middle && middle < many, "the first use of each has to be computed: {few} {middle} {many}");
}

#[test]
fn repeated_prompts_need_no_prefill_while_the_prompt_cache_holds_them() {
    let run = |prompts, entries| {
        let mut repeat = named("repeat", 600);
        repeat.streams[0].text = Text::Repeated { prompts, zipf: 0.0 };
        repeat.streams[0].prompt = Lengths::Uniform(1_000, 1_500);
        let mut settings = settings(0.3, 1);
        settings.engine.prompt_cache_entries = entries;
        let outcome = served(&settings, &repeat);
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

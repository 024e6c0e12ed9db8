//! Conversations: later turns find their history.

use std::collections::BTreeMap;

use infer_core::engine::Policies;
use infer_sim::workload::{Capacity, Lengths};
use infer_sim::{RequestOutcome, Watch, simulate_watched};

use super::{run, run_without_cache, served};
use crate::{named, settings};

#[test]
fn refused_turns_end_no_conversation() {
    let chat = named("chat", 600);
    let mut crowded = settings(1.5, 1);
    crowded.engine.max_waiting = 1;
    let outcome = served(&crowded, &chat);
    assert!(outcome.refused > 50, "{} refused", outcome.refused);
    assert_eq!(outcome.requests, 600);
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
    let chat = named("chat", 600);
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
        let mut chat = named("chat", 600);
        chat.streams[0].prompt = Lengths::Fixed(tokens);
        served(&settings(0.5, 1), &chat).cache.prefilled_ratio.unwrap()
    };
    let (short, middle, long) = (prefilled(20), prefilled(100), prefilled(400));
    assert!(short < middle && middle < long, "{short} {middle} {long}");
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

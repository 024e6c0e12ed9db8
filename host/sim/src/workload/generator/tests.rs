//! What arrives, whatever the host does.

use std::collections::BTreeSet;

use infer_core::config::EngineConfig;

use super::*;
use crate::{Predictions, Profile, Slo};

const CONVERSING: [&str; 4] = ["chat", "window", "flood", "assistants"];

#[derive(Default, PartialEq)]
struct Asked {
    identities: BTreeMap<(u64, usize), u64>,
    background: Vec<(u64, usize, u32, u32)>,
    reported: Vec<(u64, usize, u32, u32)>,
}

impl Asked {
    fn all(self) -> Vec<(u64, usize, u32, u32)> {
        [self.background, self.reported].concat()
    }
}

fn generator(workload: &str, requests: u64, max_seq_len: u32) -> Generator {
    let settings = Settings {
        engine: EngineConfig { max_seq_len, ..EngineConfig::default() },
        profile: Profile::named("h100", "8b").expect("a known profile"),
        host: Micros::ZERO,
        load: 0.8,
        slo: Slo::default(),
        seed: 1,
        tenants: Vec::new(),
        predictions: Predictions::Learned,
    };
    let workload = Workload::named(workload, requests).expect("a known workload");
    Generator::new(&workload, &Capacity::of(&workload, &settings), &settings)
}

/// The requests to a host that takes `answer_us(n)` for the n-th one: conversation, turn, prompt and output length.
fn asked(mut traffic: Generator, answer_us: fn(u64) -> u64) -> Asked {
    let (mut asked, mut turns) = (Asked::default(), BTreeMap::<u64, usize>::new());
    let mut answers = BTreeMap::new();
    for number in 0.. {
        while let Some(&(end, first)) = answers.keys().next()
            && traffic.next_at().is_none_or(|at| end <= at)
        {
            let (id, reply): (u64, Vec<u32>) = answers.remove(&(end, first)).expect("it is there");
            traffic.ended(id, Some(&reply), end);
        }
        let Some(at) = traffic.next_at() else { break };
        let arrival = traffic.pop(at).expect("it is due");
        let Request { prompt, max_new_tokens, .. } = arrival.request;
        let id = arrival.conversation.unwrap_or(u64::from(prompt[prompt.len() - 1]));
        let turn = turns.entry(id).and_modify(|turn| *turn += 1).or_default();
        assert!(arrival.output_tokens <= max_new_tokens);
        asked.identities.insert((id, *turn), arrival.identity);
        let part = if arrival.background { &mut asked.background } else { &mut asked.reported };
        part.push((id, *turn, prompt.len() as u32, arrival.output_tokens));
        if arrival.conversation.is_some() {
            let reply = vec![7; arrival.output_tokens as usize - 1];
            answers.insert((at.plus(Micros(answer_us(number))), number), (id, reply));
        }
    }
    asked.background.sort_unstable();
    asked.reported.sort_unstable();
    asked
}

#[test]
fn requests_do_not_depend_on_the_speed_of_the_host() {
    for name in Workload::NAMES {
        let quick = asked(generator(name, 700, 8_192), |_| 1);
        let slow = asked(generator(name, 700, 8_192), |number| 500_000 + number * 7_919 % 20_000_000);
        assert_eq!(quick.reported.len(), 700, "{name}");
        assert_eq!(quick.background.is_empty(), !CONVERSING.contains(&name), "{name}");
        assert!(quick == slow, "{name}");
        let distinct: BTreeSet<u64> = quick.identities.values().copied().collect();
        assert_eq!(distinct.len(), quick.identities.len(), "{name}");
    }
}

#[test]
fn short_context_only_drops_old_turns_of_conversations() {
    for name in Workload::NAMES {
        let longest = Workload::named(name, 1).expect("a known workload").longest();
        let [wide, tight] =
            [8_192, longest].map(|tokens| asked(generator(name, 700, tokens), |_| 1)).map(Asked::all);
        assert!(CONVERSING.contains(&name) || wide == tight, "{name}");
        // Shorter conversations are cheaper, so the same load has more of them, and some are only in one of the
        // runs.
        let wide: BTreeMap<_, _> =
            wide.into_iter().map(|(id, turn, prompt, output)| ((id, turn), (prompt, output))).collect();
        let mut seen = 0;
        for (id, turn, prompt, output) in tight {
            let Some((whole, same)) = wide.get(&(id, turn)) else { continue };
            assert!(prompt + output <= longest && output == *same, "{name}");
            assert!(prompt == *whole || turn > 0 && prompt < *whole, "{name}: {prompt} of {whole}");
            seen += 1;
        }
        assert!(seen > 500, "{name}: {seen}");
    }
}

#[test]
fn every_prompt_is_distinct_even_after_dropping_turns() {
    let mut traffic = generator("chat", 300, 1_000);
    let (mut prompts, mut reported) = (BTreeSet::new(), 0);
    while let Some(at) = traffic.next_at() {
        let arrival = traffic.pop(at).expect("it is due");
        assert!(prompts.insert(arrival.request.prompt.to_vec()), "the prompt repeats");
        reported += u64::from(!arrival.background);
        let reply = vec![7; arrival.output_tokens as usize - 1];
        traffic.ended(arrival.conversation.expect("it converses"), Some(&reply), at);
    }
    assert_eq!(reported, 300);
}

#[test]
fn conversations_share_their_system_prompt_and_nothing_else() {
    const HEAD: usize = 1_000;
    // So short that long conversations lose their oldest turns.
    let mut traffic = generator("assistants", 600, 2_000);
    let (mut told, mut whole, mut dropped) = (BTreeMap::<u64, Vec<u32>>::new(), 0, 0);
    let (mut by_head, mut bodies) = (BTreeMap::<Vec<u32>, u32>::new(), BTreeSet::new());
    while let Some(at) = traffic.next_at() {
        let arrival = traffic.pop(at).expect("it is due");
        let (id, prompt) = (arrival.conversation.expect("it converses"), arrival.request.prompt);
        let (head, turns) = prompt.split_at(HEAD);
        let known = told.entry(id).or_default();
        if known.is_empty() {
            *by_head.entry(head.to_vec()).or_default() += 1;
            assert!(bodies.insert(turns[0]), "the first turn begins like another's");
            assert_eq!(arrival.new_tokens as usize, prompt.len());
        }
        known.extend(&prompt[prompt.len() - arrival.new_tokens as usize..]);
        // All that was said, or the latest of it.
        assert!(known.starts_with(head) && known[HEAD..].ends_with(turns));
        let drops = known.len() > prompt.len();
        (dropped, whole) = (dropped + u32::from(drops), whole + u32::from(!drops));
        let reply = vec![7; arrival.output_tokens as usize - 1];
        traffic.ended(id, Some(&reply), at);
        known.extend(reply);
    }
    assert!(dropped > 100 && whole > 100, "{dropped} {whole}");
    let first_tokens: BTreeSet<u32> = by_head.keys().map(|head| head[0]).collect();
    assert_eq!(first_tokens.len(), by_head.len(), "system prompts differ from the first token on");
    let most = by_head.values().max().expect("some began");
    assert!(by_head.len() > 20 && *most > 10, "{:?}", by_head.values());
}

#[test]
fn refused_turns_leave_out_nothing_but_their_own_text() {
    let (mut reported, mut last) = (0, BTreeMap::<u64, Vec<u32>>::new());
    let mut traffic = generator("chat", 300, 8_192);
    for number in 0.. {
        let Some(at) = traffic.next_at() else { break };
        let arrival = traffic.pop(at).expect("it is due");
        reported += u64::from(!arrival.background);
        let (id, prompt) = (arrival.conversation.expect("it converses"), arrival.request.prompt);
        let before = last.entry(id).or_default();
        assert!(prompt.starts_with(before) && arrival.new_tokens > 0);
        assert_eq!(prompt.len(), before.len() + arrival.new_tokens as usize);
        if number % 3 == 0 {
            traffic.ended(id, None, at);
            continue;
        }
        let reply = vec![7; arrival.output_tokens as usize - 1];
        traffic.ended(id, Some(&reply), at);
        *before = [&prompt[..], &reply].concat();
    }
    assert_eq!(reported, 300);
}

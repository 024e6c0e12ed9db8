//! Traces: public formats are read, errors name line and column, and replayed prompts share what recorded ones shared.

use std::io::BufReader;

use infer_core::engine::Policies;
use infer_sim::trace::{After, Empty, Format, Recorded, Shares, Text, TraceError, due, in_order, limited};
use infer_sim::{Outcome, replay};

use crate::settings;

const AZURE: &str = include_str!("../traces/azure.csv");
const BAILIAN: &str = include_str!("../traces/bailian.jsonl");
const BURSTGPT: &str = include_str!("../traces/burstgpt.csv");
const MOONCAKE: &str = include_str!("../traces/mooncake.jsonl");

fn read(format: Format, text: &str) -> Vec<Result<Recorded, TraceError>> {
    format.read(BufReader::new(text.as_bytes())).collect()
}

fn play(recorded: Vec<Recorded>, load: f64) -> Outcome {
    let trace = in_order(recorded.into_iter().map(Ok));
    replay(&settings(load, 1), Policies::builtin(), trace, u64::MAX, |_| {}).expect("the trace is complete")
}

#[test]
fn formats_are_detected_by_their_first_line_and_read() {
    for (text, format, rows) in [
        (
            AZURE,
            Format::Azure,
            &[(0, 374, 44), (7_405, 396, 109), (1_490_070, 879, 55), (2_240_070, 91, 16)][..],
        ),
        (BURSTGPT, Format::BurstGpt, &[(0, 120, 18), (40_000_000, 700, 90), (56_500_000, 417, 76)]),
        (
            MOONCAKE,
            Format::Mooncake,
            &[(0, 1_500, 50), (3_000_000, 1_400, 30), (6_000_000, 2_048, 10), (6_500_000, 600, 20)],
        ),
        (
            BAILIAN,
            Format::Bailian,
            &[
                (0, 70, 26),
                (2_386_000, 48, 9),
                (14_136_000, 121, 132),
                (113_886_000, 300, 40),
                (114_886_000, 20, 4),
            ],
        ),
    ] {
        assert_eq!(Format::of(text.lines().next().unwrap()), Some(format));
        let read =
            read(format, text).into_iter().map(|r| r.map(|r| (r.at_us, r.prompt_tokens, r.output_tokens)));
        assert_eq!(read.map(Result::unwrap).collect::<Vec<_>>(), rows, "{}", format.name());
    }
    let tenants: Vec<u32> = read(Format::BurstGpt, BURSTGPT).into_iter().map(|r| r.unwrap().tenant).collect();
    assert_eq!(tenants, [0, 0, 1], "models become tenants, failures are skipped");
    let models =
        play(read(Format::BurstGpt, BURSTGPT).into_iter().map(Result::unwrap).collect(), 1.0).tenants;
    let models: Vec<_> = models.iter().map(|one| (one.tenant, one.name.as_deref())).collect();
    assert_eq!(models, [(0, Some("Small")), (1, Some("Large"))], "of their names");
}

#[test]
fn rows_are_sorted_and_times_start_at_the_earliest() {
    for (format, text) in [
        (
            Format::Azure,
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:05,1,9\n2024-05-10 00:00:01,2,9\n\
             2024-05-10 00:00:03,3,9\n",
        ),
        (
            Format::BurstGpt,
            "Timestamp,Model,Request tokens,Response tokens\n905,M,1,9\n901,M,2,9\n903,M,3,9\n",
        ),
        (
            Format::Mooncake,
            "{\"timestamp\": 95000, \"input_length\": 1, \"output_length\": 9, \"hash_ids\": []}\n\
             {\"timestamp\": 91000, \"input_length\": 2, \"output_length\": 9}\n\
             {\"timestamp\": 93000, \"input_length\": 3, \"output_length\": 9}\n",
        ),
    ] {
        let rows: Vec<Recorded> = read(format, text).into_iter().map(Result::unwrap).collect();
        let rows: Vec<(u64, u32)> = rows.iter().map(|row| (row.at_us, row.prompt_tokens)).collect();
        assert_eq!(rows, [(0, 2), (2_000_000, 3), (4_000_000, 1)], "{}", format.name());
    }
}

#[test]
fn limit_of_a_public_format_s_requests_does_not_tell_their_length() {
    for (format, text) in [
        (Format::Azure, AZURE),
        (Format::Bailian, BAILIAN),
        (Format::BurstGpt, BURSTGPT),
        (Format::Mooncake, MOONCAKE),
    ] {
        let limits: Vec<u32> = read(format, text).into_iter().map(|row| row.unwrap().max_tokens).collect();
        assert!(limits.iter().all(|&limit| limit == 1_024), "{}: {limits:?}", format.name());
    }
    let rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,100,3000\n\
                2024-05-10 00:00:01,100,20\n2024-05-10 00:00:02,900,20\n";
    let limits = |max_tokens| -> Vec<u32> {
        let reader = limited(Format::Azure.read(rows.as_bytes()), max_tokens, 1_000);
        reader.map(|row| row.unwrap().max_tokens).collect()
    };
    assert_eq!(limits(512), [3_000, 512, 100], "no less than the output, else no more than fits");
    assert_eq!(limits(1), [3_000, 20, 20], "exactly the output");
}

#[test]
fn requests_without_a_deadline_get_one_and_others_keep_theirs() {
    let mut rows: Vec<Recorded> = read(Format::Azure, AZURE).into_iter().map(Result::unwrap).collect();
    assert!(rows.iter().all(|row| row.ttft_us.is_none()), "the format has none");
    assert_eq!(play(rows.clone(), 1.0).in_time, None);
    rows[1].ttft_us = Some(7);
    let with: Vec<Recorded> = due(in_order(rows.into_iter().map(Ok)), 900_000).map(Result::unwrap).collect();
    let times: Vec<Option<u64>> = with.iter().map(|row| row.ttft_us).collect();
    assert_eq!(times, [Some(900_000), Some(7), Some(900_000), Some(900_000)]);
    assert_eq!(play(with, 1.0).in_time, Some(0.75), "7 us are too few");
}

#[test]
fn rows_without_tokens_are_left_out_or_get_one_and_are_counted() {
    let azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,0,9\n2024-05-10 00:00:01,7,0\n\
                 2024-05-10 00:00:02,0,0\n2024-05-10 00:00:03,5,4\n";
    let hashed = |more: &str| {
        [(0, 9), (7, 0), (0, 0), (5, 4)].map(|(input, output)| {
            format!(
                "{{{more}\"timestamp\": 1, \"input_length\": {input}, \"output_length\": {output}, \
                 \"hash_ids\": []}}\n"
            )
        })
    };
    let burst = "Timestamp,Model,Request tokens,Response tokens\n1,M,0,9\n2,M,7,0\n3,M,0,0\n4,M,5,4\n";
    let filled: &[(u32, u32)] = &[(1, 9), (7, 1), (1, 1), (5, 4)];
    for (format, text, tokens) in [
        (Format::Azure, azure.to_owned(), filled),
        (Format::Mooncake, hashed("").concat(), filled),
        (Format::Bailian, hashed("\"chat_id\": 1, ").concat(), filled),
        (Format::BurstGpt, burst.to_owned(), &[(5, 4)]),
    ] {
        let empty = Empty::default();
        let all = || -> Vec<(u32, u32)> {
            let rows = format.read_counting(BufReader::new(text.as_bytes()), &empty).map(Result::unwrap);
            rows.map(|row| (row.prompt_tokens, row.output_tokens)).collect()
        };
        assert_eq!(all(), tokens, "{}", format.name());
        assert_eq!(format.leaves_out_empty(), tokens.len() == 1);
        assert_eq!(all().len(), tokens.len(), "read again");
        let counts = (empty.rows(), empty.prompts(), empty.outputs());
        assert_eq!(counts, (4, 2, 2), "{}: as often as they are there", format.name());
    }
}

/// Two sessions and a request without one; the first session's second turn sends the first with its response.
const SESSIONS: &str = "\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
100,9d4e,4,Large,50,30,80,Conversation log
110,77a0,2,Large,60,10,70,Conversation log
120,9d4e,5,Large,100,20,120,Conversation log
122,9d4e,1,Large,200,20,220,Conversation log
130,9d4e,1,Large,100,9,109,Conversation log
140,,3,Large,110,10,120,API log
150,77a0,1,Small,500,9,509,Conversation log
";

#[test]
fn turns_of_a_burstgpt_session_are_linked_where_the_prompt_holds_the_previous_one() {
    let rows: Vec<Recorded> = read(Format::BurstGpt, SESSIONS).into_iter().map(Result::unwrap).collect();
    let linked: Vec<_> = rows.iter().map(|row| (row.after, row.text.shares)).collect();
    let second = (Some(After { id: 1, think_us: 16_000_000 }), Some(Shares { id: 1, tokens: 80 }));
    let alone = (None, None);
    // The fourth was sent before the third had ended; the fifth is too short for the fourth.
    assert_eq!(linked, [alone, alone, second, alone, alone, alone, alone]);
    let sessions: Vec<u64> = rows.iter().map(|row| row.session).collect();
    assert!(sessions[0] != 0 && [2, 3, 4].iter().all(|&row| sessions[row] == sessions[0]), "{sessions:?}");
    assert!(sessions[1] != sessions[0] && sessions[6] != sessions[1], "another model: {sessions:?}");
    let followed: Vec<bool> = rows.iter().map(|row| row.followed).collect();
    assert_eq!((sessions[5], followed), (0, vec![true, true, true, true, true, false, true]));
    let outcome = play(rows, 1.0);
    // Of the 80 shared tokens the last was never computed: four full blocks of 16.
    assert_eq!((outcome.cache.events[0], outcome.cache.mean_cached), (1, Some(64.0)), "{:?}", outcome.cache);
    assert_eq!((outcome.finished, outcome.requests), (7, 7));

    let without = SESSIONS.replace("Elapsed time", "Unknown");
    let think_us = read(Format::BurstGpt, &without).remove(2).unwrap().after.map(|after| after.think_us);
    assert_eq!(think_us, Some(20_000_000), "since the previous turn was sent");
}

#[test]
fn errors_name_line_and_column() {
    for (format, text, says) in [
        (Format::Azure, "TIMESTAMP,ContextTokens\n", "line 1, column 24: missing column `GeneratedTokens`"),
        (
            Format::Azure,
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,7,9\n\n2024-05-10 00:00:01,x,9\n",
            "line 4, column 21: ContextTokens is `x`, not a whole number",
        ),
        (
            Format::Azure,
            "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,7,9\n",
            "line 2, column 1: `yesterday` is not a time",
        ),
        (
            Format::Azure,
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-02-29 00:00:00,1,1\n2023-11-31 18:15:45,1,1\n",
            "line 3, column 1: `2023-11-31 18:15:45` is not a time",
        ),
        (
            Format::BurstGpt,
            "Timestamp,Model,Request tokens,Response tokens\n5,M,10\n",
            "line 2, column 7: the line ends before `Response tokens`",
        ),
        (
            Format::BurstGpt,
            "Timestamp,Model,Request tokens,Response tokens\nnan,M,10,10\n",
            "line 2, column 1: `nan` is not a number of seconds",
        ),
        (
            Format::Mooncake,
            "{\"timestamp\": 1, \"input_length\": -4}",
            "line 1, column 35: invalid value: integer `-4`",
        ),
        (
            Format::Mooncake,
            "{\"timestamp\": 1, \"input_length\": 512, \"output_length\": 1, \"hash_ids\": [1, 2]}",
            "line 1, column 59: `hash_ids` has 2 ids, but 512 tokens are at most 1 blocks",
        ),
        (
            Format::Mooncake,
            "{\"timestamp\": 1, \"input_length\": 99999999, \"output_length\": 1}",
            "line 1, column 18: `input_length` is 99999999",
        ),
        (
            Format::Bailian,
            "{\"chat_id\": 1, \"timestamp\": 1e10, \"input_length\": 1, \"output_length\": 1, \"hash_ids\": []}",
            "line 1, column 16: `timestamp` is 10000000000, not from 0 to 10000000000 seconds",
        ),
        (
            Format::Bailian,
            "{\"chat_id\": -1, \"timestamp\": 1}",
            "line 1, column 14: invalid value: integer `-1`",
        ),
    ] {
        let error = read(format, text).pop().expect("a fault").expect_err("a fault").to_string();
        assert!(error.starts_with(says), "{error}");
    }
    let mut long = AZURE.to_owned();
    long.push_str(&"9".repeat(5 << 20));
    let error = read(Format::Azure, &long).pop().unwrap().unwrap_err().to_string();
    assert!(error.contains("line 6, column 1: the line is longer than 4 MiB"), "{error}");
    assert!(matches!(read(Format::Azure, "\u{feff}").pop(), None | Some(Err(_))));
}

#[test]
fn error_in_the_middle_fails_the_replay() {
    let broken = AZURE.replace(",879,", ",many,");
    let trace = Format::Azure.read(BufReader::new(broken.as_bytes()));
    let outcome = replay(&settings(1.0, 1), Policies::builtin(), trace, u64::MAX, |_| {});
    assert!(outcome.unwrap_err().to_string().contains("ContextTokens is `many`"));
}

#[test]
fn only_blocks_with_equal_ids_are_shared() {
    let recorded: Vec<Recorded> = read(Format::Mooncake, MOONCAKE).into_iter().map(Result::unwrap).collect();
    let outcome = play(recorded, 1.0);
    // The second shares two blocks of 512 with the first, the third shares one, the fourth none.
    assert_eq!((outcome.cache.events[1], outcome.cache.events[2]), (2, 2), "{:?}", outcome.cache);
    assert_eq!(outcome.cache.mean_cached, Some((1_024.0 + 512.0) / 2.0));
    assert_eq!((outcome.finished, outcome.requests), (4, 4));
}

#[test]
fn chats_of_bailian_are_sessions_and_blocks_count_with_all_before_them() {
    let rows: Vec<Recorded> = read(Format::Bailian, BAILIAN).into_iter().map(Result::unwrap).collect();
    assert!(rows.iter().all(|row| row.tenant == 0), "types share text, and tenants don't");
    let sessions: Vec<u64> = rows.iter().map(|row| row.session).collect();
    assert_eq!(
        sessions[2..4],
        [sessions[0]; 2],
        "whatever a request's parent is, its session is the first one's"
    );
    let [first, second, third] = [0, 1, 4].map(|row| sessions[row]);
    assert!(!sessions.contains(&0) && first != second && second != third && third != first, "{sessions:?}");
    let continued: Vec<u32> = rows.iter().map(|row| row.continued).collect();
    assert_eq!(continued, [0, 0, 4 * 16, 7 * 16, 0], "what a chat's prompt has of the one before");
    // 70 tokens fill four blocks, and the last id is of the rest.
    let blocks = |row: usize| &rows[row].text.blocks;
    assert_eq!((blocks(0).len(), rows[0].text.whole != 0), (4, true));
    assert_eq!(blocks(2)[..4], blocks(0)[..]);
    assert!(blocks(1)[1..].iter().all(|id| !blocks(0).contains(id)), "the same text after another");
    let outcome = play(rows, 1.0);
    // The second turn finds four blocks of the first, the third seven of the second; the others find none.
    assert_eq!(outcome.cache.events[0], 2, "{:?}", outcome.cache);
    assert_eq!(outcome.cache.mean_cached, Some((4.0 + 7.0) * 16.0 / 2.0));
    assert_eq!((outcome.finished, outcome.requests), (5, 5));
}

/// Two turns of a conversation: the second sends the first, its output, and 200 new tokens.
fn conversation(at_us: u64, think_us: u64) -> Vec<Recorded> {
    let first = Recorded {
        id: 1,
        at_us,
        session: 9,
        prompt_tokens: 100,
        output_tokens: 60,
        max_tokens: 60,
        followed: true,
        text: Text { block_tokens: 16, blocks: (1..=6).collect(), whole: 99, shares: None },
        ..Recorded::default()
    };
    let second = Recorded {
        id: 2,
        at_us: at_us + 5_000_000,
        prompt_tokens: 360,
        text: Text {
            block_tokens: 16,
            blocks: (1..=22).map(|name| if name <= 6 { name } else { name + 100 }).collect(),
            whole: 98,
            shares: Some(Shares { id: 1, tokens: 160 }),
        },
        after: Some(After { id: 1, think_us }),
        ..first.clone()
    };
    vec![first, second]
}

#[test]
fn next_turn_waits_for_the_previous_output_and_hits_it() {
    let outcome = play(conversation(0, 1_000_000), 1.0);
    assert_eq!(outcome.cache.events[0], 1, "{:?}", outcome.cache);
    // Of 160 tokens the last was sampled but never computed, so nine full blocks of 16 are cached.
    assert_eq!(outcome.cache.mean_cached, Some(144.0));
    // The second turn comes a second after the first one's end, not after the recorded five seconds.
    assert!((1.0..2.5).contains(&outcome.seconds), "{}", outcome.seconds);
}

#[test]
fn goodput_of_a_closed_loop_is_the_rate_at_which_it_was_served() {
    // Two clients, each of which sends its next request when the last one ends.
    let client = |id: u64| Recorded {
        id,
        at_us: id * 1_000,
        prompt_tokens: 100,
        output_tokens: 60,
        max_tokens: 60,
        after: id.checked_sub(2).filter(|&id| id > 0).map(|id| After { id, think_us: 0 }),
        followed: true,
        ..Recorded::default()
    };
    for requests in [3, 20] {
        let outcome = play((1..=requests).map(client).collect(), 1.0);
        assert_eq!(outcome.targets.met, requests, "{outcome:?}");
        let served = outcome.targets.met as f64 / outcome.seconds;
        assert!((outcome.goodput_per_second / served - 1.0).abs() < 0.01, "{outcome:?}");
    }
}

#[test]
fn vector_of_a_prompt_that_fills_the_context_is_computed() {
    let full = |id, embeds| Recorded {
        id,
        at_us: id,
        prompt_tokens: 8_192,
        output_tokens: 1,
        max_tokens: 1,
        embeds,
        ..Recorded::default()
    };
    let outcome = play(vec![full(1, true), full(2, false), full(3, true)], 1.0);
    assert_eq!((outcome.finished, outcome.refused), (2, 1), "one has no room for its token");
    assert!(outcome.ttft_ms.mean > 0.0, "a vector comes as a first token does: {outcome:?}");
    assert!(outcome.output_per_second < 1e-9, "{outcome:?}");
}

#[test]
fn load_scales_the_speed_of_a_trace() {
    let far: Vec<Recorded> = read(Format::BurstGpt, BURSTGPT).into_iter().map(Result::unwrap).collect();
    let (slow, fast) = (play(far.clone(), 1.0), play(far, 10.0));
    assert!((slow.seconds / fast.seconds - 10.0).abs() < 2.0, "{} {}", slow.seconds, fast.seconds);
}

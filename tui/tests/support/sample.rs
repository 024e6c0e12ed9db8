//! Made-up contents of an admin plane: a host under load that changes from tick to tick, the same in
//! every run. The numbers sum up as a real host's do.

use infer_api::admin::{
    AvailablePolicy, Blocks, Counters, FaultInfo, HistoryEntry, HostInfo, Latencies, Memory, Policies,
    PolicySlot, Pressure, Queue, Rates, RequestRow, State,
};

/// Blocks of the pool.
pub const TOTAL_BLOCKS: u32 = 1_024;

/// A wave between 0 and 1.
fn wave(tick: u64, period: f64) -> f64 {
    ((tick as f64 / period).sin() + 1.0) / 2.0
}

/// Two decimals, so that a number is the same after its way through JSON.
fn tidy(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// The host at a tick.
pub fn state(tick: u64) -> State {
    let running = 9 + (wave(tick, 7.0) * 7.0) as u32;
    let waiting = (wave(tick, 13.0) * 12.0) as u32;
    let requests = requests(tick, running, waiting);
    let used = 300 + (wave(tick, 11.0) * 400.0) as u32;
    let cached = 150 + (wave(tick, 17.0) * 100.0) as u32;
    let queue = Queue { waiting, held: 1, running, preempted: 1 };
    State {
        host: HostInfo {
            version: "0.1.0".into(),
            model: "demo".into(),
            dtype: "bf16".into(),
            device: "cpu".into(),
            kv_cache: "paged".into(),
            data_plane: "http://127.0.0.1:8000".into(),
        },
        uptime_ms: 192_000 + tick * 100,
        draining: false,
        step: 12_345 + tick * 4,
        memory: Memory {
            block_size: 16,
            total: TOTAL_BLOCKS,
            free: TOTAL_BLOCKS - used - cached,
            cached,
            used,
            block_bytes: 49_152,
        },
        queue,
        rates: Rates {
            prompt_tokens: tidy(900.0 + wave(tick, 5.0) * 800.0),
            generated_tokens: tidy(250.0 + wave(tick, 9.0) * 200.0 + wave(tick, 2.0) * 40.0),
            requests: 2.25,
            steps: 41.5,
        },
        latencies: Latencies {
            ttft_p50_ms: tidy(60.0 + wave(tick, 8.0) * 40.0),
            ttft_p99_ms: tidy(320.0 + wave(tick, 6.0) * 200.0),
            itl_p50_ms: tidy(21.0 + wave(tick, 4.0) * 6.0),
            itl_p99_ms: tidy(48.0 + wave(tick, 10.0) * 30.0),
            e2e_p50_ms: 2_810.0,
            e2e_p99_ms: 6_020.0,
            queue_p50_ms: 4.0,
            queue_p99_ms: 180.0,
            step_p50_ms: 22.5,
            step_p99_ms: 61.0,
        },
        pressure: Pressure {
            level: tidy(f64::from(used) / f64::from(TOTAL_BLOCKS)),
            backpressure: used > 650,
            reserved_blocks: 102,
            available_blocks: TOTAL_BLOCKS - used - 102,
            allocated_blocks: used,
            max_sequence_tokens: 4_096,
            active_sequences: running,
            max_sequences: 100,
        },
        counters: Counters {
            submitted: 1_204,
            refused: [("queue_full".to_owned(), 3), ("too_long".to_owned(), 1)].into(),
            finished: [("eos".to_owned(), 800), ("length".to_owned(), 380)].into(),
            failed: 0,
            preemptions: 5,
            ..Counters::default()
        },
        cache_events: [("MISS_FULL".to_owned(), 700), ("CROSS_REQUEST_HIT".to_owned(), 480)].into(),
        policies: slots(),
        requests_total: requests.len() as u32,
        requests,
    }
}

fn requests(tick: u64, running: u32, waiting: u32) -> Vec<RequestRow> {
    let row = |index: u32, state: &str| {
        let prompt_tokens = 32 + index * 97 % 900;
        let decoding = state == "decode";
        RequestRow {
            id: 1_180 + u64::from(index),
            request_id: format!("req-{index:04}"),
            session: if index.is_multiple_of(3) { format!("chat-{index}") } else { String::new() },
            user: "ada".into(),
            metadata: [("app".to_owned(), "docs".to_owned())].into(),
            state: state.to_owned(),
            prompt_tokens,
            cached_tokens: prompt_tokens / 32 * 16 * (index % 2),
            computed_tokens: if decoding { prompt_tokens } else { prompt_tokens / 3 },
            generated_tokens: if decoding { (index * 23 + tick as u32 * 2) % 200 } else { 0 },
            max_tokens: 200,
            blocks: if state == "waiting" || state == "held" { 0 } else { prompt_tokens / 16 + 4 },
            preemptions: u32::from(state == "preempted"),
            age_ms: u64::from(running + waiting + 2 - index) * 731,
            queue_ms: 12,
            ttft_ms: decoding.then_some(64 + u64::from(index) * 3),
            ..RequestRow::default()
        }
    };
    let state_of = |index: u32| match index {
        index if index < running.saturating_sub(2) => "decode",
        index if index < running => "prefill",
        index if index == running => "preempted",
        index if index == running + 1 => "held",
        _ => "waiting",
    };
    (0..running + waiting + 2).map(|index| row(index, state_of(index))).collect()
}

fn slots() -> Vec<PolicySlot> {
    let fault = FaultInfo {
        policy: "greedy-cache".into(),
        sha256: "77".repeat(32),
        reason: "deadline".into(),
        message: "victims ran for more than 20 ms".into(),
        step: 11_020,
        at_ms: 150_000,
        removed: true,
        ..FaultInfo::default()
    };
    let slot = |kind: &str, name: &str, description: &str, calls, p50_us| PolicySlot {
        kind: kind.into(),
        name: name.into(),
        version: "0.1.0".into(),
        description: description.into(),
        sha256: "3f9a0c51d2".repeat(7)[..64].into(),
        state: "live".into(),
        calls,
        p50_us,
        p99_us: tidy(p50_us * 2.5),
        since_ms: 61_000,
        ..PolicySlot::default()
    };
    vec![
        PolicySlot {
            previous: Some("static-batch".into()),
            ..slot("scheduler", "continuous", "Admits and retires sequences at every step.", 12_345, 8.4)
        },
        PolicySlot {
            config: serde_json::json!({"reserve": 0.1, "max_in_flight": 100}),
            ..slot("admission", "memory-aware", "Admits what fits the memory.", 1_204, 3.1)
        },
        PolicySlot {
            state: "fallback".into(),
            sha256: String::new(),
            faults: 3,
            fallbacks: 120,
            last_fault: Some(fault),
            ..slot("prefix-cache", "built-in", "Oldest leaves go first.", 9_870, 1.2)
        },
    ]
}

/// What could be swapped in.
pub fn policies() -> Policies {
    let policy = |kind: &str, name: &str, description: &str| AvailablePolicy {
        kind: kind.into(),
        name: name.into(),
        version: "0.1.0".into(),
        description: description.into(),
        ..AvailablePolicy::default()
    };
    Policies {
        slots: slots(),
        available: vec![
            policy("scheduler", "continuous", "Admits and retires sequences at every step."),
            policy("scheduler", "static-batch", "Fills a batch, waits at most 50 ms, runs it to its end."),
            policy("scheduler", "broken", "Fails its self-test."),
            policy("admission", "memory-aware", "Admits what fits the memory."),
            policy("prefix-cache", "lru", "Least recently used leaves go first."),
        ],
        ..Policies::default()
    }
}

/// History of a slot.
pub fn history() -> Vec<HistoryEntry> {
    let entry = |at_ms, step, from: &str, to: &str, reason: &str| HistoryEntry {
        at_ms,
        step,
        from: from.into(),
        to: to.into(),
        sha256: "3f9a0c51d2".into(),
        reason: reason.into(),
        ..HistoryEntry::default()
    };
    vec![
        entry(0, 0, "", "continuous", "start"),
        entry(90_000, 8_100, "continuous", "static-batch", "swap"),
        entry(131_000, 11_020, "static-batch", "continuous", "trap: unreachable executed"),
    ]
}

/// The block map: runs of each state.
pub fn blocks() -> Blocks {
    let states: String = (0..TOTAL_BLOCKS)
        .map(|block| match block % 97 {
            0..=50 if block < 700 => 'u',
            51..=60 if block < 700 => 's',
            61..=96 if block < 820 => 'c',
            _ => 'f',
        })
        .collect();
    let column = |of: fn(u32) -> u32| (0..TOTAL_BLOCKS).map(of).collect::<Vec<u32>>();
    Blocks {
        block_size: 16,
        references: states.chars().map(|c| if c == 's' { 3 } else { u32::from(c == 'u') }).collect(),
        owners: states.chars().map(|c| if c == 'u' || c == 's' { 1_183 } else { 0 }).collect(),
        depths: column(|block| block % 40),
        tenants: column(|_| 0),
        ages_ms: (0..TOTAL_BLOCKS).map(|block| u64::from(block) * 37).collect(),
        states,
    }
}

/// A frame of the event stream.
pub fn frame(name: &str, data: &impl serde::Serialize) -> String {
    let data = serde_json::to_string(data).expect("wire types are JSON");
    format!("event: {name}\ndata: {data}\n\n")
}

/// What happens before the first snapshot.
pub fn event(index: u64) -> String {
    match index {
        0 => frame("fault", &slots()[2].last_fault),
        1 => frame(
            "refusal",
            &serde_json::json!({
                "request_id": "req-9999", "reason": "queue_full",
                "message": "1,000 requests wait already; retry in 2 s",
            }),
        ),
        _ => frame("preemption", &serde_json::json!({"id": 1_187})),
    }
}

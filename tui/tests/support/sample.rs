//! Made-up contents of an admin plane: a host under load that changes from tick to tick, the same in every
//! run. The numbers add up as a real host's do.

use infer_api::admin::{
    AvailablePolicy, BlockCounts, BlockInfo, BlockMap, CacheReport, CallCost, CanaryInfo, Counters,
    DivergenceInfo, FaultInfo, GaugeInfo, HistoryEntry, HostInfo, Latencies, Memory, Policies, PolicySlot,
    PrefixInfo, Pressure, QuarantineEntry, Queue, Rates, RequestDetail, RequestRow, SessionInfo, ShadowInfo,
    State, TableBlock, TenantRow, WindowInfo,
};

/// Blocks of the pool.
pub const TOTAL_BLOCKS: u32 = 1_024;

/// A wave between 0 and 1.
fn wave(tick: u64, period: f64) -> f64 {
    ((tick as f64 / period).sin() + 1.0) / 2.0
}

/// Rounds to two decimals, so that JSON round-trips the number exactly.
fn tidy(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// Returns the host's state at a tick.
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
            run: "5eed".into(),
            started_unix_s: 1_700_000_000,
            model: "demo".into(),
            dtype: "bf16".into(),
            device: "cpu".into(),
            kv_cache: "paged".into(),
            data_plane: "http://127.0.0.1:8000".into(),
            policy_interface: "infer:policy@0.1.0".into(),
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
        offload: None,
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
            prefix_queries: 412_000 + tick * 900,
            prefix_hits: 198_400 + tick * 520,
            evicted_blocks: 3_017 + tick * 3,
            ..Counters::default()
        },
        cache_events: [
            ("MISS_FULL".to_owned(), 300),
            ("CROSS_REQUEST_HIT".to_owned(), 480),
            ("CONVERSATIONAL_HIT".to_owned(), 250),
            ("FULL_HIT_NO_PREFILL_NEEDED".to_owned(), 130),
            ("CONVERSATIONAL_MISS_UNEXPECTED_PROMPT".to_owned(), 20),
        ]
        .into(),
        policies: slots(),
        tenants_total: TENANTS.len() as u32,
        tenants: tenants(tick, &requests),
        requests_total: requests.len() as u32,
        requests,
        ..State::default()
    }
}

/// The tenants in the order of their numbers; the last one has no live requests.
pub const TENANTS: [&str; 4] = ["acme", "lab-7", "night.batch", "zeta"];

/// Returns the tenants of some live requests.
fn tenants(tick: u64, requests: &[RequestRow]) -> Vec<TenantRow> {
    let tenant = |id: u32| {
        let in_state = |states: &[&str]| {
            requests.iter().filter(|row| row.tenant == id && states.contains(&row.state.as_str())).count()
                as u32
        };
        let (name, part, is_idle) = (TENANTS[id as usize].into(), f64::from(id), id == 3);
        let measured = |value: f64| if is_idle { 0.0 } else { tidy(value) };
        let tick = if is_idle { 0 } else { tick };
        TenantRow {
            id,
            name,
            weight: [1.0, 2.0, 0.25, 1.0][id as usize],
            running: in_state(&["prefill", "decode"]),
            waiting: in_state(&["preempted", "held", "waiting"]),
            held: in_state(&["held"]),
            requests: [812, 341, 27, 4][id as usize],
            refused: [0, 3, 1, 0][id as usize],
            failed: u64::from(id == 2),
            prompt_tokens: [1_284_031, 402_118, 90_377, 512][id as usize] + tick * 300,
            generated_tokens: [310_442, 99_310, 8_020, 64][id as usize] + tick * 40,
            generated_per_second: measured(210.0 - part * 73.0 + wave(tick, 9.0) * 30.0),
            ttft_p50_ms: measured(58.0 + part * 31.0),
            ttft_p99_ms: measured(290.0 + part * 480.0),
            queue_p50_ms: measured(3.5 + part * 2.0),
            queue_p99_ms: measured(120.0 + part * 390.0),
        }
    };
    (0..TENANTS.len() as u32).map(tenant).collect()
}

/// Returns the state with thousands of requests.
pub fn crowd() -> State {
    let mut state = state(60);
    let row = state.requests.swap_remove(0);
    State { requests: vec![row; 5_000], requests_total: 5_000, ..state }
}

fn requests(tick: u64, running: u32, waiting: u32) -> Vec<RequestRow> {
    let row = |index: u32, state: &str| {
        let prompt_tokens = 32 + index * 97 % 900;
        let decoding = state == "decode";
        RequestRow {
            id: 1_180 + u64::from(index),
            request_id: format!("req-{index:04}"),
            tenant: index % 3,
            tenant_name: TENANTS[index as usize % 3].into(),
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
            started: !matches!(state, "waiting" | "held"),
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
            shadow: Some(shadow()),
            ..slot("scheduler", "continuous", "Admits and retires sequences at every step.", 12_345, 8.4)
        },
        PolicySlot {
            config: serde_json::json!({"max_in_flight": 100}),
            config_schema: admission_schema(),
            state: "canary".into(),
            previous: Some("token-bucket".into()),
            previous_config_sha256: "5d".repeat(32),
            canary: Some(canary()),
            gauges: vec![gauge("memory-aware", "claimed_blocks", 318.0)],
            ..slot("admission", "memory-aware", "Admits what fits the memory.", 1_204, 3.1)
        },
        PolicySlot {
            state: "fallback".into(),
            sha256: String::new(),
            faults: 3,
            fallbacks: 120,
            last_fault: Some(fault),
            ..slot("prefix-cache", "built-in", "Oldest leaves go first.", 0, 0.0)
        },
    ]
}

fn gauge(policy: &str, name: &str, value: f64) -> GaugeInfo {
    GaugeInfo { policy: policy.into(), name: name.into(), value }
}

fn admission_schema() -> serde_json::Value {
    serde_json::json!({
        "type": "object", "additionalProperties": false,
        "properties": {
            "max_in_flight": {
                "type": "integer", "minimum": 1, "default": 100,
                "description": "Sequences that may run at once",
            },
            "reserve": {
                "type": "number", "minimum": 0, "maximum": 0.9, "default": 0.1,
                "description": "Share of the pool held in reserve",
            },
        }
    })
}

fn shadow() -> ShadowInfo {
    let example = |step, kind: &str, live: &str, shadow: &str| DivergenceInfo {
        kind: kind.into(),
        step,
        at_ms: 190_000,
        live: live.into(),
        shadow: shadow.into(),
    };
    ShadowInfo {
        policy: "fair".into(),
        version: "0.1.0".into(),
        sha256: "51".repeat(32),
        state: "watching".into(),
        since_ms: 170_000,
        questions: 1_240,
        agreements: 1_178,
        divergences: [("run".to_owned(), 50), ("tokens".to_owned(), 12)].into(),
        examples: vec![
            example(12_201, "tokens", "sequence 1183 gets 64", "32"),
            example(12_310, "run", "runs 13 sequences", "12, not 1191"),
        ],
        cost: CallCost { calls: 1_240, p50_us: 9.2, p99_us: 24.0 },
        live_cost: CallCost { calls: 12_345, p50_us: 8.4, p99_us: 21.0 },
        gauges: vec![gauge("fair", "largest_gap_tokens", 1_204.0)],
        ..ShadowInfo::default()
    }
}

fn canary() -> CanaryInfo {
    let before = WindowInfo {
        busy_s: 30.0,
        requests_per_second: 2.1,
        tokens_per_second: 402.0,
        itl_p50_ms: 23.1,
        itl_p95_ms: 41.0,
        ttft_p50_ms: 88.0,
        refused: 0.02,
        ..WindowInfo::default()
    };
    CanaryInfo {
        kind: "admission".into(),
        policy: "memory-aware".into(),
        previous: "token-bucket".into(),
        state: "watching".into(),
        reason: "compared with 30.0 s of work before it".into(),
        since_ms: 180_000,
        window_s: 30.0,
        longest_s: 120.0,
        watched_s: 11.5,
        after: WindowInfo { tokens_per_second: 431.0, itl_p50_ms: 22.4, refused: 0.0, ..before },
        before,
        ..CanaryInfo::default()
    }
}

/// The policies that can be swapped in.
pub fn policies() -> Policies {
    let policy = |kind: &str, name: &str, description: &str| AvailablePolicy {
        kind: kind.into(),
        name: name.into(),
        version: "0.1.0".into(),
        description: description.into(),
        sha256: match name {
            "broken" => "bb".repeat(32),
            "continuous" => "3f9a0c51d2".repeat(7)[..64].into(),
            _ => format!("{:064x}", name.len()),
        },
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
        quarantine: vec![QuarantineEntry {
            sha256: "bb".repeat(32),
            config: serde_json::json!({}),
            name: "broken".into(),
            kind: "scheduler".into(),
            reason: "trap: unreachable executed".into(),
            at_ms: 131_000,
            at_utc: "2026-03-01T12:02:11Z".into(),
        }],
        ..Policies::default()
    }
}

/// History of a slot.
pub fn history() -> Vec<HistoryEntry> {
    let entry = |at_ms, at_utc: &str, step, from: &str, to: &str, reason: &str| HistoryEntry {
        at_ms,
        at_utc: at_utc.into(),
        step,
        from: from.into(),
        to: to.into(),
        sha256: "3f9a0c51d2".into(),
        reason: reason.into(),
        ..HistoryEntry::default()
    };
    vec![
        entry(0, "2026-03-01T12:00:00Z", 0, "", "continuous", "start"),
        HistoryEntry {
            config_sha256: "5d".repeat(32),
            ..entry(90_000, "2026-03-01T12:01:30Z", 8_100, "continuous", "static-batch", "swap")
        },
        entry(
            131_000,
            "2026-03-01T12:02:11Z",
            11_020,
            "static-batch",
            "continuous",
            "trap: unreachable executed",
        ),
    ]
}

/// The block map: runs of each state.
pub fn map() -> BlockMap {
    let states: String = (0..TOTAL_BLOCKS)
        .map(|block| match block % 97 {
            0..=50 if block < 700 => 'u',
            51..=60 if block < 700 => 's',
            61..=70 if block < 820 => 'k',
            71..=96 if block < 820 => 'c',
            _ => 'f',
        })
        .collect();
    let of = |letter: char| states.chars().filter(|&c| c == letter).count() as u32;
    BlockMap {
        block_size: 16,
        from: 0,
        total: TOTAL_BLOCKS,
        per_cell: 1,
        counts: BlockCounts { free: of('f'), cached: of('c'), kept: of('k'), used: of('u'), shared: of('s') },
        states,
        by: "state".into(),
        values: Vec::new(),
    }
}

/// The block under the cursor at the start.
pub fn block() -> BlockInfo {
    BlockInfo {
        id: 0,
        state: "shared".into(),
        references: 3,
        holders: vec![1_183, 1_184, 1_186],
        kept_prompts: 1,
        depth: 4,
        parent: Some(17),
        hash: Some("8c0ffee4d15ea5e5".into()),
        tenant: 0,
        age_ms: 21,
        expires_ms: None,
        uses: 1_204,
        text: Some("You are a patient teacher of distributed systems. Answer in".into()),
    }
}

/// The prefix cache.
pub fn cache() -> CacheReport {
    let prefix = |block: u32| PrefixInfo {
        block,
        hash: format!("{:016x}", u64::from(block + 3) * 0x1f35_79b9_7f4a),
        tenant: block % 2,
        blocks: 180 / (block + 1),
        used: 40 / (block + 1),
        shared_tokens: 64 * (1 + block % 3),
        references: 9 / (block + 1),
        uses: 1_204 / (block + 1),
        age_ms: u64::from(block) * 1_700 + 12,
        text: (block == 1).then(|| "You are a patient teacher\nof distributed systems.".to_owned()),
    };
    let session = |index: u32| SessionInfo {
        session: if index < 2 { format!("chat-{index}") } else { format!("{:016x}", index * 77) },
        tenant: 0,
        blocks: 60 / (index + 1),
        used: 12 / (index + 1),
        age_ms: u64::from(index) * 900 + 40,
    };
    CacheReport {
        enabled: true,
        blocks: 422,
        prefixes_total: 31,
        prefixes: (0..9).map(prefix).collect(),
        sessions_remembered: 77,
        sessions_total: 12,
        sessions: (0..6).map(session).collect(),
        kept_prompts: 38,
        kept_prompts_limit: 100,
    }
}

/// Details of the first request.
pub fn request(tick: u64) -> RequestDetail {
    let row = state(tick).requests.swap_remove(0);
    let place = |at: u32| TableBlock {
        block: 40 + at * 7 % 900,
        references: 1 + u32::from(at < 3) * 2,
        indexed: at < 6,
    };
    RequestDetail {
        table: (0..row.blocks).map(place).collect(),
        max_blocks: row.blocks + 9,
        expected_tokens: 140,
        reusable_tokens: row.cached_tokens,
        deadline_ms: Some(500),
        overtaken: true,
        row,
        ..RequestDetail::default()
    }
}

/// A frame of the event stream.
pub fn frame(name: &str, data: &impl serde::Serialize) -> String {
    let data = serde_json::to_string(data).expect("wire types are JSON");
    format!("event: {name}\ndata: {data}\n\n")
}

/// The events before the first snapshot.
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

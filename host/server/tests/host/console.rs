//! What the console is fed: changes that add up to the state, the block map, one block, one request, the
//! cache.

use std::time::Instant;

use crate::common::{self, Host, config};
use futures_util::StreamExt;
use infer_api::admin::{AdminEvent, BlockInfo, BlockMap, CacheReport, RequestDetail, State};
use infer_server::config::{Config, MaxSeqLen, PolicyChoice};
use serde_json::{Value, json};

/// An open event stream, frame by frame.
struct Feed {
    body: std::pin::Pin<Box<dyn futures_util::Stream<Item = Vec<u8>> + Send>>,
    text: String,
}

impl Feed {
    async fn open(host: &Host, query: &str) -> Self {
        let path = format!("/admin/events?{query}");
        let answer = host.admin(reqwest::Method::GET, &path).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let body = answer.bytes_stream().map(|chunk| chunk.expect("readable").to_vec());
        Self { body: Box::pin(body), text: String::new() }
    }

    async fn next(&mut self) -> AdminEvent {
        loop {
            if let Some(at) = self.text.find("\n\n") {
                let frame: String = self.text.drain(..at + 2).collect();
                let name = frame.lines().find_map(|line| line.strip_prefix("event: ")).unwrap();
                let data = frame.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
                let data: Value = serde_json::from_str(data).unwrap();
                return serde_json::from_value(json!({"event": name, "data": data})).unwrap();
            }
            let chunk = self.body.next().await.expect("the feed goes on");
            self.text += std::str::from_utf8(&chunk).unwrap();
        }
    }
}

/// What can be compared of a state: nothing that depends on when it was asked for.
fn lasting(state: &State) -> Value {
    let rows: Vec<Value> = state
        .requests
        .iter()
        .map(|row| {
            json!([
                row.id,
                row.request_id,
                row.session,
                row.state,
                row.generated_tokens,
                row.blocks,
                row.ttft_ms
            ])
        })
        .collect();
    let slots: Vec<Value> =
        state.policies.iter().map(|slot| json!([slot.name, slot.config, slot.config_schema])).collect();
    json!([state.memory, state.queue, state.counters, state.requests_total, rows, slots])
}

fn long(index: usize) -> Value {
    json!({"prompt": format!("Request {index} asks what a scheduler does."), "max_tokens": 400, "ignore_eos": true,
           "session_id": format!("chat-{}", index % 3)})
}

#[tokio::test]
async fn changes_add_up_to_the_state_and_are_small_where_little_moves() {
    let host = Host::start(Config { max_batch_size: 2, ..config() }).await;
    let mut feed = Feed::open(&host, "hz=20&changes=true").await;
    let AdminEvent::Snapshot(state) = feed.next().await else { panic!("a whole snapshot first") };
    let mut state = *state;
    let engine = host.server.engine().clone();
    engine.hold_steps();
    let mut streams = Vec::new();
    for index in 0..12 {
        streams.push(host.complete(long(index)).await);
    }
    while state.requests.len() < 12 {
        if let AdminEvent::Change(change) = feed.next().await {
            change.apply(&mut state).expect("it fits what was sent before");
        }
    }
    // Halfway through the second two everything stands still, so that two looks at it can be compared.
    engine.allow_steps(600);
    host.until("two run and two ended", |s| {
        s["queue"]["running"] == 2 && s["counters"]["finished"]["length"].as_u64() >= Some(2)
    })
    .await;
    engine.hold_steps();
    let whole = loop {
        let before: State = serde_json::from_value(host.admin_get("/admin/state").await).unwrap();
        let after: State = serde_json::from_value(host.admin_get("/admin/state").await).unwrap();
        if lasting(&before) == lasting(&after) {
            break after;
        }
    };
    let (begun, mut silent, mut moved) = (Instant::now(), 0, 0);
    while silent < 3 {
        assert!(begun.elapsed() < common::LONG, "{:#} is never {:#}", lasting(&state), lasting(&whole));
        let AdminEvent::Change(change) = feed.next().await else { continue };
        moved += change.rows.moved.len();
        let nothing = change.rows == infer_api::admin::RowsChange::default();
        assert!(change.state.requests.is_empty(), "rows come as changes");
        change.apply(&mut state).expect("it fits what was sent before");
        // Those that were sent before everything stood still may be empty, too.
        silent = if nothing && lasting(&state) == lasting(&whole) { silent + 1 } else { 0 };
    }
    assert!(moved > 0, "running requests move");
    assert_eq!(state.requests.len() as u64, 12 - state.counters.finished["length"]);
    let waiting = state.requests.last().unwrap();
    assert!(!waiting.started && waiting.queue_ms == waiting.age_ms && waiting.age_ms > 0, "{waiting:?}");
    engine.release_steps();
    for stream in streams {
        stream.text().await.unwrap();
    }
    host.until("idle", |s| s["requests_total"] == 0).await;
    while !state.requests.is_empty() {
        if let AdminEvent::Change(change) = feed.next().await {
            change.apply(&mut state).unwrap();
        }
    }
}

#[tokio::test]
async fn a_swap_reaches_a_console_that_follows_with_its_schema() {
    let host = Host::start(config()).await;
    let mut feed = Feed::open(&host, "hz=20&changes=true").await;
    let AdminEvent::Snapshot(state) = feed.next().await else { panic!("a whole snapshot first") };
    let mut state = *state;
    let swap = json!({"name": "static-batch", "config": {"batch_size": 3}});
    let answer =
        host.admin(reqwest::Method::PUT, "/admin/policies/scheduler").json(&swap).send().await.unwrap();
    assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
    while state.policies[0].name != "static-batch" {
        if let AdminEvent::Change(change) = feed.next().await {
            change.apply(&mut state).unwrap();
        }
    }
    let whole = host.admin_get("/admin/state").await;
    for _ in 0..2 {
        assert_eq!(state.policies[0].config_schema, whole["policies"][0]["config_schema"]);
        assert_eq!(state.policies[0].config["batch_size"], 3);
        let AdminEvent::Change(change) = feed.next().await else { continue };
        change.apply(&mut state).unwrap();
    }
}

#[tokio::test]
async fn refusals_come_with_the_next_change_and_a_flood_is_counted() {
    let host = Host::start(Config { max_waiting_requests: 1, ..config() }).await;
    let engine = host.server.engine().clone();
    engine.hold_steps();
    let first = host.complete(long(0)).await;
    let mut feed = Feed::open(&host, "hz=2&changes=true").await;
    let AdminEvent::Snapshot(_) = feed.next().await else { panic!("a whole snapshot first") };
    for _ in 0..50 {
        assert_eq!(host.complete(long(1)).await.status(), 503);
    }
    let (mut told, mut left_out) = (0, 0);
    while told + left_out < 50 {
        if let AdminEvent::Change(change) = feed.next().await {
            assert!(change.events.iter().all(|event| matches!(event, AdminEvent::Refusal { .. })));
            told += change.events.len() as u64;
            left_out += change.events_left_out;
        }
    }
    assert_eq!(told + left_out, 50);
    engine.release_steps();
    drop(first);
}

async fn get<T: serde::de::DeserializeOwned>(host: &Host, path: &str) -> T {
    serde_json::from_value(host.admin_get(path).await).unwrap()
}

async fn refusal(host: &Host, path: &str) -> (u16, String) {
    let answer = host.admin(reqwest::Method::GET, path).send().await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

#[tokio::test]
async fn the_map_sums_to_the_pool_at_every_scale() {
    let host = Host::start(config()).await;
    for index in 0..3 {
        host.events(long(index)).await;
    }
    let engine = host.server.engine().clone();
    engine.hold_steps();
    let state: State = get(&host, "/admin/state").await;
    for cells in [1, 7, 1_000, 65_536] {
        let map: BlockMap = get(&host, &format!("/admin/blocks/map?cells={cells}")).await;
        let c = map.counts;
        assert_eq!(map.total, state.memory.total);
        assert_eq!(
            (c.free, c.cached + c.kept, c.used + c.shared),
            (state.memory.free, state.memory.cached, 0)
        );
        assert_eq!(map.states.len() as u32, map.total.div_ceil(map.per_cell));
        assert!(map.states.len() <= cells);
    }
    let map: BlockMap = get(&host, "/admin/blocks/map?cells=65536&by=age").await;
    assert_eq!(map.values.len(), map.states.len());
    let cached = map.states.find(['c', 'k']).expect("prompts leave blocks") as u32;
    let part: BlockMap = get(&host, &format!("/admin/blocks/map?from={cached}&count=1")).await;
    assert_eq!((part.from, part.total, part.counts.cached + part.counts.kept), (cached, 1, 1));
    let block: BlockInfo = get(&host, &format!("/admin/blocks/{cached}")).await;
    assert!(block.hash.is_some() && block.holders.is_empty() && block.text.is_none(), "{block:?}");
    for (path, status, words) in [
        ("/admin/blocks/map?cells=0", 422, "from 1 to 65536"),
        ("/admin/blocks/map?by=mood", 422, "not one of state"),
        ("/admin/blocks/99999999", 404, "the pool has blocks 0 to"),
        ("/admin/blocks/first", 404, "no block `first`"),
        ("/admin/cache?top=9999", 422, "from 1 to 200"),
        ("/admin/requests/77", 404, "no live request `77`; `infer admin requests` lists"),
        ("/admin/events?changes=maybe", 422, "neither true nor false"),
    ] {
        let (found, text) = refusal(&host, path).await;
        assert!(found == status && text.contains(words), "{path}: {found} {text}");
    }
    engine.release_steps();
}

#[tokio::test]
async fn the_cache_names_what_is_found_again_and_for_whom() {
    let host = Host::start(Config { show_text: true, ..config() }).await;
    let shared = "A prefix cache keeps the keys and values of prompts that were computed before, so that \
                  the next prompt with the same beginning finds them. ";
    for question in ["Why?", "How?", "When?"] {
        let prompt = format!("{shared}{question}");
        host.events(json!({"prompt": prompt, "session_id": "alice", "max_tokens": 4})).await;
    }
    let engine = host.server.engine().clone();
    engine.allow_steps(20);
    let stream = host
        .complete(json!({"prompt": shared, "max_tokens": 1_500, "ignore_eos": true, "session_id": "bob"}))
        .await;
    let running = host.until("it runs", |s| s["requests"][0]["blocks"].as_u64() > Some(0)).await;
    engine.hold_steps();
    let report: CacheReport = get(&host, "/admin/cache").await;
    let top = &report.prefixes[0];
    assert!(report.enabled && top.uses >= 3 && top.references == 1, "{top:?}");
    assert!(top.shared_tokens >= 16 && top.blocks * 16 >= top.shared_tokens, "{top:?}");
    assert!(top.text.as_ref().is_some_and(|text| text.contains("A prefix cache")), "{top:?}");
    assert!(report.sessions.iter().any(|session| session.session == "bob"), "{:?}", report.sessions);
    let id = running["requests"][0]["id"].as_u64().unwrap();
    let detail: RequestDetail = get(&host, &format!("/admin/requests/{id}")).await;
    assert_eq!(detail.row.id, id);
    assert_eq!(detail.table.len() as u32, detail.row.blocks);
    assert!(detail.table[0].indexed && detail.max_blocks >= detail.row.blocks, "{detail:?}");
    assert!(detail.reusable_tokens >= top.shared_tokens, "{detail:?}");
    let block: BlockInfo = get(&host, &format!("/admin/blocks/{}", detail.table[0].block)).await;
    assert!(block.holders == [id] && block.text.is_some(), "{block:?}");
    engine.release_steps();
    drop(stream);
}

#[tokio::test]
async fn a_request_that_gives_its_blocks_back_is_named_as_it_happens() {
    // Each fits; together they grow beyond the pool.
    let host = Host::start(Config {
        kv_memory_bytes: Some(640 << 10),
        max_seq_len: MaxSeqLen::Tokens(400),
        admission: PolicyChoice::named("builtin"),
        ..config()
    })
    .await;
    let mut feed = Feed::open(&host, "hz=20").await;
    let engine = host.server.engine().clone();
    engine.hold_steps();
    let mut streams = Vec::new();
    for index in 0..2 {
        let mut body = long(index);
        body["max_tokens"] = json!(340);
        streams.push(host.complete(body).await);
    }
    let state: State = get(&host, "/admin/state").await;
    let ids: Vec<u64> = state.requests.iter().map(|row| row.id).collect();
    // Enough to fill the pool, and too few to end one.
    engine.allow_steps(330);
    let named = loop {
        match feed.next().await {
            AdminEvent::Preemption { id } => break id,
            AdminEvent::Snapshot(state) => assert_eq!(state.counters.finished["length"], 0),
            other => panic!("{other:?}"),
        }
    };
    assert!(ids.contains(&named), "{named} of {ids:?}");
    engine.release_steps();
    for stream in streams {
        let events = common::events(stream).await;
        assert_eq!(events.last().unwrap().1["usage"]["completion_tokens"], 340);
    }
    host.server.shutdown().await;
}

#[tokio::test]
async fn a_prompt_that_comes_again_needs_no_prefill_where_its_logits_are_kept() {
    for (prompt_cache_entries, again) in [(1, "FULL_HIT_NO_PREFILL_NEEDED"), (0, "CROSS_REQUEST_HIT")] {
        let host = Host::start(Config { prompt_cache_entries, ..config() }).await;
        let prompt: Vec<u32> = (5..55).collect();
        let mut answers = Vec::new();
        for _ in 0..2 {
            let events = host.events(json!({"prompt": prompt, "ignore_eos": true})).await;
            answers.push(common::token_ids(&events));
        }
        assert_eq!(answers[0], answers[1]);
        let state: State = get(&host, "/admin/state").await;
        let seen: Vec<(&str, u64)> =
            state.cache_events.iter().filter(|(_, n)| **n > 0).map(|(name, n)| (name.as_str(), *n)).collect();
        let mut expected = [("MISS_FULL", 1), (again, 1)];
        expected.sort_unstable();
        assert_eq!(seen, expected, "{prompt_cache_entries} entries");
        host.server.shutdown().await;
    }
}

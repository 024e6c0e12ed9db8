//! Clients that leave, are too many or read too slowly, and streams that say nothing for a while.

use std::time::Duration;

use futures_util::future::join_all;
use infer_server::config::{Bounds, Config};
use infer_server::engine::{NewRequest, RequestMeta, StreamEvent};
use serde_json::{Value, json};

use super::endless;
use crate::common::{self, Host, config, events, first_chunk, request, token_ids};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnect_frees_blocks_in_every_request_state() {
    let host = Host::start(Config { max_batch_size: 1, prefix_caching: false, ..config() }).await;
    // A request that streams, and is far from its end.
    host.server.engine().allow_steps(20);
    let stream = first_chunk(host.complete(endless()).await).await;
    // One that waits for its headers (a single body), and one whose headers have been sent.
    let waiting = tokio::spawn({
        let body = request(json!({"stream": false, "max_tokens": 1_500, "ignore_eos": true}));
        let send = host.client.post(host.url("/v1/completions")).json(&body).send();
        async move { drop(send.await) }
    });
    let queued = host.complete(endless()).await;
    let state = host.until("one runs, two wait", |s| s["queue"]["running"] == 1 && waits(s) == 2).await;
    assert!(state["memory"]["used"].as_u64().unwrap() > 0);
    waiting.abort();
    drop(queued);
    host.until("the waiting ones are gone", |s| waits(s) == 0 && s["queue"]["running"] == 1).await;
    drop(stream);
    let state = host.until("nothing runs", |s| s["queue"]["running"] == 0).await;
    assert_eq!(state["memory"]["used"], 0);
    assert_eq!(state["memory"]["free"], state["memory"]["total"]);
    assert_eq!(state["counters"]["finished"]["cancelled"], 3);
    host.server.engine().release_steps();
    assert_eq!(token_ids(&host.events(json!({"ignore_eos": true})).await).len(), 8, "the host keeps serving");
    host.server.shutdown().await;
}

fn waits(state: &Value) -> u64 {
    ["waiting", "held", "preempted"].iter().map(|k| state["queue"][k].as_u64().unwrap()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_queue_rejects_exactly_the_excess_with_503() {
    const WAITING: usize = 12;
    const TOO_MANY: usize = 7;
    let host = Host::start(Config { max_waiting_requests: WAITING as u32, ..config() }).await;
    host.server.engine().hold_steps();
    let all = join_all((0..WAITING + TOO_MANY).map(|_| host.complete(json!({"ignore_eos": true})))).await;
    let (refused, taken): (Vec<_>, Vec<_>) = all.into_iter().partition(|a| a.status() != 200);
    assert_eq!((taken.len(), refused.len()), (WAITING, TOO_MANY));
    for answer in refused {
        assert_eq!(answer.status(), 503);
        assert!(answer.headers().contains_key("retry-after"));
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["code"], "queue_full", "{body}");
    }
    // Disconnects free queue slots.
    let mut taken = taken.into_iter();
    drop(taken.by_ref().take(4).collect::<Vec<_>>());
    host.until("four have left", |s| waits(s) == (WAITING - 4) as u64).await;
    let late = join_all((0..4).map(|_| host.complete(json!({"ignore_eos": true})))).await;
    host.server.engine().release_steps();
    for answer in taken.chain(late) {
        let events = events(answer).await;
        assert_eq!(token_ids(&events).len(), 8);
        assert_eq!(events.last().unwrap().1["finish_reason"], "length");
    }
    let state = host.admin_get("/admin/state").await;
    assert_eq!(state["counters"]["refused"]["queue_full"], TOO_MANY);
    assert_eq!(state["counters"]["submitted"], WAITING + TOO_MANY + 4);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_is_cancelled_and_the_engine_goes_on() {
    const EVENTS: usize = 64;
    // With one token more than fits, the end comes with the token that has no room.
    for tokens in [EVENTS as u32 + 1, 1_000] {
        stall(EVENTS, tokens).await;
    }
}

async fn stall(events: usize, tokens: u32) {
    let bounds = Bounds { stream_events: events, ..common::bounds() };
    let host = Host::start(Config { bounds, ..config() }).await;
    let request = infer_core::Request {
        tenant: infer_core::TenantId(0),
        session: infer_core::SessionId(0),
        cache_salt: 0,
        adapter: infer_core::AdapterId::NONE,
        priority: 0,
        deadline: infer_core::Micros::NEVER,
        prompt: [1, 2, 3].into(),
        max_new_tokens: tokens,
        expected_output: None,
        min_new_tokens: 0,
        stop_tokens: [].into(),
        sampling: infer_core::SamplingParams::default(),
    };
    let new = NewRequest { request, meta: RequestMeta::default() };
    // Never read from.
    let mut stalled = host.server.engine().submit(new).await.unwrap();
    // These can't lag too far, because all their tokens fit.
    let others = host.events(json!({"ignore_eos": true, "max_tokens": events - 1})).await;
    assert_eq!(others.last().unwrap().0, "done");
    let state = host.until("the stalled request is gone", |s| s["queue"]["running"] == 0).await;
    let was_cut = u64::from(tokens as usize > events + 1);
    assert_eq!(state["counters"]["finished"]["cancelled"], was_cut);
    let mut kept = 0;
    let last = loop {
        match stalled.next().await {
            Some(StreamEvent::Started { .. }) => assert_eq!(kept, 0, "it started before its first token"),
            Some(StreamEvent::Token { .. }) => kept += 1,
            last => break last,
        }
    };
    assert_eq!(kept, events, "the events that fitted are still there");
    assert!(last.is_none(), "there is no end event: {last:?}");
    drop(stalled);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_stream_is_kept_alive_by_comments() {
    assert_eq!(Bounds::default().keep_alive, Duration::from_secs(15));
    let bounds = Bounds { keep_alive: Duration::from_millis(50), ..common::bounds() };
    let host = Host::start(Config { bounds, ..config() }).await;
    host.server.engine().hold_steps();
    let answer = host.complete(json!({})).await;
    let mut stream = Box::pin(answer.bytes_stream());
    let first = futures_util::StreamExt::next(&mut stream).await.unwrap().unwrap();
    assert_eq!(&first[..], b": keep-alive\n\n");
    host.server.engine().release_steps();
    drop(stream);
    host.server.shutdown().await;
}

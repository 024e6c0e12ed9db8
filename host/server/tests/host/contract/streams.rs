//! Streams in both dialects, and the times that they tell.

use std::time::Duration;

use infer_server::config::{Config, DialectChoice};
use serde_json::{Value, json};

use crate::common::{Host, config, parse_events, request, text_of, token_ids};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_is_token_events_and_one_done() {
    let host = Host::start(config()).await;
    let events = host.events(json!({"max_tokens": 16})).await;
    let (last, tokens) = events.split_last().unwrap();
    assert!(tokens.iter().all(|(name, _)| name == "token"), "{events:?}");
    assert!(tokens.iter().all(|(_, d)| d["token"].is_string() && d["token_id"].is_u64()));
    assert_eq!(last.0, "done");
    let usage = &last.1["usage"];
    assert_eq!(usage["completion_tokens"], tokens.len());
    let sum = usage["prompt_tokens"].as_u64().unwrap() + tokens.len() as u64;
    assert_eq!(usage["total_tokens"], sum);
    assert!(usage["prompt_tokens_details"]["cached_tokens"].is_u64());
    assert!(["eos", "length"].contains(&last.1["finish_reason"].as_str().unwrap()));
    for key in ["queue_ms", "prefill_ms", "ttft_ms", "decode_ms"] {
        assert!(last.1["timings"][key].is_number(), "{key}: {}", last.1);
    }
    assert!(last.1["timings"]["kv_bytes"].as_u64().unwrap() > 0);

    // The same request as one body.
    let answer = host.complete(json!({"max_tokens": 16, "stream": false})).await;
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "application/json");
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["object"], "text_completion");
    assert_eq!(body["choices"][0]["text"], text_of(&events));
    assert_eq!(body["usage"]["completion_tokens"], tokens.len());
    assert!(["stop", "length"].contains(&body["choices"][0]["finish_reason"].as_str().unwrap()));

    // Without `stream`, a client that lists JSON gets JSON, and one that accepts anything gets a stream.
    for (accept, kind) in [("application/json", "application/json"), ("*/*", "text/event-stream")] {
        let answer = host
            .client
            .post(host.url("/v1/completions"))
            .header("accept", accept)
            .json(&request(json!({})))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.headers()["content-type"], kind, "{accept}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_chooses_the_dialect_unless_the_host_sets_one() {
    const STREAM: &str = "text/event-stream";
    const JSON: &str = "application/json";
    let (none, asked) = (json!({}), json!({"stream": true}));
    let cases = [
        (DialectChoice::Auto, "*/*", &asked, STREAM, "token"),
        (DialectChoice::Auto, JSON, &asked, STREAM, ""),
        (DialectChoice::Named, JSON, &asked, STREAM, "token"),
        (DialectChoice::OpenAi, "*/*", &asked, STREAM, ""),
        // OpenAI's clients stream only on request.
        (DialectChoice::OpenAi, "*/*", &none, JSON, ""),
        (DialectChoice::Named, "*/*", &none, STREAM, "token"),
    ];
    for (sse_dialect, accept, fields, kind, first) in cases {
        let host = Host::start(Config { sse_dialect, ..config() }).await;
        let post = host.client.post(host.url("/v1/completions")).header("accept", accept);
        let answer = post.json(&request(fields.clone())).send().await.unwrap();
        let what = format!("{sse_dialect:?}, {accept}, {fields}");
        assert_eq!(answer.headers()["content-type"], kind, "{what}");
        if kind == STREAM {
            let events = parse_events(&answer.text().await.unwrap());
            assert_eq!(events[0].0, first, "{what}: {events:?}");
        }
        host.server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ttft_is_measured_from_submission() {
    const HELD: Duration = Duration::from_millis(60);
    let host = Host::start(config()).await;
    for cached in [false, true] {
        host.server.engine().hold_steps();
        let answer =
            tokio::spawn(host.client.post(host.url("/v1/completions")).json(&request(json!({}))).send());
        host.until("it waits", |state| state["requests"].as_array().unwrap().len() == 1).await;
        tokio::time::sleep(HELD).await;
        host.server.engine().release_steps();
        let events = parse_events(&answer.await.unwrap().unwrap().text().await.unwrap());
        let timings = &events.last().unwrap().1["timings"];
        let ms = |key: &str| timings[key].as_f64().unwrap();
        assert!(ms("ttft_ms") >= HELD.as_secs_f64() * 1e3, "{timings}");
        assert!(ms("ttft_ms") >= ms("queue_ms") + ms("prefill_ms") - 0.01, "{timings}");
        assert_eq!(timings["prefilled_tokens"] == 0, cached, "the second one needs no prefill: {timings}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openai_stream_is_chunks_and_done() {
    let host = Host::start(config()).await;
    let named = host.events(json!({})).await;
    let answer = host.complete(json!({"stream_options": {"include_usage": true}})).await;
    let chunks = parse_events(&answer.text().await.unwrap());
    assert!(chunks.iter().all(|(name, _)| name.is_empty()), "no named events: {chunks:?}");
    assert_eq!(chunks.last().unwrap().1, Value::String("[DONE]".to_owned()));
    let usage = &chunks[chunks.len() - 2].1;
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], token_ids(&named).len());
    let finish = &chunks[chunks.len() - 3].1["choices"][0]["finish_reason"];
    assert!(["stop", "length"].contains(&finish.as_str().unwrap()));
    let text: String = chunks.iter().filter_map(|(_, c)| c["choices"][0]["text"].as_str()).collect();
    assert_eq!(text, text_of(&named));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_of_a_stream_are_refused_where_there_is_none() {
    let host = Host::start(config()).await;
    let chat = json!({"model": "demo", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1});
    for (path, body, without) in [
        ("/v1/completions", request(json!({"max_tokens": 1})), 200),
        // Chats stream only on request.
        ("/v1/chat/completions", chat, 422),
    ] {
        for (stream, status) in [(Value::Null, without), (json!(false), 422), (json!(true), 200)] {
            let mut body = body.clone();
            body["stream"] = stream.clone();
            body["stream_options"] = json!({"include_usage": true});
            let answer = host.post(path, &body).await;
            assert_eq!(answer.status(), status, "{path}, {stream}");
            assert!(status == 200 || answer.text().await.unwrap().contains("stream_options: only allowed"));
        }
    }
    host.server.shutdown().await;
}

//! The data plane's HTTP contract: statuses, errors, events, bodies.

use crate::common::{Host, config, parse_events, request, text_of, token_ids};
use infer_server::config::{Bounds, Config, DialectChoice};
use reqwest::Response;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

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
async fn every_rejection_has_its_status_and_names_the_field() {
    let host = Host::start(config()).await;
    let cases = [
        (json!({"prompt": ""}), 400, "prompt"),
        (json!({"prompt": []}), 400, "prompt"),
        (json!({"prompt": null}), 400, "prompt"),
        (json!({"prompt": 7}), 400, "prompt"),
        (json!({"model": null}), 400, "model"),
        (json!({"max_tokens": "many"}), 400, "max_tokens"),
        (json!({"model": "other"}), 422, "model"),
        (json!({"temperature": -1.0}), 422, "temperature"),
        (json!({"top_p": 1.5}), 422, "top_p"),
        (json!({"max_tokens": 0}), 422, "max_tokens"),
        (json!({"n": 0}), 422, "n"),
        (json!({"logit_bias": {"999999": 1}}), 422, "logit_bias"),
        (json!({"stop_token_ids": [999_999]}), 422, "stop_token_ids"),
        (json!({"max_token": 5}), 422, "max_token"),
        (json!({"foo": "bar"}), 422, "foo"),
        (json!({"max_tokens": 1_000_000}), 422, "max_tokens"),
        (json!({"prompt": [999_999_999]}), 422, "prompt"),
        (json!({"prompt": [-1]}), 422, "prompt"),
        (json!({"prompt": vec!["x"; 1_025]}), 422, "prompt"),
        (json!({"prompt": vec![[1]; 1_025]}), 422, "prompt"),
    ];
    for (extra, status, param) in cases {
        let answer = host.complete(extra.clone()).await;
        assert_eq!(answer.status(), status, "{extra}");
        assert!(answer.headers().contains_key("x-request-id"), "{extra}");
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["param"], param, "{extra}: {body}");
        assert!(body["error"]["message"].as_str().unwrap().contains(param), "{extra}: {body}");
        assert!(body["error"]["type"].is_string() && body["error"]["code"].is_string(), "{body}");
    }
    for raw in ["", "{", "[]", "{\"model\": \"demo\", \"model\": \"demo\"}", "{\"temperature\": NaN}", "{} x"]
    {
        let answer = host.client.post(host.url("/v1/completions")).body(raw).send().await.unwrap();
        assert_eq!(answer.status(), 400, "{raw}");
    }
    let types = [
        ("text/plain", 415),
        ("application/json; charset=utf-8", 400),
        ("application/x-www-form-urlencoded", 400),
    ];
    for (content_type, status) in types {
        let answer = host
            .client
            .post(host.url("/v1/completions"))
            .header("content-type", content_type)
            .body("{")
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), status, "{content_type}");
    }
    assert_eq!(host.client.get(host.url("/nothing")).send().await.unwrap().status(), 404);
    let wrong_method = host.client.get(host.url("/v1/completions")).send().await.unwrap();
    assert_eq!(
        (wrong_method.status().as_u16(), &wrong_method.headers()["allow"]),
        (405, &"POST".parse().unwrap())
    );
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_of_too_many_values_is_valid_json_and_has_a_code_of_its_own() {
    let host = Host::start(config()).await;
    let body = json!({"model": "demo", "metadata": vec![0; 100_000]});
    for path in [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/messages",
        "/detokenize",
    ] {
        let answer = host.post(path, &body).await;
        assert_eq!(answer.status(), 422, "{path}");
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["type"] == "error", path == "/v1/messages", "Anthropic's form: {body}");
        let error = &body["error"];
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("invalid_request_error"), &json!("too_many_values")),
            "{path}: {error}"
        );
        assert!(error["message"].as_str().unwrap().contains("more than 100000 values"), "{error}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_body_is_a_415_that_asks_for_a_plain_one() {
    let host = Host::start(config()).await;
    let body = request(json!({"stream": false})).to_string();
    for (coding, status) in [("gzip", 415), ("zstd, br", 415), ("identity", 200), ("Identity", 200)] {
        let post = host.client.post(host.url("/v1/completions")).header("content-encoding", coding);
        let answer = post.body(body.clone()).send().await.unwrap();
        assert_eq!(answer.status(), status, "{coding}");
        if status == 415 {
            let error = &answer.json::<Value>().await.unwrap()["error"];
            assert_eq!(error["code"], "unsupported_media_type", "{error}");
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(&format!("content-encoding `{coding}`")), "{message}");
            assert!(message.contains("uncompressed"), "{message}");
        }
    }
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_that_is_taken_for_a_proxy_says_so() {
    let host = Host::start(config()).await;
    let mut stream = tokio::net::TcpStream::connect(host.server.data_addr).await.unwrap();
    stream.write_all(b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("this host is no proxy"), "{answer}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_ids_are_echoed_or_generated() {
    let host = Host::start(config()).await;
    let answer = host.client.get(host.url("/health")).header("x-request-id", "mine-1").send().await.unwrap();
    assert_eq!(answer.headers()["x-request-id"], "mine-1");
    let answer =
        host.client.get(host.url("/health")).header("x-request-id", "has space").send().await.unwrap();
    assert_eq!(answer.headers()["x-request-id"].len(), 16);
    host.server.shutdown().await;
}

/// A request whose body stops just short of two megabytes until the sender is dropped.
async fn stalled(
    host: &Host,
) -> (mpsc::Sender<Result<String, std::io::Error>>, JoinHandle<reqwest::Result<Response>>) {
    let (sender, receiver) = mpsc::channel(1);
    let body = reqwest::Body::wrap_stream(futures_util::stream::unfold(receiver, |mut receiver| async {
        Some((receiver.recv().await?, receiver))
    }));
    let held = tokio::spawn(host.client.post(host.url("/v1/completions")).body(body).send());
    for _ in 0..31 {
        // It may be rejected before it has sent everything.
        let _ = sender.send(Ok(" ".repeat(64 << 10))).await;
    }
    (sender, held)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_bodies_share_a_budget_that_short_ones_bypass() {
    let room =
        infer_server::config::Config { max_body_bytes: 2 << 20, max_body_memory_bytes: 2 << 20, ..config() };
    let host = Host::start(room).await;
    let long = json!({"model": "demo", "prompt": "x".repeat(1 << 20)});
    let full = async || {
        let answer = host.post("/v1/completions", &long).await;
        (answer.status().as_u16(), answer.headers().contains_key("retry-after"), answer.text().await.unwrap())
    };
    // One client sends almost two megabytes and stalls. Until all of it has arrived, a concurrent body may
    // take the budget first; then the stalled one is rejected itself, and another one stalls.
    let mut slow = stalled(&host).await;
    let mut refused = full().await;
    for _ in 0..300 {
        if slow.1.is_finished() {
            slow = stalled(&host).await;
        } else if refused.0 == 503 {
            break;
        }
        refused = full().await;
    }
    let (sender, held) = slow;
    assert_eq!((refused.0, refused.1), (503, true), "{}", refused.2);
    assert!(refused.2.contains("bodies_full") && refused.2.contains("--max-body-memory"), "{}", refused.2);
    let short = json!({"model": "demo", "prompt": "What is a token?", "max_tokens": 2, "stream": false});
    assert_eq!(host.post("/v1/completions", &short).await.status(), 200);

    drop(sender);
    assert_eq!(held.await.unwrap().unwrap().status(), 400, "blanks are not JSON");
    assert_ne!(full().await.0, 503, "its share of the budget is free again");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_body_frees_its_budget_once_it_is_parsed() {
    let room =
        infer_server::config::Config { max_body_bytes: 2 << 20, max_body_memory_bytes: 2 << 20, ..config() };
    let host = Host::start(room).await;
    host.server.engine().hold_steps();
    let short = json!({"model": "demo", "prompt": "What is a token?", "max_tokens": 2, "stream": false});
    let long = format!("{}{short}", " ".repeat(3 << 19));
    let mut answers = Vec::new();
    for waiting in 1..4 {
        let send = host.client.post(host.url("/v1/completions")).body(long.clone()).send();
        answers.push(tokio::spawn(send));
        host.until("it waits", |state| state["queue"]["waiting"] == waiting).await;
    }
    host.server.engine().release_steps();
    for answer in answers {
        assert_eq!(answer.await.unwrap().unwrap().status(), 200);
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_over_the_limit_is_a_readable_413() {
    let host = Host::start(infer_server::config::Config { max_body_bytes: 1_024, ..config() }).await;
    let big = json!({"model": "demo", "prompt": "x".repeat(4 << 20)});
    let answer = host.post("/v1/completions", &big).await;
    assert_eq!(answer.status(), 413);
    assert!(answer.text().await.unwrap().contains("--max-body-bytes"));

    // Without `content-length` the limit is found while reading.
    let chunks = futures_util::stream::iter((0..64).map(|_| Ok::<_, std::io::Error>("x".repeat(1 << 16))));
    let answer = host
        .client
        .post(host.url("/v1/completions"))
        .body(reqwest::Body::wrap_stream(chunks))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 413);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_heads_and_bodies_time_out_with_408() {
    let bounds = Bounds {
        header_timeout: Duration::from_millis(300),
        body_timeout: Duration::from_millis(300),
        ..Bounds::default()
    };
    let host = Host::start(infer_server::config::Config { bounds, ..config() }).await;
    let cases = [
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconte",
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{",
    ];
    for head in cases {
        let (mut stream, mut answer) = host.begin(head).await;
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 408 "), "{head:?}: {answer}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_strings_end_the_text_before_them() {
    let host = Host::start(config()).await;
    let whole = host.events(json!({"max_tokens": 24, "ignore_eos": true})).await;
    let text = text_of(&whole);
    // A stop string from the middle of the output, across token boundaries.
    let middle: Vec<char> = text.chars().skip(text.chars().count() / 3).take(6).collect();
    let stop: String = middle.into_iter().collect();
    let cut = text.find(&stop).expect("taken from the text");
    let stopped = host.events(json!({"max_tokens": 24, "ignore_eos": true, "stop": [stop]})).await;
    assert_eq!(text_of(&stopped), text[..cut]);
    let (_, done) = stopped.last().unwrap();
    assert_eq!(done["finish_reason"], "stop");
    assert_eq!(done["usage"]["completion_tokens"], token_ids(&stopped).len());

    // A stop string that never completes holds back no text in the end.
    let kept = host.events(json!({"max_tokens": 24, "ignore_eos": true, "stop": format!("{text}~")})).await;
    assert_eq!(text_of(&kept), text);
    assert_eq!(token_ids(&kept), token_ids(&whole));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seeds_and_token_prompts_reproduce_a_completion() {
    let host = Host::start(config()).await;
    let draw = |seed: u64| {
        host.events(json!({"temperature": 2.0, "seed": seed, "ignore_eos": true, "max_tokens": 64}))
    };
    let (a, b, c) = (draw(1).await, draw(1).await, draw(2).await);
    assert_eq!(token_ids(&a), token_ids(&b));
    assert_ne!(token_ids(&a), token_ids(&c));

    let tokens: Value =
        host.post("/tokenize", &json!({"prompt": "What is a prefix cache?"})).await.json().await.unwrap();
    let by_text = host.events(json!({})).await;
    let by_ids = host.events(json!({"prompt": tokens["tokens"]})).await;
    assert_eq!(token_ids(&by_text), token_ids(&by_ids));
    let back: Value =
        host.post("/detokenize", &json!({"tokens": token_ids(&by_text)})).await.json().await.unwrap();
    assert!(back["prompt"].as_str().unwrap().contains(text_of(&by_text).trim()), "{back}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn min_tokens_and_ignore_eos_defer_the_end() {
    let host = Host::start(config()).await;
    let events = host.events(json!({"ignore_eos": true, "max_tokens": 200})).await;
    assert_eq!(token_ids(&events).len(), 200);
    assert_eq!(events.last().unwrap().1["finish_reason"], "length");
    let events = host.events(json!({"min_tokens": 150, "max_tokens": 200})).await;
    assert!(token_ids(&events).len() >= 150);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_health_version_and_metrics_are_served() {
    let host = Host::start(config()).await;
    host.events(json!({"ignore_eos": true})).await;
    // It never starts, so its prompt isn't counted.
    host.server.engine().hold_steps();
    let left = host.complete(json!({})).await;
    host.until("it waits", |state| state["requests"].as_array().unwrap().len() == 1).await;
    drop(left);
    host.until("its client is gone", |state| state["requests"] == json!([])).await;
    host.server.engine().release_steps();
    let get = async |path: &str| {
        let answer = host.client.get(host.url(path)).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        answer.text().await.unwrap()
    };
    let models: Value = serde_json::from_str(&get("/v1/models").await).unwrap();
    assert_eq!(models["data"][0]["id"], "demo");
    assert_eq!(models["data"][0]["root"], "demo");
    assert_eq!(models["data"][0].get("parent"), Some(&Value::Null));
    assert!(models["data"][0]["max_model_len"].as_u64().unwrap() >= 512);
    get("/health").await;
    get("/health/ready").await;
    get("/version").await;
    let metrics = get("/metrics").await;
    for line in [
        "infer_ready 1",
        "infer_requests_finished_total{reason=\"length\"}",
        "infer_prefix_cache_events_total{event=\"CONVERSATIONAL_HIT\"} 0",
        "infer_prefix_cache_events_total{event=\"CROSS_REQUEST_HIT\"} 0",
        "infer_prefix_cache_events_total{event=\"MISS_FULL\"} 1",
        "infer_prefix_cache_events_total{event=\"FULL_HIT_NO_PREFILL_NEEDED\"} 0",
        "infer_prefix_cache_events_total{event=\"CONVERSATIONAL_MISS_UNEXPECTED_PROMPT\"} 0",
        "infer_prefix_cache_eligible_requests_total{event=\"MISS_FULL\"} 0",
        "infer_prefix_cache_cached_tokens_total{event=\"MISS_FULL\"} 0",
        "infer_prefix_cache_prefilled_tokens_total{event=\"MISS_FULL\"} 7",
        "infer_prefix_cache_time_to_first_token_seconds_count{prefix=\"none\"} 1",
        "infer_prompt_tokens_total 7",
        "infer_generated_tokens_total 8",
        "infer_requests_submitted_total 2",
        "infer_requests_failed_total 0",
        "infer_requests_running_limit 32",
        "infer_kv_blocks ",
        "infer_kv_blocks_available",
        "infer_max_admissible_tokens",
        "infer_device_faults_total 0",
        "infer_step_seconds_bucket{le=\"+Inf\"} ",
        "infer_policy_call_seconds_count{kind=\"scheduler\",name=\"continuous\"} ",
        "infer_policy_faults_total{kind=\"scheduler\",reason=\"trap\"} 0",
        "infer_policy_changes_total{kind=\"admission\",change=\"swap\"} 0",
        "infer_policy_trial{kind=\"prefix-cache\",mode=\"canary\"} 0",
        "infer_policy_quarantined 0",
        "process_max_fds ",
        "vllm:num_requests_running{model_name=\"demo\"} 0",
        "vllm:num_requests_waiting{model_name=\"demo\"} 0",
        "vllm:kv_cache_usage_perc{",
        "vllm:prefix_cache_queries_total{",
        "vllm:prefix_cache_hits_total{",
        "vllm:prompt_tokens_total{",
        "vllm:generation_tokens_total{model_name=\"demo\"} 8",
        "vllm:num_preemptions_total{",
        "vllm:request_success_total{model_name=\"demo\",finished_reason=\"length\"} 1",
        "vllm:time_to_first_token_seconds_count{model_name=\"demo\"} 1",
        "vllm:inter_token_latency_seconds_count{model_name=\"demo\"} 7",
        "vllm:e2e_request_latency_seconds_count{model_name=\"demo\"} 1",
        "vllm:request_queue_time_seconds_count{model_name=\"demo\"} 1",
        "vllm:cache_config_info{",
    ] {
        assert!(metrics.contains(line), "{line} is missing in:\n{metrics}");
    }
    host.server.shutdown().await;
}

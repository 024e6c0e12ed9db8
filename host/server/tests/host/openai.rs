//! What OpenAI's clients use: choices, batches, log-probabilities, chats.

use crate::common::{self, Host, chunks, config, text_of, token_ids};
use infer_server::config::{Bounds, Config, MaxSeqLen};
use serde_json::{Value, json};

/// The body of a completion that isn't streamed.
async fn whole(host: &Host, extra: Value) -> Value {
    let mut body = json!({"stream": false});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    let answer = host.complete(body).await;
    let status = answer.status();
    let body: Value = answer.json().await.unwrap();
    assert_eq!(status, 200, "{body}");
    body
}

/// The response to a chat.
async fn chat(host: &Host, extra: Value) -> reqwest::Response {
    let mut body = json!({"model": "demo", "temperature": 0, "max_tokens": 24,
        "messages": [{"role": "user", "content": "What is a prefix cache?"}]});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    host.post("/v1/chat/completions", &body).await
}

fn texts(body: &Value) -> Vec<&str> {
    body["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn choices_share_one_prefill_and_differ() {
    let host = Host::start(config()).await;
    // Longer than a block, with a partial last block.
    let prompt = "What is a prefix cache? ".repeat(6);
    let asked = json!({"prompt": prompt, "n": 5, "temperature": 1.5, "seed": 3, "max_tokens": 12, "ignore_eos": true});
    let body = whole(&host, asked.clone()).await;
    let several = texts(&body);
    assert_eq!(several.len(), 5);
    assert!(several.iter().any(|text| text != &several[0]), "{several:?}");
    let prompt = body["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(body["usage"]["completion_tokens"], 60);
    assert_eq!(body["usage"]["total_tokens"], prompt + 60);
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "the cache was empty");
    assert_eq!(
        body["timings"]["prefilled_tokens"], prompt,
        "the first choice computes the prompt, the others hit the cache"
    );
    // The first choice doesn't depend on `n`.
    let mut one = asked;
    one["n"] = json!(1);
    assert_eq!(texts(&whole(&host, one.clone()).await), [several[0]]);
    // Streamed, in both dialects.
    one["n"] = json!(5);
    let events = host.events(one.clone()).await;
    let (last, tokens) = events.split_last().unwrap();
    assert_eq!((last.0.as_str(), last.1["finish_reasons"].as_array().unwrap().len()), ("done", 5));
    one["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
    let chunks = chunks(host.complete(one).await).await;
    for (choice, text) in several.iter().enumerate() {
        let own = tokens.iter().filter(|(_, d)| d["index"] == choice);
        assert_eq!(own.map(|(_, d)| d["token"].as_str().unwrap()).collect::<String>(), *text);
        let own =
            chunks.iter().flat_map(|c| c["choices"].as_array().unwrap()).filter(|c| c["index"] == choice);
        assert_eq!(own.map(|c| c["text"].as_str().unwrap()).collect::<String>(), *text);
    }
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(prompt), &json!(60)));
    let counted: Vec<u64> =
        chunks.iter().map(|c| c["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counted.is_sorted() && counted[0] == 1, "{counted:?}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batched_prompts_complete_like_single_ones() {
    let host = Host::start(config()).await;
    let prompts = ["What is a prefix cache?", "What is a block table?", "Hello"];
    let mut alone = Vec::new();
    for prompt in prompts {
        alone.push(texts(&whole(&host, json!({"prompt": prompt})).await)[0].to_owned());
    }
    let body = whole(&host, json!({"prompt": prompts, "n": 2})).await;
    let twice: Vec<&str> = alone.iter().flat_map(|text| [text.as_str(); 2]).collect();
    assert_eq!(texts(&body), twice);
    let indexes: Vec<u64> =
        body["choices"].as_array().unwrap().iter().map(|c| c["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes, [0, 1, 2, 3, 4, 5]);
    let mut lists = Vec::new();
    for prompt in prompts {
        let tokens: Value = host.post("/tokenize", &json!({"prompt": prompt})).await.json().await.unwrap();
        lists.push(tokens["tokens"].clone());
    }
    let by_ids = whole(&host, json!({"prompt": lists})).await;
    assert_eq!(texts(&by_ids), alone.iter().map(String::as_str).collect::<Vec<_>>());
    let answer = host.complete(json!({"prompt": prompts, "n": 100, "stream": false})).await;
    assert_eq!(answer.status(), 200, "300 sequences fit into the queue");
    let answer = host.complete(json!({"prompt": vec!["x"; 20], "n": 128, "stream": false})).await;
    assert_eq!(answer.status(), 422);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompt_that_is_listed_several_times_is_sampled_several_times() {
    let seeded = || Host::start(Config { seed: Some(1), ..config() });
    let asked =
        |prompt: Value| json!({"prompt": prompt, "temperature": 2, "max_tokens": 24, "ignore_eos": true});
    let prompt = "What is a prefix cache?";
    let host = seeded().await;
    let body = whole(&host, asked(json!(vec![prompt; 3]))).await;
    let several = texts(&body);
    assert!(several[0] != several[1] && several[1] != several[2], "{several:?}");
    // A seed of the request's own is that of each.
    let mut own = asked(json!(vec![prompt; 3]));
    own["seed"] = json!(7);
    let body = whole(&host, own).await;
    assert_eq!(texts(&body), [texts(&body)[0]; 3]);
    host.server.shutdown().await;

    // As if they had come one after the other.
    let host = seeded().await;
    for text in several {
        assert_eq!(texts(&whole(&host, asked(json!(prompt))).await), [text]);
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logprobs_and_echo_report_prompt_and_output() {
    let host = Host::start(config()).await;
    // The whole prompt is in the prefix cache when its log-probabilities are requested.
    let plain = whole(&host, json!({})).await;
    let asked = json!({"logprobs": 3, "echo": true, "max_tokens": 8});
    let body = whole(&host, asked.clone()).await;
    let text = texts(&body)[0];
    assert_eq!(text, format!("What is a prefix cache?{}", texts(&plain)[0]));
    let lists = &body["choices"][0]["logprobs"];
    let (prompt, output) = (body["usage"]["prompt_tokens"].as_u64().unwrap(), 8);
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(lists[name].as_array().unwrap().len() as u64, prompt + output, "{name}");
    }
    assert_eq!((&lists["token_logprobs"][0], &lists["top_logprobs"][0]), (&Value::Null, &Value::Null));
    for at in 1..(prompt + output) as usize {
        let own = lists["token_logprobs"][at].as_f64().unwrap();
        let top = lists["top_logprobs"][at].as_object().unwrap();
        assert!(own <= 0.0 && (3..=4).contains(&top.len()), "{at}: {own} {top:?}");
        let best = top.values().map(|v| v.as_f64().unwrap()).fold(f64::NEG_INFINITY, f64::max);
        if at as u64 >= prompt {
            assert!((best - own).abs() < 1e-6, "greedy sampling takes the most likely token");
        }
    }
    // Scored as a prompt, the model's output has the log-probabilities it was generated with.
    let tokens: Value = host.post("/tokenize", &json!({"prompt": text})).await.json().await.unwrap();
    let drawn = host.events(json!({"logprobs": 0, "max_tokens": 8})).await;
    let mut all = tokens["tokens"].as_array().unwrap()[..prompt as usize].to_vec();
    all.extend(token_ids(&drawn).into_iter().map(Value::from));
    let scored = whole(&host, json!({"prompt": all, "echo": true, "logprobs": 0, "max_tokens": 0})).await;
    let scores = scored["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    assert_eq!(scores.len() as u64, prompt + output, "max_tokens 0 adds nothing");
    assert_eq!(scored["usage"]["completion_tokens"], 0);
    for (at, (_, event)) in drawn[..8].iter().enumerate() {
        let (drawn, scored) =
            (event["logprob"].as_f64().unwrap(), scores[prompt as usize + at].as_f64().unwrap());
        assert!((drawn - scored).abs() < 1e-5, "token {at}: {drawn} and {scored}");
        assert!(event["top_logprobs"].as_array().unwrap().is_empty());
    }
    // Streamed, the echo comes first.
    let named = host.events(asked.clone()).await;
    assert_eq!((named[0].0.as_str(), &named[0].1["prompt"]), ("prompt", &json!("What is a prefix cache?")));
    assert_eq!(format!("What is a prefix cache?{}", text_of(&named)), text);
    let mut openai = asked;
    openai["stream_options"] = json!({});
    let chunks = chunks(host.complete(openai).await).await;
    let streamed: Vec<f64> = chunks
        .iter()
        .filter_map(|c| c["choices"][0]["logprobs"]["token_logprobs"].as_array())
        .flatten()
        .filter_map(Value::as_f64)
        .collect();
    let listed: Vec<f64> =
        lists["token_logprobs"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    assert_eq!(streamed, listed);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn biases_penalties_and_stop_tokens_change_the_output() {
    let host = Host::start(config()).await;
    let free = token_ids(&host.events(json!({"ignore_eos": true})).await);
    let other = if free[0] == 300 { 301 } else { 300 };
    let forced = host.events(json!({"logit_bias": {other.to_string(): 100}, "max_tokens": 4})).await;
    assert_eq!(token_ids(&forced), [other; 4]);
    // A bias forces one token until a penalty that grows with each repetition outweighs it.
    let fields = json!({"logit_bias": {"300": 60, "301": 59}, "frequency_penalty": 2, "max_tokens": 6});
    let penalized = token_ids(&host.events(fields).await);
    assert_eq!((penalized[0], penalized.contains(&301)), (300, true), "{penalized:?}");
    let banned = host.events(json!({"logit_bias": {free[0].to_string(): -100}})).await;
    assert_ne!(token_ids(&banned)[0], free[0]);
    let stopped = host.events(json!({"stop_token_ids": [free[3]], "ignore_eos": true})).await;
    assert_eq!(token_ids(&stopped), free[..4]);
    assert_eq!(stopped.last().unwrap().1["finish_reason"], "stop");
    let likely = host.events(json!({"min_p": 1.0, "temperature": 2.0, "ignore_eos": true})).await;
    assert_eq!(token_ids(&likely), free, "only the most likely token reaches min_p = 1");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn min_tokens_beyond_the_context_is_rejected() {
    let host = Host::start(config()).await;
    let chat = |min_tokens: u32| json!({"model": "demo", "min_tokens": min_tokens, "messages": [{"role": "user", "content": "Hi"}]});
    let answer = host.post("/v1/chat/completions", &chat(4_000_000_000)).await;
    assert_eq!(answer.status(), 422);
    let error: Value = answer.json().await.unwrap();
    assert_eq!(error["error"]["param"], "min_tokens", "{error}");
    assert_eq!(host.post("/v1/chat/completions", &chat(8)).await.status(), 200);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chat_completes_the_rendered_prompt() {
    let host = Host::start(config()).await;
    let messages = json!([{"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is a prefix cache?"}]}]);
    let tokens: Value = host.post("/tokenize", &json!({"messages": messages})).await.json().await.unwrap();
    let plain = whole(&host, json!({"prompt": tokens["tokens"], "max_tokens": 48})).await;

    let fields = json!({"messages": messages, "max_tokens": 48});
    let answer = chat(&host, fields.clone()).await;
    assert_eq!(answer.headers()["content-type"], "application/json", "chats stream only on request");
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["object"], "chat.completion");
    let message = &body["choices"][0]["message"];
    assert_eq!(
        (&message["role"], message["content"].as_str()),
        (&json!("assistant"), Some(texts(&plain)[0]))
    );
    assert!(message["content"].as_str().unwrap().contains("cache"), "{message}");
    assert_eq!(body["choices"][0]["finish_reason"], "stop", "{body}");
    assert_eq!(body["usage"]["prompt_tokens"], tokens["count"]);

    let mut streamed = fields;
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    streamed["logprobs"] = json!(true);
    streamed["top_logprobs"] = json!(2);
    let chunks = chunks(chat(&host, streamed).await).await;
    let (usage, rest) = chunks.split_last().unwrap();
    assert_eq!((&usage["choices"], &usage["usage"]), (&json!([]), &body["usage"]));
    assert!(rest.iter().all(|c| c["object"] == "chat.completion.chunk" && c["id"] == rest[0]["id"]));
    assert_eq!(rest[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(rest[1..].iter().all(|c| c["choices"][0]["delta"].get("role").is_none()));
    let text: String = rest.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, message["content"]);
    let reasons: Vec<&Value> = rest.iter().map(|c| &c["choices"][0]["finish_reason"]).collect();
    assert_eq!(reasons.iter().filter(|r| !r.is_null()).count(), 1);
    assert_eq!(*reasons[reasons.len() - 1], "stop");
    let told: Vec<&Value> =
        rest.iter().filter_map(|c| c["choices"][0]["logprobs"]["content"].as_array()).flatten().collect();
    assert_eq!(told.len() as u64, body["usage"]["completion_tokens"].as_u64().unwrap());
    assert!(told.iter().all(|t| t["top_logprobs"].as_array().unwrap().len() == 2 && t["bytes"].is_array()));

    // The conversation's second turn finds the first in the prefix cache.
    let longer =
        json!([messages[0], messages[1], message, {"role": "user", "content": "And a block table?"}]);
    let body: Value = chat(&host, json!({"messages": longer, "n": 2, "max_completion_tokens": 4}))
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(body["choices"].as_array().unwrap().len(), 2, "{body}");
    assert!(body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 32, "{body}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_chats_name_the_field() {
    let host = Host::start(config()).await;
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let cases = [
        (json!({"messages": null}), 400, "messages"),
        (json!({"messages": []}), 400, "messages"),
        (json!({"messages": [{"role": "user"}]}), 400, "messages"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), 422, "messages"),
        (json!({"prompt": "x"}), 422, "prompt"),
        (json!({"max_completion_tokens": 0}), 422, "max_completion_tokens"),
        (json!({"max_tokens": 100_000}), 422, "max_tokens"),
        (json!({"top_logprobs": 2}), 422, "top_logprobs"),
        (json!({"tools": tool}), 422, "tools"),
        (json!({"tool_choice": "required"}), 422, "tool_choice"),
        (json!({"store": "yes"}), 400, "store"),
        (json!({"service_tier": "first"}), 422, "service_tier"),
        (json!({"reasoning_effort": "huge"}), 422, "reasoning_effort"),
        (json!({"verbosity": 3}), 400, "verbosity"),
        (json!({"prediction": "text"}), 400, "prediction"),
        (json!({"moderation": {"model": "m"}}), 422, "moderation"),
        (json!({"web_search_options": {}}), 422, "web_search_options"),
        (json!({"max_completion_token": 5}), 422, "max_completion_token"),
        (json!({"model": "other"}), 422, "model"),
    ];
    for (extra, status, param) in cases {
        let answer = chat(&host, extra.clone()).await;
        assert_eq!(answer.status(), status, "{extra}");
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["param"], param, "{extra}: {body}");
    }
    // Tools that must not be used need no support by the template.
    assert_eq!(chat(&host, json!({"tools": tool, "tool_choice": "none"})).await.status(), 200);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnect_frees_all_choices() {
    let host = Host::start(Config { prefix_caching: false, ..config() }).await;
    let endless = json!({"prompt": ["one", "two"], "n": 6, "ignore_eos": true, "max_tokens": 1_500});
    let stream = common::first_chunk(host.complete(endless.clone()).await).await;
    host.until("all twelve run", |s| s["queue"]["running"] == 12).await;
    drop(stream);
    let state = host.until("none is left", |s| s["queue"]["running"] == 0).await;
    assert_eq!(state["memory"]["free"], state["memory"]["total"]);
    assert_eq!(state["counters"]["finished"]["cancelled"], 12);
    // The times to the first token count although the client has left.
    let metrics = host.client.get(host.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let first_tokens = metrics
        .lines()
        .find_map(|line| line.strip_prefix("infer_time_to_first_token_seconds_count ")?.parse::<u32>().ok());
    assert!((1..=12).contains(&first_tokens.unwrap()), "{first_tokens:?}");
    // The same while the client waits for one body and nothing has started.
    host.server.engine().hold_steps();
    let mut body = common::request(endless);
    body["stream"] = json!(false);
    let send = host.client.post(host.url("/v1/completions")).json(&body).send();
    let waiting = tokio::spawn(async move { drop(send.await) });
    host.until("all twelve wait", |s| s["counters"]["submitted"] == 24).await;
    waiting.abort();
    host.server.engine().release_steps();
    host.until("none is left", |s| s["counters"]["finished"]["cancelled"] == 24).await;
    // The same if bytes follow the request.
    host.server.engine().hold_steps();
    for (more, cancelled) in [("\r\n", 36), ("GET /health HTTP/1.1\r\nhost: x\r\n\r\n", 48)] {
        let body = body.to_string();
        let head =
            format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        let mut stream = tokio::net::TcpStream::connect(host.server.data_addr).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, (head + &body + more).as_bytes()).await.unwrap();
        host.until("all twelve wait", |s| s["counters"]["submitted"] == cancelled).await;
        drop(stream);
        host.until("none is left", |s| s["counters"]["finished"]["cancelled"] == cancelled).await;
    }
    host.server.engine().release_steps();
    // An operator ends all choices of a request by its id.
    let fields = common::request(json!({"n": 3, "ignore_eos": true, "max_tokens": 1_500}));
    let named = host.client.post(host.url("/v1/completions")).header("x-request-id", "three").json(&fields);
    let stream = named.send().await.unwrap();
    let ended: Value = host
        .admin(reqwest::Method::DELETE, "/admin/requests/three")
        .send()
        .await
        .unwrap()
        .json()
        .await
        .unwrap();
    assert_eq!(ended["ids"].as_array().unwrap().len(), 3, "{ended}");
    let events = common::events(stream).await;
    assert_eq!(events.last().unwrap().1["finish_reasons"], json!(["cancelled", "cancelled", "cancelled"]));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_cancels_only_its_own_choices() {
    let bounds = Bounds { stream_events: 32, ..Bounds::default() };
    let host = Host::start(Config { bounds, ..config() }).await;
    // Far more bytes than socket buffers hold: each token has twenty alternatives.
    let fields =
        json!({"n": 4, "ignore_eos": true, "max_tokens": 2_000, "logprobs": 20, "stream_options": {}});
    let slow = host.complete(fields).await;
    let state = host.until("it is cancelled", |s| s["counters"]["finished"]["cancelled"] == 4).await;
    assert_eq!(state["queue"]["running"], 0);
    let text = slow.text().await.unwrap();
    assert!(
        text.contains("slow_reader") && text.ends_with("data: [DONE]\n\n"),
        "{}",
        &text[text.len() - 300..]
    );
    assert_eq!(token_ids(&host.events(json!({"ignore_eos": true})).await).len(), 8, "the host keeps serving");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_tokenizer_and_openapi_document_are_served() {
    let host = Host::start(config()).await;
    let get = async |path: &str| {
        let answer = host.client.get(host.url(path)).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    assert_eq!(get("/v1/models/demo").await.1["id"], "demo");
    let (status, body) = get("/v1/models/no%2Fsuch").await;
    assert_eq!((status, &body["error"]["code"]), (404, &json!("model_not_found")));
    assert!(body["error"]["message"].as_str().unwrap().contains("no/such"), "{body}");
    let (status, document) = get("/openapi.json").await;
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let body: Value = host
        .post(
            "/tokenize",
            &json!({"prompt": "Hello", "return_token_strs": true, "add_special_tokens": false}),
        )
        .await
        .json()
        .await
        .unwrap();
    let strings: String =
        body["token_strs"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
    assert_eq!(strings, "Hello");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_to_tokenize_are_those_that_a_chat_may_offer() {
    let host = Host::start(config()).await;
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let tokenize = async |tools: Value| {
        let body = json!({"messages": [{"role": "user", "content": "Go."}], "tools": tools});
        let answer = host.post("/tokenize", &body).await;
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    for (tools, status, says) in [
        (json!([tool("go"), tool("go")]), 422, "tools[1] (`go`): there is another function of this name"),
        (json!([tool("not valid!")]), 422, "`not valid!` is not a valid function name"),
        (json!([{"type": "function"}]), 400, "tools[0]: expected `function`, an object"),
    ] {
        let (found, body) = tokenize(tools.clone()).await;
        assert_eq!((found, &body["error"]["param"]), (status, &json!("tools")), "{tools}: {body}");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains(says), "{tools}: {message}");
    }
    let (status, body) = tokenize(json!([tool("go"), tool("stop")])).await;
    assert_eq!(status, 200, "{body}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_offsets_ignore_text_held_back_for_stop_strings() {
    let host = Host::start(config()).await;
    let asked = json!({"logprobs": 0, "max_tokens": 12, "ignore_eos": true});
    let plain = whole(&host, asked.clone()).await;
    let mut held = asked;
    held["stop"] = json!([format!("{}\u{ff}", texts(&plain)[0])]);
    let stopped = whole(&host, held.clone()).await;
    assert_eq!(texts(&stopped), texts(&plain));
    let offsets = |body: &Value| body["choices"][0]["logprobs"]["text_offset"].clone();
    assert_eq!(offsets(&stopped), offsets(&plain));
    held["stream_options"] = json!({});
    let streamed: Vec<Value> = chunks(host.complete(held).await)
        .await
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["text_offset"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(Value::from(streamed), offsets(&plain));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_max_tokens_is_bounded_by_the_context() {
    let host = Host::start(Config { max_seq_len: MaxSeqLen::Tokens(300), ..config() }).await;
    for (prompt, fields, tokens) in [
        (9, json!({}), 128),
        (9, json!({"min_tokens": 200}), 200),
        (295, json!({}), 5),
        (299, json!({}), 1),
        (299, json!({"max_tokens": 0, "echo": true}), 0),
    ] {
        let mut asked = json!({"prompt": vec![5; prompt], "max_tokens": null, "ignore_eos": true});
        asked.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let body = whole(&host, asked).await;
        assert_eq!(body["usage"]["completion_tokens"], tokens, "{prompt} {fields}");
    }
    for (prompt, fields, param) in [
        (300, json!({}), "prompt"),
        (300, json!({"max_tokens": 0, "echo": true}), "prompt"),
        (295, json!({"max_tokens": 6}), "max_tokens"),
        (295, json!({"min_tokens": 6}), "min_tokens"),
    ] {
        let mut asked = json!({"prompt": vec![5; prompt], "max_tokens": null});
        asked.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = host.complete(asked).await;
        assert_eq!(answer.status(), 422);
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["param"], param, "{prompt} {fields}: {body}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_probabilities_of_a_response_are_bounded() {
    let host = Host::start(config()).await;
    let long: Vec<u32> = vec![5; 3_000];
    for fields in [
        json!({"n": 128, "logprobs": 20, "max_tokens": 4_000}),
        json!({"n": 128, "prompt": long, "echo": true, "logprobs": 10, "max_tokens": 1}),
        json!({"n": 2, "prompt": vec![long.clone(); 400], "echo": true, "logprobs": 1, "max_tokens": 0}),
    ] {
        let answer = host.complete(fields).await;
        assert_eq!(answer.status(), 422);
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["param"], "logprobs", "{body}");
    }
    // Without `max_tokens` the bound limits the length.
    host.server.engine().hold_steps();
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let all = json!({"model": "demo", "messages": messages, "n": 128, "logprobs": true, "top_logprobs": 20, "stream": true});
    let stream = host.post("/v1/chat/completions", &all).await;
    assert_eq!(stream.status(), 200);
    let state = host.admin_get("/admin/state").await;
    assert_eq!(state["requests"][0]["max_tokens"], (1 << 20) / (128 * 22), "{}", state["requests"][0]);
    drop(stream);
    host.server.engine().release_steps();
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_scoring_reports_cancelled() {
    let host = Host::start(config()).await;
    host.server.engine().hold_steps();
    let fields = json!({"echo": true, "logprobs": 0, "max_tokens": 0, "stream": false});
    let request = host
        .client
        .post(host.url("/v1/completions"))
        .header("x-request-id", "score")
        .json(&common::request(fields))
        .send();
    let waiting = tokio::spawn(request);
    host.until("it waits", |state| state["queue"]["waiting"] == 1).await;
    let cancelled = host.admin(reqwest::Method::DELETE, "/admin/requests/score").send().await.unwrap();
    assert_eq!(cancelled.status(), 200, "what the state shows can be cancelled by its name");
    let body: Value = waiting.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(body["choices"][0]["finish_reason"], "cancelled", "{body}");
    host.server.engine().release_steps();
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_is_served_under_its_configured_names() {
    let served_model_names = vec!["a=b & c+d".to_owned(), "org/large".to_owned()];
    let folder = common::model_with_tools("hermes");
    let model = folder.path().to_str().unwrap().to_owned();
    let host = Host::start(Config { model, served_model_names, ..config() }).await;
    let get = async |path: &str| {
        let answer = host.client.get(host.url(path)).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let (_, models) = get("/v1/models").await;
    let ids: Vec<&str> =
        models["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["a=b & c+d", "org/large"]);
    // What vLLM's load generator takes for the name of the tokenizer.
    let own = folder.path().file_name().unwrap().to_str().unwrap();
    for card in models["data"].as_array().unwrap() {
        assert_eq!((&card["root"], card.get("parent")), (&json!(own), Some(&Value::Null)), "{card}");
    }
    for path in ["a=b%20&%20c+d", "a%3Db%20%26%20c%2Bd"] {
        assert_eq!(get(&format!("/v1/models/{path}")).await.1["id"], ids[0], "{path}");
    }
    assert_eq!(get("/v1/models/org/large").await.1["id"], "org/large");
    assert_eq!(get("/v1/models/a").await.0, 404);
    for name in ids {
        assert_eq!(whole(&host, json!({"model": name})).await["model"], "a=b & c+d");
    }
    assert_eq!(host.complete(json!({"model": "demo"})).await.status(), 422);
    host.server.shutdown().await;
}

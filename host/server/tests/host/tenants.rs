//! Tenants over HTTP: keys, limits, separation and usage.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Host, config, events, first_chunk, request};
use futures_util::StreamExt as _;
use infer_api::admin::AdminEvent;
use infer_core::policy::{
    AdmissionPolicy, AdmissionRequest, AnyPolicy, Load, Policy, PolicyFault, PolicyInfo, Pressure, Verdict,
};
use infer_core::request::RefusalReason;
use infer_core::{Engine, Refusal, SequenceId};
use infer_server::config::{Config, PolicyChoice};
use infer_server::engine::{Provided, SlotChange, SwapMode};
use infer_server::tenants::{KeyDigest, fresh};
use reqwest::Method;
use serde_json::{Value, json};

struct Key {
    text: String,
    table: String,
}

fn key(tenant: &str, more: &str) -> Key {
    let text = fresh().unwrap();
    let table = format!("[tenants.{tenant}]\nkeys = [\"{}\"]\n{more}\n", KeyDigest::of(&text));
    Key { text, table }
}

fn write(path: &Path, keys: &[&Key]) {
    let text: String = keys.iter().map(|key| key.table.as_str()).collect();
    std::fs::write(path, text).unwrap();
}

async fn complete(host: &Host, key: &Key, extra: Value) -> reqwest::Response {
    host.client
        .post(host.url("/v1/completions"))
        .bearer_auth(&key.text)
        .json(&request(extra))
        .send()
        .await
        .unwrap()
}

async fn done(host: &Host, key: &Key, extra: Value) -> Value {
    let answer = complete(host, key, extra).await;
    assert_eq!(answer.status(), 200);
    let (name, done) = events(answer).await.pop().unwrap();
    assert_eq!(name, "done", "{done}");
    done
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_keys_open_only_the_data_plane() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let alice = key("alice", "max-priority = 1");
    write(file.path(), &[&alice]);
    let host = Host::start(Config { api_keys: Some(file.path().to_owned()), ..config() }).await;
    for (path, code) in [("/health", 200), ("/health/ready", 200), ("/version", 200), ("/v1/models", 401)] {
        assert_eq!(host.client.get(host.url(path)).send().await.unwrap().status(), code, "{path}");
    }
    for path in ["/v1/completions", "/tokenize", "/detokenize"] {
        let answer = host.post(path, &request(json!({}))).await;
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["www-authenticate"]),
            (401, &"Bearer".parse().unwrap())
        );
        let body: Value = answer.json().await.unwrap();
        let error = &body["error"];
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("authentication_error"), &json!("missing_api_key"))
        );
        assert!(error["message"].is_string() && error["param"].is_null(), "{body}");
    }
    let stranger = Key { text: fresh().unwrap(), table: String::new() };
    let body: Value = complete(&host, &stranger, json!({})).await.json().await.unwrap();
    assert_eq!(body["error"]["code"], "invalid_api_key");

    // A tenant's key is not accepted as an admin token, nor the admin token as a key.
    let url = format!("http://{}/admin/state", host.server.admin_addr);
    assert_eq!(host.client.get(url).bearer_auth(&alice.text).send().await.unwrap().status(), 401);
    let admin = Key { text: host.server.admin_token.clone(), table: String::new() };
    assert_eq!(complete(&host, &admin, json!({})).await.status(), 401);

    // The priority is capped, and operators see the tenant's name.
    host.server.engine().hold_steps();
    let held = complete(&host, &alice, json!({"priority": 9})).await;
    let state = host.admin_get("/admin/state").await;
    let row = &state["requests"][0];
    assert_eq!((&row["tenant_name"], &row["priority"]), (&json!("alice"), &json!(1)));
    host.server.engine().release_steps();
    drop(events(held).await);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixes_are_shared_only_within_tenant_and_salt() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (alice, bob) = (key("alice", ""), key("bob", ""));
    write(file.path(), &[&alice, &bob]);
    let host = Host::start(Config { api_keys: Some(file.path().to_owned()), ..config() }).await;
    let prompt: Vec<u32> = (0..100).map(|n| n % 90).collect();
    let cached = async |key: &Key, salt: Option<&str>| {
        let done = done(&host, key, json!({"prompt": prompt, "cache_salt": salt, "session_id": "s"})).await;
        done["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached(&alice, None).await, 0);
    assert_eq!(cached(&bob, None).await, 0, "another tenant finds nothing");
    assert_eq!(cached(&alice, Some("x")).await, 0, "nor does another salt");
    assert!(cached(&alice, None).await >= 96);
    assert!(cached(&alice, Some("x")).await >= 96);
    assert!(cached(&bob, None).await >= 96);
    assert_eq!(cached(&bob, Some("x")).await, 0, "a salt is a tenant's own");

    let metrics = host.admin(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    for line in [
        "infer_tenant_requests_total{tenant=\"alice\"} 4",
        "infer_tenant_prompt_tokens_total{tenant=\"bob\"} 300",
        "infer_tenant_generated_tokens_total{tenant=\"default\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rate_limit_applies_per_tenant_by_default() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let slow = key("slow", "tokens-per-minute = 60\nburst = 40");
    let quick = key("quick", "");
    write(file.path(), &[&slow, &quick]);
    let host = Host::start(Config { api_keys: Some(file.path().to_owned()), ..config() }).await;
    let tokens = json!({"prompt": [1, 2, 3, 4], "max_tokens": 20, "ignore_eos": true});
    done(&host, &slow, tokens.clone()).await;
    let refused = complete(&host, &slow, tokens.clone()).await;
    assert_eq!(refused.status(), 429);
    let after: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&after), "{after}");
    // A prompt that fills the burst leaves no room for output, so clients are told not to retry.
    let never = complete(&host, &slow, json!({"prompt": vec![1; 40], "max_tokens": 1})).await;
    assert_eq!(never.status(), 429);
    let retry = ["retry-after", "x-should-retry"].map(|name| never.headers().get(name).cloned());
    assert_eq!(retry, [None, Some("false".parse().unwrap())]);
    for _ in 0..4 {
        done(&host, &quick, tokens.clone()).await;
    }
    let metrics = host.admin(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("infer_tenant_requests_refused_total{tenant=\"slow\"} 2"), "{metrics}");
    let slots = host.admin_get("/admin/policies").await;
    assert!(slots["slots"][1]["name"].as_str().unwrap().contains("token-bucket"), "{slots}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_at_its_cap_waits_while_others_pass() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (flood, quiet) = (key("flood", ""), key("quiet", ""));
    write(file.path(), &[&flood, &quiet]);
    let admission = PolicyChoice {
        name: "tenant-cap,memory-aware".to_owned(),
        config: r#"{"tenant-cap": {"max_in_flight": 1, "max_held": 2}}"#.to_owned(),
    };
    let host = Host::start(Config { api_keys: Some(file.path().to_owned()), admission, ..config() }).await;
    host.server.engine().hold_steps();
    let some = json!({"prompt": [1, 2, 3, 4], "max_tokens": 5, "ignore_eos": true});
    let mut streams = Vec::new();
    for held in 0..3 {
        streams.push(complete(&host, &flood, some.clone()).await);
        host.until("the others wait", |state| state["queue"]["held"] == held).await;
    }
    let refused = complete(&host, &flood, some.clone()).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    let body: Value = refused.json().await.unwrap();
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("at most 1") && message.contains("2 wait, of at most 2"), "{body}");
    streams.push(complete(&host, &quiet, some.clone()).await);
    host.until("it passed", |state| state["queue"]["waiting"] == 2 && state["queue"]["held"] == 2).await;
    host.server.engine().release_steps();
    for stream in streams {
        assert_eq!(events(stream).await.last().unwrap().0, "done");
    }
    let slots = host.admin_get("/admin/policies").await;
    assert_eq!(slots["slots"][1]["faults"], 0, "{slots}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_what_each_tenant_waits_for() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (flood, quiet) = (key("flood", "weight = 2.5"), key("quiet", ""));
    write(file.path(), &[&flood, &quiet]);
    let host = Host::start(Config { api_keys: Some(file.path().to_owned()), ..config() }).await;
    assert_eq!(host.admin_get("/admin/state").await["tenants"], json!([]), "none has sent a request");
    let some = json!({"prompt": [1, 2, 3, 4], "max_tokens": 5, "ignore_eos": true});
    done(&host, &quiet, some.clone()).await;
    host.server.engine().hold_steps();
    let waiting = [complete(&host, &flood, some.clone()).await, complete(&host, &flood, some).await];
    let state = host.admin_get("/admin/state").await;
    let [first, second] = &state["tenants"].as_array().unwrap()[..] else { panic!("{state}") };
    assert_eq!((&first["name"], &first["weight"]), (&json!("flood"), &json!(2.5)), "it has live requests");
    assert_eq!((&first["waiting"], &first["running"], &first["requests"]), (&json!(2), &json!(0), &json!(0)));
    assert_eq!(
        (&second["name"], &second["requests"], &second["waiting"]),
        (&json!("quiet"), &json!(1), &json!(0))
    );
    assert_eq!((&second["prompt_tokens"], &second["generated_tokens"]), (&json!(4), &json!(5)));
    let ms = |row: &Value, name: &str| row[name].as_f64().unwrap();
    assert!(
        ms(second, "ttft_p50_ms") > 0.0 && ms(second, "ttft_p50_ms") >= ms(second, "queue_p50_ms"),
        "{second}"
    );
    assert_eq!(ms(first, "ttft_p99_ms"), 0.0, "none of its requests has a token");

    let metrics = host.admin(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    for line in [
        "infer_tenant_requests_waiting{tenant=\"flood\"} 2",
        "infer_tenant_requests_running{tenant=\"quiet\"} 0",
        "infer_tenant_time_to_first_token_seconds_count{tenant=\"quiet\"} 1",
        "infer_tenant_request_queue_time_seconds_count{tenant=\"quiet\"} 1",
        "infer_tenant_inter_token_latency_seconds_count{tenant=\"quiet\"} 4",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    assert!(!metrics.contains("to_first_token_seconds_count{tenant=\"flood\"}"), "{metrics}");
    host.server.engine().release_steps();
    for stream in waiting {
        assert_eq!(events(stream).await.last().unwrap().0, "done");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn choices_and_prompts_are_charged_all_or_nothing() {
    let file = tempfile::NamedTempFile::new().unwrap();
    // Refills too slowly to matter during the test.
    let slow = key("slow", "tokens-per-minute = 1\nburst = 100");
    write(file.path(), &[&slow]);
    let host = Host::start(Config { api_keys: Some(file.path().to_owned()), ..config() }).await;
    let asked = |n: u32, prompts: usize| json!({"prompt": vec![[1, 2, 3, 4]; prompts], "n": n, "max_tokens": 20, "ignore_eos": true});
    // 24 tokens each: the first leaves 76, enough for three more but not for four.
    done(&host, &slow, asked(1, 1)).await;
    for (n, prompts) in [(4, 1), (1, 4), (2, 2)] {
        let refused = complete(&host, &slow, asked(n, prompts)).await;
        assert_eq!(refused.status(), 429);
        let after: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((19 * 60..=20 * 60).contains(&after), "until the 20 missing tokens are refilled: {after} s");
        let body: Value = refused.json().await.unwrap();
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains("about 96 (16 prompt, 80 output) and 76 are available"), "{body}");
        assert!(message.contains("ask for at most 60 output tokens"), "{body}");
    }
    let never = complete(&host, &slow, json!({"prompt": vec![[1, 2, 3, 4]; 25], "max_tokens": 1})).await;
    assert_eq!(never.headers()["x-should-retry"], "false");
    assert_eq!(done(&host, &slow, asked(3, 1)).await["usage"]["completion_tokens"], 60);
    // Each request counts once, for any number of choices.
    let metrics = host.admin(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    for line in [
        "infer_tenant_requests_total{tenant=\"slow\"} 2",
        "infer_tenant_requests_refused_total{tenant=\"slow\"} 4",
        "infer_tenant_prompt_tokens_total{tenant=\"slow\"} 8",
        "infer_tenant_generated_tokens_total{tenant=\"slow\"} 80",
        "infer_tenant_requests_failed_total{tenant=\"slow\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    host.server.shutdown().await;
}

/// Admits the first sequence of a request of two, and holds the second until it refuses it.
#[derive(Default)]
struct AdmitsOne {
    info: Arc<PolicyInfo>,
    first: Option<SequenceId>,
    /// Of one sequence.
    prompt_tokens: u32,
    refuses: Arc<AtomicBool>,
    /// Refuses the second as soon as the first runs.
    soon: bool,
}

impl Policy for AdmitsOne {
    fn info(&self) -> Arc<PolicyInfo> {
        Arc::clone(&self.info)
    }
}

impl AdmissionPolicy for AdmitsOne {
    fn admit(&mut self, request: &AdmissionRequest, load: &Load) -> Result<Verdict, PolicyFault> {
        if request.prompt_tokens == 2 * self.prompt_tokens {
            // Both together: they shall be asked about one by one.
            return Ok(Verdict::Wait);
        }
        let first = *self.first.get_or_insert(request.id);
        let (reason, message) = (RefusalReason::Other, "there is no room".to_owned());
        Ok(match self.refuses.load(Ordering::Relaxed) || (self.soon && load.running > 0) {
            _ if request.id == first => Verdict::Admit,
            true => Verdict::Refuse(Refusal { reason, message, retry_after_ms: 1_000 }),
            false => Verdict::Wait,
        })
    }

    fn measure(&mut self, _: &Load) -> Result<Pressure, PolicyFault> {
        Ok(Pressure::default())
    }
}

async fn has_metrics(host: &Host, lines: &[&str]) {
    let metrics = host.admin(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    for line in lines {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_is_refused_after_a_choice_has_run_is_charged() {
    let host = Host::start(config()).await;
    let policy = AdmitsOne { prompt_tokens: 4, ..AdmitsOne::default() };
    let refuses = Arc::clone(&policy.refuses);
    let change = SlotChange::Swap(AnyPolicy::Admission(Box::new(policy)), SwapMode::Now);
    host.server.engine().change(change, Provided::default(), None).await.unwrap().unwrap();
    let fields = json!({"prompt": [1, 2, 3, 4], "n": 2, "max_tokens": 1_500, "ignore_eos": true});
    let mut stream = first_chunk(host.complete(fields).await).await;
    refuses.store(true, Ordering::Relaxed);
    let mut rest = Vec::new();
    while let Some(chunk) = stream.next().await {
        rest.extend_from_slice(chunk.unwrap().as_ref());
    }
    let text = String::from_utf8(rest).unwrap();
    assert!(text.contains("event: error\n") && text.contains("\"code\":\"refused\""), "{text}");
    let counted = [
        "infer_tenant_requests_total{tenant=\"default\"} 1",
        "infer_tenant_requests_failed_total{tenant=\"default\"} 1",
        "infer_tenant_requests_refused_total{tenant=\"default\"} 0",
        "infer_tenant_prompt_tokens_total{tenant=\"default\"} 4",
    ];
    has_metrics(&host, &counted).await;
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_is_refused_while_a_choice_is_prefilled_is_charged_and_reported() {
    // A thousand steps for the prompt, so that the refusal comes before the first token.
    let host = Host::start(Config { prefill_chunk: 1, ..config() }).await;
    let policy = AdmitsOne { prompt_tokens: 1_000, soon: true, ..AdmitsOne::default() };
    let change = SlotChange::Swap(AnyPolicy::Admission(Box::new(policy)), SwapMode::Now);
    host.server.engine().change(change, Provided::default(), None).await.unwrap().unwrap();
    let mut published = host.server.engine().observer().subscribe();
    let text = host.complete(json!({"prompt": vec![1; 1_000], "n": 2})).await.text().await.unwrap();
    assert!(text.contains("\"code\":\"refused\"") && !text.contains("event: token\n"), "{text}");
    let refusal = std::iter::from_fn(|| published.try_recv().ok())
        .find_map(|event| if let AdminEvent::Refusal { reason, .. } = event { Some(reason) } else { None });
    assert_eq!(refusal.as_deref(), Some("refused"));
    let counted = [
        "infer_tenant_requests_total{tenant=\"default\"} 1",
        "infer_tenant_requests_failed_total{tenant=\"default\"} 1",
        "infer_tenant_requests_refused_total{tenant=\"default\"} 0",
        "infer_tenant_prompt_tokens_total{tenant=\"default\"} 1000",
        "infer_request_errors_total{code=\"refused\"} 1",
    ];
    has_metrics(&host, &counted).await;
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_whose_client_leaves_before_the_engine_has_taken_it_is_counted() {
    let host = Host::start(config()).await;
    let engine = host.server.engine().clone();
    let (entered, inside) = tokio::sync::oneshot::channel();
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let look = move |_: &Engine, _| {
        entered.send(()).unwrap();
        let _ = held.recv();
    };
    let occupied = tokio::spawn({
        let engine = engine.clone();
        async move { engine.inspect(look).await.unwrap() }
    });
    inside.await.unwrap();
    let body = request(json!({"prompt": [1, 2, 3, 4]}));
    let sent = tokio::spawn(host.client.post(host.url("/v1/completions")).json(&body).send());
    while engine.live() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    sent.abort();
    while engine.live() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(let_go);
    occupied.await.unwrap();
    host.until("nothing is left", |state| state["requests"] == json!([])).await;
    let counted = [
        "infer_tenant_requests_total{tenant=\"default\"} 1",
        "infer_tenant_requests_failed_total{tenant=\"default\"} 0",
        "infer_tenant_requests_refused_total{tenant=\"default\"} 0",
        "infer_tenant_prompt_tokens_total{tenant=\"default\"} 0",
    ];
    has_metrics(&host, &counted).await;
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chats_without_max_tokens_are_charged_what_their_usage_says() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let plain = key("plain", "tokens-per-minute = 6000");
    // Refills too slowly to matter during the test.
    let slow = key("slow", "tokens-per-minute = 1\nburst = 600");
    write(file.path(), &[&plain, &slow]);
    let host = Host::start(Config { api_keys: Some(file.path().to_owned()), ..config() }).await;
    let ask = async |key| {
        let messages = json!([{"role": "user", "content": "What is paged attention?"}]);
        let response = chat(&host, Some(key), json!({"messages": messages, "temperature": 0})).await;
        (response.status(), response.json::<Value>().await.unwrap())
    };
    for _ in 0..20 {
        let (status, body) = ask(&plain).await;
        assert_eq!(status, 200, "{body}");
    }
    let (mut used, mut chats) = (0, 0);
    let (status, refused) = loop {
        let (status, body) = ask(&slow).await;
        let Some(tokens) = body["usage"]["total_tokens"].as_u64() else { break (status, body) };
        used += tokens;
        chats += 1;
    };
    assert_eq!((status.as_u16(), &refused["error"]["code"]), (429, &json!("rate_limited")));
    let each = used / chats;
    assert_eq!(chats, 600 / each, "of {each} tokens each: {refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    for part in [format!("about {each} ("), format!("{} are available", 600 - used)] {
        assert!(message.contains(&part), "{part}: {message}");
    }
    host.server.shutdown().await;
}

/// The response to a chat, sent with or without a key.
async fn chat(host: &Host, key: Option<&Key>, extra: Value) -> reqwest::Response {
    let mut body = json!({"model": "demo", "messages": [{"role": "user", "content": "Hello"}]});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let request = host.client.post(host.url("/v1/chat/completions")).json(&body);
    match key {
        Some(key) => request.bearer_auth(&key.text),
        None => request,
    }
    .send()
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chats_need_a_key_and_obey_its_limits() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let alice = key("alice", "max-priority = 1");
    let slow = key("slow", "tokens-per-minute = 60\nburst = 40");
    write(file.path(), &[&alice, &slow]);
    let host = Host::start(Config { api_keys: Some(file.path().to_owned()), ..config() }).await;

    let stranger = Key { text: fresh().unwrap(), table: String::new() };
    for (key, code) in [(None, "missing_api_key"), (Some(&stranger), "invalid_api_key")] {
        for stream in [false, true] {
            let answer = chat(&host, key, json!({"stream": stream})).await;
            assert_eq!(answer.status(), 401);
            assert_eq!(answer.headers()["www-authenticate"], "Bearer");
            let body: Value = answer.json().await.unwrap();
            assert_eq!(body["error"]["type"], "authentication_error");
            assert_eq!(body["error"]["code"], code, "errors are one body even if a stream was requested");
        }
    }

    // The priority is capped; a lower one is kept.
    host.server.engine().hold_steps();
    let asked = |priority: i32| {
        chat(&host, Some(&alice), json!({"priority": priority, "max_tokens": 9, "stream": true}))
    };
    let (above, below) = (asked(9).await, asked(-3).await);
    let state = host.admin_get("/admin/state").await;
    let mut rows: Vec<_> =
        state["requests"].as_array().unwrap().iter().map(|row| row["priority"].as_i64().unwrap()).collect();
    rows.sort_unstable();
    assert_eq!(rows, [-3, 1], "{state}");
    assert!(state["requests"].as_array().unwrap().iter().all(|row| row["tenant_name"] == "alice"));
    host.server.engine().release_steps();
    for answer in [above, below] {
        assert!(answer.text().await.unwrap().ends_with("data: [DONE]\n\n"));
    }

    // The rate limit, and the usage by tenant.
    let fields = json!({"max_tokens": 20, "ignore_eos": true});
    let taken: Value = chat(&host, Some(&slow), fields.clone()).await.json().await.unwrap();
    assert_eq!(taken["usage"]["completion_tokens"], 20, "{taken}");
    let refused = chat(&host, Some(&slow), fields).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    let body: Value = refused.json().await.unwrap();
    assert_eq!(
        (&body["error"]["type"], &body["error"]["code"]),
        (&json!("rate_limit_error"), &json!("rate_limited"))
    );
    let metrics = host.admin(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    let prompt = &taken["usage"]["prompt_tokens"];
    for line in [
        "infer_tenant_requests_total{tenant=\"alice\"} 2".to_owned(),
        "infer_tenant_requests_total{tenant=\"slow\"} 1".to_owned(),
        "infer_tenant_requests_refused_total{tenant=\"slow\"} 1".to_owned(),
        format!("infer_tenant_prompt_tokens_total{{tenant=\"slow\"}} {prompt}"),
        "infer_tenant_generated_tokens_total{tenant=\"slow\"} 20".to_owned(),
        "infer_tenant_requests_failed_total{tenant=\"slow\"} 0".to_owned(),
    ] {
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_tenants_file_fails_startup_and_names_the_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[tenants.a]\nkees = []\n").unwrap();
    let started = infer_server::serve::start(Config { api_keys: Some(file.path().to_owned()), ..config() });
    let error = started.await.map(|_| ()).unwrap_err();
    assert!(error.is_usage());
    let text = error.to_string();
    assert!(
        text.contains("--api-keys: ")
            && text.contains(":2: tenants.a.kees: unknown key; did you mean `keys`?")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_keys_all_requests_are_one_tenant() {
    let host = Host::start(config()).await;
    drop(host.events(json!({})).await);
    let models = host.client.get(host.url("/v1/models")).bearer_auth("anything").send().await.unwrap();
    assert_eq!(models.status(), 200, "an unneeded key is accepted");
    let row = host.admin(Method::GET, "/admin/state").send().await.unwrap().json::<Value>().await.unwrap();
    assert_eq!(row["requests_total"], 0);
    host.server.shutdown().await;
}

//! Devices that fail, hang or are still loaded, and the reference cache.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use infer_api::admin::AdminEvent;
use infer_model::KvCacheKind;
use infer_server::config::{Bounds, Config, MaxSeqLen};
use infer_server::serve;
use reqwest::Method;
use serde_json::{Value, json};

use crate::common::port::Port;
use crate::common::{self, Host, config, events, request};

/// A device that hangs until it is released.
struct Hanging(std::sync::mpsc::Receiver<()>);

impl infer_core::Executor for Hanging {
    fn execute(
        &mut self,
        batch: &infer_core::Batch,
        output: &mut infer_core::StepOutput,
    ) -> Result<(), infer_core::DeviceFault> {
        let _ = self.0.recv();
        output.reset(batch.rows.len());
        for (drawn, row) in output.sampled.iter_mut().zip(&batch.rows) {
            *drawn = row.sample.then_some(7);
        }
        Ok(())
    }
}

/// A device that fails every step.
struct Faulty;

impl infer_core::Executor for Faulty {
    fn execute(
        &mut self,
        _: &infer_core::Batch,
        _: &mut infer_core::StepOutput,
    ) -> Result<(), infer_core::DeviceFault> {
        let message = "out of device memory".to_owned();
        let kind = infer_core::DeviceFaultKind::OutOfMemory;
        Err(infer_core::DeviceFault { kind, message, rows: None })
    }
}

/// A device that fell off the bus.
struct Lost;

impl infer_core::Executor for Lost {
    fn execute(
        &mut self,
        _: &infer_core::Batch,
        _: &mut infer_core::StepOutput,
    ) -> Result<(), infer_core::DeviceFault> {
        let message = "it fell off the bus".to_owned();
        Err(infer_core::DeviceFault { kind: infer_core::DeviceFaultKind::Lost, message, rows: None })
    }
}

/// A device that draws the same token whatever a constraint allows. As on all devices, a sequence whose constraint can't
/// go on gets none.
struct Unruly;

impl infer_core::Executor for Unruly {
    fn execute(
        &mut self,
        batch: &infer_core::Batch,
        output: &mut infer_core::StepOutput,
    ) -> Result<(), infer_core::DeviceFault> {
        output.reset(batch.rows.len());
        let sampling = output.sampled.iter_mut().zip(&batch.rows).filter(|(_, row)| row.sample);
        for (drawn, row) in sampling {
            let extras = row.sampling.extras.as_deref();
            let goes_on = extras.and_then(|extras| extras.constraint.as_ref()).is_none_or(|constraint| {
                let history = batch.row_history(row);
                constraint.restrict(&history[history.len() - row.generated as usize..], &mut vec![0.0; 1_792])
            });
            *drawn = goes_on.then_some(7);
        }
        Ok(())
    }
}

/// A host that computes on this device.
async fn host_on(config: Config, device: impl infer_core::Executor + Send + 'static) -> Host {
    let server = serve::start_with(config, Some(Box::new(|_| Box::new(device)))).await.unwrap();
    Host { server, client: reqwest::Client::builder().no_proxy().build().unwrap() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_fault_fails_its_requests_and_the_host_keeps_serving() {
    let host = host_on(config(), Faulty).await;
    let mut published = host.server.engine().observer().subscribe();
    let mut last = String::new();
    for _ in 0..2 {
        let (name, error) = host.events(json!({})).await.pop().unwrap();
        assert_eq!((name.as_str(), &error["code"]), ("error", &json!("device_fault")), "{error}");
        assert!(error["error"].as_str().unwrap().contains("out of device memory"), "{error}");
        let whole = host.complete(json!({"stream": false})).await;
        assert_eq!(whole.status(), 500);
        whole.headers()["x-request-id"].to_str().unwrap().clone_into(&mut last);
        let error = &whole.json::<Value>().await.unwrap()["error"];
        assert_eq!(
            (&error["code"], &error["type"]),
            (&json!("device_fault"), &json!("server_error")),
            "{error}"
        );
    }
    let failures: Vec<_> = std::iter::from_fn(|| published.try_recv().ok())
        .filter_map(|event| match event {
            AdminEvent::Failure { id, request_id, code, message } => Some((id, request_id, code, message)),
            _ => None,
        })
        .collect();
    assert_eq!(failures.len(), 4, "one for each request: {failures:?}");
    assert!(failures.is_sorted_by(|(before, ..), (after, ..)| before < after), "{failures:?}");
    assert_eq!(failures[3].1, last);
    for (.., code, message) in &failures {
        assert_eq!(code, "device_fault");
        assert!(message.contains("out of device memory"), "{message}");
    }
    let counters = &host.admin_get("/admin/state").await["counters"];
    assert_eq!((&counters["failed"], &counters["device_faults"]), (&json!(4), &json!(4)));
    assert_eq!(host.client.get(host.url("/health")).send().await.unwrap().status(), 200);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_without_an_engine_says_that_it_must_be_restarted() {
    let host = host_on(config(), Lost).await;
    let hit = host.complete(json!({"stream": false})).await;
    assert_eq!(hit.json::<Value>().await.unwrap()["error"]["code"], "device_fault");
    host.server.engine().stopped().await;
    let get = |path: &str| host.client.get(host.url(path));
    let completion = host.client.post(host.url("/v1/completions")).json(&request(json!({})));
    let order = host.admin(Method::DELETE, "/admin/cache");
    for asked in [get("/health"), get("/health/ready"), completion, order] {
        let answer = asked.send().await.unwrap();
        let (status, url) = (answer.status().as_u16(), answer.url().clone());
        let error = answer.json::<Value>().await.unwrap()["error"].take();
        assert_eq!((status, &error["code"]), (503, &json!("engine_stopped")), "{url}: {error}");
        assert!(error["message"].as_str().unwrap().contains("the engine has stopped"), "{url}: {error}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_that_leaves_its_constraint_fails_for_good_and_alone() {
    let host = host_on(config(), Unruly).await;
    let shaped = |stream: bool| json!({"structured_outputs": {"choice": ["yes", "no"]}, "stream": stream});
    let answer = host.complete(shaped(false)).await;
    assert_eq!(answer.status(), 500);
    assert_eq!(answer.headers()["x-should-retry"], "false");
    let whole = answer.json::<Value>().await.unwrap()["error"].take();
    assert_eq!(whole["code"], "structured_output_failed", "{whole}");
    let why = whole["message"].as_str().unwrap();
    assert!(why.starts_with("the structured output can't go on: "), "{why}");
    let (name, last) = host.events(shaped(true)).await.pop().unwrap();
    assert_eq!((name.as_str(), &last["code"]), ("error", &whole["code"]), "{last}");
    let free: Value = host.complete(json!({"stream": false})).await.json().await.unwrap();
    assert_eq!(free["usage"]["completion_tokens"], 8, "{free}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loading_host_is_alive_but_not_ready() {
    let kept = Port::new();
    let port = kept.number;
    let (entered, inside) = tokio::sync::oneshot::channel();
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let make: infer_server::serve::MakeExecutor = Box::new(move |_| {
        entered.send(()).unwrap();
        let _ = held.recv();
        Box::new(Faulty)
    });
    let starting = tokio::spawn(serve::start_with(Config { port, ..config() }, Some(make)));
    inside.await.unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = |path: &str| format!("http://127.0.0.1:{port}{path}");
    assert_eq!(client.get(url("/health")).send().await.unwrap().status(), 200);
    let completion = client.post(url("/v1/completions")).json(&request(json!({})));
    for asked in [completion, client.get(url("/health/ready")), client.get(url("/v1/models"))] {
        let answer = asked.send().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.headers().contains_key("retry-after")), (503, true));
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["code"], "loading", "{body}");
    }
    drop(let_go);
    let server = starting.await.unwrap().unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(client.get(url("/health/ready")).send().await.unwrap().status(), 200);
    server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_checks_report_a_hanging_device() {
    let (step_timeout, scrape_patience) = (Duration::from_millis(50), Duration::from_millis(200));
    let bounds = Bounds { step_timeout, scrape_patience, ..common::bounds() };
    let (let_go, held) = std::sync::mpsc::channel();
    let host = host_on(Config { bounds, ..config() }, Hanging(held)).await;
    let health = async |path: &str| {
        let answer = host.client.get(host.url(path)).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    assert_eq!(health("/health").await.0, 200, "nothing is computed yet");
    // A scrape that the engine is too slow for has nothing of it.
    host.until_metrics(&["infer_ready 1", "vllm:num_requests_running{"]).await;

    let body = request(json!({"stream": false}));
    let answer = tokio::spawn(host.client.post(host.url("/v1/completions")).json(&body).send());
    while health("/health").await.0 == 200 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for path in ["/health", "/health/ready"] {
        let (status, body) = health(path).await;
        assert_eq!((status, &body["error"]["code"]), (503, &json!("engine_hangs")), "{body}");
        assert!(body["error"]["message"].as_str().unwrap().contains("(--step-timeout)"), "{body}");
    }
    let hanging = host.client.get(host.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let kept = ["infer_tenant_requests_total{", "infer_state_age_seconds ", "vllm:num_requests_running{"];
    for wanted in [&["infer_ready 0"][..], &kept].concat() {
        assert!(hanging.contains(wanted), "`{wanted}` isn't in: {hanging}");
    }
    drop(let_go);
    assert_eq!(answer.await.unwrap().unwrap().status(), 200);
    assert_eq!(health("/health").await.0, 200, "the step has ended");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_time_out_while_the_device_hangs_whether_or_not_the_engine_took_them() {
    let request_timeout = Duration::from_secs(2);
    let bounds = Bounds { request_timeout, engine_patience: Duration::ZERO, ..common::bounds() };
    let begun = Instant::now();
    let (host, let_go, taken) = loop {
        let (let_go, held) = std::sync::mpsc::channel();
        let host = host_on(Config { bounds, ..config() }, Hanging(held)).await;
        let taken = host.complete(json!({})).await;
        let engine = host.server.engine();
        while engine.computing_for() == Duration::ZERO && engine.live() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        if taken.status() == 200 && engine.computing_for() > Duration::ZERO {
            break (host, let_go, taken);
        }
        // On a busy machine its time may be over before the engine has begun with it.
        assert!(begun.elapsed() < common::LONG, "{}", taken.status());
        drop(let_go);
        host.server.shutdown().await;
    };
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let chat = json!({"model": "demo", "messages": messages, "stream": true});
    let message = json!({"model": "demo", "messages": messages, "max_tokens": 5});
    let (taken, chat, message) = tokio::join!(
        events(taken),
        host.post("/v1/chat/completions", &chat),
        host.post("/v1/messages", &message)
    );
    let (name, error) = taken.last().expect("an event");
    assert_eq!((name.as_str(), &error["code"]), ("error", &json!("request_timeout")), "{error}");
    for answer in [chat, message] {
        assert_eq!(answer.status(), 504);
        assert_eq!(answer.headers()["x-should-retry"], "false");
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["code"], "request_timeout", "{body}");
    }
    for (method, path, words) in [
        (Method::GET, "/admin/state", "try again later"),
        (Method::GET, "/admin/blocks/map", "try again later"),
        (Method::GET, "/admin/requests/1", "try again later"),
        (Method::DELETE, "/admin/cache", "may still do this"),
        (Method::DELETE, "/admin/requests/1", "may still do this"),
    ] {
        let answer = host.admin(method, path).send().await.unwrap();
        assert_eq!(answer.status(), 503, "{path}");
        assert!(!answer.headers().contains_key("x-should-retry"), "{path}: there is no other host");
        let error = answer.json::<Value>().await.unwrap()["error"].take();
        assert_eq!(error["code"], "busy", "{path}: {error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{path}: {error}");
    }
    drop(let_go);
    // A host without patience says nothing of its state.
    while host.server.engine().live() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let metrics = host.client.get(host.url("/metrics")).send().await.unwrap().text().await.unwrap();
    for line in [
        "infer_request_errors_total{code=\"request_timeout\"} 3",
        "infer_tenant_requests_total{tenant=\"default\"} 3",
        "infer_tenant_requests_failed_total{tenant=\"default\"} 3",
    ] {
        assert!(metrics.contains(&format!("{line}\n")), "{line}\n{metrics}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_sent_to_a_client_that_leaves_is_counted() {
    // Each step waits for its turn.
    let (turn, turns) = std::sync::mpsc::channel();
    let host = host_on(config(), Hanging(turns)).await;
    let cached: Vec<u32> = (5..55).collect();
    turn.send(()).unwrap();
    let whole = host.complete(json!({"prompt": cached, "max_tokens": 1, "stream": false})).await;
    assert_eq!(whole.status(), 200);

    let prompt: Vec<u32> = cached.into_iter().chain(100..110).collect();
    (0..4).for_each(|_| turn.send(()).unwrap());
    let answer = host.complete(json!({"prompt": prompt, "max_tokens": 500, "ignore_eos": true})).await;
    let mut stream = Box::pin(answer.bytes_stream());
    let mut read = String::new();
    while read.matches("event: token\n").count() < 4 {
        let chunk = futures_util::StreamExt::next(&mut stream).await.expect("it goes on").unwrap();
        read.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    drop(stream);
    // Without the engine, which waits for the device.
    while host.server.engine().live() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(turn);
    host.until("nothing is left", |state| state["requests"] == json!([])).await;
    let metrics = host.client.get(host.url("/metrics")).send().await.unwrap().text().await.unwrap();
    for line in [
        "infer_tenant_requests_total{tenant=\"default\"} 2",
        "infer_tenant_prompt_tokens_total{tenant=\"default\"} 110",
        "infer_tenant_cached_tokens_total{tenant=\"default\"} 48",
        "infer_tenant_generated_tokens_total{tenant=\"default\"} 5",
        "infer_tenant_inter_token_latency_seconds_count{tenant=\"default\"} 3",
        "infer_inter_token_latency_seconds_count 3",
    ] {
        assert!(metrics.contains(&format!("{line}\n")), "{line}\n{metrics}");
    }
    host.server.shutdown().await;
}

/// The reference backend: full-length rows for the whole batch whatever the memory for blocks, and nothing shared.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contiguous_cache_serves_and_shares_nothing() {
    let (max_batch_size, max_seq_len) = (3, 256);
    let kv_cache = KvCacheKind::Contiguous;
    let config = Config { max_batch_size, max_seq_len: MaxSeqLen::Tokens(max_seq_len), kv_cache, ..config() };
    let host = Host::start(config).await;
    let prompt: Vec<u32> = (1..=40).collect();
    let fields = || json!({"prompt": prompt, "max_tokens": 20, "ignore_eos": true, "stream": false});
    let alone: Value = host.complete(fields()).await.json().await.unwrap();
    assert_eq!(alone["usage"]["completion_tokens"], 20, "{alone}");
    for answer in join_all((0..5).map(|_| host.complete(fields()))).await {
        let answer: Value = answer.json().await.unwrap();
        assert_eq!(answer["choices"], alone["choices"]);
        assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    }
    let state = host.until("nothing runs", |state| state["queue"]["running"] == 0).await;
    let blocks = max_batch_size * max_seq_len.div_ceil(16);
    assert_eq!((&state["memory"]["total"], &state["memory"]["free"]), (&json!(blocks), &json!(blocks)));
}

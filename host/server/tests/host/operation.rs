//! The host under disconnects, full queues, slow readers, device faults, drains and operators' commands.

use std::time::Duration;

use crate::common::port::Port;
use crate::common::{self, Host, config, events, first_chunk, request, token_ids};
use futures_util::future::join_all;
use infer_api::admin::AdminEvent;
use infer_model::KvCacheKind;
use infer_server::config::{Bounds, Config, MaxSeqLen};
use infer_server::engine::{NewRequest, RequestMeta, StreamEvent};
use infer_server::serve;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Fields of a request that runs until it is cancelled.
fn endless() -> Value {
    json!({"ignore_eos": true, "max_tokens": 1_500})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnect_frees_blocks_in_every_request_state() {
    let host = Host::start(Config { max_batch_size: 1, prefix_caching: false, ..config() }).await;
    // A request that streams.
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
async fn drain_finishes_streams_and_rejects_new_requests() {
    let host = Host::start(config()).await;
    let running = first_chunk(host.complete(json!({"ignore_eos": true, "max_tokens": 300})).await).await;
    let answer = host.admin(Method::POST, "/admin/drain").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let ready = host.client.get(host.url("/health/ready")).send().await.unwrap();
    assert_eq!(ready.status(), 503);
    assert_eq!(host.client.get(host.url("/health")).send().await.unwrap().status(), 200);
    let refused = host.complete(json!({})).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(refused.headers()["x-should-retry"], "true", "a router finds another host");
    let counters = &host.admin_get("/admin/state").await["counters"];
    assert_eq!((&counters["refused"]["draining"], &counters["submitted"]), (&json!(1), &json!(2)));
    let (mut running, rest) = (running, tokio::spawn(host.server.shutdown()));
    let mut text = String::new();
    while let Some(chunk) = futures_util::StreamExt::next(&mut running).await {
        text.push_str(std::str::from_utf8(chunk.unwrap().as_ref()).unwrap());
    }
    assert!(text.contains("event: done") && text.contains("\"finish_reason\":\"length\""), "{text}");
    rest.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_host_closes_the_connections_that_clients_keep() {
    let host = Host::start(config()).await;
    let get = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut kept = TcpStream::connect(host.server.data_addr).await.unwrap();
    kept.write_all(get).await.unwrap();
    let mut before = Vec::new();
    while !before.ends_with(b"}") {
        assert!(kept.read_buf(&mut before).await.unwrap() > 0, "it is closed");
    }
    let before = String::from_utf8(before).unwrap();
    assert!(before.starts_with("HTTP/1.1 200 ") && !before.contains("connection:"), "{before}");

    host.server.drain();
    let refused = host.complete(json!({})).await;
    assert_eq!(refused.status(), 503);
    assert_eq!(refused.headers()["connection"], "close");
    // Reading ends when the host closes the connection.
    kept.write_all(get).await.unwrap();
    let mut last = String::new();
    kept.read_to_string(&mut last).await.unwrap();
    assert!(last.starts_with("HTTP/1.1 200 ") && last.contains("connection: close"), "{last}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_beyond_the_drain_timeout_ends_with_an_error() {
    let bounds = Bounds { drain_timeout: Duration::from_millis(100), ..Bounds::default() };
    let host = Host::start(Config { bounds, ..config() }).await;
    host.server.engine().hold_steps();
    let answer = host.complete(endless()).await;
    let (events, ()) = tokio::join!(common::events(answer), host.server.shutdown());
    let (name, error) = events.last().expect("an event");
    assert_eq!((name.as_str(), &error["code"]), ("error", &json!("stopped")), "{error}");
}

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_fault_fails_its_requests_and_the_host_keeps_serving() {
    let server = serve::start_with(config(), Some(Box::new(|_| Box::new(Faulty)))).await.unwrap();
    let host = Host { server, client: reqwest::Client::builder().no_proxy().build().unwrap() };
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
    let bounds = Bounds { step_timeout: Duration::from_millis(50), ..Bounds::default() };
    let (let_go, held) = std::sync::mpsc::channel();
    let config = Config { bounds, ..config() };
    let server = serve::start_with(config, Some(Box::new(|_| Box::new(Hanging(held))))).await.unwrap();
    let host = Host { server, client: reqwest::Client::builder().no_proxy().build().unwrap() };
    let health = async |path: &str| {
        let answer = host.client.get(host.url(path)).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    assert_eq!(health("/health").await.0, 200, "nothing is computed yet");
    let metrics = async || {
        let response = host.client.get(host.url("/metrics")).send().await.unwrap();
        response.text().await.unwrap()
    };
    let idle = metrics().await;
    assert!(idle.contains("infer_ready 1") && idle.contains("vllm:num_requests_running{"), "{idle}");

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
    let hanging = metrics().await;
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
    let bounds = Bounds { request_timeout, engine_patience: Duration::ZERO, ..Bounds::default() };
    let (let_go, held) = std::sync::mpsc::channel();
    let config = Config { bounds, ..config() };
    let server = serve::start_with(config, Some(Box::new(|_| Box::new(Hanging(held))))).await.unwrap();
    let host = Host { server, client: reqwest::Client::builder().no_proxy().build().unwrap() };
    let taken = host.complete(json!({})).await;
    assert_eq!(taken.status(), 200);
    while host.server.engine().computing_for() == Duration::ZERO {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
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
    let server = serve::start_with(config(), Some(Box::new(|_| Box::new(Hanging(turns))))).await.unwrap();
    let host = Host { server, client: reqwest::Client::builder().no_proxy().build().unwrap() };
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_is_cancelled_and_the_engine_goes_on() {
    const EVENTS: usize = 64;
    // With one token more than fits, the end comes with the token that has no room.
    for tokens in [EVENTS as u32 + 1, 1_000] {
        stall(EVENTS, tokens).await;
    }
}

async fn stall(events: usize, tokens: u32) {
    let bounds = Bounds { stream_events: events, ..Bounds::default() };
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
    let bounds = Bounds { keep_alive: Duration::from_millis(50), ..Bounds::default() };
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_plane_requires_its_token_on_every_path() {
    let host = Host::start(config()).await;
    let url = format!("http://{}/admin/state", host.server.admin_addr);
    let cases = [None, Some("Bearer "), Some("Bearer wrong-token"), Some("Basic test-token-0123456789")];
    for path in [url.as_str(), &url.replace("state", "nothing")] {
        for header in cases {
            let mut request = host.client.get(path);
            if let Some(header) = header {
                request = request.header("authorization", header);
            }
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status(), 401, "{path} {header:?}");
            assert_eq!(answer.headers()["www-authenticate"], "Bearer");
        }
    }
    assert_eq!(host.admin(Method::GET, "/admin/state").send().await.unwrap().status(), 200);
    assert_eq!(host.admin(Method::GET, "/admin/nothing").send().await.unwrap().status(), 404);
    assert_eq!(host.admin(Method::POST, "/admin/state").send().await.unwrap().status(), 405);
    let data_plane = host.client.get(host.url("/admin/state")).send().await.unwrap();
    assert_eq!(data_plane.status(), 404, "the data plane has no admin paths");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generated_admin_token_file_is_removed_at_shutdown() {
    let host = Host::start(Config { admin_token: None, ..config() }).await;
    let files = infer_server::admin::token::files(host.server.admin_addr.port());
    let path = files.into_iter().find(|file| file.exists()).expect("a token file");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), host.server.admin_token);
    assert_eq!(host.admin(Method::GET, "/admin/state").send().await.unwrap().status(), 200);
    host.server.shutdown().await;
    assert!(!path.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numeric_names_mean_engine_ids_and_lists_shorten_metadata() {
    let host = Host::start(config()).await;
    let note = "\u{1}".repeat(512);
    let fields = json!({"metadata": {"note": note}, "ignore_eos": true, "max_tokens": 1_500});
    let post = host.client.post(host.url("/v1/completions")).header("x-request-id", "424242");
    let answer = post.json(&request(fields)).send().await.unwrap();
    let state = host.until("it decodes", |s| s["requests"][0]["state"] == "decode").await;
    let row = &state["requests"][0];
    let listed = row["metadata"]["note"].as_str().unwrap();
    assert!(listed.ends_with('…') && listed.len() < 64, "{listed:?}");
    let detail = host.admin_get(&format!("/admin/requests/{}", row["id"])).await;
    assert_eq!(detail["row"]["metadata"]["note"], json!(note));

    // The client's own request id is a number, which may be the engine's id of another request.
    let end = async |query: &str| {
        let path = format!("/admin/requests/424242{query}");
        host.admin(Method::DELETE, &path).send().await.unwrap().status()
    };
    assert_eq!(end("").await, 404);
    assert_eq!(end("?by=name").await, 422);
    assert_eq!(row["first_id"], row["id"], "it has one sequence");
    assert_eq!(end("?by=first_id").await, 404);
    assert_eq!(end("?by=request_id").await, 200);
    let events = events(answer).await;
    assert_eq!(events.last().unwrap().1["finish_reason"], "cancelled");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_and_cancel_requests() {
    let host = Host::start(config()).await;
    let fields = json!({"user": "u", "session_id": "s", "metadata": {"k": "v"}, "priority": 3,
        "ignore_eos": true, "max_tokens": 1_500});
    let answer = host
        .client
        .post(host.url("/v1/completions"))
        .header("x-request-id", "find-me")
        .json(&request(fields))
        .send()
        .await
        .unwrap();
    let state = host.until("it decodes", |s| s["requests"][0]["state"] == "decode").await;
    let row = &state["requests"][0];
    assert_eq!(
        (&row["request_id"], &row["user"], &row["session"]),
        (&json!("find-me"), &json!("u"), &json!("s"))
    );
    assert_eq!((&row["metadata"]["k"], &row["priority"]), (&json!("v"), &json!(3)));
    let m = &state["memory"];
    let sum = ["free", "cached", "used"].iter().map(|k| m[k].as_u64().unwrap()).sum::<u64>();
    assert_eq!(sum, m["total"].as_u64().unwrap());
    let blocks = host.admin_get("/admin/blocks").await;
    assert_eq!(blocks["states"].as_str().unwrap().len() as u64, m["total"].as_u64().unwrap());
    assert!(blocks["states"].as_str().unwrap().contains('u'));
    let id = row["id"].as_u64().unwrap();
    let cancelled = host.admin(Method::DELETE, &format!("/admin/requests/{id}")).send().await.unwrap();
    assert_eq!(cancelled.status(), 200);
    let events = events(answer).await;
    let (name, done) = events.last().unwrap();
    assert_eq!((name.as_str(), &done["finish_reason"]), ("done", &json!("cancelled")));
    let again = host.admin(Method::DELETE, &format!("/admin/requests/{id}")).send().await.unwrap();
    assert_eq!(again.status(), 404);

    // Clearing the queue fails the waiting requests.
    host.server.engine().hold_steps();
    let waiting = host.complete(json!({})).await;
    let whole = request(json!({"stream": false}));
    let whole = tokio::spawn(host.client.post(host.url("/v1/completions")).json(&whole).send());
    host.until("both wait", |state| state["queue"]["waiting"] == 2).await;
    let cleared: Value =
        host.admin(Method::DELETE, "/admin/queue").send().await.unwrap().json().await.unwrap();
    assert_eq!(cleared["cleared"], 2);
    let (name, error) = common::events(waiting).await.pop().unwrap();
    assert_eq!((name.as_str(), &error["code"]), ("error", &json!("queue_cleared")));
    let whole = whole.await.unwrap().unwrap();
    let has = ["retry-after", "x-should-retry"].map(|name| whole.headers().contains_key(name));
    assert_eq!((whole.status().as_u16(), has), (503, [true, false]), "its client may ask again, later");
    host.server.engine().release_steps();
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_empty_the_cache() {
    let host = Host::start(config()).await;
    let prompt: Vec<u32> = (0..40).map(|i| 5 + i % 7).collect();
    let body = json!({"prompt": prompt, "max_tokens": 1, "temperature": 0, "stream": false});
    let cached = async || {
        let answer: Value = host.complete(body.clone()).await.json().await.unwrap();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap_or_else(|| panic!("{answer}"))
    };
    assert_eq!((cached().await, cached().await), (0, 40));
    let empty = async || -> Value {
        host.admin(Method::DELETE, "/admin/cache").send().await.unwrap().json().await.unwrap()
    };
    let emptied = empty().await;
    assert!(emptied["dropped_blocks"].as_u64() >= Some(2) && emptied["blocks_in_use"] == 0, "{emptied}");
    assert_eq!(empty().await["dropped_blocks"], 0);
    assert_eq!(host.admin_get("/admin/cache").await["blocks"], 0);
    assert_eq!(cached().await, 0);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn event_feed_sends_snapshots_and_swaps() {
    let host = Host::start(config()).await;
    let feed = host.admin(Method::GET, "/admin/events?hz=20").send().await.unwrap();
    assert_eq!(feed.headers()["content-type"], "text/event-stream");
    let mut feed = Box::pin(feed.bytes_stream());
    let mut seen = String::new();
    let swap = host.admin(Method::PUT, "/admin/policies/scheduler").json(&json!({"name": "static-batch"}));
    assert_eq!(swap.send().await.unwrap().status(), 200);
    while !(seen.contains("event: swap\n") && seen.matches("event: snapshot\n").count() >= 2) {
        let chunk = futures_util::StreamExt::next(&mut feed).await.unwrap().unwrap();
        seen.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    let refused = host.admin(Method::GET, "/admin/events?hz=0").send().await.unwrap();
    assert_eq!(refused.status(), 422);
    // An open feed ends at shutdown and doesn't delay it.
    host.server.shutdown().await;
    while let Some(Ok(_)) = futures_util::StreamExt::next(&mut feed).await {}
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

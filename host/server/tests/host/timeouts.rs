//! Malformed requests and slow peers: heads that can't be parsed, timeouts, stalled streams.

use std::time::{Duration, Instant};

use crate::common::{self, Host, config};
use infer_server::config::{Bounds, Config};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Sends bytes and reads until the host closes the connection. What it refuses it reads for a moment only, so on a busy
/// machine the last of the bytes may find a closed connection; what it has sent before can be read.
async fn raw(host: &Host, bytes: &[u8]) -> String {
    raw_at(host.server.data_addr, bytes).await
}

async fn raw_at(plane: std::net::SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(plane).await.unwrap();
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

/// Status and JSON body of an error response.
fn error_of(answer: &str) -> (u16, Value) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {answer:?}"));
    let fields = head.to_ascii_lowercase();
    assert!(
        ["x-request-id: ", "date: "].iter().all(|field| fields.contains(&format!("\r\n{field}"))),
        "{head}"
    );
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body:?}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn malformed_heads_get_an_error_with_a_body() {
    let host = Host::start(config()).await;
    let many: String = (0..200).map(|n| format!("x-{n}: y\r\n")).collect();
    let cases = [
        ("nonsense\r\n\r\n".to_owned(), 400, "malformed_head", "(invalid HTTP method parsed)"),
        ("GET /health HTTP/9.9\r\n\r\n".to_owned(), 400, "malformed_head", "(invalid HTTP version parsed)"),
        (
            "GET /health HTTP/1.1\r\na b: x\r\n\r\n".to_owned(),
            400,
            "malformed_head",
            "(invalid HTTP header parsed)",
        ),
        (
            format!("GET /health HTTP/1.1\r\nhost: x\r\n{many}\r\n"),
            431,
            "header_fields_too_large",
            "too many",
        ),
        (
            format!("GET /health HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(200_000)),
            431,
            "header_fields_too_large",
            "too long",
        ),
    ];
    for (text, status, code, words) in cases {
        let (got, body) = error_of(&raw(&host, text.as_bytes()).await);
        let start: String = text.chars().take(40).collect();
        assert_eq!((got, &body["error"]["code"]), (status, &json!(code)), "{start}: {body}");
        assert!(body["error"]["message"].as_str().unwrap().contains(words), "{start}: {body}");
    }
    // A good request before a malformed one gets its response.
    let both = raw(&host, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nnonsense\r\n\r\n").await;
    assert!(both.starts_with("HTTP/1.1 200 ") && both.contains("HTTP/1.1 400 "), "{both}");
    // The host's own errors without a body are not replaced.
    let head = raw(&host, b"HEAD /nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_without_one_host_or_with_unknown_codings_are_refused_on_both_planes() {
    let host = Host::start(config()).await;
    for (fields, body, status, code, words) in [
        ("", "", 400, "malformed_head", "no `host`"),
        ("host: x\r\nhost: x\r\n", "", 400, "malformed_head", "more than one `host`"),
        ("host: a b/c@d\r\n", "", 400, "malformed_head", "`host` field that is no host"),
        (
            "host: x\r\ntransfer-encoding: gzip, chunked\r\n",
            "2\r\n{}\r\n0\r\n\r\n",
            501,
            "unsupported_transfer_encoding",
            "`gzip`",
        ),
    ] {
        for (plane, path) in [
            (host.server.data_addr, "/v1/completions"),
            (host.server.data_addr, "/v1/messages"),
            (host.server.admin_addr, "/admin/reload"),
        ] {
            let request = format!("POST {path} HTTP/1.1\r\n{fields}\r\n{body}");
            let (got, body) = error_of(&raw_at(plane, request.as_bytes()).await);
            assert_eq!((got, &body["error"]["code"]), (status, &json!(code)), "{fields}, {path}: {body}");
            assert!(body["error"]["message"].as_str().unwrap().contains(words), "{fields}, {path}: {body}");
        }
    }
    let old = raw(&host, b"GET /health HTTP/1.0\r\n\r\n").await;
    assert!(old.starts_with("HTTP/1.0 200 "), "HTTP/1.0 has no such field: {old}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn body_in_wrong_chunks_is_refused_with_what_is_wrong_about_them() {
    let host = Host::start(config()).await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    for (body, words) in [
        ("x\r\n{}\r\n0\r\n\r\n", "missing size digit"),
        ("2x\r\n{}\r\n0\r\n\r\n", "Invalid Size"),
        ("fffffffffffffffff\r\n", "overflow"),
        ("2\r\n{}0\r\n\r\n", "chunk body CR"),
        ("2\r\n{}\r\r0\r\n\r\n", "chunk body LF"),
    ] {
        let (status, answer) = error_of(&raw(&host, format!("{head}{body}").as_bytes()).await);
        assert_eq!((status, &answer["error"]["code"]), (400, &json!("body")), "{body:?}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(
            message.starts_with("can't read the body: ") && message.contains(words),
            "{body:?}: {message}"
        );
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_and_idle_connections_have_separate_timeouts() {
    let bounds = Bounds {
        header_timeout: Duration::from_millis(150),
        idle_timeout: Duration::from_secs(600),
        ..common::bounds()
    };
    let host = Host::start(Config { bounds, ..config() }).await;
    let get = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    let (mut kept, answer) = host.begin(get).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // Meanwhile, a head that begins and never ends, and a connection that sends nothing.
    let (mut late, mut answer) = host.begin("GET /health HTTP/1.1\r\nhos").await;
    late.read_to_string(&mut answer).await.unwrap();
    let (status, body) = error_of(&answer);
    assert_eq!((status, &body["error"]["code"]), (408, &json!("header_timeout")));
    assert_eq!(raw(&host, b"").await, "", "a connection without a request gets no response");
    // The idle connection is still open, and its next head gets the full header timeout.
    kept.write_all(get.as_bytes()).await.unwrap();
    assert!(kept.read(&mut [0; 4_096]).await.unwrap() > 0);
    kept.write_all(b"GET /hea").await.unwrap();
    let mut rest = String::new();
    kept.read_to_string(&mut rest).await.unwrap();
    assert_eq!(error_of(&rest).0, 408);
    host.server.shutdown().await;

    let bounds = Bounds { idle_timeout: Duration::from_millis(100), ..common::bounds() };
    let host = Host::start(Config { bounds, ..config() }).await;
    let answer = raw(&host, get.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.matches("HTTP/1.1").count() == 1, "{answer}");
    host.server.shutdown().await;
}

/// What a client receives that closes its side of the connection after its request.
async fn half_closed(plane: std::net::SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(plane).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut answer)).await;
    ended.expect("the host closes its side, too").unwrap();
    String::from_utf8(answer).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_closes_its_side_gets_what_it_reads_and_nothing_generated() {
    let host = Host::start(config()).await;
    let token = format!("authorization: Bearer {}\r\n", host.server.admin_token);
    let (data, admin) = (host.server.data_addr, host.server.admin_addr);
    for (plane, path) in [
        (data, "/metrics"),
        (data, "/v1/models"),
        (data, "/health"),
        (data, "/openapi.json"),
        (admin, "/admin/state"),
        (admin, "/metrics"),
    ] {
        let token = if plane == admin { &token } else { "" };
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{token}\r\n");
        let answer = half_closed(plane, &request.repeat(2)).await;
        assert_eq!(answer.matches("HTTP/1.1 200 ").count(), 2, "{path}: {answer}");
    }
    // A stream of events would go on for as long as the host runs.
    let events = format!("GET /admin/events HTTP/1.1\r\nhost: x\r\n{token}\r\n");
    half_closed(admin, &events).await;
    host.server.engine().hold_steps();
    let body = common::request(json!({})).to_string();
    let length = body.len();
    let post = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n{body}");
    let answer = half_closed(data, &post).await;
    assert!(!answer.contains("data: "), "{answer}");
    host.server.engine().release_steps();
    all_is_free(&host).await;
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_body_is_answered_once_even_if_its_rest_never_comes() {
    let bounds = Bounds { header_timeout: Duration::from_millis(150), ..common::bounds() };
    let host = Host::start(Config { bounds, max_body_bytes: 1_024, ..config() }).await;
    let chunk = "x".repeat(2_000);
    let head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n";
    let (mut stream, first) = host.begin(&format!("{head}10000\r\n{chunk}")).await;
    assert!(first.starts_with("HTTP/1.1 413 "), "{first}");
    let mut all = first.into_bytes();
    // The host may be through with this connection on a busy machine; what it has sent can be read.
    let _ = stream.write_all(b"x").await;
    let _ = stream.read_to_end(&mut all).await;
    let (status, body) = error_of(&String::from_utf8(all).unwrap());
    assert_eq!((status, &body["error"]["code"]), (413, &json!("body_too_large")), "nothing follows: {body}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_timeout_ends_waiting_requests_with_an_error() {
    let bounds = Bounds { request_timeout: Duration::from_millis(200), ..common::bounds() };
    let host = Host::start(Config { bounds, ..config() }).await;
    host.server.engine().hold_steps();
    let chat = json!({"model": "demo", "messages": [{"role": "user", "content": "Hi"}]});
    let whole = json!({"stream": false});
    let (named, openai, whole, chat) = tokio::join!(
        host.complete(json!({})),
        host.complete(json!({"stream_options": {"include_usage": true}})),
        host.complete(whole),
        host.post("/v1/chat/completions", &chat),
    );
    let names_the_limit = |error: &Value| {
        let text = error.as_str().unwrap_or_else(|| panic!("{error}"));
        assert!(text.contains("0.2 s (--request-timeout); it had not started"), "{text}");
    };
    let (name, error) = common::events(named).await.pop().unwrap();
    assert_eq!((name.as_str(), &error["code"]), ("error", &json!("request_timeout")));
    names_the_limit(&error["error"]);
    let frames = common::events(openai).await;
    let [(_, body), (_, end)] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!((&body["error"]["code"], end), (&json!("request_timeout"), &json!("[DONE]")));
    for answer in [whole, chat] {
        assert_eq!(answer.status(), 504);
        assert_eq!(answer.headers()["x-should-retry"], "false", "a retry would take as long");
        let body: Value = answer.json().await.unwrap();
        let error = &body["error"];
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("timeout_error"), &json!("request_timeout")),
            "{body}"
        );
        names_the_limit(&error["message"]);
    }
    let idle = host.until("nothing waits", |state| state["requests"] == json!([])).await;
    assert_eq!(
        (&idle["counters"]["failed"], &idle["counters"]["finished"]["cancelled"]),
        (&json!(4), &json!(0))
    );
    let metrics = host.client.get(host.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let counted = "infer_request_errors_total{code=\"request_timeout\"} 4";
    assert!(metrics.contains(counted), "{metrics}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timeouts_beyond_the_clocks_range_mean_no_limit() {
    let bounds = Bounds { request_timeout: Duration::MAX, keep_alive: Duration::MAX, ..common::bounds() };
    let host = Host::start(Config { bounds, ..config() }).await;
    let (streamed, whole) = tokio::join!(host.complete(json!({})), host.complete(json!({"stream": false})));
    assert_eq!(common::events(streamed).await.last().unwrap().0, "done");
    assert_eq!(whole.status(), 200);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_timeout_during_a_stream_is_its_last_event() {
    let host = Host::start(config()).await;
    for (extra, last) in [(json!({}), 1), (json!({"stream_options": {}}), 2)] {
        let mut fields = json!({"max_tokens": 1_500, "ignore_eos": true});
        fields.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        host.server.engine().allow_steps(8);
        let answer = host.complete(fields).await;
        let state = host.until("it decodes", |s| s["requests"][0]["state"] == "decode").await;
        let id = infer_core::SequenceId(state["requests"][0]["id"].as_u64().unwrap());
        host.server.engine().expire(vec![(id, "too late".to_owned())]).unwrap();
        let frames = common::events(answer).await;
        assert!(frames.len() > last, "tokens came before");
        let (name, end) = &frames[frames.len() - last];
        let error = if name == "error" { end } else { &end["error"] };
        assert_eq!(error["code"], "request_timeout", "{frames:?}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_timeout_tells_what_all_choices_generated() {
    let host = Host::start(Config { max_batch_size: 1, ..config() }).await;
    // Enough for one choice, and too few for two.
    host.server.engine().allow_steps(700);
    let answer = host.complete(json!({"n": 8, "max_tokens": 500, "ignore_eos": true})).await;
    host.until("a choice has ended", |s| s["counters"]["finished"]["length"].as_u64() >= Some(1)).await;
    host.server.engine().hold_steps();
    let left = host.admin_get("/admin/state").await["requests"].as_array().unwrap().clone();
    // Those that have not started are the first to end.
    let overdue = left.iter().rev().map(|row| infer_core::SequenceId(row["id"].as_u64().unwrap()));
    host.server.engine().expire(overdue.map(|id| (id, "too late".to_owned())).collect()).unwrap();
    let mut frames = common::events(answer).await;
    let (name, error) = frames.pop().unwrap();
    assert_eq!((name.as_str(), &error["code"]), ("error", &json!("request_timeout")));
    let sent = frames.iter().filter(|(name, _)| name == "token").count();
    assert!(sent >= 500, "{sent}");
    assert_eq!(error["error"], json!(format!("too late; it had generated {sent} tokens")));
    host.server.shutdown().await;
}

/// Waits until nothing of any request is left: no sequence, no queue slot, no block in use.
async fn all_is_free(host: &Host) {
    let idle = host.until("nothing is left", |state| state["requests"] == json!([])).await;
    let queue = &idle["queue"];
    assert_eq!([&queue["running"], &queue["waiting"], &queue["held"]], [0, 0, 0], "{queue}");
    assert_eq!(idle["memory"]["used"], 0, "{}", idle["memory"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_chat_stream_ends_with_an_error_and_frees_everything() {
    let bounds = Bounds { request_timeout: Duration::from_secs(2), ..common::bounds() };
    let host = Host::start(Config { bounds, max_batch_size: 2, ..config() }).await;
    let chat = json!({
        "model": "demo", "messages": [{"role": "user", "content": "What is a prefix cache?"}], "stream": true,
        "stream_options": {"include_usage": true}, "n": 2, "max_tokens": 1_500, "ignore_eos": true,
    });
    let begun = Instant::now();
    let (text, frames) = loop {
        // Then the device stops, so only the timeout can end the request.
        host.server.engine().allow_steps(8);
        let answer = host.post("/v1/chat/completions", &chat).await;
        assert_eq!(answer.status(), 200);
        let text = answer.text().await.unwrap();
        let frames = common::parse_events(&text);
        let content = |chunk: &Value| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned);
        if frames.iter().filter_map(|(_, chunk)| content(chunk)).any(|said| !said.is_empty()) {
            break (text, frames);
        }
        // On a busy machine the timeout may come before the first step.
        assert!(begun.elapsed() < common::LONG, "{text}");
    };
    let [said @ .., (_, error), (_, end)] = &frames[..] else { panic!("{text}") };
    assert_eq!(
        (&error["error"]["code"], &error["error"]["type"], end),
        (&json!("request_timeout"), &json!("timeout_error"), &json!("[DONE]")),
        "{text}"
    );
    assert!(error["error"]["message"].as_str().unwrap().contains("(--request-timeout)"), "{error}");
    assert!(said.iter().any(|(_, chunk)| chunk["choices"][0]["delta"]["content"] != json!(null)), "{text}");
    let reasons = said.iter().filter(|(_, chunk)| chunk["choices"][0]["finish_reason"].is_string());
    assert_eq!(reasons.count(), 0, "no choice claims to be complete: {text}");
    all_is_free(&host).await;
    // Its slots can be used again.
    host.server.engine().release_steps();
    loop {
        let next = host.complete(json!({"n": 2, "max_tokens": 4, "ignore_eos": true})).await;
        let (name, last) = common::events(next).await.pop().unwrap();
        if name == "done" {
            break;
        }
        assert!(last["code"] == "request_timeout" && begun.elapsed() < common::LONG, "{last}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_host_refuses_requests_before_their_bodies_arrive() {
    let host = Host::start(config()).await;
    host.server.drain();
    for path in ["/v1/completions", "/v1/chat/completions"] {
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{{");
        let mut stream = TcpStream::connect(host.server.data_addr).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"}}") {
            assert!(stream.read_buf(&mut answer).await.unwrap() > 0, "{path}: it is closed");
        }
        let (status, body) = error_of(&String::from_utf8(answer).unwrap());
        assert_eq!((status, &body["error"]["code"]), (503, &json!("draining")), "{path}");
    }
    assert_eq!(host.admin_get("/admin/state").await["counters"]["refused"]["draining"], 2);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_head_does_not_delay_a_shutdown() {
    let hour = Duration::from_secs(3_600);
    let bounds = Bounds { header_timeout: hour, ..common::bounds() };
    let host = Host::start(Config { bounds, ..config() }).await;
    let mut halves = Vec::new();
    for plane in [host.server.data_addr, host.server.admin_addr] {
        let mut half = TcpStream::connect(plane).await.unwrap();
        half.write_all(b"GET /health HTTP/1.1\r\nhos").await.unwrap();
        halves.push(half);
    }
    // Connections are accepted in order.
    assert_eq!(host.client.get(host.url("/health")).send().await.unwrap().status(), 200);
    host.admin_get("/admin/state").await;
    host.server.finish_streams().await;
    let closed = tokio::time::timeout(Duration::from_secs(60), host.server.close_within(hour)).await;
    assert!(closed.is_ok(), "it waits for the rest of a head");
    for mut half in halves {
        let mut answer = String::new();
        // One that wasn't read yet when the host stopped is closed without a response.
        let _ = half.read_to_string(&mut answer).await;
        if !answer.is_empty() {
            let (status, body) = error_of(&answer);
            assert_eq!((status, &body["error"]["code"]), (503, &json!("draining")), "{answer}");
            assert!(answer.contains("\r\nretry-after: 1\r\n"), "{answer}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_waits_until_a_slow_reader_has_the_whole_response() {
    const CHOICES: usize = 16;
    let host = Host::start(config()).await;
    let chat = json!({
        "model": "demo", "messages": [{"role": "user", "content": "What is a prefix cache?"}], "n": CHOICES,
        "max_tokens": 400, "ignore_eos": true, "logprobs": true, "top_logprobs": 20,
    })
    .to_string();
    let mut stream = TcpStream::connect(host.server.data_addr).await.unwrap();
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", chat.len());
    stream.write_all((head + &chat).as_bytes()).await.unwrap();
    host.until("all have ended", |state| state["counters"]["finished"]["length"] == CHOICES).await;
    while host.server.engine().live() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // The engine has nothing to do, and the response is still to be written or sent.
    let mut finished = Box::pin(host.server.finish_streams());
    let early = tokio::time::timeout(Duration::from_millis(200), finished.as_mut()).await;
    assert!(early.is_err(), "nothing was read");
    let reading = tokio::spawn(async move {
        let mut response = Vec::new();
        stream.read_to_end(&mut response).await.unwrap();
        response
    });
    finished.await;
    host.server.close().await;
    let response = reading.await.unwrap();
    // No sockets' buffers hold that much.
    assert!(response.len() > 5 << 20, "{} bytes", response.len());
    let at = response.windows(4).position(|part| part == b"\r\n\r\n").expect("a head");
    let body: Value = serde_json::from_slice(&response[at + 4..]).unwrap();
    assert_eq!(body["choices"].as_array().unwrap().len(), CHOICES);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chat_stream_without_a_reader_is_cancelled_and_frees_everything() {
    // Only the write timeout may end it, not the bound on buffered events.
    let bounds =
        Bounds { write_timeout: Duration::from_millis(200), stream_events: 1 << 20, ..common::bounds() };
    let host = Host::start(Config { bounds, ..config() }).await;
    let chat = json!({
        "model": "demo", "messages": [{"role": "user", "content": "What is a prefix cache?"}], "stream": true,
        "n": 8, "max_tokens": 1_500, "ignore_eos": true, "logprobs": true, "top_logprobs": 20,
    })
    .to_string();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut stream = socket.connect(host.server.data_addr).await.unwrap();
    let head =
        format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", chat.len());
    stream.write_all((head + &chat).as_bytes()).await.unwrap();
    host.until("it was taken", |state| state["counters"]["submitted"] != 0).await;
    all_is_free(&host).await;
    // The bytes already sent can be read, but not a regular end.
    let mut sent = Vec::new();
    let _ = stream.read_to_end(&mut sent).await;
    assert!(sent.starts_with(b"HTTP/1.1 200 ") && !sent.ends_with(b"data: [DONE]\n\n\r\n0\r\n\r\n"));
    let state = host.admin_get("/admin/state").await;
    assert!(state["counters"]["finished"]["cancelled"].as_u64().unwrap() > 0, "{state}");
    let metrics = host.client.get(host.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let counted = "infer_request_errors_total{code=\"slow_reader\"} 1";
    assert!(metrics.contains(counted), "its client has not left: {metrics}");
    host.server.shutdown().await;
}

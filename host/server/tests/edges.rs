//! The host towards operators and hostile peers: TLS, heads that can't be read, times, reloading, metrics.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::{Host, config, first_chunk, request};
use infer_server::config::{Bounds, Config};
use infer_server::tenants::KeyDigest;
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};

/// Sends bytes and reads to the end.
async fn raw(host: &Host, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(host.server.data_addr).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()
}

/// Head and body of an answer.
fn error_of(answer: &str) -> (u16, Value) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    assert!(head.to_ascii_lowercase().contains("x-request-id: "), "{head}");
    (head[9..12].parse().unwrap(), serde_json::from_str(body).unwrap_or_else(|e| panic!("{e}: {body:?}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_cant_be_read_get_an_error_with_a_body() {
    let host = Host::start(config()).await;
    let many: String = (0..200).map(|n| format!("x-{n}: y\r\n")).collect();
    let cases = [
        ("nonsense\r\n\r\n".to_owned(), 400, "malformed_head"),
        ("GET /health HTTP/9.9\r\n\r\n".to_owned(), 400, "malformed_head"),
        (format!("GET /health HTTP/1.1\r\nhost: x\r\n{many}\r\n"), 431, "header_fields_too_large"),
        (
            format!("GET /health HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(200_000)),
            431,
            "header_fields_too_large",
        ),
    ];
    for (text, status, code) in cases {
        let (got, body) = error_of(&raw(&host, text.as_bytes()).await);
        let start: String = text.chars().take(40).collect();
        assert_eq!((got, &body["error"]["code"]), (status, &json!(code)), "{start}: {body}");
    }
    // A good request before a bad one has its answer.
    let both = raw(&host, b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nnonsense\r\n\r\n").await;
    assert!(both.starts_with("HTTP/1.1 200 ") && both.contains("HTTP/1.1 400 "), "{both}");
    // Our own errors without a body stay what they are.
    let head = raw(&host, b"HEAD /nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_and_idle_connections_have_times_of_their_own() {
    let bounds = Bounds {
        header_timeout: Duration::from_millis(150),
        idle_timeout: Duration::from_secs(600),
        ..Bounds::default()
    };
    let host = Host::start(Config { bounds, ..config() }).await;
    let get = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n";
    let mut kept = TcpStream::connect(host.server.data_addr).await.unwrap();
    kept.write_all(get).await.unwrap();
    let mut buffer = [0; 4_096];
    assert!(kept.read(&mut buffer).await.unwrap() > 0);
    // Meanwhile a head that begins and doesn't end, and a connection that says nothing at all.
    let (status, body) = error_of(&raw(&host, b"GET /health HTTP/1.1\r\nhos").await);
    assert_eq!((status, &body["error"]["code"]), (408, &json!("header_timeout")));
    assert_eq!(raw(&host, b"").await, "", "who asked nothing is owed nothing");
    // The kept one is still there, and its next head has the head's time, not what is left of it.
    kept.write_all(get).await.unwrap();
    assert!(kept.read(&mut buffer).await.unwrap() > 0);
    kept.write_all(b"GET /hea").await.unwrap();
    let mut rest = String::new();
    kept.read_to_string(&mut rest).await.unwrap();
    assert_eq!(error_of(&rest).0, 408);
    host.server.shutdown().await;

    let bounds = Bounds { idle_timeout: Duration::from_millis(100), ..Bounds::default() };
    let host = Host::start(Config { bounds, ..config() }).await;
    let answer = raw(&host, get).await;
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.matches("HTTP/1.1").count() == 1, "{answer}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_lives_too_long_ends_with_an_error_that_says_so() {
    let bounds = Bounds { request_timeout: Duration::from_millis(200), ..Bounds::default() };
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
    let says_so = |error: &Value| {
        let text = error.as_str().unwrap_or_else(|| panic!("{error}"));
        assert!(text.contains("0.2 s (--request-timeout); it had not started yet"), "{text}");
    };
    let (name, error) = common::events(named).await.pop().unwrap();
    assert_eq!((name.as_str(), &error["code"]), ("error", &json!("request_timeout")));
    says_so(&error["error"]);
    let frames = common::events(openai).await;
    let [(_, body), (_, end)] = &frames[..] else { panic!("{frames:?}") };
    assert_eq!((&body["error"]["code"], end), (&json!("request_timeout"), &json!("[DONE]")));
    for answer in [whole, chat] {
        assert_eq!(answer.status(), 504);
        assert_eq!(answer.headers()["x-should-retry"], "false", "it would take as long again");
        let body: Value = answer.json().await.unwrap();
        let error = &body["error"];
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("timeout_error"), &json!("request_timeout")),
            "{body}"
        );
        says_so(&error["message"]);
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
async fn a_time_beyond_all_clocks_is_no_limit() {
    let bounds = Bounds { request_timeout: Duration::MAX, keep_alive: Duration::MAX, ..Bounds::default() };
    let host = Host::start(Config { bounds, ..config() }).await;
    let (streamed, whole) = tokio::join!(host.complete(json!({})), host.complete(json!({"stream": false})));
    assert_eq!(common::events(streamed).await.last().unwrap().0, "done");
    assert_eq!(whole.status(), 200);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_has_begun_says_in_its_last_event_that_its_time_is_over() {
    let host = Host::start(config()).await;
    for (extra, last) in [(json!({}), 1), (json!({"stream_options": {}}), 2)] {
        let mut fields = json!({"max_tokens": 1_500, "ignore_eos": true});
        fields.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
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

/// Nothing of a request is left: no sequence, no place in the queue, no block that only it held.
async fn all_is_free(host: &Host) {
    let idle = host.until("nothing is left", |state| state["requests"] == json!([])).await;
    let queue = &idle["queue"];
    assert_eq!([&queue["running"], &queue["waiting"], &queue["held"]], [0, 0, 0], "{queue}");
    assert_eq!(idle["memory"]["used"], 0, "{}", idle["memory"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streamed_chat_that_stalls_ends_with_an_error_and_leaves_nothing_behind() {
    let bounds = Bounds { request_timeout: Duration::from_secs(2), ..Bounds::default() };
    let host = Host::start(Config { bounds, max_batch_size: 2, ..config() }).await;
    let chat = json!({
        "model": "demo", "messages": [{"role": "user", "content": "What is a prefix cache?"}], "stream": true,
        "stream_options": {"include_usage": true}, "n": 2, "max_tokens": 1_500, "ignore_eos": true,
    });
    let answer = host.post("/v1/chat/completions", &chat).await;
    assert_eq!(answer.status(), 200);
    let mut stream = Box::pin(answer.bytes_stream());
    let first = futures_util::StreamExt::next(&mut stream).await.expect("it begins").unwrap();
    // From here on the device says nothing: only the clock can end it.
    host.server.engine().hold_steps();
    let mut text = String::from_utf8(first.to_vec()).unwrap();
    while let Some(bytes) = futures_util::StreamExt::next(&mut stream).await {
        text += std::str::from_utf8(&bytes.unwrap()).unwrap();
    }
    let frames = common::parse_events(&text);
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
    // Its places are there for others.
    host.server.engine().release_steps();
    let next = host.complete(json!({"n": 2, "max_tokens": 4, "ignore_eos": true})).await;
    assert_eq!(common::events(next).await.last().unwrap().0, "done");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_streamed_chat_whose_reader_takes_nothing_is_given_up_and_leaves_nothing_behind() {
    // Only the time for taking something may end it: no number of events does.
    let bounds =
        Bounds { write_timeout: Duration::from_millis(200), stream_events: 1 << 20, ..Bounds::default() };
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
    host.until("it streams", |state| state["queue"]["running"] != 0).await;
    all_is_free(&host).await;
    // What was under way can be read; the end is not among it.
    let mut sent = Vec::new();
    let _ = stream.read_to_end(&mut sent).await;
    assert!(sent.starts_with(b"HTTP/1.1 200 ") && !sent.ends_with(b"data: [DONE]\n\n\r\n0\r\n\r\n"));
    let state = host.admin_get("/admin/state").await;
    assert!(state["counters"]["finished"]["cancelled"].as_u64().unwrap() > 0, "{state}");
    host.server.shutdown().await;
}

/// The command line, as a user has it.
async fn infer(arguments: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_infer"));
    command.args(arguments).env("SSL_CERT_FILE", "/nowhere").env_remove("SSL_CERT_DIR");
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_reach_a_host_over_tls_where_they_trust_its_certificate() {
    let dir = tempfile::tempdir().unwrap();
    certify(dir.path());
    let cert = dir.path().join("cert.pem");
    let tls = Some((cert.clone(), dir.path().join("key.pem")));
    let host = Host::start(Config { tls, ..config() }).await;
    let url = format!("https://localhost:{}", host.server.data_addr.port());
    let cert = cert.to_str().unwrap();
    let other = tempfile::tempdir().unwrap();
    certify(other.path());
    let other = other.path().join("cert.pem");
    let by_number = format!("https://127.0.0.1:{}", host.server.data_addr.port());
    for (url, trust, says) in [
        (&url, &["--cacert", cert][..], None),
        (&url, &["--insecure"], None),
        (&by_number, &["-k"], None),
        (&url, &["--cacert", other.to_str().unwrap()], Some("(see --cacert and --insecure)")),
        (&by_number, &["--cacert", cert], Some("certificate")),
        (&url, &[], Some("--cacert")),
    ] {
        let output = infer(&[&["health", "--url", url], trust].concat()).await;
        let stderr = String::from_utf8_lossy(&output.stderr);
        match says {
            None => assert!(output.status.success(), "{trust:?}: {stderr}"),
            Some(text) => {
                assert!(!output.status.success() && stderr.contains(text), "{trust:?}: {stderr}");
            }
        }
    }
    let once = ["bench", "serve", "--url", &url, "--workload", "w1", "--repeat", "1"];
    let output = infer(&[&once[..], &["--cacert", cert]].concat()).await;
    let (report, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && report.contains("W1"), "{report}{stderr}");
    host.server.shutdown().await;
}

/// A certificate for `localhost` and its key, written where the host reads them.
fn certify(dir: &Path) -> RootCertStore {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(dir.join("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(dir.join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    roots
}

async fn get_over_tls(host: &Host, roots: RootCertStore) -> std::io::Result<String> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let tcp = TcpStream::connect(host.server.data_addr).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_spoken_where_there_is_a_certificate_and_a_new_one_is_taken_up() {
    let dir = tempfile::tempdir().unwrap();
    let first = certify(dir.path());
    let tls = Some((dir.path().join("cert.pem"), dir.path().join("key.pem")));
    let host = Host::start(Config { tls, ..config() }).await;
    assert!(host.server.data_url().starts_with("https://"));
    assert!(get_over_tls(&host, first.clone()).await.unwrap().starts_with("HTTP/1.1 200 "));
    assert!(host.client.get(host.url("/health")).send().await.is_err(), "no plain HTTP beside it");

    let second = certify(dir.path());
    assert!(get_over_tls(&host, second.clone()).await.is_err(), "not before it is told");
    host.server.reload().await;
    assert!(get_over_tls(&host, second.clone()).await.unwrap().starts_with("HTTP/1.1 200 "));
    assert!(get_over_tls(&host, first).await.is_err());

    // A key that doesn't belong to the certificate: the one in use stays.
    let other = tempfile::tempdir().unwrap();
    certify(other.path());
    std::fs::copy(other.path().join("key.pem"), dir.path().join("key.pem")).unwrap();
    let outcomes = host.server.reload().await;
    assert!(outcomes[0].error.as_ref().unwrap().contains("cert.pem"), "{outcomes:?}");
    assert!(get_over_tls(&host, second).await.unwrap().starts_with("HTTP/1.1 200 "));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_takes_what_is_right_and_leaves_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let (keys, policies) = (dir.path().join("tenants.toml"), dir.path().join("policies.json"));
    let table = |key: &str| format!("[tenants.a]\nkeys = [\"{}\"]\n", KeyDigest::of(key));
    std::fs::write(&keys, table("one")).unwrap();
    std::fs::write(&policies, "{}").unwrap();
    let start = Config { api_keys: Some(keys.clone()), policy_config: Some(policies.clone()), ..config() };
    let host = Host::start(start).await;
    let status = async |key: &str| {
        host.client.get(host.url("/v1/models")).bearer_auth(key).send().await.unwrap().status().as_u16()
    };
    assert_eq!(status("one").await, 200);

    std::fs::write(&keys, table("two") + "tokens-per-minute = 600\n").unwrap();
    std::fs::write(&policies, "{\"scheduler\": {\"nonsense\": 1}}").unwrap();
    let answer = host.admin(Method::POST, "/admin/reload").send().await.unwrap();
    assert_eq!(answer.status(), 422);
    let body: Value = answer.json().await.unwrap();
    let errors = body["reloaded"].as_array().unwrap().iter().filter(|o| o["error"].is_string());
    assert_eq!(errors.map(|o| &o["what"]).collect::<Vec<_>>(), [&json!("scheduler")], "{body}");
    assert_eq!((status("one").await, status("two").await), (401, 200));
    let slots = host.admin_get("/admin/policies").await;
    assert!(
        slots["slots"][1]["name"].as_str().unwrap().contains("token-bucket"),
        "a rate brings its keeper: {slots}"
    );

    // With streams open: a configuration that is right, and keys that are not.
    let running = request(json!({"ignore_eos": true, "max_tokens": 300}));
    let running = host.client.post(host.url("/v1/completions")).bearer_auth("two").json(&running).send();
    let mut running = first_chunk(running.await.unwrap()).await;
    std::fs::write(&keys, "[tenants.a]\nkeys = 1\n").unwrap();
    std::fs::write(&policies, "{\"admission\": {\"max_in_flight\": 7}}").unwrap();
    let outcomes = host.server.reload().await;
    let wrong: Vec<_> = outcomes.iter().filter(|o| o.error.is_some()).map(|o| o.what).collect();
    assert_eq!(wrong, ["api-keys"], "{outcomes:?}");
    assert_eq!(status("two").await, 200);
    let slots = host.admin_get("/admin/policies").await;
    assert!(slots["slots"][1]["config"].to_string().contains("\"max_in_flight\":7"), "{slots}");
    let mut text = String::new();
    while let Some(chunk) = futures_util::StreamExt::next(&mut running).await {
        text.push_str(std::str::from_utf8(chunk.unwrap().as_ref()).unwrap());
    }
    assert!(text.contains("\"finish_reason\":\"length\""), "the stream noticed nothing");
    host.server.shutdown().await;
}

/// Names of metrics in a text, with their suffixes.
fn names(text: &str) -> std::collections::BTreeSet<String> {
    let samples = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    samples.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_metric_of_the_dashboard_and_of_routers_is_there_in_both_formats() {
    let host = Host::start(config()).await;
    drop(host.events(json!({})).await);
    let get = |accept: &'static str| host.client.get(host.url("/metrics")).header("accept", accept).send();
    let plain = get("text/plain").await.unwrap();
    assert_eq!(plain.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let plain = plain.text().await.unwrap();
    let open = get("application/openmetrics-text;version=1.0.0,text/plain;q=0.5").await.unwrap();
    assert!(open.headers()["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    let open = open.text().await.unwrap();
    assert!(open.ends_with("# EOF\n") && !plain.contains("# EOF"));
    assert!(plain.contains("# TYPE infer_generated_tokens_total counter\n"), "{plain}");
    let there = names(&plain);
    assert_eq!(there, names(&open));

    let dashboard = include_str!("../deploy/grafana-dashboard.json");
    let dashboard: Value = serde_json::from_str(dashboard).unwrap();
    let targets =
        dashboard["panels"].as_array().unwrap().iter().filter_map(|panel| panel["targets"].as_array());
    let mut named = 0;
    for expr in targets.flatten().map(|target| target["expr"].as_str().unwrap()) {
        for word in expr.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':') {
            if ["infer_", "process_", "vllm:"].iter().any(|start| word.starts_with(start)) {
                assert!(there.contains(word), "the dashboard names {word}, which isn't there");
                named += 1;
            }
        }
    }
    assert!(named > 40, "{named}");
    for alias in [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:num_preemptions_total",
        "vllm:request_success_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "vllm:request_queue_time_seconds_bucket",
        "vllm:cache_config_info",
    ] {
        assert!(there.contains(alias), "{alias}");
        let labelled =
            plain.lines().any(|line| line.starts_with(alias) && line.contains("model_name=\"demo\""));
        assert!(labelled || alias == "vllm:cache_config_info", "{alias} says whose it is");
    }
    host.server.shutdown().await;
}

#[cfg(feature = "otel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_one_trace_that_belongs_to_its_callers() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // A collector: takes one export and says that it was fine.
    let collector = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut got = Vec::new();
        loop {
            let mut buffer = [0; 16 << 10];
            let n = stream.read(&mut buffer).await.unwrap();
            got.extend_from_slice(&buffer[..n]);
            let text = String::from_utf8_lossy(&got);
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let head = head.to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
            if body.len() == length.parse::<usize>().unwrap() {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                return (head, serde_json::from_str::<Value>(body).unwrap());
            }
        }
    });
    let host = Host::start(Config { otlp: Some(format!("http://{address}")), ..config() }).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let answer = host
        .client
        .post(host.url("/v1/completions"))
        .header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"))
        .header("x-request-id", "traced")
        .json(&request(json!({})))
        .send()
        .await
        .unwrap();
    drop(common::events(answer).await);
    host.server.shutdown().await;
    let (head, body) = collector.await.unwrap();
    assert!(head.starts_with("post /v1/traces http/1.1") && head.contains("application/json"), "{head}");
    let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap();
    let named =
        |name: &str| spans.iter().find(|s| s["name"] == name).unwrap_or_else(|| panic!("{name}: {body:#}"));
    let request = named("completion");
    assert_eq!((&request["traceId"], &request["parentSpanId"]), (&json!(trace), &json!("00f067aa0ba902b7")));
    for part in ["queue", "prefill", "decode"] {
        assert_eq!(
            (&named(part)["traceId"], &named(part)["parentSpanId"]),
            (&json!(trace), &request["spanId"])
        );
    }
    let attributes = request["attributes"].to_string();
    assert!(attributes.contains("infer.request_id") && attributes.contains("traced"), "{attributes}");
}

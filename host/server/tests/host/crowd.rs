//! A host with as many connections as it may have.

use std::time::Duration;

use crate::common::{self, Host, config, first_chunk};
use infer_server::config::{Bounds, Config};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn host_with_places(max_connections: usize) -> Host {
    let bounds = Bounds { max_connections, ..common::bounds() };
    Host::start(Config { bounds, ..config() }).await
}

/// Sends a request on a connection and reads the whole response: its head in lower case, and its body.
async fn exchange(stream: &mut TcpStream, line: &str, body: &str) -> (String, String) {
    let request = format!("{line} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut bytes = Vec::new();
    loop {
        assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "{}", String::from_utf8_lossy(&bytes));
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if body.len() == length.expect("responses of known length").parse::<usize>().unwrap() {
            return (head, body.to_owned());
        }
    }
}

async fn connect(host: &Host) -> TcpStream {
    TcpStream::connect(host.server.data_addr).await.unwrap()
}

/// The value of a metric without labels.
fn metric(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not in:\n{text}")).parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_make_room_for_others() {
    // Whoever comes waits until one of the idle ones has closed.
    let bounds = Bounds { max_connections: 2, room_time: common::LONG, ..common::bounds() };
    let host = Host::start(Config { bounds, ..config() }).await;
    let (mut one, mut other) = (connect(&host).await, connect(&host).await);
    for kept in [&mut one, &mut other] {
        let (head, _) = exchange(kept, "GET /v1/models", "").await;
        assert!(head.starts_with("http/1.1 200 ") && !head.contains("connection: close"), "{head}");
    }
    let mut late = connect(&host).await;
    let (head, _) = exchange(&mut late, "GET /v1/models", "").await;
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    // One of the two was closed; the other still serves.
    let (mut end, mut open_end) = ([0; 1], [0; 1]);
    let mut stays = tokio::select! {
        read = one.read(&mut end) => { assert_eq!(read.unwrap(), 0); other }
        read = other.read(&mut open_end) => { assert_eq!(read.unwrap(), 0); one }
    };
    let (head, text) = exchange(&mut stays, "GET /metrics", "").await;
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    assert_eq!(metric(&text, "infer_http_connections"), 2.0);
    assert_eq!(metric(&text, "infer_http_connections_limit"), 2.0);
    assert_eq!(metric(&text, "infer_http_connections_closed_for_others_total"), 1.0);
    assert_eq!(metric(&text, "infer_http_connections_without_place_total"), 0.0);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_without_a_request_make_room_for_others() {
    let header_timeout = Duration::from_secs(3_600);
    let bounds = Bounds { max_connections: 2, header_timeout, ..common::bounds() };
    let host = Host::start(Config { bounds, ..config() }).await;
    let mut silent = connect(&host).await;
    let mut halved = connect(&host).await;
    halved.write_all(b"GET /health HTTP/1.1\r\nhost").await.unwrap();
    let closed = async {
        let (mut none, mut late) = (String::new(), String::new());
        silent.read_to_string(&mut none).await.unwrap();
        halved.read_to_string(&mut late).await.unwrap();
        assert!(none.is_empty() && late.starts_with("HTTP/1.1 408 "), "{none}{late}");
    };
    let make_room = async {
        let (mut closed, mut kept) = (std::pin::pin!(closed), Vec::new());
        loop {
            let other = async {
                let mut other = connect(&host).await;
                (exchange(&mut other, "GET /v1/models", "").await.0, other)
            };
            let (head, other) = tokio::select! {
                () = &mut closed => break,
                served = other => served,
            };
            // Refused for a moment, in which the two requests may still come.
            assert!(head.starts_with("http/1.1 200 ") || head.starts_with("http/1.1 503 "), "{head}");
            kept.push(other);
        }
    };
    tokio::time::timeout(Duration::from_secs(60), make_room).await.expect("both make room");
    let (_, text) = exchange(&mut connect(&host).await, "GET /metrics", "").await;
    assert!(metric(&text, "infer_http_connections_closed_for_others_total") >= 2.0, "{text}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_host_answers_probes_and_refuses_the_rest() {
    let host = host_with_places(2).await;
    host.server.engine().hold_steps();
    let streams = [host.complete(json!({})).await, host.complete(json!({})).await];
    let (head, _) = exchange(&mut connect(&host).await, "GET /health", "").await;
    assert!(head.starts_with("http/1.1 200 ") && head.contains("\r\nconnection: close"), "{head}");
    let mut refused = connect(&host).await;
    let (head, body) = exchange(&mut refused, "POST /v1/completions", r#"{"model":"demo"}"#).await;
    assert!(head.starts_with("http/1.1 503 ") && head.contains("\r\nretry-after: 1"), "{head}");
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(body["error"]["code"], "too_many_connections");
    assert!(body["error"]["message"].as_str().unwrap().contains("(2, --max-connections)"), "{body}");
    assert_eq!(refused.read(&mut [0; 1]).await.unwrap(), 0, "its connection is closed");
    let (_, text) = exchange(&mut connect(&host).await, "GET /metrics", "").await;
    assert_eq!(metric(&text, "infer_http_connections_without_place_total"), 3.0);
    host.server.engine().release_steps();
    for stream in streams {
        drop(first_chunk(stream).await);
    }
    // There are places again, as soon as the streams' connections have closed. On connections of its own, because one that
    // the client keeps may be closed for another just when a request is on its way.
    let body = r#"{"model": "demo", "prompt": "a", "max_tokens": 1, "stream": false}"#;
    loop {
        let (head, body) = exchange(&mut connect(&host).await, "POST /v1/completions", body).await;
        if head.starts_with("http/1.1 200 ") {
            break;
        }
        assert!(head.starts_with("http/1.1 503 "), "{head}\n{body}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_stays_when_the_crowd_has_gone() {
    let host = host_with_places(1).await;
    host.server.engine().hold_steps();
    let stream = host.complete(json!({})).await;
    // Asks for room while nobody is idle, and is refused.
    let (head, _) = exchange(&mut connect(&host).await, "GET /v1/models", "").await;
    assert!(head.starts_with("http/1.1 503 "), "{head}");
    host.server.engine().release_steps();
    drop(first_chunk(stream).await);
    let mut kept = connect(&host).await;
    // The stream's connection may take its time to close.
    while !exchange(&mut kept, "GET /v1/models", "").await.0.starts_with("http/1.1 200 ") {
        kept = connect(&host).await;
    }
    // The stream's may have been closed for this one, if its response was over before its client had gone.
    let closed = |text: String| metric(&text, "infer_http_connections_closed_for_others_total");
    let before = closed(exchange(&mut kept, "GET /metrics", "").await.1);
    for _ in 0..3 {
        let (head, _) = exchange(&mut kept, "GET /v1/models", "").await;
        assert!(head.starts_with("http/1.1 200 ") && !head.contains("connection: close"), "{head}");
    }
    assert_eq!(closed(exchange(&mut kept, "GET /metrics", "").await.1), before);
    host.server.shutdown().await;
}

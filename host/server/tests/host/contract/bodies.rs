//! Bodies that are long, too long or slow.

use std::time::Duration;

use infer_server::config::{Bounds, Config};
use reqwest::Response;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::common::{Host, config};

async fn room_for_one_long_body() -> Host {
    Host::start(Config { max_body_bytes: 2 << 20, max_body_memory_bytes: 2 << 20, ..config() }).await
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
    let host = room_for_one_long_body().await;
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
    let host = room_for_one_long_body().await;
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
    let host = Host::start(Config { max_body_bytes: 1_024, ..config() }).await;
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
    let host = Host::start(Config { bounds, ..config() }).await;
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

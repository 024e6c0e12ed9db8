//! Bodies that are long, too long or slow.

use std::time::Duration;

use infer_server::config::{Bounds, Config};
use reqwest::Response;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::common::{self, Host, config};
use crate::tenants::{key, write};

const CHUNK_BYTES: usize = 64 << 10;
/// Chunks of a body that stalls before it ends.
const STALLED_CHUNKS: usize = 31;

async fn room_for_one_long_body() -> Host {
    Host::start(Config { max_body_bytes: 2 << 20, max_body_memory_bytes: 2 << 20, ..config() }).await
}

/// A request, without a key or with one, whose body stops just short of two megabytes until the sender is dropped.
fn stalled(
    host: &Host,
    key: Option<&str>,
) -> (mpsc::UnboundedSender<Result<String, std::io::Error>>, JoinHandle<reqwest::Result<Response>>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    for _ in 0..STALLED_CHUNKS {
        sender.send(Ok(" ".repeat(CHUNK_BYTES))).unwrap();
    }
    let body = reqwest::Body::wrap_stream(futures_util::stream::unfold(receiver, |mut receiver| async {
        Some((receiver.recv().await?, receiver))
    }));
    let request = host.client.post(host.url("/v1/completions")).body(body);
    let request = match key {
        Some(key) => request.bearer_auth(key),
        None => request,
    };
    (sender, tokio::spawn(request.send()))
}

/// Waits until long bodies hold `bytes` of memory.
async fn until_bodies_hold(host: &Host, bytes: usize) {
    host.until_metrics(&[&format!("\ninfer_http_body_memory_bytes {bytes}.0\n")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_bodies_share_a_budget_that_short_ones_bypass() {
    let host = room_for_one_long_body().await;
    let long = json!({"model": "demo", "prompt": "x".repeat(1 << 20)});
    // One client sends almost two megabytes and stalls. All but the first 64 KiB counts.
    let (sender, held) = stalled(&host, None);
    until_bodies_hold(&host, (STALLED_CHUNKS - 1) * CHUNK_BYTES).await;
    let refused = host.post("/v1/completions", &long).await;
    assert_eq!(refused.status(), 503);
    assert!(refused.headers().contains_key("retry-after"));
    let message = refused.text().await.unwrap();
    assert!(message.contains("bodies_full") && message.contains("--max-body-memory"), "{message}");
    let short = json!({"model": "demo", "prompt": "What is a token?", "max_tokens": 2, "stream": false});
    assert_eq!(host.post("/v1/completions", &short).await.status(), 200);

    drop(sender);
    assert_eq!(held.await.unwrap().unwrap().status(), 400, "blanks are not JSON");
    until_bodies_hold(&host, 0).await;
    assert_ne!(host.post("/v1/completions", &long).await.status(), 503, "the budget is free again");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_bodies_of_one_tenant_leave_room_for_those_of_another() {
    let (one, other) = (key("one", ""), key("two", ""));
    let file = tempfile::NamedTempFile::new().unwrap();
    write(file.path(), &[&one, &other]);
    let config = Config {
        max_body_bytes: 2 << 20,
        max_body_memory_bytes: 8 << 20,
        api_keys: Some(file.path().to_owned()),
        ..config()
    };
    let host = Host::start(config).await;
    let long = json!({"model": "demo", "prompt": "x".repeat(1 << 20)});
    let send = async |key: &str| {
        host.client.post(host.url("/v1/completions")).bearer_auth(key).json(&long).send().await.unwrap()
    };
    // A fourth would fit in the budget, but not in three quarters of it.
    let stalled: Vec<_> = (0..3).map(|_| stalled(&host, Some(&one.text))).collect();
    until_bodies_hold(&host, 3 * (STALLED_CHUNKS - 1) * CHUNK_BYTES).await;
    let refused = send(&one.text).await;
    assert_eq!(refused.status(), 503);
    let message = refused.text().await.unwrap();
    assert!(message.contains("bodies_full") && message.contains("of this tenant use its share"), "{message}");
    assert_ne!(send(&other.text).await.status(), 503, "another tenant has room");

    for (sender, held) in stalled {
        drop(sender);
        assert_eq!(held.await.unwrap().unwrap().status(), 400, "blanks are not JSON");
    }
    until_bodies_hold(&host, 0).await;
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
        ..common::bounds()
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

//! Clients of several choices that leave or read too slowly, and operators who end them.

use infer_server::config::{Bounds, Config};
use serde_json::{Value, json};

use crate::common::{self, Host, config, token_ids};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnect_frees_all_choices() {
    let host = Host::start(Config { prefix_caching: false, ..config() }).await;
    let endless = json!({"prompt": ["one", "two"], "n": 6, "ignore_eos": true, "max_tokens": 1_500});
    host.server.engine().allow_steps(50);
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
    host.until("none is left", |s| s["counters"]["finished"]["cancelled"] == 24).await;
    // The same if bytes follow the request.
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
    // An operator ends all choices of a request by its id.
    host.server.engine().allow_steps(8);
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
    let bounds = Bounds { stream_events: 32, ..common::bounds() };
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

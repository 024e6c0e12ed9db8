//! Drains: what runs is finished, what comes is refused until a drain is taken back, and what takes too long is cut.

use std::time::Duration;

use infer_server::config::{Bounds, Config};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::endless;
use crate::common::{self, Host, config, first_chunk};

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
async fn drain_is_taken_back_unless_the_host_shuts_down() {
    let host = Host::start(config()).await;
    let ready = async || host.client.get(host.url("/health/ready")).send().await.unwrap().status().as_u16();
    let undrain = async || {
        let answer = host.admin(Method::DELETE, "/admin/drain").send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let taken_back = (200, json!({"draining": false}));
    assert_eq!(undrain().await, taken_back, "nothing drains");
    for _ in 0..2 {
        assert_eq!(host.admin(Method::POST, "/admin/drain").send().await.unwrap().status(), 200);
        assert_eq!((ready().await, host.complete(json!({})).await.status().as_u16()), (503, 503));
        assert_eq!(undrain().await, taken_back);
        assert_eq!(ready().await, 200);
        assert_eq!(host.admin_get("/admin/state").await["draining"], false);
        let answer = host.complete(json!({})).await;
        assert!(!answer.headers().contains_key("connection"), "clients may keep their connections");
        assert_eq!(common::events(answer).await.last().unwrap().0, "done");
    }

    host.server.engine().hold_steps();
    let running = host.complete(json!({})).await;
    let meanwhile = async {
        let refused = undrain().await;
        host.server.engine().release_steps();
        refused
    };
    // The shutdown begins first, and waits for the stream.
    let shutdown = host.server.finish_streams();
    let ((), (status, body), events) = tokio::join!(shutdown, meanwhile, common::events(running));
    assert_eq!((status, &body["error"]["code"]), (409, &json!("shutting_down")), "{body}");
    assert_eq!(events.last().unwrap().0, "done");
    assert_eq!(ready().await, 503);
    host.server.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_beyond_the_drain_timeout_ends_with_an_error() {
    let bounds = Bounds { drain_timeout: Duration::from_millis(100), ..common::bounds() };
    let host = Host::start(Config { bounds, ..config() }).await;
    host.server.engine().hold_steps();
    let answer = host.complete(endless()).await;
    let (events, ()) = tokio::join!(common::events(answer), host.ends());
    let (name, error) = events.last().expect("an event");
    assert_eq!((name.as_str(), &error["code"]), ("error", &json!("stopped")), "{error}");
}

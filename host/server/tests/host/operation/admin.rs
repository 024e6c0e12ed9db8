//! The admin plane: its token, and what operators see and end.

use infer_server::config::Config;
use reqwest::Method;
use serde_json::{Value, json};

use crate::common::{self, Host, config, events, request};

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
    host.server.engine().allow_steps(8);
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
    host.server.engine().allow_steps(8);
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

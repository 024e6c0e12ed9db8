//! Prefixes that the pool has no room for come back from the second level.

use reqwest::Method;
use serde_json::{Value, json};

use crate::common::{Host, config, request};
use infer_server::config::{Config, MaxSeqLen};
use infer_server::serve;

/// Bytes of a block of the demo model, of which the pool has forty.
const BLOCK_BYTES: u64 = 20_480;

fn small() -> Config {
    Config { max_seq_len: MaxSeqLen::Tokens(400), kv_memory_bytes: Some(40 * BLOCK_BYTES), ..config() }
}

/// Some two hundred tokens.
fn long(about: &str) -> String {
    (0..20).map(|nth| format!("{about} {nth} is a prefix that many requests share. ")).collect()
}

/// Text of a response, and how much of its prompt was cached.
async fn ask(host: &Host, prompt: &str) -> (String, u64) {
    let mut body = request(json!({"prompt": prompt}));
    body["stream"] = json!(false);
    let answer = host.post("/v1/completions", &body).await;
    let body: Value = answer.error_for_status().unwrap().json().await.unwrap();
    let cached = body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (body["choices"][0]["text"].as_str().unwrap().to_owned(), cached)
}

/// Asks about many things, so that the first is evicted, and about that again.
async fn ask_again(host: &Host) -> [(String, u64); 2] {
    let first = ask(host, &long("First")).await;
    for about in ["Second", "Third", "Fourth", "Fifth", "Sixth", "Seventh"] {
        ask(host, &long(about)).await;
    }
    [first, ask(host, &long("First")).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_evicted_comes_back_with_the_same_text() {
    let host = Host::start(small()).await;
    let [first, again] = ask_again(&host).await;
    assert_eq!((first.1, again.1), (0, 0), "the pool is too small");
    assert!(host.admin_get("/admin/state").await.get("offload").is_none());
    let text = first.0;
    assert_eq!(again.0, text);
    host.server.shutdown().await;

    let dir = tempfile::tempdir().unwrap();
    for kv_offloading_dir in [None, Some(dir.path().to_owned())] {
        let kv_offloading_bytes = Some(1_000 * BLOCK_BYTES);
        let host = Host::start(Config { kv_offloading_bytes, kv_offloading_dir, ..small() }).await;
        let [first, again] = ask_again(&host).await;
        assert_eq!((&first.0, first.1), (&text, 0));
        assert_eq!(again.0, text);
        assert!(again.1 > 128, "{} tokens came back", again.1);
        let state = host.admin_get("/admin/state").await;
        let offload = &state["offload"];
        assert_eq!(offload["total"], 1_000, "{offload}");
        assert_eq!(offload["failed"], false);
        assert!(offload["blocks_in"].as_u64().unwrap() * 16 >= 128, "{offload}");
        assert!(offload["used"].as_u64().unwrap() > 8, "{offload}");
        let metrics = host.client.get(host.url("/metrics")).send().await.unwrap().text().await.unwrap();
        let number = |field: &str| offload[field].as_u64().unwrap();
        for (name, value) in [
            ("blocks", 1_000),
            ("blocks_used", number("used")),
            ("blocks_out_total", number("blocks_out")),
            ("blocks_in_total", number("blocks_in")),
            ("tokens_found_total", number("blocks_in") * 16),
            ("failed", 0),
        ] {
            let name = format!("infer_kv_offload_{name} ");
            let told = metrics.lines().find_map(|line| line.strip_prefix(&name));
            let told = told.unwrap_or_else(|| panic!("{name}\n{metrics}"));
            assert_eq!(told.parse::<f64>(), Ok(value as f64), "{name}");
        }
        let emptied = host.admin(Method::DELETE, "/admin/cache").send().await.unwrap();
        assert_eq!(emptied.status(), 200);
        let emptied: serde_json::Value = emptied.json().await.unwrap();
        assert_eq!(emptied["dropped_offloaded_blocks"], offload["used"], "{emptied}");
        assert_eq!(host.admin_get("/admin/state").await["offload"]["used"], 0);
        assert_eq!(ask(&host, &long("First")).await.1, 0);
        host.server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_level_that_cannot_be_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let missing = Some(dir.path().join("missing"));
    let bytes = |bytes| Config { kv_offloading_bytes: Some(bytes), ..small() };
    for (config, parts) in [
        (Config { kv_offloading_dir: missing, ..bytes(1 << 20) }, ["--kv-offloading-dir: ", "missing"]),
        (bytes(BLOCK_BYTES - 1), ["--kv-offloading-size: ", "20480"]),
        (bytes(1 << 60), ["--kv-offloading-size: ", "more than"]),
    ] {
        let Err(error) = serve::start(config).await else { panic!("it starts: {parts:?}") };
        let error = error.to_string();
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
    }
}

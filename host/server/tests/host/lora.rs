//! Adapters are models of their own, beside their model and each other: results, cached prefixes, names, starts that are
//! refused.

use std::path::Path;

use crate::common::{Host, chunks, config};
use infer_server::config::{AdapterChoice, Config, PoolingChoice};
use infer_server::generate::Sequential;
use infer_server::serve;
use infer_server::startup::load;
use reqwest::Method;
use serde_json::{Value, json};

pub(crate) const MODELS: [&str; 3] = ["base", "all", "some"];

pub(crate) fn golden(name: &str) -> String {
    format!("{}/../../tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))
}

fn choice(name: &str, place: &str) -> AdapterChoice {
    AdapterChoice { name: name.to_owned(), place: place.to_owned() }
}

/// A model and two adapters of it.
pub(crate) fn adapted() -> Config {
    Config {
        model: golden("qwen3-bf16"),
        served_model_names: vec!["base".to_owned(), "also-base".to_owned()],
        lora: ["all", "some"].map(|name| choice(name, &golden(&format!("qwen3-lora/{name}")))).into(),
        ..config()
    }
}

/// A prompt of some tokens.
pub(crate) fn prompt(seed: u32, tokens: u32) -> Value {
    json!((0..tokens).map(|i| (i * i * 13 + i * 7 + seed) % 500).collect::<Vec<u32>>())
}

/// A completion's tokens, and how many tokens of its prompt were cached.
pub(crate) async fn ask(host: &Host, model: &str, prompt: &Value) -> (Value, u64) {
    let body = json!({"model": model, "prompt": prompt, "temperature": 0, "max_tokens": 16, "ignore_eos": true,
        "stream": false, "return_token_ids": true});
    let answer = host.post("/v1/completions", &body).await;
    let status = answer.status();
    let mut body: Value = answer.json().await.unwrap();
    assert_eq!(status, 200, "{body}");
    assert_eq!(body["model"], if model == "also-base" { "base" } else { model });
    let cached = body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (body["choices"][0]["token_ids"].take(), cached)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_of_all_adapters_together_get_what_each_gets_alone() {
    let prompts: Vec<Value> = (0..4).map(|nth| prompt(nth, 9 + 20 * nth)).collect();
    let alone = Host::start(Config { prefix_caching: false, max_batch_size: 1, ..adapted() }).await;
    let mut wanted = Vec::new();
    for prompt in &prompts {
        for model in MODELS {
            wanted.push(ask(&alone, model, prompt).await.0);
        }
    }
    alone.server.shutdown().await;
    let of = |model: usize| wanted.iter().skip(model).step_by(MODELS.len()).collect::<Vec<_>>();
    assert!(of(0) != of(1) && of(1) != of(2) && of(2) != of(0), "adapters change something: {wanted:?}");
    // A model without adapters computes the same as one that has some.
    let plain = Host::start(Config { lora: Vec::new(), ..adapted() }).await;
    for (prompt, wanted) in prompts.iter().zip(wanted.chunks(MODELS.len())) {
        assert_eq!(ask(&plain, "also-base", prompt).await.0, wanted[0]);
    }
    plain.server.shutdown().await;
    let host = Host::start(adapted()).await;
    let asked = prompts.iter().flat_map(|prompt| MODELS.map(|model| ask(&host, model, prompt)));
    let got: Vec<Value> =
        futures_util::future::join_all(asked).await.into_iter().map(|(ids, _)| ids).collect();
    assert_eq!(got, wanted);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_prefixes_are_found_by_the_same_adapter_alone() {
    let host = Host::start(adapted()).await;
    let prompt = prompt(1, 100);
    let mut first = Vec::new();
    for model in MODELS {
        let (ids, cached) = ask(&host, model, &prompt).await;
        assert_eq!(cached, 0, "{model}");
        first.push(ids);
    }
    for (model, ids) in MODELS.into_iter().zip(first) {
        assert_eq!(ask(&host, model, &prompt).await, (ids, 100), "the whole prompt of {model}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_saved_cache_leaves_what_adapters_cached_out() {
    let directory = tempfile::tempdir().unwrap();
    let cache_file = Some(directory.path().join("cache"));
    let prompt = prompt(2, 100);
    let host = Host::start(Config { cache_file: cache_file.clone(), ..adapted() }).await;
    for model in MODELS {
        ask(&host, model, &prompt).await;
    }
    host.server.shutdown().await;
    // Other adapters may have these numbers now.
    let mut lora = adapted().lora;
    lora.reverse();
    let host = Host::start(Config { cache_file, lora, ..adapted() }).await;
    for (model, cached) in [("all", 0), ("some", 0), ("base", 96)] {
        assert_eq!(ask(&host, model, &prompt).await.1, cached, "{model}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adapters_are_listed_with_their_model_and_named_by_every_endpoint() {
    let host = Host::start(Config { pooling: PoolingChoice::Last, ..adapted() }).await;
    let get = async |path: &str| -> Value {
        host.client.get(host.url(path)).send().await.unwrap().json().await.unwrap()
    };
    let models = get("/v1/models").await;
    let cards = models["data"].as_array().unwrap().iter();
    let cards: Vec<Value> = cards.map(|card| json!([card["id"], card["root"], card["parent"]])).collect();
    let own = |name: &str| json!([name, "qwen3-bf16", null]);
    let of_base = |name: &str| json!([name, name, "base"]);
    assert_eq!(cards, [own("base"), own("also-base"), of_base("all"), of_base("some")]);
    assert_eq!(get("/v1/models/some").await["parent"], "base");

    let messages = json!([{"role": "user", "content": "Hello"}]);
    let chat = json!({"model": "some", "messages": messages, "max_tokens": 3});
    for (path, body) in [
        ("/v1/chat/completions", chat.clone()),
        ("/v1/messages", chat.clone()),
        ("/v1/responses", json!({"model": "some", "input": "Hello", "max_output_tokens": 3})),
        ("/v1/embeddings", json!({"model": "some", "input": "Hello"})),
    ] {
        let answer = host.post(path, &body).await;
        let status = answer.status();
        let body: Value = answer.json().await.unwrap();
        assert_eq!((status.as_u16(), &body["model"]), (200, &json!("some")), "{path}: {body}");
    }
    let mut streamed = chat;
    streamed["stream"] = json!(true);
    let streamed = chunks(host.post("/v1/chat/completions", &streamed).await).await;
    assert!(streamed.iter().all(|chunk| chunk["model"] == "some"), "{streamed:?}");

    let vector = async |model: &str| {
        let answer = host.post("/v1/embeddings", &json!({"model": model, "input": "Hello"})).await;
        answer.json::<Value>().await.unwrap()["data"][0]["embedding"].take()
    };
    assert_ne!(vector("base").await, vector("all").await);
    let tokens = host.post("/tokenize", &json!({"model": "all", "prompt": "Hello"})).await;
    assert_eq!(tokens.status(), 200);
    let unknown = host.post("/v1/chat/completions", &json!({"model": "none", "messages": messages})).await;
    assert_eq!(unknown.status(), 422);
    let error = unknown.json::<Value>().await.unwrap()["error"].take();
    assert_eq!(error["code"], "model_not_found");
    let said = "this host serves `base`, `also-base`, `all`, `some`, not `none`";
    assert!(error["message"].as_str().unwrap().contains(said), "{error}");
    let unknown = get("/v1/models/none").await["error"].take();
    assert_eq!(unknown["message"], said);

    let metrics = host.admin(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    // One each of a chat, a message, a response, a stream and an embedding.
    for line in [
        r#"infer_adapter_requests_total{adapter="some"} 5"#,
        r#"infer_adapter_requests_total{adapter="all"} 1"#,
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line}: {metrics}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_the_adapter_of_a_live_request() {
    let host = Host::start(adapted()).await;
    host.server.engine().hold_steps();
    let mut held = Vec::new();
    for model in ["some", "base"] {
        let body = json!({"model": model, "prompt": "x", "max_tokens": 2, "ignore_eos": true,
            "stream": true});
        held.push(host.post("/v1/completions", &body).await);
    }
    let state = host.admin_get("/admin/state").await;
    let rows = state["requests"].as_array().unwrap();
    let adapters: Vec<_> = rows.iter().map(|row| row.get("adapter").and_then(Value::as_str)).collect();
    assert_eq!(adapters, [Some("some"), None], "{state:#}");
    let detail = host.admin_get(&format!("/admin/requests/{}", rows[0]["id"])).await;
    assert_eq!(detail["row"]["adapter"], "some", "{detail:#}");
    host.server.engine().release_steps();
    for answer in held {
        let text = answer.text().await.unwrap();
        assert!(text.contains("\"length\""), "{text}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adapters_that_can_not_be_served_are_refused_before_the_start_and_by_the_check() {
    let empty = tempfile::tempdir().unwrap();
    let empty = empty.path().to_str().unwrap();
    let sound = golden("qwen3-lora/all");
    assert!(Path::new(&sound).is_dir());
    let of_demo = |lora: AdapterChoice| Config { lora: vec![lora], ..config() };
    let of_base = |lora: AdapterChoice| Config { lora: vec![lora], ..adapted() };
    for (config, said) in [
        (of_base(choice("x", "/nonexistent/x")), "--lora: x: /nonexistent/x does not exist"),
        (of_base(choice("x", empty)), "has no adapter_config.json; is it an adapter of PEFT?"),
        (of_base(choice("also-base", &sound)), "--lora: `also-base` is a name of the model itself"),
        (of_demo(choice("demo", &sound)), "--lora: `demo` is a name of the model itself"),
        (of_demo(choice("x", &sound)), "--lora: x: weights: tensor base_model.model.model.layers.0."),
    ] {
        let checked = load::check(&config).expect_err("it is refused");
        assert!(checked.is_usage(), "starting again doesn't help: {checked}");
        let checked = checked.to_string();
        assert!(checked.contains(said), "{said}: {checked}");
        let started = serve::start(config).await.err().expect("it is refused").to_string();
        assert_eq!(started, checked);
    }
    load::check(&adapted()).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn generating_for_the_model_alone_needs_no_adapter() {
    // Settings that a file has for the host hold for `infer generate`, too.
    let lora = vec![choice("x", "/nonexistent/x")];
    let local = Config { lora, ..adapted() };
    let loaded = Sequential::load(&local);
    assert!(loaded.is_ok(), "{:?}", loaded.err());
}

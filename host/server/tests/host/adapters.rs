//! Adapters that come and go while a host runs: beside streams, in place of each other, and refused.

use std::collections::BTreeSet;

use infer_core::kv_events::KvEvent;
use infer_server::config::Config;
use infer_server::engine::KvBatch;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::common::{Host, config};
use crate::lora::{MODELS, adapted, ask, golden, prompt};

const PATH: &str = "/admin/adapters";

/// A host with room for so many adapters, and none yet.
async fn bare(max_adapters: u32) -> Host {
    Host::start(Config { lora: Vec::new(), max_adapters, ..adapted() }).await
}

fn place(adapter: &str) -> String {
    golden(&format!("qwen3-lora/{adapter}"))
}

/// The status and the JSON of a response.
async fn answered(request: reqwest::RequestBuilder) -> (StatusCode, Value) {
    let answer = request.send().await.unwrap();
    (answer.status(), answer.json().await.unwrap())
}

async fn try_load(host: &Host, name: &str, path: &str) -> (StatusCode, Value) {
    answered(host.admin(Method::POST, PATH).json(&json!({"name": name, "path": path}))).await
}

async fn load(host: &Host, name: &str, adapter: &str) -> Value {
    let (status, row) = try_load(host, name, &place(adapter)).await;
    assert_eq!(status, 200, "{row}");
    row
}

async fn try_unload(host: &Host, name: &str) -> (StatusCode, Value) {
    answered(host.admin(Method::DELETE, &format!("{PATH}/{name}"))).await
}

async fn unload(host: &Host, name: &str) -> Value {
    let (status, answer) = try_unload(host, name).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Names and states.
async fn states(host: &Host) -> Value {
    let list = host.admin_get(PATH).await;
    list["adapters"].as_array().unwrap().iter().map(|row| json!([row["name"], row["state"]])).collect()
}

/// Names that requests may use.
async fn models(host: &Host) -> Value {
    let list: Value = host.client.get(host.url("/v1/models")).send().await.unwrap().json().await.unwrap();
    list["data"].as_array().unwrap().iter().map(|card| card["id"].clone()).collect()
}

/// The error of a request for a model that is not served.
async fn refused(host: &Host, model: &str) -> Value {
    let answer = host.post("/v1/completions", &json!({"model": model, "prompt": "x"})).await;
    assert_eq!(answer.status(), 422);
    answer.json::<Value>().await.unwrap()["error"]["code"].take()
}

/// What each model says to each prompt if all were there from the start.
async fn wanted(prompts: &[Value]) -> Vec<[Value; 3]> {
    let host = Host::start(Config { prefix_caching: false, ..adapted() }).await;
    let mut all = Vec::new();
    for prompt in prompts {
        let mut each = [Value::Null, Value::Null, Value::Null];
        for (model, tokens) in MODELS.into_iter().zip(&mut each) {
            *tokens = ask(&host, model, prompt).await.0;
        }
        all.push(each);
    }
    host.server.shutdown().await;
    all
}

async fn until_live(host: &Host, count: usize) {
    host.until("they are there", |state| state["requests"].as_array().unwrap().len() == count).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_comes_while_others_stream_and_changes_none_of_their_tokens() {
    let prompts = [prompt(1, 90), prompt(2, 40)];
    let wanted = wanted(&prompts).await;
    let host = bare(2).await;
    load(&host, "some", "some").await;
    let engine = host.server.engine();
    engine.hold_steps();
    let comes = async {
        until_live(&host, 2).await;
        let row = load(&host, "all", "all").await;
        assert_eq!((&row["state"], &row["rank"]), (&json!("loaded"), &json!(4)), "{row}");
        assert!(row["bytes"].as_u64().unwrap() > 0, "{row}");
        assert_eq!(states(&host).await, json!([["some", "loaded"], ["all", "loaded"]]));
        // Steps are still held.
        until_live(&host, 2).await;
        engine.release_steps();
        ask(&host, "all", &prompts[0]).await.0
    };
    let (base, some, all) =
        tokio::join!(ask(&host, "base", &prompts[0]), ask(&host, "some", &prompts[1]), comes);
    assert_eq!([&base.0, &all, &some.0], [&wanted[0][0], &wanted[0][1], &wanted[1][2]]);
    // Between any two steps of one that runs.
    for nth in 0..4 {
        engine.hold_steps();
        let begun = async {
            until_live(&host, 1).await;
            engine.release_steps();
            host.until("it has begun or ended", |state| {
                let rows = state["requests"].as_array().unwrap();
                rows.iter().all(|row| row["generated_tokens"].as_u64().unwrap() > 2)
            })
            .await;
            unload(&host, "all").await;
            load(&host, "all", "all").await;
        };
        let (some, ()) = tokio::join!(ask(&host, "some", &prompts[0]), begun);
        assert_eq!(some.0, wanted[0][2], "round {nth}");
    }
    assert_eq!(models(&host).await, json!(["base", "also-base", "some", "all"]));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_in_use_is_unknown_at_once_and_leaves_when_its_requests_have_ended() {
    let prompt = prompt(3, 50);
    let wanted = wanted(std::slice::from_ref(&prompt)).await;
    let host = bare(1).await;
    load(&host, "mine", "some").await;
    let engine = host.server.engine();
    engine.hold_steps();
    let watch = async {
        until_live(&host, 1).await;
        let leaves = try_unload(&host, "mine");
        let meanwhile = async {
            while states(&host).await != json!([["mine", "unloading"]]) {
                tokio::task::yield_now().await;
            }
            assert_eq!(refused(&host, "mine").await, "model_not_found");
            assert_eq!(models(&host).await, json!(["base", "also-base"]));
            let row = host.admin_get(PATH).await["adapters"][0].take();
            assert_eq!(row["live"], 1, "{row}");
            let (status, answer) = try_load(&host, "mine", &place("all")).await;
            assert_eq!((status.as_u16(), &answer["error"]["code"]), (409, &json!("name_taken")), "{answer}");
            let (status, answer) = try_load(&host, "other", &place("all")).await;
            let code = &answer["error"]["code"];
            assert_eq!(
                (status.as_u16(), code),
                (409, &json!("too_many_adapters")),
                "it has its memory still"
            );
            let (status, answer) = try_unload(&host, "mine").await;
            assert_eq!(
                (status.as_u16(), &answer["error"]["code"]),
                (409, &json!("adapter_busy")),
                "{answer}"
            );
            let state = host.admin_get("/admin/state").await;
            assert_eq!(state["requests"][0]["adapter"], "mine", "its request is what it was");
            engine.release_steps();
        };
        let ((status, answer), ()) = tokio::join!(leaves, meanwhile);
        assert_eq!((status.as_u16(), &answer["adapter"]["state"]), (200, &json!("unloaded")), "{answer}");
        assert!(answer["dropped_blocks"].as_u64().unwrap() > 0, "{answer}");
    };
    let body = json!({"model": "mine", "prompt": prompt, "temperature": 0, "max_tokens": 16,
        "ignore_eos": true, "stream": false, "return_token_ids": true});
    let request = async { host.post("/v1/completions", &body).await.json::<Value>().await.unwrap() };
    let (answer, ()) = tokio::join!(request, watch);
    assert_eq!(answer["choices"][0]["token_ids"], wanted[0][2], "{answer}");
    assert_eq!(answer["model"], "mine");
    assert_eq!(states(&host).await, json!([]));
    let (status, answer) = try_unload(&host, "mine").await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (404, &json!("not_found")), "{answer}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adapter_finds_nothing_that_an_earlier_one_of_its_name_left() {
    let prompt = prompt(1, 100);
    let wanted = wanted(std::slice::from_ref(&prompt)).await;
    let host = bare(1).await;
    let cached = async || host.admin_get("/admin/state").await["memory"]["cached"].as_u64().unwrap();
    ask(&host, "base", &prompt).await;
    let of_base = cached().await;
    for (adapter, nth) in [("all", 1), ("some", 2), ("all", 1)] {
        load(&host, "mine", adapter).await;
        for found in [0, 100] {
            let asked = ask(&host, "mine", &prompt).await;
            assert_eq!(asked, (wanted[0][nth].clone(), found), "{adapter}");
        }
        let left = unload(&host, "mine").await["dropped_blocks"].as_u64().unwrap();
        assert!(left > 0, "{adapter}");
        assert_eq!(cached().await, of_base, "{adapter}");
    }
    assert_eq!(ask(&host, "base", &prompt).await, (wanted[0][0].clone(), 100), "the model keeps its own");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adapters_of_the_start_can_go_and_come_back_under_other_names() {
    let prompt = prompt(5, 30);
    let wanted = wanted(std::slice::from_ref(&prompt)).await;
    let host = Host::start(adapted()).await;
    assert_eq!(states(&host).await, json!([["all", "loaded"], ["some", "loaded"]]));
    unload(&host, "all").await;
    assert_eq!(ask(&host, "some", &prompt).await.0, wanted[0][2], "it isn't the first one any more");
    load(&host, "a/b c", "all").await;
    assert_eq!(ask(&host, "a/b c", &prompt).await.0, wanted[0][1]);
    let metrics = async || host.admin(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    for line in [
        r#"infer_adapter_requests_total{adapter="some"} 1"#,
        r#"infer_adapter_requests_total{adapter="a/b c"} 1"#,
    ] {
        assert!(metrics().await.lines().any(|other| other == line), "{line}: {}", metrics().await);
    }
    assert!(!metrics().await.contains(r#"adapter="all""#));
    unload(&host, "a%2Fb%20c").await;
    assert_eq!(models(&host).await, json!(["base", "also-base", "some"]));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_are_told_with_the_name_that_their_adapter_had() {
    let host = bare(1).await;
    let (sender, told) = std::sync::mpsc::channel();
    let listen = Box::new(move |batch: KvBatch| drop(sender.send(batch)));
    host.server.engine().watch_kv(listen).unwrap();
    for (adapter, name) in [("all", "first"), ("some", "second")] {
        load(&host, name, adapter).await;
        ask(&host, name, &prompt(1, 60)).await;
        let snapshot = host.server.engine().kv_snapshot().await.unwrap();
        let names = snapshot.blocks.iter().map(|block| snapshot.adapters.get(&block.adapter).cloned());
        let told: BTreeSet<Option<String>> = names.collect();
        assert_eq!(told, BTreeSet::from([Some(name.to_owned())]));
        unload(&host, name).await;
    }
    let (mut names, mut blocks) = (BTreeSet::new(), BTreeSet::new());
    for KvBatch { events, adapters, .. } in told.try_iter() {
        for event in events {
            match event {
                KvEvent::Stored(block) => {
                    names.insert((block.adapter.0, adapters[&block.adapter].clone()));
                    assert!(blocks.insert(block.hash));
                }
                KvEvent::Removed { hash } => assert!(blocks.remove(&hash)),
            }
        }
    }
    assert_eq!(names, BTreeSet::from([(1, "first".to_owned()), (2, "second".to_owned())]));
    assert_eq!(blocks, BTreeSet::new(), "what they left is gone");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_not_be_loaded_is_refused_and_changes_nothing() {
    let host = bare(2).await;
    load(&host, "mine", "some").await;
    let before = host.admin_get(PATH).await;
    let empty = tempfile::tempdir().unwrap();
    let (empty, sound) = (empty.path().to_str().unwrap(), place("all"));
    let long = "x".repeat(257);
    for (name, path, status, code, said) in [
        ("x", "/nonexistent/x", 422, "adapter_not_found", "path: /nonexistent/x does not exist"),
        (
            "x",
            "no-org/no-adapter",
            422,
            "adapter_not_found",
            "download it there first (`hf download no-org/no-",
        ),
        ("x", empty, 422, "adapter_unfit", "has no adapter_config.json; is it an adapter of PEFT?"),
        ("base", &*sound, 409, "name_taken", "`base` is a name of the model itself"),
        ("also-base", &*sound, 409, "name_taken", "`also-base` is a name of the model itself"),
        ("mine", &*sound, 409, "name_taken", "an adapter `mine` already, which is loaded"),
        (" ", &*sound, 422, "invalid_value", "name: "),
        ("a\u{7}b", &*sound, 422, "invalid_value", "has control characters"),
        (&*long, &*sound, 422, "invalid_value", "at most 256 bytes"),
    ] {
        let (got, answer) = try_load(&host, name, path).await;
        let error = &answer["error"];
        assert_eq!((got.as_u16(), error["code"].as_str()), (status, Some(code)), "{answer}");
        assert!(error["message"].as_str().unwrap().contains(said), "{said}: {answer}");
    }
    for (body, status, code) in [
        ("{", 400, "invalid_json"),
        (r#"{"name": "x"}"#, 422, "invalid_value"),
        (r#"{"name": "x", "path": "y", "rank": 8}"#, 422, "invalid_value"),
    ] {
        let (got, answer) = answered(host.admin(Method::POST, PATH).body(body)).await;
        assert_eq!((got.as_u16(), answer["error"]["code"].as_str()), (status, Some(code)), "{answer}");
    }
    assert_eq!(host.admin_get(PATH).await, before);
    // Nor was a place or a name lost.
    load(&host, "x", "all").await;
    let (status, answer) = try_load(&host, "y", &sound).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (409, &json!("too_many_adapters")), "{answer}");
    let (status, answer) = try_unload(&host, "y").await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (404, &json!("not_found")), "{answer}");
    assert_eq!(models(&host).await, json!(["base", "also-base", "mine", "x"]));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adapters_of_other_models_and_beyond_the_memory_are_refused() {
    let host = Host::start(Config { max_adapters: 1, ..config() }).await;
    let (status, answer) = try_load(&host, "x", &place("all")).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (422, &json!("adapter_unfit")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("weights: tensor "), "{answer}");
    host.server.shutdown().await;

    let limited = Config { max_adapter_memory_bytes: 40_000, max_adapters: 2, ..adapted() };
    let host = Host::start(Config { lora: Vec::new(), ..limited }).await;
    load(&host, "small", "some").await;
    let (status, answer) = try_load(&host, "large", &place("all")).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (409, &json!("adapter_memory")), "{answer}");
    let said = answer["error"]["message"].as_str().unwrap();
    assert!(said.contains("of the 40000 that adapters may take"), "{said}");
    assert_eq!(states(&host).await, json!([["small", "loaded"]]));
    host.server.shutdown().await;

    let none = Host::start(Config { lora: Vec::new(), ..adapted() }).await;
    let (status, answer) = try_load(&none, "x", &place("all")).await;
    assert_eq!((status.as_u16(), &answer["error"]["code"]), (409, &json!("too_many_adapters")), "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("--max-adapters"), "{answer}");
    none.server.shutdown().await;
}

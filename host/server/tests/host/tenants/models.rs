//! Tenants that may use some of the models: what they see of the others is what they would see if there were none.

use infer_server::config::{AdapterChoice, Config, PoolingChoice};
use serde_json::{Value, json};

use super::{Key, host_with, key, metrics, write};
use crate::common::{Host, config};

fn golden(name: &str) -> String {
    format!("{}/../../tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))
}

/// A model of two names and two adapters of it.
fn adapted() -> Config {
    let adapter = |name: &str| {
        let place = golden(&format!("qwen3-lora/{name}"));
        AdapterChoice { name: name.to_owned(), place }
    };
    Config {
        model: golden("qwen3-bf16"),
        served_model_names: vec!["base".to_owned(), "also-base".to_owned()],
        lora: ["all", "some"].map(adapter).into(),
        pooling: PoolingChoice::Last,
        ..config()
    }
}

async fn get(host: &Host, key: &Key, path: &str) -> (u16, Value) {
    let answer = host.client.get(host.url(path)).bearer_auth(&key.text).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

async fn post(host: &Host, key: &Key, path: &str, body: &Value) -> (u16, Value) {
    let request = host.client.post(host.url(path)).bearer_auth(&key.text).json(body);
    // Errors in Anthropic's form repeat it.
    let answer = request.header("x-request-id", "the-same").send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// A request to each endpoint that has a model.
fn bodies(model: &str) -> [(&'static str, Value); 8] {
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let chat = json!({"model": model, "messages": messages, "max_tokens": 2});
    [
        ("/v1/completions", json!({"model": model, "prompt": "Hello", "max_tokens": 2, "stream": false})),
        ("/v1/chat/completions", chat.clone()),
        ("/v1/messages", chat),
        ("/v1/responses", json!({"model": model, "input": "Hello", "max_output_tokens": 2})),
        ("/v1/embeddings", json!({"model": model, "input": "Hello"})),
        ("/v1/messages/count_tokens", json!({"model": model, "messages": messages})),
        ("/tokenize", json!({"model": model, "prompt": "Hello"})),
        ("/detokenize", json!({"model": model, "tokens": [1]})),
    ]
}

/// Ids and parents of the models that a tenant sees.
async fn cards(host: &Host, key: &Key) -> Value {
    let (status, list) = get(host, key, "/v1/models").await;
    assert_eq!(status, 200, "{list}");
    list["data"].as_array().unwrap().iter().map(|card| json!([card["id"], card["parent"]])).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_that_a_tenant_may_not_use_are_to_it_models_that_are_not_there() {
    let some = key("some", "models = [\"also-base\", \"some\", \"gone\"]");
    let every = key("every", "");
    let (host, _file) = host_with(&[&some, &every], adapted()).await;
    assert_eq!(cards(&host, &some).await, json!([["also-base", null], ["some", "also-base"]]));
    let all = json!([["base", null], ["also-base", null], ["all", "base"], ["some", "base"]]);
    assert_eq!(cards(&host, &every).await, all);

    let anonymous = |asked: &str, (status, error): (u16, Value)| {
        (status, error.to_string().replace(&format!("`{asked}`"), "`ASKED`"))
    };
    let (_, unknown) = get(&host, &some, "/v1/models/none").await;
    assert_eq!(unknown["error"]["message"], "this host serves `also-base`, `some`, not `none`");
    for hidden in ["base", "all"] {
        let path = |name: &str| format!("/v1/models/{name}");
        let (told, wanted) = (get(&host, &some, &path(hidden)).await, get(&host, &some, &path("none")).await);
        assert_eq!(told.0, 404, "{told:?}");
        assert_eq!(anonymous(hidden, told), anonymous("none", wanted));
        for ((path, body), (_, other)) in bodies(hidden).into_iter().zip(bodies("none")) {
            let told = post(&host, &some, path, &body).await;
            assert_eq!(told.0, 422, "{path}: {told:?}");
            assert!(told.1.to_string().contains("model_not_found"), "{path}: {told:?}");
            let wanted = post(&host, &some, path, &other).await;
            assert_eq!(anonymous(hidden, told), anonymous("none", wanted), "{path}");
            assert_eq!(post(&host, &every, path, &body).await.0, 200, "{path}");
        }
    }
    // Responses name the model as the tenant knows it.
    for (model, key, shown) in
        [("also-base", &some, "also-base"), ("some", &some, "some"), ("also-base", &every, "base")]
    {
        for (path, body) in bodies(model) {
            let (status, answer) = post(&host, key, path, &body).await;
            assert_eq!(status, 200, "{path}: {answer}");
            assert!(answer.get("model").is_none_or(|named| named == shown), "{path}: {answer}");
        }
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_needs_no_key_names_no_model_that_a_tenant_may_not_know_until_a_reload_lets_it() {
    let few = key("few", "models = [\"some\"]");
    let (host, file) = host_with(&[&few], adapted()).await;
    assert_eq!(cards(&host, &few).await, json!([["some", null]]));
    let named = async || {
        let text =
            async |path: &str| host.client.get(host.url(path)).send().await.unwrap().text().await.unwrap();
        let interface: Value = serde_json::from_str(&text("/openapi.json").await).unwrap();
        let names = interface["components"]["schemas"]["ChatRequest"]["properties"]["model"]["enum"].clone();
        (names, text("/metrics").await.contains("infer_adapter_requests"))
    };
    assert_eq!(named().await, (Value::Null, false));
    assert!(
        metrics(&host).await.contains("infer_adapter_requests_total{adapter=\"all\"} 0"),
        "operators see all"
    );

    let hidden = json!({"model": "all", "prompt": "Hello", "max_tokens": 1, "stream": false});
    assert_eq!(post(&host, &few, "/v1/completions", &hidden).await.0, 422);
    write(file.path(), &[&few.granted("")]);
    let reloaded = host.server.reload().await;
    assert!(reloaded.iter().all(|outcome| outcome.error.is_none()), "{reloaded:?}");
    assert_eq!(post(&host, &few, "/v1/completions", &hidden).await.0, 200);
    assert_eq!(named().await, (json!(["base", "also-base", "all", "some"]), true));

    write(file.path(), &[&few.granted("models = [\"gone\"]")]);
    host.server.reload().await;
    assert_eq!(cards(&host, &few).await, json!([]));
    let (status, error) = post(&host, &few, "/v1/completions", &hidden).await;
    assert_eq!((status, &error["error"]["code"]), (422, &json!("model_not_found")), "{error}");
    assert!(!error.to_string().contains("base"), "{error}");
    host.server.shutdown().await;
}

//! Models, their names and tokenizers, and the document of the interface.

use infer_server::config::Config;
use serde_json::{Value, json};

use super::whole;
use crate::common::{self, Host, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_tokenizer_and_openapi_document_are_served() {
    let host = Host::start(config()).await;
    let get = async |path: &str| {
        let answer = host.client.get(host.url(path)).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    assert_eq!(get("/v1/models/demo").await.1["id"], "demo");
    let (status, body) = get("/v1/models/no%2Fsuch").await;
    assert_eq!((status, &body["error"]["code"]), (404, &json!("model_not_found")));
    assert!(body["error"]["message"].as_str().unwrap().contains("no/such"), "{body}");
    let (status, document) = get("/openapi.json").await;
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let body: Value = host
        .post(
            "/tokenize",
            &json!({"prompt": "Hello", "return_token_strs": true, "add_special_tokens": false}),
        )
        .await
        .json()
        .await
        .unwrap();
    let strings: String =
        body["token_strs"].as_array().unwrap().iter().map(|s| s.as_str().unwrap()).collect();
    assert_eq!(strings, "Hello");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_to_tokenize_are_those_that_a_chat_may_offer() {
    let host = Host::start(config()).await;
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let tokenize = async |tools: Value| {
        let body = json!({"messages": [{"role": "user", "content": "Go."}], "tools": tools});
        let answer = host.post("/tokenize", &body).await;
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    for (tools, status, says) in [
        (json!([tool("go"), tool("go")]), 422, "tools[1] (`go`): there is another function of this name"),
        (json!([tool("not valid!")]), 422, "`not valid!` is not a valid function name"),
        (json!([{"type": "function"}]), 400, "tools[0]: expected `function`, an object"),
    ] {
        let (found, body) = tokenize(tools.clone()).await;
        assert_eq!((found, &body["error"]["param"]), (status, &json!("tools")), "{tools}: {body}");
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains(says), "{tools}: {message}");
    }
    let (status, body) = tokenize(json!([tool("go"), tool("stop")])).await;
    assert_eq!(status, 200, "{body}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_is_served_under_its_configured_names() {
    let served_model_names = vec!["a=b & c+d".to_owned(), "org/large".to_owned()];
    let folder = common::model_with_tools("hermes");
    let model = folder.path().to_str().unwrap().to_owned();
    let host = Host::start(Config { model, served_model_names, ..config() }).await;
    let get = async |path: &str| {
        let answer = host.client.get(host.url(path)).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let (_, models) = get("/v1/models").await;
    let ids: Vec<&str> =
        models["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["a=b & c+d", "org/large"]);
    // What vLLM's load generator takes for the name of the tokenizer.
    let own = folder.path().file_name().unwrap().to_str().unwrap();
    for card in models["data"].as_array().unwrap() {
        assert_eq!((&card["root"], card.get("parent")), (&json!(own), Some(&Value::Null)), "{card}");
    }
    for path in ["a=b%20&%20c+d", "a%3Db%20%26%20c%2Bd"] {
        assert_eq!(get(&format!("/v1/models/{path}")).await.1["id"], ids[0], "{path}");
    }
    assert_eq!(get("/v1/models/org/large").await.1["id"], "org/large");
    assert_eq!(get("/v1/models/a").await.0, 404);
    for name in ids {
        assert_eq!(whole(&host, json!({"model": name})).await["model"], "a=b & c+d");
    }
    assert_eq!(host.complete(json!({"model": "demo"})).await.status(), 422);
    host.server.shutdown().await;
}

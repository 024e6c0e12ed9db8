//! Chats.

use serde_json::{Value, json};

use super::{chat, texts, whole};
use crate::common::{Host, chunks, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chat_completes_the_rendered_prompt() {
    let host = Host::start(config()).await;
    let messages = json!([{"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What is a prefix cache?"}]}]);
    let tokens: Value = host.post("/tokenize", &json!({"messages": messages})).await.json().await.unwrap();
    let plain = whole(&host, json!({"prompt": tokens["tokens"], "max_tokens": 48})).await;

    let fields = json!({"messages": messages, "max_tokens": 48});
    let answer = chat(&host, fields.clone()).await;
    assert_eq!(answer.headers()["content-type"], "application/json", "chats stream only on request");
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["object"], "chat.completion");
    let message = &body["choices"][0]["message"];
    assert_eq!(
        (&message["role"], message["content"].as_str()),
        (&json!("assistant"), Some(texts(&plain)[0]))
    );
    assert!(message["content"].as_str().unwrap().contains("cache"), "{message}");
    assert_eq!(body["choices"][0]["finish_reason"], "stop", "{body}");
    assert_eq!(body["usage"]["prompt_tokens"], tokens["count"]);

    let mut streamed = fields;
    streamed["stream"] = json!(true);
    streamed["stream_options"] = json!({"include_usage": true});
    streamed["logprobs"] = json!(true);
    streamed["top_logprobs"] = json!(2);
    let chunks = chunks(chat(&host, streamed).await).await;
    let (usage, rest) = chunks.split_last().unwrap();
    assert_eq!((&usage["choices"], &usage["usage"]), (&json!([]), &body["usage"]));
    assert!(rest.iter().all(|c| c["object"] == "chat.completion.chunk" && c["id"] == rest[0]["id"]));
    assert_eq!(rest[0]["choices"][0]["delta"]["role"], "assistant");
    assert!(rest[1..].iter().all(|c| c["choices"][0]["delta"].get("role").is_none()));
    let text: String = rest.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(text, message["content"]);
    let reasons: Vec<&Value> = rest.iter().map(|c| &c["choices"][0]["finish_reason"]).collect();
    assert_eq!(reasons.iter().filter(|r| !r.is_null()).count(), 1);
    assert_eq!(*reasons[reasons.len() - 1], "stop");
    let told: Vec<&Value> =
        rest.iter().filter_map(|c| c["choices"][0]["logprobs"]["content"].as_array()).flatten().collect();
    assert_eq!(told.len() as u64, body["usage"]["completion_tokens"].as_u64().unwrap());
    assert!(told.iter().all(|t| t["top_logprobs"].as_array().unwrap().len() == 2 && t["bytes"].is_array()));

    // The conversation's second turn finds the first in the prefix cache.
    let longer =
        json!([messages[0], messages[1], message, {"role": "user", "content": "And a block table?"}]);
    let body: Value = chat(&host, json!({"messages": longer, "n": 2, "max_completion_tokens": 4}))
        .await
        .json()
        .await
        .unwrap();
    assert_eq!(body["choices"].as_array().unwrap().len(), 2, "{body}");
    assert!(body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 32, "{body}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_chats_name_the_field() {
    let host = Host::start(config()).await;
    let tool = json!([{"type": "function", "function": {"name": "f"}}]);
    let cases = [
        (json!({"messages": null}), 400, "messages"),
        (json!({"messages": []}), 400, "messages"),
        (json!({"messages": [{"role": "user"}]}), 400, "messages"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), 422, "messages"),
        (json!({"prompt": "x"}), 422, "prompt"),
        (json!({"max_completion_tokens": 0}), 422, "max_completion_tokens"),
        (json!({"max_tokens": 100_000}), 422, "max_tokens"),
        (json!({"top_logprobs": 2}), 422, "top_logprobs"),
        (json!({"tools": tool}), 422, "tools"),
        (json!({"tool_choice": "required"}), 422, "tool_choice"),
        (json!({"store": "yes"}), 400, "store"),
        (json!({"service_tier": "first"}), 422, "service_tier"),
        (json!({"reasoning_effort": "huge"}), 422, "reasoning_effort"),
        (json!({"verbosity": 3}), 400, "verbosity"),
        (json!({"prediction": "text"}), 400, "prediction"),
        (json!({"moderation": {"model": "m"}}), 422, "moderation"),
        (json!({"web_search_options": {}}), 422, "web_search_options"),
        (json!({"max_completion_token": 5}), 422, "max_completion_token"),
        (json!({"model": "other"}), 422, "model"),
    ];
    for (extra, status, param) in cases {
        let answer = chat(&host, extra.clone()).await;
        assert_eq!(answer.status(), status, "{extra}");
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["param"], param, "{extra}: {body}");
    }
    // Tools that must not be used need no support by the template.
    assert_eq!(chat(&host, json!({"tools": tool, "tool_choice": "none"})).await.status(), 200);
    host.server.shutdown().await;
}

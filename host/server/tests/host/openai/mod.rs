//! What OpenAI's clients use: choices, batches, log-probabilities, chats.

mod chats;
mod choices;
mod ends;
mod logprobs;
mod models;
mod sampling;

use serde_json::{Value, json};

use crate::common::Host;

/// The body of a completion that isn't streamed.
async fn whole(host: &Host, extra: Value) -> Value {
    let answer = host.complete(with(json!({"stream": false}), &extra)).await;
    let status = answer.status();
    let body: Value = answer.json().await.unwrap();
    assert_eq!(status, 200, "{body}");
    body
}

/// The response to a chat.
async fn chat(host: &Host, extra: Value) -> reqwest::Response {
    let body = json!({"model": "demo", "temperature": 0, "max_tokens": 24,
        "messages": [{"role": "user", "content": "What is a prefix cache?"}]});
    host.post("/v1/chat/completions", &with(body, &extra)).await
}

/// A body in which `extra` replaces or adds fields.
fn with(mut body: Value, extra: &Value) -> Value {
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn texts(body: &Value) -> Vec<&str> {
    body["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect()
}

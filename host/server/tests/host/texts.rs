//! Texts that are too long: refused from their beginning, in words that clients know.

use crate::common::{Host, config, request};
use serde_json::{Value, json};

/// LiteLLM, LangChain and coding agents shorten a conversation if they find these words.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_beyond_the_context_is_refused_in_openais_words() {
    let host = Host::start(config()).await;
    let models: Value = host.client.get(host.url("/v1/models")).send().await.unwrap().json().await.unwrap();
    let limit = models["data"][0]["max_model_len"].as_u64().unwrap();
    let words = format!("this model's maximum context length is {limit} tokens; ");
    let long = "word ".repeat(limit as usize);
    let chat = json!({"model": "demo", "messages": [{"role": "user", "content": long}]});
    // Known to be too long from its beginning.
    let longer = request(json!({"prompt": ["a", "ab1!".repeat(1 << 20)]}));
    for (path, body, param, part) in [
        ("/v1/completions", request(json!({"prompt": vec![1; limit as usize]})), "prompt", "shorten it"),
        ("/v1/completions", request(json!({"max_tokens": limit})), "max_tokens", "ask for at most "),
        ("/v1/chat/completions", chat, "messages", "shorten it"),
        ("/v1/completions", longer, "prompt", &format!("the prompt of more than {limit} tokens")),
    ] {
        let answer = host.post(path, &body).await;
        assert_eq!(answer.status(), 422, "{path}, {param}");
        let error = &answer.json::<Value>().await.unwrap()["error"];
        assert_eq!((&error["param"], &error["code"]), (&json!(param), &json!("context_length_exceeded")));
        let message = error["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("{param}: {words}")) && message.contains(part), "{message}");
        assert!(message.contains("exceeds the context window"), "{message}");
        assert!(!message.contains('"'), "{message}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_is_counted_up_to_a_length() {
    let host = Host::start(config()).await;
    let (most, beyond) = ("ab1!".repeat(1 << 18), "ab1!".repeat(1 << 19));
    let counted: Value = host.post("/tokenize", &json!({"prompt": most})).await.json().await.unwrap();
    let more_than_fits = 2 * counted["max_model_len"].as_u64().unwrap();
    assert!(counted["count"].as_u64().unwrap() > more_than_fits);
    let chat = json!({"model": "demo", "messages": [{"role": "user", "content": beyond}]});
    for (path, body) in [
        ("/tokenize", json!({"prompt": beyond})),
        ("/tokenize", chat.clone()),
        ("/v1/messages/count_tokens", chat),
    ] {
        let answer = host.post(path, &body).await;
        assert_eq!(answer.status(), 422, "{path}");
        let error = &answer.json::<Value>().await.unwrap()["error"];
        assert_eq!(error["code"], "too_long");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&format!("{path} takes at most {} bytes", 1 << 20)), "{message}");
    }
    host.server.shutdown().await;
}

//! What completions end with, and what they repeat.

use serde_json::{Value, json};

use crate::common::{Host, config, text_of, token_ids};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_strings_end_the_text_before_them() {
    let host = Host::start(config()).await;
    let whole = host.events(json!({"max_tokens": 24, "ignore_eos": true})).await;
    let text = text_of(&whole);
    // A stop string from the middle of the output, across token boundaries.
    let middle: Vec<char> = text.chars().skip(text.chars().count() / 3).take(6).collect();
    let stop: String = middle.into_iter().collect();
    let cut = text.find(&stop).expect("taken from the text");
    let stopped = host.events(json!({"max_tokens": 24, "ignore_eos": true, "stop": [stop]})).await;
    assert_eq!(text_of(&stopped), text[..cut]);
    let (_, done) = stopped.last().unwrap();
    assert_eq!(done["finish_reason"], "stop");
    assert_eq!(done["usage"]["completion_tokens"], token_ids(&stopped).len());

    // A stop string that never completes holds back no text in the end.
    let kept = host.events(json!({"max_tokens": 24, "ignore_eos": true, "stop": format!("{text}~")})).await;
    assert_eq!(text_of(&kept), text);
    assert_eq!(token_ids(&kept), token_ids(&whole));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn seeds_and_token_prompts_reproduce_a_completion() {
    let host = Host::start(config()).await;
    let draw = |seed: u64| {
        host.events(json!({"temperature": 2.0, "seed": seed, "ignore_eos": true, "max_tokens": 64}))
    };
    let (a, b, c) = (draw(1).await, draw(1).await, draw(2).await);
    assert_eq!(token_ids(&a), token_ids(&b));
    assert_ne!(token_ids(&a), token_ids(&c));

    let tokens: Value =
        host.post("/tokenize", &json!({"prompt": "What is a prefix cache?"})).await.json().await.unwrap();
    let by_text = host.events(json!({})).await;
    let by_ids = host.events(json!({"prompt": tokens["tokens"]})).await;
    assert_eq!(token_ids(&by_text), token_ids(&by_ids));
    let back: Value =
        host.post("/detokenize", &json!({"tokens": token_ids(&by_text)})).await.json().await.unwrap();
    assert!(back["prompt"].as_str().unwrap().contains(text_of(&by_text).trim()), "{back}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn min_tokens_and_ignore_eos_defer_the_end() {
    let host = Host::start(config()).await;
    let events = host.events(json!({"ignore_eos": true, "max_tokens": 200})).await;
    assert_eq!(token_ids(&events).len(), 200);
    assert_eq!(events.last().unwrap().1["finish_reason"], "length");
    let events = host.events(json!({"min_tokens": 150, "max_tokens": 200})).await;
    assert!(token_ids(&events).len() >= 150);
    host.server.shutdown().await;
}

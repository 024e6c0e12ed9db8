//! Fields that change what is sampled, and how long outputs may and must be.

use infer_server::config::{Config, MaxSeqLen};
use serde_json::{Value, json};

use super::{whole, with};
use crate::common::{Host, config, token_ids};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn biases_penalties_and_stop_tokens_change_the_output() {
    let host = Host::start(config()).await;
    let free = token_ids(&host.events(json!({"ignore_eos": true})).await);
    let other = if free[0] == 300 { 301 } else { 300 };
    let forced = host.events(json!({"logit_bias": {other.to_string(): 100}, "max_tokens": 4})).await;
    assert_eq!(token_ids(&forced), [other; 4]);
    // A bias forces one token until a penalty that grows with each repetition outweighs it.
    let fields = json!({"logit_bias": {"300": 60, "301": 59}, "frequency_penalty": 2, "max_tokens": 6});
    let penalized = token_ids(&host.events(fields).await);
    assert_eq!((penalized[0], penalized.contains(&301)), (300, true), "{penalized:?}");
    let banned = host.events(json!({"logit_bias": {free[0].to_string(): -100}})).await;
    assert_ne!(token_ids(&banned)[0], free[0]);
    let stopped = host.events(json!({"stop_token_ids": [free[3]], "ignore_eos": true})).await;
    assert_eq!(token_ids(&stopped), free[..4]);
    assert_eq!(stopped.last().unwrap().1["finish_reason"], "stop");
    let likely = host.events(json!({"min_p": 1.0, "temperature": 2.0, "ignore_eos": true})).await;
    assert_eq!(token_ids(&likely), free, "only the most likely token reaches min_p = 1");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn min_tokens_beyond_the_context_is_rejected() {
    let host = Host::start(config()).await;
    let chat = |min_tokens: u32| json!({"model": "demo", "min_tokens": min_tokens, "messages": [{"role": "user", "content": "Hi"}]});
    let answer = host.post("/v1/chat/completions", &chat(4_000_000_000)).await;
    assert_eq!(answer.status(), 422);
    let error: Value = answer.json().await.unwrap();
    assert_eq!(error["error"]["param"], "min_tokens", "{error}");
    assert_eq!(host.post("/v1/chat/completions", &chat(8)).await.status(), 200);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_max_tokens_is_bounded_by_the_context() {
    let host = Host::start(Config { max_seq_len: MaxSeqLen::Tokens(300), ..config() }).await;
    for (prompt, fields, tokens) in [
        (9, json!({}), 128),
        (9, json!({"min_tokens": 200}), 200),
        (295, json!({}), 5),
        (299, json!({}), 1),
        (299, json!({"max_tokens": 0, "echo": true}), 0),
    ] {
        let asked = json!({"prompt": vec![5; prompt], "max_tokens": null, "ignore_eos": true});
        let body = whole(&host, with(asked, &fields)).await;
        assert_eq!(body["usage"]["completion_tokens"], tokens, "{prompt} {fields}");
    }
    for (prompt, fields, param) in [
        (300, json!({}), "prompt"),
        (300, json!({"max_tokens": 0, "echo": true}), "prompt"),
        (295, json!({"max_tokens": 6}), "max_tokens"),
        (295, json!({"min_tokens": 6}), "min_tokens"),
    ] {
        let asked = json!({"prompt": vec![5; prompt], "max_tokens": null});
        let answer = host.complete(with(asked, &fields)).await;
        assert_eq!(answer.status(), 422);
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["param"], param, "{prompt} {fields}: {body}");
    }
    host.server.shutdown().await;
}

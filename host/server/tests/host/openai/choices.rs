//! Several choices, and batches of prompts.

use infer_server::config::Config;
use serde_json::{Value, json};

use super::{texts, whole};
use crate::common::{Host, chunks, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn choices_share_one_prefill_and_differ() {
    let host = Host::start(config()).await;
    // Longer than a block, with a partial last block.
    let prompt = "What is a prefix cache? ".repeat(6);
    let asked = json!({"prompt": prompt, "n": 5, "temperature": 1.5, "seed": 3, "max_tokens": 12, "ignore_eos": true});
    let body = whole(&host, asked.clone()).await;
    let several = texts(&body);
    assert_eq!(several.len(), 5);
    assert!(several.iter().any(|text| text != &several[0]), "{several:?}");
    let prompt = body["usage"]["prompt_tokens"].as_u64().unwrap();
    assert_eq!(body["usage"]["completion_tokens"], 60);
    assert_eq!(body["usage"]["total_tokens"], prompt + 60);
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "the cache was empty");
    assert_eq!(
        body["timings"]["prefilled_tokens"], prompt,
        "the first choice computes the prompt, the others hit the cache"
    );
    // The first choice doesn't depend on `n`.
    let mut one = asked;
    one["n"] = json!(1);
    assert_eq!(texts(&whole(&host, one.clone()).await), [several[0]]);
    // Streamed, in both dialects.
    one["n"] = json!(5);
    let events = host.events(one.clone()).await;
    let (last, tokens) = events.split_last().unwrap();
    assert_eq!((last.0.as_str(), last.1["finish_reasons"].as_array().unwrap().len()), ("done", 5));
    one["stream_options"] = json!({"include_usage": true, "continuous_usage_stats": true});
    let chunks = chunks(host.complete(one).await).await;
    for (choice, text) in several.iter().enumerate() {
        let own = tokens.iter().filter(|(_, d)| d["index"] == choice);
        assert_eq!(own.map(|(_, d)| d["token"].as_str().unwrap()).collect::<String>(), *text);
        let own =
            chunks.iter().flat_map(|c| c["choices"].as_array().unwrap()).filter(|c| c["index"] == choice);
        assert_eq!(own.map(|c| c["text"].as_str().unwrap()).collect::<String>(), *text);
    }
    let usage = &chunks.last().unwrap()["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(prompt), &json!(60)));
    let counted: Vec<u64> =
        chunks.iter().map(|c| c["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert!(counted.is_sorted() && counted[0] == 1, "{counted:?}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batched_prompts_complete_like_single_ones() {
    let host = Host::start(config()).await;
    let prompts = ["What is a prefix cache?", "What is a block table?", "Hello"];
    let mut alone = Vec::new();
    for prompt in prompts {
        alone.push(texts(&whole(&host, json!({"prompt": prompt})).await)[0].to_owned());
    }
    let body = whole(&host, json!({"prompt": prompts, "n": 2})).await;
    let twice: Vec<&str> = alone.iter().flat_map(|text| [text.as_str(); 2]).collect();
    assert_eq!(texts(&body), twice);
    let indexes: Vec<u64> =
        body["choices"].as_array().unwrap().iter().map(|c| c["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes, [0, 1, 2, 3, 4, 5]);
    let mut lists = Vec::new();
    for prompt in prompts {
        let tokens: Value = host.post("/tokenize", &json!({"prompt": prompt})).await.json().await.unwrap();
        lists.push(tokens["tokens"].clone());
    }
    let by_ids = whole(&host, json!({"prompt": lists})).await;
    assert_eq!(texts(&by_ids), alone.iter().map(String::as_str).collect::<Vec<_>>());
    let answer = host.complete(json!({"prompt": prompts, "n": 100, "stream": false})).await;
    assert_eq!(answer.status(), 200, "300 sequences fit into the queue");
    let answer = host.complete(json!({"prompt": vec!["x"; 20], "n": 128, "stream": false})).await;
    assert_eq!(answer.status(), 422);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompt_that_is_listed_several_times_is_sampled_several_times() {
    let seeded = || Host::start(Config { seed: Some(1), ..config() });
    let asked =
        |prompt: Value| json!({"prompt": prompt, "temperature": 2, "max_tokens": 24, "ignore_eos": true});
    let prompt = "What is a prefix cache?";
    let host = seeded().await;
    let body = whole(&host, asked(json!(vec![prompt; 3]))).await;
    let several = texts(&body);
    assert!(several[0] != several[1] && several[1] != several[2], "{several:?}");
    // A seed of the request's own is that of each.
    let mut own = asked(json!(vec![prompt; 3]));
    own["seed"] = json!(7);
    let body = whole(&host, own).await;
    assert_eq!(texts(&body), [texts(&body)[0]; 3]);
    host.server.shutdown().await;

    // As if they had come one after the other.
    let host = seeded().await;
    for text in several {
        assert_eq!(texts(&whole(&host, asked(json!(prompt))).await), [text]);
    }
    host.server.shutdown().await;
}

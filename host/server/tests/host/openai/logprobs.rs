//! Log-probabilities, of prompts, too, and the offsets of their texts.

use serde_json::{Value, json};

use super::{texts, whole};
use crate::common::{Host, chunks, config, text_of, token_ids};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logprobs_and_echo_report_prompt_and_output() {
    let host = Host::start(config()).await;
    // The whole prompt is in the prefix cache when its log-probabilities are requested.
    let plain = whole(&host, json!({})).await;
    let asked = json!({"logprobs": 3, "echo": true, "max_tokens": 8});
    let body = whole(&host, asked.clone()).await;
    let text = texts(&body)[0];
    assert_eq!(text, format!("What is a prefix cache?{}", texts(&plain)[0]));
    let lists = &body["choices"][0]["logprobs"];
    let (prompt, output) = (body["usage"]["prompt_tokens"].as_u64().unwrap(), 8);
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(lists[name].as_array().unwrap().len() as u64, prompt + output, "{name}");
    }
    assert_eq!((&lists["token_logprobs"][0], &lists["top_logprobs"][0]), (&Value::Null, &Value::Null));
    for at in 1..(prompt + output) as usize {
        let own = lists["token_logprobs"][at].as_f64().unwrap();
        let top = lists["top_logprobs"][at].as_object().unwrap();
        assert!(own <= 0.0 && (3..=4).contains(&top.len()), "{at}: {own} {top:?}");
        let best = top.values().map(|v| v.as_f64().unwrap()).fold(f64::NEG_INFINITY, f64::max);
        if at as u64 >= prompt {
            assert!((best - own).abs() < 1e-6, "greedy sampling takes the most likely token");
        }
    }
    // Scored as a prompt, the model's output has the log-probabilities it was generated with.
    let tokens: Value = host.post("/tokenize", &json!({"prompt": text})).await.json().await.unwrap();
    let drawn = host.events(json!({"logprobs": 0, "max_tokens": 8})).await;
    let mut all = tokens["tokens"].as_array().unwrap()[..prompt as usize].to_vec();
    all.extend(token_ids(&drawn).into_iter().map(Value::from));
    let scored = whole(&host, json!({"prompt": all, "echo": true, "logprobs": 0, "max_tokens": 0})).await;
    let scores = scored["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    assert_eq!(scores.len() as u64, prompt + output, "max_tokens 0 adds nothing");
    assert_eq!(scored["usage"]["completion_tokens"], 0);
    for (at, (_, event)) in drawn[..8].iter().enumerate() {
        let (drawn, scored) =
            (event["logprob"].as_f64().unwrap(), scores[prompt as usize + at].as_f64().unwrap());
        assert!((drawn - scored).abs() < 1e-5, "token {at}: {drawn} and {scored}");
        assert!(event["top_logprobs"].as_array().unwrap().is_empty());
    }
    // Streamed, the echo comes first.
    let named = host.events(asked.clone()).await;
    assert_eq!((named[0].0.as_str(), &named[0].1["prompt"]), ("prompt", &json!("What is a prefix cache?")));
    assert_eq!(format!("What is a prefix cache?{}", text_of(&named)), text);
    let mut openai = asked;
    openai["stream_options"] = json!({});
    let chunks = chunks(host.complete(openai).await).await;
    let streamed: Vec<f64> = chunks
        .iter()
        .filter_map(|c| c["choices"][0]["logprobs"]["token_logprobs"].as_array())
        .flatten()
        .filter_map(Value::as_f64)
        .collect();
    let listed: Vec<f64> =
        lists["token_logprobs"].as_array().unwrap().iter().filter_map(Value::as_f64).collect();
    assert_eq!(streamed, listed);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_offsets_ignore_text_held_back_for_stop_strings() {
    let host = Host::start(config()).await;
    let asked = json!({"logprobs": 0, "max_tokens": 12, "ignore_eos": true});
    let plain = whole(&host, asked.clone()).await;
    let mut held = asked;
    held["stop"] = json!([format!("{}\u{ff}", texts(&plain)[0])]);
    let stopped = whole(&host, held.clone()).await;
    assert_eq!(texts(&stopped), texts(&plain));
    let offsets = |body: &Value| body["choices"][0]["logprobs"]["text_offset"].clone();
    assert_eq!(offsets(&stopped), offsets(&plain));
    held["stream_options"] = json!({});
    let streamed: Vec<Value> = chunks(host.complete(held).await)
        .await
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["logprobs"]["text_offset"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(Value::from(streamed), offsets(&plain));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_probabilities_of_a_response_are_bounded() {
    let host = Host::start(config()).await;
    let long: Vec<u32> = vec![5; 3_000];
    for fields in [
        json!({"n": 128, "logprobs": 20, "max_tokens": 4_000}),
        json!({"n": 128, "prompt": long, "echo": true, "logprobs": 10, "max_tokens": 1}),
        json!({"n": 2, "prompt": vec![long.clone(); 400], "echo": true, "logprobs": 1, "max_tokens": 0}),
    ] {
        let answer = host.complete(fields).await;
        assert_eq!(answer.status(), 422);
        let body: Value = answer.json().await.unwrap();
        assert_eq!(body["error"]["param"], "logprobs", "{body}");
    }
    // Without `max_tokens` the bound limits the length.
    host.server.engine().hold_steps();
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let all = json!({"model": "demo", "messages": messages, "n": 128, "logprobs": true, "top_logprobs": 20, "stream": true});
    let stream = host.post("/v1/chat/completions", &all).await;
    assert_eq!(stream.status(), 200);
    let state = host.admin_get("/admin/state").await;
    assert_eq!(state["requests"][0]["max_tokens"], (1 << 20) / (128 * 22), "{}", state["requests"][0]);
    drop(stream);
    host.server.engine().release_steps();
    host.server.shutdown().await;
}

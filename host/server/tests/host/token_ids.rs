//! `return_token_ids`: what a trainer needs to score and continue outputs without tokenizing them again.

use serde_json::{Value, json};

use crate::common::{Host, chunks, config, events, request, token_ids};

/// A completion of two prompts with two choices each.
fn four() -> Value {
    json!({"prompt": ["What is a prefix cache?", "A block"], "n": 2, "temperature": 1.5, "seed": 3, "max_tokens": 12,
        "return_token_ids": true})
}

async fn json_of(answer: reqwest::Response) -> Value {
    let status = answer.status();
    let body: Value = answer.json().await.unwrap();
    assert_eq!(status, 200, "{body}");
    body
}

/// The ids of a text as a prompt.
async fn encoded(host: &Host, prompt: &Value) -> Value {
    json_of(host.post("/tokenize", &json!({"prompt": prompt})).await).await["tokens"].take()
}

/// The ids in the chunks of a choice.
fn joined(chunks: &[Value], choice: usize) -> Vec<Value> {
    let of_choice = chunks.iter().filter_map(|chunk| chunk["choices"].get(0));
    let ids = of_choice.filter(|of| of["index"] == choice).map(|of| of["token_ids"].as_array().expect("ids"));
    ids.flatten().cloned().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions_have_the_ids_of_prompts_and_outputs_in_every_form() {
    let host = Host::start(config()).await;
    let mut asked = request(four());
    asked["stream"] = json!(false);
    let whole = json_of(host.post("/v1/completions", &asked).await).await;
    let choices = whole["choices"].as_array().unwrap();
    let prompts = [encoded(&host, &asked["prompt"][0]).await, encoded(&host, &asked["prompt"][1]).await];
    let mut generated = 0;
    for (at, choice) in choices.iter().enumerate() {
        assert_eq!(choice["prompt_token_ids"], prompts[at / 2], "{choice}");
        generated += choice["token_ids"].as_array().unwrap().len();
        // The text is that of the ids, but for the end token, which has none.
        let text = host.post("/detokenize", &json!({"tokens": choice["token_ids"]})).await;
        let text = json_of(text).await["prompt"].as_str().unwrap().trim_start().to_owned();
        assert_eq!(choice["text"].as_str().unwrap().trim_start(), text);
    }
    assert_eq!(whole["usage"]["completion_tokens"], generated, "each token is there once");

    asked["stream"] = json!(true);
    asked["stream_options"] = json!({"include_usage": true});
    let streamed = chunks(host.post("/v1/completions", &asked).await).await;
    for (at, choice) in choices.iter().enumerate() {
        assert_eq!(json!(joined(&streamed, at)), choice["token_ids"]);
        let with_prompt: Vec<&Value> = streamed
            .iter()
            .map(|chunk| &chunk["choices"][0])
            .filter(|of| of["index"] == at && !of["prompt_token_ids"].is_null())
            .collect();
        assert_eq!(with_prompt.len(), 1, "once for each choice");
        assert_eq!(with_prompt[0]["prompt_token_ids"], choice["prompt_token_ids"]);
    }

    // The ids of the first choice are an equal prompt.
    let named = json!({"prompt": choices[0]["prompt_token_ids"], "temperature": 1.5, "seed": 3, "max_tokens": 12,
        "return_token_ids": true});
    let named = events(host.complete(named).await).await;
    assert_eq!((&*named[0].0, &named[0].1["prompt"]), ("prompt", &json!("")), "it isn't echoed");
    assert_eq!(named[0].1["prompt_token_ids"], choices[0]["prompt_token_ids"]);
    assert_eq!(json!(token_ids(&named)), choices[0]["token_ids"]);

    let both = json!({"echo": true, "stream": false, "return_token_ids": true});
    let both = json_of(host.complete(both).await).await["choices"][0].take();
    assert!(both["text"].as_str().unwrap().starts_with("What is a prefix cache?"), "{both}");
    assert_eq!(both["prompt_token_ids"], prompts[0]);
    assert!(both["token_ids"].as_array().unwrap().len() <= 8, "without the prompt's: {both}");
    let neither = json_of(host.complete(json!({"stream": false})).await).await["choices"][0].take();
    assert!(neither.get("token_ids").is_none() && neither.get("prompt_token_ids").is_none(), "{neither}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chats_have_the_ids_of_the_rendered_conversation_and_of_each_reply() {
    let host = Host::start(config()).await;
    let messages = json!([{"role": "user", "content": "What is a prefix cache?"}]);
    let mut asked = json!({"model": "demo", "messages": messages, "n": 2, "temperature": 1.5, "seed": 3,
        "max_tokens": 12, "return_token_ids": true});
    let chat = |asked: Value| host.client.post(host.url("/v1/chat/completions")).json(&asked).send();
    let whole = json_of(chat(asked.clone()).await.unwrap()).await;
    let rendered = json_of(host.post("/tokenize", &json!({"messages": messages})).await).await;
    assert_eq!(whole["prompt_token_ids"], rendered["tokens"]);
    let choices = whole["choices"].as_array().unwrap();
    let generated: usize = choices.iter().map(|choice| choice["token_ids"].as_array().unwrap().len()).sum();
    assert_eq!(whole["usage"]["completion_tokens"], generated);

    asked["stream"] = json!(true);
    asked["logprobs"] = json!(true);
    let streamed = chunks(chat(asked).await.unwrap()).await;
    assert_eq!(streamed[0]["prompt_token_ids"], whole["prompt_token_ids"]);
    assert!(
        streamed[1..].iter().all(|chunk| chunk.get("prompt_token_ids").is_none()),
        "only the first has them"
    );
    for (at, choice) in choices.iter().enumerate() {
        assert_eq!(json!(joined(&streamed, at)), choice["token_ids"]);
    }
    for of in streamed.iter().map(|chunk| &chunk["choices"][0]) {
        let told = of["logprobs"]["content"].as_array().map_or(0, Vec::len);
        assert_eq!(told, of["token_ids"].as_array().unwrap().len(), "ids and log-probabilities match: {of}");
    }
    host.server.shutdown().await;
}

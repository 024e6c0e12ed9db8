//! The operator's chat template, and what chat requests pass to a template.

use crate::common::{Host, config};
use infer_server::config::Config;
use infer_server::serve;
use serde_json::{Value, json};

/// Writes the prompt's variables before the last message, so that they change the prompt.
const TELLING: &str = "{{ bos_token }}<|user|>[{{ reasoning_effort }} {{ verbosity }} {{ enable_thinking }}] \
    {{ messages[-1].content }}<|end|><|assistant|>";

/// A directory with a template, and the configuration of a host that uses it.
fn given(template: &str) -> (tempfile::TempDir, Config) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.jinja");
    std::fs::write(&path, template).unwrap();
    (folder, Config { chat_template: Some(path), ..config() })
}

/// A copy of the demo model's files, with another template or none.
fn checkpoint(template: Option<&str>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in infer_demo::FILES {
        let mut bytes = bytes.to_vec();
        if *name == "tokenizer_config.json" {
            let mut config: Value = serde_json::from_slice(&bytes).unwrap();
            config["chat_template"] = json!(template);
            bytes = config.to_string().into_bytes();
        }
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

async fn chat(host: &Host, extra: Value) -> reqwest::Response {
    let mut body = json!({"model": "demo", "temperature": 0, "max_tokens": 12, "ignore_eos": true,
        "messages": [{"role": "user", "content": "What is a prefix cache?"}]});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    host.post("/v1/chat/completions", &body).await
}

/// The reply, with the number of tokens of its prompt.
async fn reply(host: &Host, extra: Value) -> (Value, Value) {
    let answer = chat(host, extra.clone()).await;
    let status = answer.status();
    let body: Value = answer.json().await.unwrap();
    assert_eq!(status, 200, "{extra}: {body}");
    (body["choices"][0]["message"]["content"].clone(), body["usage"]["prompt_tokens"].clone())
}

/// The tokens of the prompt, rendered with these variables.
async fn prompt(host: &Host, variables: Value) -> Value {
    let messages = json!([{"role": "user", "content": "What is a prefix cache?"}]);
    let body = json!({"messages": messages, "chat_template_kwargs": variables});
    let answer: Value = host.post("/tokenize", &body).await.json().await.unwrap();
    answer["tokens"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hints_of_a_chat_reach_the_template() {
    let (_folder, config) = given(TELLING);
    let host = Host::start(config).await;
    let both = json!({"reasoning_effort": "high", "verbosity": "low"});
    let cases = [
        (both.clone(), both),
        (json!({"reasoning_effort": "none"}), json!({"reasoning_effort": "none", "enable_thinking": false})),
        (json!({"reasoning_effort": null, "verbosity": null}), json!({})),
    ];
    for (fields, variables) in cases {
        let tokens = prompt(&host, variables.clone()).await.as_array().unwrap().len();
        let by_field = reply(&host, fields.clone()).await;
        assert_eq!(by_field.1, tokens, "{fields}");
        assert_eq!(by_field, reply(&host, json!({"chat_template_kwargs": variables})).await, "{fields}");
    }
    let plain = prompt(&host, json!({})).await;
    assert_ne!(
        plain,
        prompt(&host, json!({"reasoning_effort": "high"})).await,
        "the template tells them apart"
    );
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_without_effect_are_accepted() {
    let host = Host::start(config()).await;
    let plain = reply(&host, json!({})).await;
    let all = json!({
        "store": true, "metadata": {"run": "7"}, "service_tier": "flex", "reasoning_effort": "medium",
        "verbosity": "high", "prompt_cache_key": "k", "prompt_cache_retention": "24h",
        "prompt_cache_options": {"mode": "explicit"}, "safety_identifier": "s", "user": "u", "modalities": ["text"],
        "prediction": {"type": "content", "content": "A prefix cache keeps"}, "parallel_tool_calls": true,
    });
    assert_eq!(reply(&host, all).await, plain, "the demo's template reads none of them");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_of_vllm_are_accepted_at_their_defaults_alone() {
    let host = Host::start(config()).await;
    let plain = reply(&host, json!({})).await;
    let defaults = json!({
        "add_special_tokens": false, "best_of": 1, "chat_template": null, "chat_template_kwargs": null,
        "documents": null, "echo": false, "mm_processor_kwargs": null, "use_beam_search": false,
        "length_penalty": 1.0, "bad_words": [], "prompt_logprobs": null, "guided_json": null, "num_beams": 1,
        "functions": [], "function_call": "auto",
    });
    assert_eq!(reply(&host, defaults).await, plain);
    for (name, value) in [
        ("add_special_tokens", json!(true)),
        ("best_of", json!(2)),
        ("documents", json!([{"text": "x"}])),
        ("prompt_logprobs", json!(0)),
        ("num_beams", json!(2)),
        ("functions", json!([{"name": "f"}])),
        ("function_call", json!({"name": "f"})),
    ] {
        let answer = chat(&host, json!({name: value})).await;
        let (status, body) = (answer.status(), answer.json::<Value>().await.unwrap());
        let error = &body["error"];
        assert_eq!((status.as_u16(), &error["param"]), (422, &json!(name)), "{body}");
        assert_eq!(error["code"], "not_supported", "{body}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn given_template_replaces_the_checkpoints_own() {
    for own in [None, Some("{{ raise_exception('not me') }}"), Some("{% if %}")] {
        let checkpoint = checkpoint(own);
        let model = checkpoint.path().to_str().unwrap().to_owned();
        let served_model_names = vec!["demo".to_owned()];
        let alone = Config { model, served_model_names, ..config() };
        let (_folder, Config { chat_template, .. }) = given(TELLING);
        let with = Config { chat_template, ..alone.clone() };
        let alone = Host::start(alone).await;
        let answer = chat(&alone, json!({})).await;
        let (status, body) = (answer.status(), answer.json::<Value>().await.unwrap());
        assert_eq!(status, 422, "{own:?}: {body}");
        let message = body["error"]["message"].as_str().unwrap();
        let words: &[&str] = match own {
            None => &["this model has no chat template", "--chat-template"],
            Some("{% if %}") => &["can't be used", "syntax error", "--chat-template"],
            Some(_) => &["not me"],
        };
        assert!(words.iter().all(|word| message.contains(word)), "{own:?}: {message}");
        alone.server.shutdown().await;

        let host = Host::start(with).await;
        let tokens = prompt(&host, json!({})).await;
        let text = json!({"tokens": tokens});
        let text: Value = host.post("/detokenize", &text).await.json().await.unwrap();
        let text = text["prompt"].as_str().unwrap();
        assert!(
            text.ends_with("<|user|>[  ] What is a prefix cache?<|end|><|assistant|>"),
            "{own:?}: {text}"
        );
        reply(&host, json!({})).await;
        host.server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_template_fails_the_start_with_its_fault() {
    let (folder, broken) = given("{{ bos_token }}\n{% for m in messages %}{{ m.content }}");
    let missing = Config { chat_template: Some(folder.path().join("none.jinja")), ..config() };
    for (config, words) in [
        (broken, &["--chat-template", "own.jinja", "syntax error"][..]),
        (missing, &["--chat-template", "none.jinja", "No such file"]),
    ] {
        let error = serve::start(config).await.err().expect("it is refused");
        assert!(error.is_usage(), "{error}");
        let said = error.to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{words:?} aren't in: {said}");
    }
}

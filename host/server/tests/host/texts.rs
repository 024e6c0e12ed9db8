//! Texts that are too long: refused from their beginning, in words that clients know. And what clients get if the
//! tokenizer fails.

use crate::checkpoints::demo;
use crate::common::{Host, config, parse_events, request};
use infer_model::{Source, Tokenizer};
use infer_server::config::{Config, PoolingChoice};
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

/// A host of the demo model with these parts of its tokenizer.json. Any model embeds.
async fn host_with_tokenizer(parts: Value) -> (Host, tempfile::TempDir) {
    let home = tempfile::tempdir().unwrap();
    let model = demo(home.path(), &[("tokenizer.json", parts)]);
    let (served_model_names, pooling) = (vec!["demo".to_owned()], PoolingChoice::Last);
    (Host::start(Config { model, served_model_names, pooling, ..config() }).await, home)
}

/// The status of an answer, and its error.
async fn error(answer: reqwest::Response) -> (u16, Value) {
    let status = answer.status().as_u16();
    (status, answer.json::<Value>().await.unwrap()["error"].take())
}

/// The library reads a template of a bare prompt that names a token it lacks, and panics when it needs the token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panic_of_the_tokenizer_is_an_answer_however_short_the_text() {
    let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let lacking = json!({"SpecialToken": {"id": "<lacking>", "type_id": 0}});
    let template = json!({"type": "TemplateProcessing", "single": [lacking, sequence("A")],
        "pair": [sequence("A"), sequence("B")], "special_tokens": {}});
    let (host, _home) = host_with_tokenizer(json!({"post_processor": template})).await;
    let long = "a block ".repeat(200);
    for (path, field, body) in [
        ("/v1/completions", "prompt", request(json!({}))),
        ("/v1/completions", "prompt", request(json!({"prompt": long}))),
        ("/v1/completions", "prompt", request(json!({"stream": false}))),
        ("/tokenize", "prompt", json!({"prompt": "a"})),
        ("/v1/embeddings", "input", json!({"model": "demo", "input": ["a", "b"]})),
    ] {
        let answer = host.post(path, &body).await;
        assert_eq!(answer.headers()["x-should-retry"], "false", "{path}: the text would fail again");
        let (status, error) = error(answer).await;
        assert_eq!((status, &error["code"], &error["param"]), (500, &json!("tokenizer"), &json!(field)));
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("can't be turned into tokens"), "{path}: {message}");
    }
    // Nothing but the template is broken.
    let bare = host.complete(json!({"add_special_tokens": false, "stream": false})).await;
    assert_eq!(bare.status(), 200, "{:?}", bare.text().await);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_that_the_vocabulary_can_not_express_is_422() {
    let (_, own) = infer_demo::FILES.iter().find(|(name, _)| *name == "tokenizer.json").unwrap();
    let mut model = serde_json::from_slice::<Value>(own).unwrap()["model"].take();
    // An unknown character becomes a token that the vocabulary lacks, and without its pre-tokenizer a blank is unknown.
    model["unk_token"] = json!("<lacking>");
    let (host, _home) = host_with_tokenizer(json!({"model": model, "pre_tokenizer": null})).await;
    let (status, error) = error(host.complete(json!({"prompt": "two words"})).await).await;
    assert_eq!((status, &error["code"], &error["param"]), (422, &json!("invalid_value"), &json!("prompt")));
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("can't be turned into tokens") && message.contains("<lacking>"), "{message}");
    assert_eq!(host.complete(json!({"prompt": "words", "stream": false})).await.status(), 200);
    host.server.shutdown().await;
}

/// The library's `Strip` takes an `a` off both ends of a token, and panics where both are the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_that_the_tokenizer_can_not_decode_fails_in_words() {
    let tokenizer = Tokenizer::load(&Source::Embedded(infer_demo::FILES)).unwrap();
    let id = |token: &str| tokenizer.id(token).unwrap();
    let strip = json!({"type": "Strip", "content": "a", "start": 1, "stop": 1});
    let (host, _home) = host_with_tokenizer(json!({"decoder": strip})).await;
    let drawing = |token: &str, stream: bool| {
        let id = id(token).to_string();
        json!({"logit_bias": {id: 100}, "stream": stream, "max_tokens": 3, "ignore_eos": true})
    };
    let (status, whole) = error(host.complete(drawing("a", false)).await).await;
    assert_eq!((status, &whole["code"]), (500, &json!("tokenizer")), "{whole}");
    let answer = host.complete(drawing("a", true)).await;
    assert_eq!(answer.status(), 200, "a stream has begun before its first token");
    let (name, last) = parse_events(&answer.text().await.unwrap()).pop().unwrap();
    assert_eq!((name.as_str(), &last["code"]), ("error", &json!("tokenizer")), "{last}");
    for (path, body) in [
        ("/v1/completions", request(json!({"prompt": [id("a")], "echo": true}))),
        ("/detokenize", json!({"tokens": [id("a")]})),
    ] {
        let (status, error) = error(host.post(path, &body).await).await;
        assert_eq!((status, &error["code"]), (500, &json!("tokenizer")), "{path}: {error}");
        assert!(error["message"].as_str().unwrap().contains("can't be turned into text"), "{path}: {error}");
    }
    let answer: Value = host.complete(drawing("b", false)).await.json().await.unwrap();
    assert_eq!(answer["choices"][0]["text"], "bbb", "{answer}");
    host.server.shutdown().await;
}

//! What a checkpoint determines about outputs: its vocabulary's blanks, its end tokens, its default sampling.

use std::path::{Path, PathBuf};

use crate::common::{Host, config, text_of, token_ids};
use infer_model::{SamplingDefaults, Source, Tokenizer};
use infer_server::config::{Config, GenerationConfig};
use infer_server::generate::{Generation, Sequential};
use serde_json::{Value, json};

/// A file with a SentencePiece vocabulary; token 31 is a blank and `b`.
fn pieces() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/gguf-mixed/model.gguf").to_owned()
}

async fn whole(host: &Host, mut body: Value) -> Value {
    body["stream"] = json!(false);
    let answer = host.complete(body).await;
    assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
    answer.json().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completion_keeps_the_blank_of_its_first_token() {
    let host = Host::start(Config { model: pieces(), ..config() }).await;
    let ask = |extra: Value| {
        let mut body =
            json!({"model": pieces(), "prompt": "cab", "logit_bias": {"31": 100}, "max_tokens": 3});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let plain = whole(&host, ask(json!({}))).await;
    assert_eq!(plain["choices"][0]["text"], " b b b");
    let echoed = whole(&host, ask(json!({"echo": true, "logprobs": 0}))).await;
    let choice = &echoed["choices"][0];
    assert_eq!(choice["text"], "cab b b b");
    // <s>, a blank, c, ab, and three times a blank and b.
    assert_eq!(choice["logprobs"]["text_offset"], json!([0, 0, 0, 1, 3, 5, 7]), "{choice}");
    // After a special token a new text begins.
    let begun = whole(&host, ask(json!({"prompt": [1], "max_tokens": 2}))).await;
    assert_eq!(begun["choices"][0]["text"], "b b");
    // A constrained output keeps every blank.
    let shaped = json!({"prompt": [1], "structured_outputs": {"choice": [" b b"]}, "max_tokens": 8});
    let shaped = whole(&host, ask(shaped)).await;
    assert_eq!(shaped["choices"][0]["text"], " b b");
    host.server.shutdown().await;
}

#[test]
fn offline_generation_keeps_the_blank_of_its_first_token() {
    let mut model = Sequential::load(&Config { model: pieces(), ..config() }).unwrap();
    let prompt = model.tokenizer().encode("cab", true).unwrap();
    let what = Generation {
        prompt,
        max_tokens: 12,
        sampling: infer_core::SamplingParams { temperature: 0.0, ..Default::default() },
        ignore_eos: true,
        stop: Vec::new(),
    };
    let generated = model.generate(&what, |_| {}).unwrap();
    let read = |tokens: &[u32]| model.tokenizer().decode(tokens, true).unwrap();
    let all = [what.prompt.as_slice(), &generated.tokens].concat();
    assert_eq!(read(&what.prompt) + &generated.text, read(&all));
}

/// A copy of the demo model's checkpoint under its name, with keys of its JSON files replaced.
pub fn demo(home: &Path, changes: &[(&str, Value)]) -> String {
    let to = home.join("demo");
    std::fs::create_dir_all(&to).unwrap();
    for entry in std::fs::read_dir(demo_files()).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
    for (file, keys) in changes {
        let path = to.join(file);
        let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        std::fs::write(&path, json.to_string()).unwrap();
    }
    to.display().to_string()
}

fn demo_files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/checkpoint")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checkpoint_sets_the_default_sampling_parameters() {
    let home = tempfile::tempdir().unwrap();
    let model = demo(home.path(), &[("generation_config.json", json!({"top_k": 1, "temperature": 50}))]);
    let host = Host::start(Config { model: model.clone(), ..config() }).await;
    // `null` counts as absent.
    let fields = |extra: Value| {
        let mut body = json!({"temperature": null, "seed": 5, "max_tokens": 32, "ignore_eos": true});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        body
    };
    let likeliest = token_ids(&host.events(json!({"max_tokens": 32, "ignore_eos": true})).await);
    assert_eq!(token_ids(&host.events(fields(json!({}))).await), likeliest);
    assert_ne!(token_ids(&host.events(fields(json!({"top_k": 0}))).await), likeliest, "the request decides");
    let version: Value = host.client.get(host.url("/version")).send().await.unwrap().json().await.unwrap();
    assert_eq!(
        (&version["sampling"]["top_k"], &version["sampling"]["temperature"]),
        (&json!(1), &json!(50.0))
    );
    host.server.shutdown().await;

    let host = Host::start(Config { model, generation_config: GenerationConfig::None, ..config() }).await;
    assert_ne!(
        token_ids(&host.events(fields(json!({"temperature": 50}))).await),
        likeliest,
        "top_k of the checkpoint is ignored"
    );
    host.server.shutdown().await;
}

#[test]
fn demo_model_sets_no_sampling_defaults() {
    let source = Source::Directory(demo_files());
    assert_eq!(SamplingDefaults::load(&source), Ok(SamplingDefaults::default()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn end_token_of_the_tokenizer_ends_the_output() {
    let home = tempfile::tempdir().unwrap();
    let host = Host::start(config()).await;
    let free = host.events(json!({"max_tokens": 8, "ignore_eos": true})).await;
    host.server.shutdown().await;
    let tokens = token_ids(&free);
    let tokenizer = Tokenizer::load(&Source::Directory(demo_files())).unwrap();
    let end = tokenizer.token(u32::try_from(tokens[3]).unwrap()).unwrap();
    let at = tokens.iter().position(|token| *token == tokens[3]).unwrap();
    // Given as text, and as an object with settings.
    for end in [json!(end), json!({"content": end, "lstrip": false})] {
        let model = demo(home.path(), &[("tokenizer_config.json", json!({"eos_token": end}))]);
        let host = Host::start(Config { model, ..config() }).await;
        let ended = host.events(json!({"max_tokens": 8})).await;
        assert_eq!(token_ids(&ended), tokens[..=at], "{end}");
        assert_eq!(ended.last().unwrap().1["finish_reason"], "eos");
        assert!(text_of(&free).starts_with(&text_of(&ended)));
        host.server.shutdown().await;
    }
}

//! The golden templates against what transformers renders, and byte for byte against the renderer without its
//! sandbox.

use candle_core::quantized::GgmlDType;
use infer_chat::ChatTemplate;
use infer_model::{Source, Tokenizer};
use serde_json::{Map, Value as Json, json};

use crate::common::native::Oracle;
use crate::common::{golden, sandbox, source, template, variables};
use crate::convert;

const CHECKPOINTS: [&str; 5] = ["llama-f32", "llama-bf16", "qwen3-bf16", "gemma3-f32", "gemma3-bf16"];

/// One conversation of the golden data.
struct Case {
    messages: Json,
    add_generation_prompt: bool,
    variables: Map<String, Json>,
    /// The prompt and its tokens, or a part of the refusal.
    expected: Result<(String, Vec<u32>), String>,
}

fn cases(name: &str) -> Vec<Case> {
    let text = std::fs::read_to_string(golden(name).join("golden.json")).expect("golden.json is there");
    let golden: Json = serde_json::from_str(&text).expect("golden.json is JSON");
    let case = |case: &Json| Case {
        messages: case["messages"].clone(),
        add_generation_prompt: case["add_generation_prompt"].as_bool().expect("a flag"),
        variables: variables(&case["kwargs"]),
        expected: match case.get("error").and_then(Json::as_str) {
            Some(error) => Err(error.to_owned()),
            None => Ok((
                case["rendered"].as_str().expect("a text").to_owned(),
                serde_json::from_value(case["ids"].clone()).expect("ids are numbers"),
            )),
        },
    };
    golden["chat"].as_array().expect("a list").iter().map(case).collect()
}

fn load(source: &Source<'_>) -> ChatTemplate {
    ChatTemplate::load(sandbox(), source).expect("it loads").expect("it has a template")
}

#[test]
fn messages_become_the_same_prompt_and_the_same_tokens() {
    for name in CHECKPOINTS {
        let (template, tokenizer) = (load(&source(name)), Tokenizer::load(&source(name)).expect("loads"));
        for Case { messages, add_generation_prompt, variables, expected } in cases(name) {
            let rendered = template.render_with(&messages, add_generation_prompt, &variables);
            match expected {
                Err(error) => {
                    let refusal = rendered.expect_err("the template refuses this").to_string();
                    assert!(refusal.contains(&error), "{name}: {refusal}");
                }
                Ok((prompt, ids)) => {
                    let rendered = rendered.expect("the template renders this");
                    assert_eq!(rendered, prompt, "{name}: {messages}");
                    assert_eq!(
                        tokenizer.encode(&rendered, false).expect("encodes"),
                        ids,
                        "{name}: {messages}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_gguf_file_renders_what_its_safetensors_do() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    for name in CHECKPOINTS {
        let file = convert::convert(name, GgmlDType::F32, directory.path());
        let template = load(&Source::gguf(&file).expect("a sound file"));
        for Case { messages, add_generation_prompt, variables, expected } in cases(name) {
            let Ok((prompt, _)) = expected else { continue };
            let rendered = template.render_with(&messages, add_generation_prompt, &variables);
            assert_eq!(rendered.expect("renders"), prompt, "{name}: {messages}");
        }
    }
}

/// Things to be offered and called, with every kind of number, text and nesting.
fn tools() -> Json {
    json!([{"type": "function", "function": {
        "name": "weather",
        "description": "<b>\"Tells\"</b> the & weather\u{1f600}\n\tof a 'town' \\u003c",
        "parameters": {
            "zoom": 1e300, "small": 5e-324, "third": 1.0 / 3.0, "odd": 0.1 + 0.2, "whole": 1.0, "minus": -0.0,
            "most": u64::MAX, "least": i64::MIN, "one": 1, "none": null, "yes": true, "no": false,
            "empty": {"list": [], "object": {}, "text": ""},
            "deep": [[[[[[{"a": [{"b": {"c": [1, [2, [3]]]}}]}]]]]]],
        },
    }}])
}

#[test]
fn the_sandbox_changes_no_byte() {
    let own = "{{ bos_token }}{{ tools }}{{ tools | tojson }}{{ tools | tojson(indent=2) }}{{ messages }}\
        {% for key, value in tools[0].function.parameters | items %}{{ key }}={{ value }};{% endfor %}\
        {{ tools[0].function.parameters.most + 1 }} {{ tools[0].function.parameters.least - 1 }}\
        {{ nothing is defined }}";
    let folder = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(folder.path().join("chat_template.jinja"), own).expect("it can be written");
    let config = r#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}, "model_max_length": 8}"#;
    std::fs::write(folder.path().join("tokenizer_config.json"), config).expect("it can be written");
    let own = Source::Directory(folder.path().to_owned());
    let golden = CHECKPOINTS.into_iter().map(source);
    let all: Vec<Case> = CHECKPOINTS.into_iter().flat_map(cases).collect();
    for source in golden.chain([own]) {
        let (template, oracle) = (load(&source), Oracle::load(&source));
        for case in &all {
            let mut with_tools = case.variables.clone();
            with_tools.insert("tools".to_owned(), tools());
            for variables in [&case.variables, &with_tools] {
                let open = case.add_generation_prompt;
                let native = oracle.render(&case.messages, open, variables);
                let rendered = template.render_with(&case.messages, open, variables);
                let native = native.map_err(|why| {
                    format!("chat template: the chat template can't render these messages: {why}")
                });
                assert_eq!(
                    rendered.map_err(|error| error.to_string()),
                    native,
                    "{}: {}",
                    source.name(),
                    case.messages
                );
            }
        }
    }
}

#[test]
fn a_variable_never_stands_for_the_messages() {
    let template =
        template("{{ messages | length }} {{ add_generation_prompt }} {{ bos_token }}").expect("sound");
    let variables =
        variables(&json!({"messages": [1, 2, 3], "add_generation_prompt": 5, "bos_token": "mine"}));
    let prompt = template.render_with(&json!([]), false, &variables).expect("it renders");
    assert_eq!(prompt, "0 False mine");
}

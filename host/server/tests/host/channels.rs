//! Chats with a model whose messages have channels, as gpt-oss has them.

use crate::common::{Host, chunks, config, events};
use infer_server::config::Config;
use serde_json::{Value, json};

/// What follows has the form that is required, from the first token on.
const REPLYING: &str = "<|start|>assistant<|channel|>final<|message|>";
/// Stands for a model that writes this: in the final channel a grammar may go on with other messages. `<[0]>` ends one.
const SCRIPT: &str = r#"start: "Well." <[0]> <|start|> "assistant" <|channel|> "analysis" <|message|> "I think." <[0]> <|start|> "assistant" <|channel|> "commentary to=functions.stop " <|constrain|> "json" <|message|> "{}""#;

/// A host of the demo model, whose special tokens have other names, with a template that ends like this.
async fn host(end: &str) -> (Host, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let names = [
        ("<|end|>", "<|return|>"),
        ("<|begin|>", "<|end|>"),
        ("<|system|>", "<|start|>"),
        ("<|user|>", "<|channel|>"),
        ("<|assistant|>", "<|message|>"),
    ];
    for (name, bytes) in infer_demo::FILES {
        let mut bytes = bytes.to_vec();
        if name.starts_with("tokenizer") {
            let text = String::from_utf8(bytes).unwrap();
            let text = names.iter().fold(text, |text, (own, name)| text.replace(own, name));
            bytes = text.into_bytes();
        }
        if *name == "tokenizer.json" {
            bytes = with_two_more(&bytes);
        }
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    let path = folder.path().join("own.jinja");
    let template = "{# <|channel|> #}{{ '<|start|>system<|message|>' ~ (reasoning_effort or '') ~ '<|end|>' }}\
        {% if tools %}{{ '<|start|>developer<|message|>' + tools | tojson + '<|end|>' }}{% endif %}\
        {% for m in messages %}{{ '<|start|>' + m.role + '<|message|>' + m.content }}\
        {{ '' if loop.last and not add_generation_prompt else '<|end|>' }}{% endfor %}\
        {% if add_generation_prompt %}";
    std::fs::write(&path, format!("{template}{end}{{% endif %}}")).unwrap();
    let model = folder.path().to_str().unwrap().to_owned();
    let served_model_names = vec!["demo".to_owned()];
    let host = Host::start(Config { model, served_model_names, chat_template: Some(path), ..config() }).await;
    (host, folder)
}

/// A tokenizer whose last two tokens, which no merge goes on with, are special ones.
fn with_two_more(tokenizer: &[u8]) -> Vec<u8> {
    let mut tokenizer: Value = serde_json::from_slice(tokenizer).unwrap();
    for name in ["<|constrain|>", "<|call|>"] {
        let model = &mut tokenizer["model"];
        let merge = model["merges"].as_array_mut().unwrap().pop().unwrap();
        let merged: String = merge.as_array().unwrap().iter().map(|part| part.as_str().unwrap()).collect();
        let id = model["vocab"].as_object_mut().unwrap().remove(&merged).unwrap();
        model["vocab"][name] = id.clone();
        let added = json!({"id": id, "content": name, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false});
        tokenizer["added_tokens"].as_array_mut().unwrap().push(added);
    }
    tokenizer.to_string().into_bytes()
}

fn parameters() -> Value {
    json!({"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["x"], "additionalProperties": false})
}

fn tools() -> Value {
    let function = |function: Value| json!({"type": "function", "function": function});
    let none = json!({"type": "object", "additionalProperties": false});
    json!([
        function(json!({"name": "stop", "parameters": none})),
        function(json!({"name": "go", "parameters": parameters()}))
    ])
}

fn body(extra: Value) -> Value {
    let mut body = json!({"model": "demo", "max_tokens": 120, "temperature": 1, "seed": 5,
        "messages": [{"role": "user", "content": "Go."}], "tools": tools()});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

fn scripted(extra: Value) -> Value {
    let mut body = body(json!({"structured_outputs": {"grammar": SCRIPT}}));
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

async fn posted(host: &Host, path: &str, body: &Value) -> Value {
    let answer = host.post(path, body).await;
    let (status, answer) = (answer.status(), answer.json::<Value>().await.unwrap());
    assert_eq!(status, 200, "{body}: {answer}");
    answer
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_reasoning_text_and_calls_in_every_form_of_chats() {
    let (host, _folder) = host(REPLYING).await;
    let whole = posted(&host, CHAT, &scripted(json!({}))).await;
    let choice = &whole["choices"][0];
    let function = json!({"name": "stop", "arguments": "{}"});
    assert_eq!(choice["finish_reason"], "tool_calls", "{whole}");
    assert_eq!(choice["message"]["reasoning_content"], "I think.", "{whole}");
    assert_eq!(choice["message"]["content"], "Well.", "{whole}");
    assert_eq!(choice["message"]["tool_calls"][0]["function"], function, "{whole}");
    assert!(whole["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64() > Some(2), "{whole}");
    let unseparated = posted(&host, CHAT, &scripted(json!({"separate_reasoning": false}))).await;
    assert_eq!(unseparated["choices"][0]["message"]["content"], "Well.\n\nI think.", "{unseparated}");

    let streamed = chunks(host.post(CHAT, &scripted(json!({"stream": true}))).await).await;
    let deltas: Vec<&Value> = streamed.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
    let text =
        |name: &str| deltas.iter().filter_map(|delta| delta[name].as_str()).collect::<Vec<_>>().concat();
    assert_eq!((text("reasoning_content").as_str(), text("content").as_str()), ("I think.", "Well."));
    let calls: Vec<&Value> =
        deltas.iter().filter_map(|delta| delta["tool_calls"].as_array()).flatten().collect();
    assert_eq!(calls[0]["function"]["name"], "stop", "{calls:?}");
    let arguments: String = calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
    assert_eq!(arguments, "{}");
    assert_eq!(streamed.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");

    let tools = json!([{"name": "stop", "input_schema": {"type": "object"}}]);
    let thinking = json!({"type": "enabled", "budget_tokens": 1_024});
    let asked = json!({"tools": tools, "thinking": thinking});
    let message = posted(&host, "/v1/messages", &scripted(asked)).await;
    assert_eq!(message["stop_reason"], "tool_use", "{message}");
    let blocks = message["content"].as_array().unwrap();
    let kinds: Vec<&str> = blocks.iter().filter_map(|block| block["type"].as_str()).collect();
    assert_eq!(kinds, ["text", "thinking", "tool_use"], "{message}");
    let said = (&blocks[0]["text"], &blocks[1]["thinking"], &blocks[2]["input"]);
    assert_eq!(said, (&json!("Well."), &json!("I think."), &json!({})));
    // Without being asked for, it is in no block, though the model can't be told not to reason.
    let message = posted(&host, "/v1/messages", &scripted(json!({"tools": tools}))).await;
    let blocks = message["content"].as_array().unwrap();
    let kinds: Vec<&str> = blocks.iter().filter_map(|block| block["type"].as_str()).collect();
    assert_eq!(kinds, ["text", "tool_use"], "{message}");
    assert!(message["usage"]["output_tokens_details"]["thinking_tokens"].as_u64() > Some(2), "{message}");

    let tools = json!([{"type": "function", "name": "stop", "parameters": {"type": "object"}}]);
    let asked = json!({"model": "demo", "input": "Go.", "tools": tools, "max_output_tokens": 120,
        "structured_outputs": {"grammar": SCRIPT}});
    let response = posted(&host, "/v1/responses", &asked).await;
    let items = response["output"].as_array().unwrap();
    let kinds: Vec<&str> = items.iter().filter_map(|item| item["type"].as_str()).collect();
    assert_eq!(kinds, ["message", "reasoning", "function_call"], "{response}");
    assert_eq!((&items[2]["name"], &items[2]["status"]), (&json!("stop"), &json!("completed")), "{response}");
    let mut streaming = asked;
    streaming["stream"] = json!(true);
    let streamed = events(host.post("/v1/responses", &streaming).await).await;
    let (name, last) = streamed.last().unwrap();
    assert_eq!(name, "response.completed");
    assert_eq!(last["response"]["output"].as_array().map(Vec::len), Some(3), "{last}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forced_call_is_one_and_no_stop_string_is_found_in_a_head() {
    let (host, _folder) = host("<|start|>assistant").await;
    // Of all that it may do, the model doesn't reason.
    let analysis = json!({"model": "demo", "prompt": "analysis", "add_special_tokens": false});
    let analysis = posted(&host, "/tokenize", &analysis).await;
    let bias = json!({analysis["tokens"][0].to_string(): -100});
    for (choice, names) in [
        (json!("required"), &["stop", "go"][..]),
        (json!({"type": "function", "function": {"name": "go"}}), &["go"]),
    ] {
        let extra = json!({"tool_choice": choice, "logit_bias": bias, "stop": ["commentary", "functions"]});
        let answer = posted(&host, CHAT, &body(extra)).await;
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        let function = &choice["message"]["tool_calls"][0]["function"];
        assert!(names.contains(&function["name"].as_str().unwrap()), "{answer}");
        let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        assert!(function["name"] == "stop" || arguments["x"].as_u64() <= Some(9), "{answer}");
        assert_eq!(choice["message"]["content"], Value::Null, "{answer}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn form_is_not_that_of_the_reasoning_and_no_call_is_forced_within_a_message() {
    let (host, _folder) = host("<|start|>assistant<|channel|>analysis<|message|>").await;
    // Neither a message's end nor another's begin.
    let bias: serde_json::Map<String, Value> =
        ["0", "1", "2", "3", "1790", "1791"].into_iter().map(|id| (id.to_owned(), json!(-100))).collect();
    let extra = json!({"ignore_eos": true, "max_tokens": 9, "logit_bias": bias});
    let answer = posted(&host, CHAT, &body(extra.clone())).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("length"), &json!("")));
    assert!(!choice["message"]["reasoning_content"].as_str().unwrap().is_empty(), "{answer}");
    // The form is not that of the reasoning.
    let mut formed = extra;
    formed["ignore_eos"] = json!(false);
    formed["structured_outputs"] = json!({"choice": ["yes"]});
    let answer = posted(&host, CHAT, &body(formed)).await;
    let choice = &answer["choices"][0];
    assert_eq!((&choice["finish_reason"], &choice["message"]["content"]), (&json!("length"), &json!("")));
    // Nor does the end of a call, which the checkpoint doesn't name as an end, end what must have a form.
    let call = json!({"model": "demo", "prompt": "<|call|>", "add_special_tokens": false});
    let call = posted(&host, "/tokenize", &call).await["tokens"].clone();
    assert_eq!(call.as_array().map(Vec::len), Some(1), "{call}");
    let favoured = json!({"tools": [], "max_tokens": 3, "logit_bias": {call[0].to_string(): 100},
        "structured_outputs": {"choice": ["yes"]}});
    let answer = posted(&host, CHAT, &body(favoured)).await;
    assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
    let final_text = json!({"messages": [{"role": "user", "content": "Go."},
        {"role": "assistant", "content": "One"}], "continue_final_message": true,
        "structured_outputs": {"choice": [" two"]}});
    let answer = posted(&host, CHAT, &body(final_text)).await;
    assert_eq!(answer["choices"][0]["message"]["content"], " two", "{answer}");

    let continued = json!({"messages": [{"role": "user", "content": "Go."},
        {"role": "assistant", "content": "One"}], "continue_final_message": true, "tool_choice": "required"});
    let refused = host.post(CHAT, &body(continued)).await;
    let (status, refused) = (refused.status(), refused.json::<Value>().await.unwrap());
    assert_eq!((status.as_u16(), &refused["error"]["param"]), (422, &json!("tool_choice")), "{refused}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn template_gets_the_efforts_that_the_model_knows() {
    let (host, _folder) = host("<|start|>assistant").await;
    let mut tokens = Vec::new();
    for effort in ["low", "minimal", "none"] {
        let extra = json!({"max_tokens": 1, "ignore_eos": true, "reasoning_effort": effort});
        let answer = posted(&host, CHAT, &body(extra)).await;
        tokens.push(answer["usage"]["prompt_tokens"].clone());
        let input = json!({"model": "demo", "input": "Go.", "reasoning": {"effort": effort}, "tools": [],
            "max_output_tokens": 1, "ignore_eos": true});
        let response = posted(&host, "/v1/responses", &input).await;
        assert_eq!(response["reasoning"]["effort"], effort, "{response}");
    }
    assert!(tokens.windows(2).all(|two| two[0] == two[1]), "{tokens:?}");
    host.server.shutdown().await;
}

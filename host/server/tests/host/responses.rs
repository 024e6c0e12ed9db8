//! OpenAI's Responses API: whole and streamed, with calls, reasoning and required forms, and what it refuses.

use crate::common::{self, Host, TAGS, config, model_with_tools, parse_events};
use infer_server::config::Config;
use serde_json::{Value, json};

const PATH: &str = "/v1/responses";

/// The body of a request. `extra` replaces or adds fields.
fn asking(extra: &Value) -> Value {
    let mut body = json!({"model": "demo", "input": "What is a prefix cache?", "temperature": 0,
        "max_output_tokens": 60});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

/// The response as one body.
async fn whole(host: &Host, extra: Value) -> Value {
    let answer = host.post(PATH, &asking(&extra)).await;
    let (status, body) = (answer.status(), answer.json::<Value>().await.unwrap());
    assert_eq!(status, 200, "{extra}: {body}");
    body
}

/// The data of a stream's events, whose names and numbers are checked.
async fn streamed(host: &Host, extra: &Value) -> Vec<Value> {
    let mut body = asking(extra);
    body["stream"] = json!(true);
    let answer = host.post(PATH, &body).await;
    assert_eq!(answer.status(), 200, "{extra}");
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let events = parse_events(&answer.text().await.unwrap());
    for (at, (name, data)) in events.iter().enumerate() {
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(at)), "{data}");
    }
    events.into_iter().map(|(_, data)| data).collect()
}

/// Plays a stream's events as a client does, and returns its last response. Each item must begin, grow and end, and
/// what was added must be what it ends with.
fn played(events: &[Value]) -> Value {
    let kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds[..2], ["response.created", "response.in_progress"]);
    assert_eq!(
        (&events[0]["response"]["output"], &events[0]["response"]["status"]),
        (&json!([]), &json!("in_progress"))
    );
    let (last, items) = events[2..].split_last().unwrap();
    let mut output: Vec<Value> = Vec::new();
    let mut text = String::new();
    for event in items {
        let at = event["output_index"].as_u64().unwrap() as usize;
        let kind = event["type"].as_str().unwrap();
        if kind == "response.output_item.added" {
            assert_eq!((at, &event["item"]["status"]), (output.len(), &json!("in_progress")), "{event}");
            output.push(event["item"].clone());
            text.clear();
            continue;
        }
        assert_eq!(at, output.len() - 1, "only the last item grows: {event}");
        let item = &mut output[at];
        let id = if kind == "response.output_item.done" { &event["item"]["id"] } else { &event["item_id"] };
        assert_eq!(*id, item["id"], "{event}");
        match kind {
            "response.content_part.added" => {
                assert_eq!((&item["content"], &event["part"]["text"]), (&json!([]), &json!("")), "{event}");
            }
            "response.output_text.delta" | "response.reasoning_text.delta" => {
                assert_eq!(event["content_index"], 0, "{event}");
                text += event["delta"].as_str().unwrap();
            }
            "response.function_call_arguments.delta" => text += event["delta"].as_str().unwrap(),
            "response.output_text.done" | "response.reasoning_text.done" => assert_eq!(event["text"], text),
            "response.function_call_arguments.done" => {
                assert_eq!((&event["arguments"], &event["name"]), (&json!(text), &item["name"]));
            }
            "response.content_part.done" => assert_eq!(event["part"]["text"], text),
            "response.output_item.done" => *item = event["item"].clone(),
            other => panic!("{other} is not an event of an item"),
        }
    }
    assert_eq!(last["response"]["output"], json!(output));
    last["response"].clone()
}

/// A response without what differs between two equal requests.
fn comparable(response: &Value) -> Value {
    let mut response = response.clone();
    for name in ["id", "created_at", "completed_at", "timings", "usage"] {
        response[name] = Value::Null;
    }
    for item in response["output"].as_array_mut().unwrap() {
        item["id"] = Value::Null;
        if item["type"] == "function_call" {
            item["call_id"] = Value::Null;
        }
    }
    response
}

fn kinds(response: &Value) -> Vec<&str> {
    response["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect()
}

/// The text of a response's messages.
fn said(response: &Value) -> String {
    let items = response["output"].as_array().unwrap().iter().filter(|item| item["type"] == "message");
    items.map(|item| item["content"][0]["text"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_is_the_chat_that_it_amounts_to() {
    let host = Host::start(config()).await;
    let messages = json!([{"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is a prefix cache?"}]);
    let chat = json!({"model": "demo", "temperature": 0, "max_tokens": 60, "messages": messages});
    let chat: Value = host.post("/v1/chat/completions", &chat).await.json().await.unwrap();
    let fields = json!({"instructions": "Be brief.", "metadata": {"run": "1"}, "user": "me", "store": true,
        "reasoning": {"effort": "low", "summary": "auto"}, "service_tier": "flex", "prompt_cache_key": "key"});
    let body = whole(&host, fields.clone()).await;
    assert_eq!(said(&body), chat["choices"][0]["message"]["content"].as_str().unwrap());
    assert!(body["id"].as_str().unwrap().starts_with("resp_"), "{body}");
    let expected = json!({"object": "response", "status": "completed", "background": false, "error": null,
        "incomplete_details": null, "instructions": "Be brief.", "max_output_tokens": 60, "model": "demo",
        "metadata": {"run": "1"}, "user": "me", "parallel_tool_calls": true, "previous_response_id": null,
        "prompt_cache_key": "key", "reasoning": {"effort": "low", "summary": "auto"}, "service_tier": "default",
        "store": false, "temperature": 0.0, "top_p": 1.0, "text": {"format": {"type": "text"}},
        "tool_choice": "auto", "tools": [], "top_logprobs": 0, "truncation": "disabled"});
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(body[name], *value, "{name}");
    }
    let (usage, chats) = (&body["usage"], &chat["usage"]);
    assert_eq!(usage["input_tokens"], chats["prompt_tokens"]);
    assert_eq!(usage["output_tokens"], chats["completion_tokens"]);
    assert_eq!(usage["total_tokens"], chats["total_tokens"]);
    assert_eq!(usage["output_tokens_details"]["reasoning_tokens"], 0);
    assert!(usage["input_tokens_details"]["cached_tokens"].is_u64(), "{usage}");
    assert_eq!((kinds(&body), &body["output"][0]["role"]), (vec!["message"], &json!("assistant")));

    let events = streamed(&host, &fields).await;
    let last = played(&events);
    assert_eq!(events.last().unwrap()["type"], "response.completed");
    assert_eq!(comparable(&last), comparable(&body));
    assert_eq!(last["usage"]["output_tokens"], usage["output_tokens"]);

    // Sent back as it came, and the same as a list of items.
    let items = json!([{"role": "user", "content": [{"type": "input_text", "text": "What is a prefix cache?"}]},
        body["output"][0], {"type": "message", "role": "user", "content": "And a block table?"}]);
    let more = whole(&host, json!({"instructions": "Be brief.", "input": items})).await;
    assert!(more["usage"]["input_tokens_details"]["cached_tokens"].as_u64().unwrap() >= 32, "{more}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_that_is_cut_off_is_incomplete() {
    let host = Host::start(config()).await;
    let fields = json!({"max_output_tokens": 5, "ignore_eos": true});
    let body = whole(&host, fields.clone()).await;
    assert_eq!((&body["status"], &body["completed_at"]), (&json!("incomplete"), &Value::Null));
    assert_eq!(body["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(
        (&body["output"][0]["status"], &body["usage"]["output_tokens"]),
        (&json!("incomplete"), &json!(5))
    );
    let events = streamed(&host, &fields).await;
    assert_eq!(events.last().unwrap()["type"], "response.incomplete");
    assert_eq!(comparable(&played(&events)), comparable(&body));
    // A response without text still has a message.
    let ends = host.post("/tokenize", &json!({"prompt": "<|end|>", "add_special_tokens": false})).await;
    let ends: Value = ends.json().await.unwrap();
    let empty = json!({"logit_bias": {ends["tokens"][0].to_string(): 100}});
    let body = whole(&host, empty).await;
    assert_eq!(
        (said(&body).as_str(), kinds(&body), &body["status"]),
        ("", vec!["message"], &json!("completed"))
    );
    // The host's own fields work as elsewhere.
    let body = whole(
        &host,
        json!({"stop": ["cache"], "seed": 1, "top_k": 5, "min_p": 0.1, "priority": 2,
        "session_id": "s", "cache_salt": "c", "ttft_deadline_ms": 1000, "expected_output_tokens": 5,
        "chat_template_kwargs": {"x": 1}}),
    )
    .await;
    assert!(!said(&body).contains("cache") && body["status"] == "completed", "{body}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_probabilities_are_those_of_the_message() {
    let host = Host::start(config()).await;
    let fields = json!({"include": ["message.output_text.logprobs"], "top_logprobs": 2, "max_output_tokens": 8,
        "ignore_eos": true});
    let body = whole(&host, fields.clone()).await;
    let list = body["output"][0]["content"][0]["logprobs"].as_array().unwrap();
    assert_eq!((list.len(), &body["top_logprobs"]), (8, &json!(2)), "{body}");
    assert!(
        list.iter().all(|of| of["top_logprobs"].as_array().unwrap().len() == 2 && of["bytes"].is_array())
    );
    let text: String = list.iter().map(|of| of["token"].as_str().unwrap()).collect();
    assert_eq!(text.trim_start(), said(&body));
    let events = streamed(&host, &fields).await;
    played(&events);
    let told: Vec<&Value> =
        events.iter().filter(|event| event["type"] == "response.output_text.delta").collect();
    let told: Vec<Value> =
        told.iter().flat_map(|event| event["logprobs"].as_array().unwrap().clone()).collect();
    assert_eq!(told, *list);
    let without = whole(&host, json!({})).await;
    assert_eq!(without["output"][0]["content"][0]["logprobs"], json!([]));
    host.server.shutdown().await;
}

/// A host whose model supports tools, and its name.
async fn host_with_tools() -> (Host, String, tempfile::TempDir) {
    let folder = model_with_tools("hermes");
    let model = folder.path().display().to_string();
    let host = Host::start(Config { model, ..config() }).await;
    let name = folder.path().file_name().unwrap().to_string_lossy().into_owned();
    (host, name, folder)
}

fn tool(name: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["x"], "additionalProperties": false});
    json!({"type": "function", "name": name, "description": "Moves.", "parameters": parameters, "strict": true})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_items_whose_outputs_continue_the_conversation() {
    let (host, model, _folder) = host_with_tools().await;
    let tools = json!([tool("move_to"), tool("look_at")]);
    let named = json!({"type": "function", "name": "look_at"});
    let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [named]});
    for choice in [json!("required"), named, allowed] {
        let fields = json!({"model": model, "tools": tools, "tool_choice": choice, "parallel_tool_calls": false,
            "temperature": 1, "seed": 7, "max_output_tokens": 300});
        let body = whole(&host, fields.clone()).await;
        assert_eq!((&body["status"], kinds(&body)), (&json!("completed"), vec!["function_call"]), "{body}");
        let call = &body["output"][0];
        assert_eq!(call["status"], "completed", "{body}");
        assert!(choice == "required" || call["name"] == "look_at", "{body}");
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!((0..=9).contains(&arguments["x"].as_u64().unwrap()), "{body}");
        assert!(call["call_id"].as_str().unwrap().starts_with("call_"), "{body}");
        assert_eq!((&body["tools"], &body["tool_choice"]), (&tools, &choice), "{body}");
        let events = streamed(&host, &fields).await;
        assert_eq!(comparable(&played(&events)), comparable(&body), "{choice}");

        let output = json!({"type": "function_call_output", "call_id": call["call_id"], "output": "9"});
        let items = json!([{"role": "user", "content": "Go."}, call, output]);
        let fields = json!({"model": model, "input": items, "tools": tools, "max_output_tokens": 4});
        whole(&host, fields).await;
    }
    // Cut off in the middle of its arguments.
    let fields = json!({"model": model, "tools": tools, "tool_choice": "required", "max_output_tokens": 9});
    let body = whole(&host, fields.clone()).await;
    assert_eq!(body["status"], "incomplete", "{body}");
    let events = streamed(&host, &fields).await;
    assert_eq!(comparable(&played(&events)), comparable(&body));
    // Functions of a namespace, whose two names the model sees as one.
    let space =
        json!({"type": "namespace", "name": "arm", "description": "Moves.", "tools": [tool("move_to")]});
    let fields = json!({"model": model, "tools": [space, tool("move_to")], "max_output_tokens": 300,
        "tool_choice": {"type": "function", "name": "arm__move_to"}});
    let body = whole(&host, fields.clone()).await;
    let call = &body["output"][0];
    assert_eq!((&call["name"], &call["namespace"]), (&json!("move_to"), &json!("arm")), "{body}");
    let shown: Vec<&Value> = body["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(shown, ["arm__move_to", "move_to"]);
    let events = streamed(&host, &fields).await;
    assert_eq!(comparable(&played(&events)), comparable(&body));
    // A model that isn't shown its tools is not said to have any.
    let fields = json!({"model": model, "tools": tools, "tool_choice": "none", "max_output_tokens": 2});
    let body = whole(&host, fields).await;
    assert_eq!((&body["tools"], &body["tool_choice"]), (&json!([]), &json!("none")));
    host.server.shutdown().await;
}

/// Text, then calls, one of them broken, then text again.
const MIXED: &str = "So:\n<tool_call>\n{\"name\": \"move_to\", \"arguments\": {\"x\": 1}}\n</tool_call>\n<tool_call>\n\
    {\"name\": \"move_to\", \"arguments\": {\"x\": oops</tool_call>\nDone.";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_and_calls_come_in_the_order_of_the_output() {
    let (host, model, _folder) = host_with_tools().await;
    let literal = |text: &str| serde_json::to_string(text).unwrap();
    let fields = json!({"model": model, "tools": [tool("move_to")], "max_output_tokens": 200,
        "structured_outputs": {"grammar": format!("start: {}", literal(MIXED))}});
    let body = whole(&host, fields.clone()).await;
    let shown: Vec<Value> = body["output"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| json!([item["type"], item["status"], item["content"][0]["text"], item["arguments"]]))
        .collect();
    assert_eq!(shown[0], json!(["message", "completed", "So:", null]), "{body}");
    assert_eq!(shown[1], json!(["function_call", "completed", null, "{\"x\": 1}"]), "{body}");
    assert_eq!(shown[2].as_array().unwrap()[..2], [json!("function_call"), json!("incomplete")], "{body}");
    assert_eq!(body["status"], "completed");
    let events = streamed(&host, &fields).await;
    assert_eq!(comparable(&played(&events)), comparable(&body));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reasoning_is_an_item_that_can_be_sent_back() {
    let template = "{# <think></think> #}{{ bos_token }}{% for m in messages %}<|assistant|>\
        {{ m.reasoning_content }}{{ m.content }}<|end|>{% endfor %}<|assistant|>";
    let (host, _folder) = common::reasoning_host(template, true).await;
    // Opening and closing tags are the likeliest tokens, each once; the form holds after them.
    let format = json!({"type": "json_schema", "name": "n", "schema": {"enum": [5]}});
    let bias = json!({TAGS[0].to_string(): 100, TAGS[1].to_string(): 1});
    let fields = json!({"logit_bias": bias, "ignore_eos": false, "min_tokens": 12, "max_output_tokens": 12});
    let body = whole(&host, fields.clone()).await;
    assert_eq!((kinds(&body)[0], &body["output"][0]["summary"]), ("reasoning", &json!([])), "{body}");
    assert!(body["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0, "{body}");
    let events = streamed(&host, &fields).await;
    assert_eq!(comparable(&played(&events)), comparable(&body));

    let bias = json!({TAGS[0].to_string(): 100, TAGS[1].to_string(): 80});
    let shaped = json!({"text": {"format": format}, "logit_bias": bias, "repetition_penalty": 2});
    let body = whole(&host, shaped.clone()).await;
    assert_eq!((said(&body).trim(), &body["text"]["format"]), ("5", &format), "{body}");
    let events = streamed(&host, &shaped).await;
    assert_eq!(comparable(&played(&events)), comparable(&body));

    // Log-probabilities are those of the text alone, and of all of it.
    let mut told = shaped;
    told["include"] = json!(["message.output_text.logprobs"]);
    let body = whole(&host, told.clone()).await;
    assert!(body["usage"]["output_tokens_details"]["reasoning_tokens"].as_u64().unwrap() > 0, "{body}");
    assert_logprobs_are_of_the_text(&host, &told).await;

    let thought = |text: &str| {
        let content = json!([{"type": "reasoning_text", "text": text}]);
        json!([{"role": "user", "content": "a"}, {"type": "reasoning", "id": "rs_1", "summary": [],
            "content": content}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}])
    };
    let short = whole(&host, json!({"input": thought("d"), "max_output_tokens": 1})).await;
    let long =
        whole(&host, json!({"input": thought(&"What is a block? ".repeat(9)), "max_output_tokens": 1})).await;
    let tokens = |body: &Value| body["usage"]["input_tokens"].as_u64().unwrap();
    assert!(tokens(&long) > tokens(&short) + 9, "the template was given the reasoning");
    host.server.shutdown().await;
}

/// The log-probabilities of a response's message, whole and streamed, are those of its text's tokens. Its text.
async fn assert_logprobs_are_of_the_text(host: &Host, fields: &Value) -> String {
    let spelled = |list: &Value| -> String {
        list.as_array().unwrap().iter().map(|token| token["token"].as_str().unwrap()).collect()
    };
    let body = whole(host, fields.clone()).await;
    let at = kinds(&body).iter().position(|kind| *kind == "message").unwrap_or_else(|| panic!("{body}"));
    let content = &body["output"][at]["content"][0];
    let text = content["text"].as_str().unwrap();
    assert_eq!(spelled(&content["logprobs"]).trim(), text.trim(), "{body}");
    let events = streamed(host, fields).await;
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    assert_eq!(deltas.map(|event| spelled(&event["logprobs"])).collect::<String>().trim(), text.trim());
    text.to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_probabilities_of_reasoning_are_not_told() {
    // The tags as ordinary tokens, which the form has to spell out.
    let template = "{# </think> #}{{ bos_token }}<|user|>{{ messages[-1].content }}<|end|><|assistant|>";
    let (host, _folder) = common::host_with_template(template).await;
    let output = "<think>\nOne\nand one.\n</think>\n\nTwo.";
    let fields = json!({"structured_outputs": {"choice": [output]}, "max_output_tokens": 60,
        "include": ["message.output_text.logprobs"]});
    assert_eq!(kinds(&whole(&host, fields.clone()).await), ["reasoning", "message"]);
    assert_eq!(assert_logprobs_are_of_the_text(&host, &fields).await, "Two.");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_requests_name_the_field_as_it_is_called_here() {
    let host = Host::start(config()).await;
    let image = json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]);
    let forced = json!([{"type": "function", "name": "f"}]);
    let cases = [
        (json!({"input": null}), 400, "input", "missing_field"),
        (json!({"input": []}), 400, "input", "empty_prompt"),
        (json!({"input": 7}), 400, "input", "wrong_type"),
        (json!({"input": image}), 422, "input", "not_supported"),
        (json!({"input": [{"type": "item_reference", "id": "msg_1"}]}), 422, "input", "not_supported"),
        (json!({"input": "x ".repeat(9_000)}), 422, "input", "context_length_exceeded"),
        (json!({"model": "other"}), 422, "model", "model_not_found"),
        (json!({"max_output_tokens": 0}), 422, "max_output_tokens", "invalid_value"),
        (json!({"max_output_tokens": 1_000_000}), 422, "max_output_tokens", "context_length_exceeded"),
        (json!({"min_tokens": 61}), 422, "min_tokens", "invalid_value"),
        (json!({"temperature": -1}), 422, "temperature", "invalid_value"),
        (json!({"temprature": 1}), 422, "temprature", "unknown_field"),
        (json!({"messages": []}), 422, "messages", "unknown_field"),
        (json!({"n": 2}), 422, "n", "unknown_field"),
        (json!({"previous_response_id": "resp_1"}), 422, "previous_response_id", "not_supported"),
        (json!({"conversation": "conv_1"}), 422, "conversation", "not_supported"),
        (json!({"prompt": {"id": "p"}}), 422, "prompt", "not_supported"),
        (json!({"background": true}), 422, "background", "not_supported"),
        (json!({"truncation": "auto"}), 422, "truncation", "not_supported"),
        (json!({"tools": [{"type": "web_search"}]}), 422, "tools", "not_supported"),
        (json!({"tools": forced}), 422, "tools", "not_supported"),
        (json!({"tool_choice": "required"}), 422, "tool_choice", "invalid_value"),
        (json!({"tool_choice": {"type": "mcp"}}), 422, "tool_choice", "not_supported"),
        (json!({"text": {"format": {"type": "xml"}}}), 422, "text.format", "not_supported"),
        (json!({"text": {"format": {"type": "json_schema"}}}), 400, "text.format", "wrong_type"),
        (json!({"text": {"verbosity": "loud"}}), 422, "text.verbosity", "not_supported"),
        (json!({"reasoning": {"effort": "huge"}}), 422, "reasoning.effort", "not_supported"),
        (json!({"include": ["everything"]}), 422, "include", "invalid_value"),
        (json!({"top_logprobs": 2}), 422, "top_logprobs", "invalid_value"),
        (json!({"stream_options": {}}), 422, "stream_options", "invalid_value"),
        (json!({"service_tier": "first"}), 422, "service_tier", "not_supported"),
        (json!({"store": "yes"}), 400, "store", "wrong_type"),
    ];
    for (extra, status, param, code) in cases {
        for stream in [false, true] {
            let mut body = asking(&extra);
            if stream && param != "stream_options" {
                body["stream"] = json!(true);
            }
            let answer = host.post(PATH, &body).await;
            let (given, body) = (answer.status(), answer.json::<Value>().await.unwrap());
            let error = &body["error"];
            assert_eq!(
                (given.as_u16(), &error["param"], &error["code"]),
                (status, &json!(param), &json!(code)),
                "{body}"
            );
            assert!(error["message"].as_str().unwrap().contains(param), "{body}");
            for chats in ["messages", "response_format", "max_completion_tokens"] {
                let message = error["message"].as_str().unwrap();
                assert!(param == chats || !message.contains(chats), "{body}");
            }
        }
    }
    for (path, part) in [("/v1/responses/resp_1", "stores no responses"), ("/responses", "begins with /v1")] {
        let answer = host.client.get(host.url(path)).send().await.unwrap();
        assert_eq!(answer.status(), 404, "{path}");
        assert!(answer.text().await.unwrap().contains(part), "{path}");
    }
    assert_eq!(host.client.get(host.url(PATH)).send().await.unwrap().status(), 405);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_begins_before_the_first_token_and_a_disconnect_frees_its_blocks() {
    let host = Host::start(Config { prefix_caching: false, ..config() }).await;
    host.server.engine().hold_steps();
    let endless = asking(&json!({"ignore_eos": true, "max_output_tokens": 1_500, "stream": true}));
    let answer = host.post(PATH, &endless).await;
    // Nothing is computed, and yet the client knows that the response was created.
    let stream = common::first_chunk(answer).await;
    host.server.engine().allow_steps(20);
    host.until("it runs", |s| s["queue"]["running"] == 1).await;
    drop(stream);
    let state = host.until("it is gone", |s| s["queue"]["running"] == 0).await;
    assert_eq!(state["memory"]["free"], state["memory"]["total"]);
    assert_eq!(state["counters"]["finished"]["cancelled"], 1);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stream_that_ends_early_says_why() {
    let host = Host::start(config()).await;
    let endless = asking(&json!({"ignore_eos": true, "max_output_tokens": 1_500, "stream": true}));
    // An operator cancels it.
    host.server.engine().allow_steps(8);
    let post = host.client.post(host.url(PATH)).header("x-request-id", "mine").json(&endless);
    let answer = post.send().await.unwrap();
    let cancelled = host.admin(reqwest::Method::DELETE, "/admin/requests/mine").send().await.unwrap();
    assert_eq!(cancelled.status(), 200);
    let events = parse_events(&answer.text().await.unwrap());
    let (name, data) = events.last().unwrap();
    let response = &data["response"];
    assert_eq!((name.as_str(), &response["status"]), ("response.incomplete", &json!("cancelled")), "{data}");
    assert_eq!((&response["id"], &response["incomplete_details"]), (&json!("resp_mine"), &Value::Null));

    // The queue is cleared while it waits.
    host.server.engine().hold_steps();
    let answer = host.post(PATH, &endless).await;
    host.until("it waits", |s| s["queue"]["waiting"] == 1).await;
    let cleared = host.admin(reqwest::Method::DELETE, "/admin/queue").send().await.unwrap();
    assert_eq!(cleared.status(), 200, "{:?}", cleared.text().await);
    host.server.engine().release_steps();
    let events = parse_events(&answer.text().await.unwrap());
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["response.created", "response.in_progress", "error", "response.failed"]);
    assert_eq!(events[2].1["code"], "queue_cleared", "{events:?}");
    let failed = &events[3].1["response"];
    assert_eq!((&failed["status"], &failed["error"]["code"]), (&json!("failed"), &json!("server_error")));
    host.server.shutdown().await;
}

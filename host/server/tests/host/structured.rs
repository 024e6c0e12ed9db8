//! Output that must be something, and calls of functions: valid however unwilling the model, and nothing that
//! a client asks for ends the engine.

use std::time::Instant;

use crate::common::{Host, LONG, TAGS, config, model_with_tools, name_tags, parse_events, request};
use infer_server::config::Config;
use serde_json::{Value, json};

/// One choice's text.
async fn complete(host: &Host, extra: Value) -> (String, Value) {
    let mut body = request(json!({"stream": false, "max_tokens": 400, "temperature": 1.0, "seed": 7}));
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    let answer = host.post("/v1/completions", &body).await;
    let (status, body) = (answer.status(), answer.json::<Value>().await.unwrap());
    assert_eq!(status, 200, "{extra}: {body}");
    (body["choices"][0]["text"].as_str().unwrap().to_owned(), body)
}

/// The answer to a completion once its shape has a turn. On a busy machine those before it may still be compiled although
/// their requests are over.
async fn in_turn(host: &Host, fields: &Value) -> reqwest::Response {
    let begun = Instant::now();
    loop {
        let answer = host.complete(fields.clone()).await;
        if answer.status() != 503 || begun.elapsed() > LONG {
            return answer;
        }
    }
}

fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer", "minimum": 1, "maximum": 99},
            "role": {"enum": ["scheduler", "cache"]},
            "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}
        },
        "required": ["name", "age", "role", "tags"],
        "additionalProperties": false
    })
}

fn assert_person(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
    assert_eq!(value.as_object().unwrap().len(), 4, "{text}");
    assert!((1..=99).contains(&value["age"].as_u64().unwrap()), "{text}");
    assert!(["scheduler", "cache"].contains(&value["role"].as_str().unwrap()), "{text}");
    assert!(value["name"].as_str().unwrap().chars().count() <= 12, "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_form_is_kept_to_by_a_model_that_knows_none() {
    let host = Host::start(config()).await;
    let schema = json!({"type": "json_schema", "json_schema": {"name": "person", "schema": person()}});
    for seed in 0..3 {
        let (text, body) = complete(&host, json!({"response_format": schema, "seed": seed})).await;
        assert_person(&text);
        assert_eq!(body["choices"][0]["finish_reason"], "stop");
    }
    let (text, _) = complete(&host, json!({"structured_outputs": {"json": person()}})).await;
    assert_person(&text);
    let (text, _) = complete(&host, json!({"structured_outputs": {"regex": "[a-f]{3}-[0-9]{2}"}})).await;
    assert!(text.len() == 6 && text.as_bytes()[3] == b'-', "{text:?}");
    let (text, _) = complete(&host, json!({"structured_outputs": {"choice": ["yes \"so\"", "nö"]}})).await;
    assert!(["yes \"so\"", "nö"].contains(&text.as_str()), "{text:?}");
    let grammar = "start: sum\nsum: NUMBER (\"+\" NUMBER)~1..2\nNUMBER: /[1-9][0-9]?/\n";
    let (text, _) = complete(&host, json!({"structured_outputs": {"grammar": grammar}})).await;
    assert!(text.split('+').all(|n| n.parse::<u32>().is_ok()) && text.contains('+'), "{text:?}");
    // Alternatives that overlap, and a shape that is kept by more choices than share an automaton.
    let either = json!({"oneOf": [{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
        "additionalProperties": false}, {"type": "integer", "maximum": 9}, {"type": "number", "minimum": 5}]});
    let fields = json!({"structured_outputs": {"json": either, "disable_any_whitespace": false,
        "whitespace_pattern": null}, "n": 9, "max_tokens": 100});
    let (_, body) = complete(&host, fields).await;
    for choice in body["choices"].as_array().unwrap() {
        let text = choice["text"].as_str().unwrap();
        let is_whole = choice["finish_reason"] == "length" || serde_json::from_str::<Value>(text).is_ok();
        assert!(is_whole, "{text:?}");
    }
    // An object of any kind may be longer than there is room for, but begins as one.
    let format = json!({"type": "json_object"});
    let (text, _) = complete(&host, json!({"response_format": format})).await;
    assert!(text.starts_with('{'), "{text:?}");

    // With choices, log-probabilities, an end that is held back, in a chat, streamed.
    let fields =
        json!({"response_format": schema, "n": 3, "logprobs": 1, "min_tokens": 390, "temperature": 1.0});
    let (_, body) = complete(&host, fields).await;
    for choice in body["choices"].as_array().unwrap() {
        assert_person(choice["text"].as_str().unwrap());
    }
    let chat = json!({"model": "demo", "messages": [{"role": "user", "content": "Who are you?"}],
        "response_format": schema, "stream": true, "seed": 1});
    let answer = host.post("/v1/chat/completions", &chat).await;
    let chunks = parse_events(&answer.text().await.unwrap());
    let text: String =
        chunks.iter().filter_map(|(_, c)| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert_person(&text);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shapes_that_can_t_be_are_422_and_the_engine_lives_on() {
    let host = Host::start(config()).await;
    let nested = |open: &str, inner: &str, close: &str, n: usize| open.repeat(n) + inner + &close.repeat(n);
    let mut deep = json!({"type": "object"});
    for _ in 0..60 {
        deep = json!({"type": "object", "properties": {"a": deep}, "required": ["a"]});
    }
    let many: serde_json::Map<String, Value> = (0..5_000)
        .map(|n| (format!("key_{n}"), json!({"type": "string", "pattern": "^(a|b)*c{3,900}$"})))
        .collect();
    let names: Vec<String> = (0..20_000).map(|n| format!("n{n}")).collect();
    let multiplied = json!({"type": "object", "required": names, "anyOf": vec![true; 10_000]});
    let patterns: serde_json::Map<String, Value> =
        (0..2_000).map(|n| (format!("^{n}-$"), Value::Bool(true))).collect();
    let cases = [
        json!({"structured_outputs": {"json": multiplied}}),
        json!({"structured_outputs": {"json": {"type": "object", "patternProperties": patterns}}}),
        json!({"structured_outputs": {"grammar": format!("start: %json {}",
            json!({"required": names[..3_000], "anyOf": vec![true; 3_000]}))}}),
        json!({"structured_outputs": {"regex": "a", "disable_any_whitespace": true}}),
        json!({"response_format": {"type": "json_schema"}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}}}),
        json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "#/nowhere"}}}}),
        json!({"structured_outputs": {"json": {"allOf": [{"type": "string"}, {"type": "number"}]}}}),
        json!({"structured_outputs": {"json": deep}}),
        json!({"structured_outputs": {"json": "{"}}),
        json!({"structured_outputs": {"json": {"$ref": "https://example.com/schema.json"}}}),
        json!({"structured_outputs": {"json": {"type": "object", "properties": many}}}),
        json!({"structured_outputs": {"regex": "a("}}),
        json!({"structured_outputs": {"regex": nested("(", "a", ")", 2_000)}}),
        json!({"structured_outputs": {"regex": "(?=look)ahead"}}),
        json!({"structured_outputs": {"grammar": "start: nothing"}}),
        json!({"structured_outputs": {"grammar": nested("start: (", "\"a\"", ")", 500)}}),
        json!({"structured_outputs": {"grammar": "start: /a/ start:"}}),
        json!({"structured_outputs": {"choice": []}}),
        json!({"structured_outputs": {}}),
        json!({"structured_outputs": {"regex": "a", "json_object": true}}),
        json!({"structured_outputs": {"regx": "a"}}),
        json!({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}),
        json!({"structured_outputs": {"regex": "a"}, "ignore_eos": true}),
    ];
    for fields in cases {
        let shown: String = fields.to_string().chars().take(120).collect();
        let answer = in_turn(&host, &fields).await;
        let (status, body) = (answer.status().as_u16(), answer.text().await.unwrap());
        assert!([400, 422].contains(&status), "{shown}: {status} {body}");
        assert!(body.len() < 1_500 && !body.contains("backtrace"), "{shown}: {body}");
    }
    // These may be taken or not; what counts is that they end.
    let heavy = [
        json!({"structured_outputs": {"regex": "(a{1,1000}){1,1000}{1,1000}"}}),
        json!({"structured_outputs": {"regex": "(a|b|ab)*(c|d|cd)*[a-z]{0,300}.*x.{100}y"}}),
        json!({"structured_outputs": {"grammar": "start: a\na: a a | \"x\" | \"y\" | \"\""}}),
        json!({"structured_outputs": {"json": {"$defs": {"n": {"type": "object",
            "properties": {"l": {"$ref": "#/$defs/n"}, "r": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"}}}),
    ];
    for fields in heavy {
        let answer = host.complete(fields).await;
        answer.text().await.unwrap();
    }
    let on = json!({"structured_outputs": {"choice": ["on"]}});
    assert_eq!(in_turn(&host, &on).await.status(), 200);
    assert_eq!(complete(&host, on).await.0, "on");
    host.server.shutdown().await;
}

fn tools() -> Value {
    let coordinates = json!({"type": "object", "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["x"], "additionalProperties": false});
    json!([
        {"type": "function", "function": {"name": "move_to", "description": "Moves.", "parameters": coordinates}},
        {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "additionalProperties": false}}},
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_have_to_come_come_whole_and_streamed() {
    for style in ["hermes", "llama"] {
        let folder = model_with_tools(style);
        let host = Host::start(Config { model: folder.path().display().to_string(), ..config() }).await;
        let name = folder.path().file_name().unwrap().to_string_lossy().into_owned();
        let mut body = json!({"model": name, "messages": [{"role": "user", "content": "Go."}], "tools": tools(),
            "tool_choice": {"type": "function", "function": {"name": "move_to"}}, "max_tokens": 120, "seed": 5});
        let answer = host.post("/v1/chat/completions", &body).await;
        let (status, whole) = (answer.status(), answer.json::<Value>().await.unwrap());
        assert_eq!(status, 200, "{whole}");
        let choice = &whole["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("tool_calls"), &Value::Null)
        );
        let call = &choice["message"]["tool_calls"][0];
        assert_eq!((&call["type"], &call["function"]["name"]), (&json!("function"), &json!("move_to")));
        let arguments: Value = serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
        assert!((0..=9).contains(&arguments["x"].as_u64().unwrap()), "{call}");

        body["stream"] = json!(true);
        let answer = host.post("/v1/chat/completions", &body).await;
        let chunks = parse_events(&answer.text().await.unwrap());
        let parts: Vec<&Value> = chunks
            .iter()
            .filter_map(|(_, c)| c["choices"][0]["delta"]["tool_calls"].as_array())
            .flatten()
            .collect();
        assert!(parts.iter().all(|part| part["index"] == 0), "{parts:?}");
        assert_eq!(parts[0]["function"]["name"], "move_to");
        assert!(parts[0]["id"].as_str().unwrap().starts_with("call_"));
        assert!(parts[1..].iter().all(|part| part.get("id").is_none()));
        let streamed: String =
            parts.iter().filter_map(|part| part["function"]["arguments"].as_str()).collect();
        assert_eq!(serde_json::from_str::<Value>(&streamed).unwrap(), arguments);
        assert_eq!(chunks[chunks.len() - 2].1["choices"][0]["finish_reason"], "tool_calls");

        // Any of them, one at most; then its answer goes back.
        body["stream"] = json!(false);
        body["tool_choice"] = json!("required");
        body["parallel_tool_calls"] = json!(false);
        let whole: Value = host.post("/v1/chat/completions", &body).await.json().await.unwrap();
        let message = whole["choices"][0]["message"].clone();
        assert_eq!(message["tool_calls"].as_array().unwrap().len(), 1, "{whole}");
        body["messages"].as_array_mut().unwrap().extend([
            message.clone(),
            json!({"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "done"}),
        ]);
        body["tool_choice"] = json!("auto");
        let answer = host.post("/v1/chat/completions", &body).await;
        assert_eq!(answer.status(), 200, "{:?}", answer.text().await);

        // Its schemas have the bounds of any other.
        for (schema, why) in [
            ((0..40).fold(json!({}), |inner, _| json!({"properties": {"a": inner}})), "nested deeper"),
            (json!({"description": "x".repeat(300 << 10)}), "longer than"),
            (
                json!({"required": vec!["x"; 20], "anyOf": vec![true; 200], "oneOf": vec![true; 200]}),
                "MiB of memory",
            ),
        ] {
            body["tools"][0]["function"]["parameters"] = schema;
            body["tool_choice"] = json!("required");
            let answer = host.post("/v1/chat/completions", &body).await;
            let (status, body) = (answer.status(), answer.json::<Value>().await.unwrap());
            assert_eq!((status.as_u16(), &body["error"]["param"]), (422, &json!("tools")), "{body}");
            assert!(body["error"]["message"].as_str().unwrap().contains(why), "{body}");
        }
        host.server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_whose_tags_are_special_tokens_are_found_whole_and_streamed() {
    let folder = model_with_tools("hermes");
    name_tags(folder.path(), ["<tool_call>", "</tool_call>"], true);
    let host = Host::start(Config { model: folder.path().display().to_string(), ..config() }).await;
    let name = folder.path().file_name().unwrap().to_string_lossy().into_owned();
    // Stands for a model that decides to call: special tokens can be required by their ids alone.
    let grammar = r#"start: <[2]> "\n{\"name\": \"stop\", \"arguments\": {}}\n" <[3]>"#;
    let mut body = json!({"model": name, "messages": [{"role": "user", "content": "Go."}], "tools": tools(),
        "structured_outputs": {"grammar": grammar}, "max_tokens": 120});
    let answer = host.post("/v1/chat/completions", &body).await;
    let (status, whole) = (answer.status(), answer.json::<Value>().await.unwrap());
    assert_eq!(status, 200, "{whole}");
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{choice}");
    assert_eq!(choice["message"]["content"], Value::Null, "{choice}");
    let function = json!({"name": "stop", "arguments": "{}"});
    assert_eq!(choice["message"]["tool_calls"][0]["function"], function, "{choice}");

    body["stream"] = json!(true);
    let answer = host.post("/v1/chat/completions", &body).await;
    let chunks = parse_events(&answer.text().await.unwrap());
    let deltas: Vec<&Value> = chunks.iter().map(|(_, chunk)| &chunk["choices"][0]["delta"]).collect();
    let calls: Vec<&Value> = deltas.iter().filter_map(|d| d["tool_calls"].as_array()).flatten().collect();
    assert_eq!(calls[0]["function"]["name"], "stop", "{deltas:?}");
    let arguments: String = calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
    assert_eq!(arguments, "{}");
    assert!(deltas.iter().all(|delta| delta["content"].as_str().is_none_or(str::is_empty)), "{deltas:?}");

    // Nobody looks for calls where none is offered, so there the tags have no text.
    body["stream"] = json!(false);
    body["tools"] = json!([]);
    let whole: Value = host.post("/v1/chat/completions", &body).await.json().await.unwrap();
    let content = "\n{\"name\": \"stop\", \"arguments\": {}}\n";
    assert_eq!(whole["choices"][0]["message"]["content"], content, "{whole}");
    host.server.shutdown().await;
}

/// A host whose model supports tools, and its name. The tags of calls are tokens, special or not.
async fn host_with_tools(style: &str, special: bool) -> (Host, String, tempfile::TempDir) {
    let folder = model_with_tools(style);
    name_tags(folder.path(), ["<tool_call>", "</tool_call>"], special);
    let host = Host::start(Config { model: folder.path().display().to_string(), ..config() }).await;
    let name = folder.path().file_name().unwrap().to_string_lossy().into_owned();
    (host, name, folder)
}

/// A chat's status and response. `extra` replaces or adds fields.
async fn chat(host: &Host, name: &str, extra: Value) -> (u16, Value) {
    let mut body = json!({"model": name, "messages": [{"role": "user", "content": "Go."}], "tools": tools(),
        "parallel_tool_calls": false, "temperature": 1, "seed": 7, "max_tokens": 400});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let answer = host.post("/v1/chat/completions", &body).await;
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// Fields that make a reply begin with a text's first token, if it may.
async fn beginning_with(host: &Host, name: &str, text: &str, mut fields: Value) -> Value {
    let body = json!({"model": name, "prompt": text, "add_special_tokens": false});
    let answer: Value = host.post("/tokenize", &body).await.json().await.unwrap();
    fields["logit_bias"] = json!({answer["tokens"][0].to_string(): 100});
    fields
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reply_has_its_form_unless_it_is_a_call() {
    let format = json!({"type": "json_schema", "json_schema": {"name": "person", "schema": person()}});
    let format = json!({"response_format": format});
    let yes = json!({"structured_outputs": {"choice": ["yes"]}});
    for (style, special, form) in [
        ("hermes", false, &format),
        ("hermes", true, &format),
        ("hermes", false, &yes),
        ("llama", false, &yes),
    ] {
        let (host, name, _folder) = host_with_tools(style, special).await;
        let shown = format!("{style}, special: {special}, {form}");
        let mut calling = form.clone();
        calling["logit_bias"] = json!({TAGS[0].to_string(): 100});
        if style == "llama" {
            calling = beginning_with(&host, &name, "{", form.clone()).await;
        }
        let (status, body) = chat(&host, &name, calling).await;
        assert_eq!(status, 200, "{shown}: {body}");
        let choice = &body["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{shown}: {body}");
        let function = &choice["message"]["tool_calls"][0]["function"];
        let arguments: Value = serde_json::from_str(function["arguments"].as_str().unwrap()).unwrap();
        let fits = match function["name"].as_str().unwrap() {
            "move_to" => (0..=9).contains(&arguments["x"].as_u64().unwrap()),
            _ => arguments == json!({}),
        };
        assert!(fits, "{shown}: {body}");

        let begin = if *form == yes { "yes" } else { "{" };
        let replying = beginning_with(&host, &name, begin, form.clone()).await;
        let (status, body) = chat(&host, &name, replying).await;
        assert_eq!(status, 200, "{shown}: {body}");
        let choice = &body["choices"][0];
        assert_eq!(choice["finish_reason"], "stop", "{shown}: {body}");
        let content = choice["message"]["content"].as_str().unwrap();
        if *form == yes {
            assert_eq!(content, "yes", "{shown}");
        } else {
            assert_person(content);
        }

        // A forced call leaves no room for the form.
        let mut forced = form.clone();
        forced["tool_choice"] = json!("required");
        let (status, body) = chat(&host, &name, forced).await;
        if *form == yes {
            let message = body["error"]["message"].as_str().unwrap();
            let param = &body["error"]["param"];
            assert_eq!((status, param), (422, &json!("structured_outputs")), "{shown}: {body}");
            assert!(message.contains("`tool_choice`"), "{shown}: {body}");
        } else {
            let reason = &body["choices"][0]["finish_reason"];
            assert_eq!((status, reason), (200, &json!("tool_calls")), "{shown}: {body}");
        }

        // Streamed, a call has no text, and a reply no calls.
        for (text, is_call) in [(if style == "llama" { "{" } else { "" }, true), (begin, false)] {
            let mut fields = json!({"logit_bias": {TAGS[0].to_string(): 100}});
            if !text.is_empty() {
                fields = beginning_with(&host, &name, text, json!({})).await;
            }
            let mut body = json!({"model": name, "messages": [{"role": "user", "content": "Go."}],
                "tools": tools(), "parallel_tool_calls": false, "temperature": 1, "seed": 7, "max_tokens": 400,
                "stream": true});
            body.as_object_mut().unwrap().extend(form.as_object().unwrap().clone());
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let answer = host.post("/v1/chat/completions", &body).await;
            let chunks = parse_events(&answer.text().await.unwrap());
            let choices: Vec<&Value> = chunks.iter().map(|(_, chunk)| &chunk["choices"][0]).collect();
            let calls = choices.iter().any(|choice| choice["delta"]["tool_calls"].is_array());
            let content: String = choices.iter().filter_map(|c| c["delta"]["content"].as_str()).collect();
            assert_eq!((calls, content.is_empty()), (is_call, is_call), "{shown}: {chunks:?}");
            let reason = choices.iter().find_map(|choice| choice["finish_reason"].as_str());
            let expected = if is_call { "tool_calls" } else { "stop" };
            assert_eq!(reason, Some(expected), "{shown}: {chunks:?}");
        }
        host.server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemas_are_kept_to_as_far_as_possible_or_refused_if_they_are_strict() {
    let (host, name, _folder) = host_with_tools("hermes", false).await;
    let loose = json!({"type": "object", "additionalProperties": false, "required": ["path", "tags", "price"],
        "properties": {"path": {"type": "string", "format": "path", "maxLength": 5},
            "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2, "uniqueItems": true},
            "price": {"type": "string", "pattern": "^(?!x)", "maxLength": 3}}});
    let assert_kept = |text: &str| {
        let value: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        assert_eq!(value.as_object().unwrap().len(), 3, "{text}");
        assert!(value["path"].as_str().unwrap().chars().count() <= 5, "{text}");
        assert!(value["tags"].as_array().unwrap().len() <= 2, "{text}");
    };
    let format = |strict: bool| {
        let schema = json!({"name": "loose", "schema": loose, "strict": strict});
        json!({"response_format": {"type": "json_schema", "json_schema": schema}, "tool_choice": "none"})
    };
    let tool = |strict: bool| {
        let function = json!({"name": "save", "parameters": loose, "strict": strict});
        let tools = [json!({"type": "function", "function": function}), tools()[1].clone()];
        json!({"tools": tools, "tool_choice": {"type": "function", "function": {"name": "save"}}})
    };
    let (status, body) = chat(&host, &name, format(false)).await;
    assert_eq!(status, 200, "{body}");
    assert_kept(body["choices"][0]["message"]["content"].as_str().unwrap());
    let (status, body) = chat(&host, &name, tool(false)).await;
    assert_eq!(status, 200, "{body}");
    let function = &body["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_kept(function["arguments"].as_str().unwrap());

    let why = "`uniqueItems` at #/properties/tags can't be enforced; leave it out";
    let strict = format!("{why}, or don't ask for `strict`");
    let mut whole = json!({"structured_outputs": {"json": loose}, "tool_choice": "none"});
    let mut impossible = tool(false);
    impossible["tools"][1]["function"]["parameters"] = json!({"type": "nothing"});
    impossible["tool_choice"] = json!("required");
    for (fields, param, message) in [
        (format(true), "response_format", format!("response_format: {strict}")),
        (tool(true), "tools", format!("tools[0] (`save`): {strict}")),
        (whole.clone(), "structured_outputs", format!("structured_outputs: {why}")),
        (impossible, "tools", "tools: function `stop`: Invalid type: nothing".to_owned()),
    ] {
        let (status, body) = chat(&host, &name, fields).await;
        assert_eq!((status, &body["error"]["param"]), (422, &json!(param)), "{body}");
        assert_eq!(body["error"]["message"], message, "{body}");
    }
    for (schema, message) in [
        (
            json!({"properties": {"a": {"type": "string", "pattern": "a(?!b)"}}}),
            "`pattern` at #/properties/a can't be enforced; leave it out",
        ),
        (
            json!({"type": "object", "properties": {"a": true, "b": true}, "minProperties": 2}),
            "min/maxProperties only supported",
        ),
    ] {
        let fields = json!({"structured_outputs": {"json": schema}, "tool_choice": "none"});
        let (status, body) = chat(&host, &name, fields).await;
        assert_eq!((status, &body["error"]["param"]), (422, &json!("structured_outputs")), "{body}");
        assert!(body["error"]["message"].as_str().unwrap().contains(message), "{body}");
    }
    // A function that is offered and no more.
    let mut offered = tool(true);
    offered["tool_choice"] = json!("auto");
    let (status, body) = chat(&host, &name, offered).await;
    assert_eq!((status, &body["error"]["param"]), (422, &json!("tools")), "{body}");
    // What JSON Schema takes for an annotation is refused nowhere.
    let properties = &mut whole["structured_outputs"]["json"]["properties"];
    properties["tags"] = json!({"type": "array", "items": {"type": "boolean"}, "maxItems": 2});
    properties["price"] = json!({"type": "string", "format": "password", "maxLength": 3});
    let (status, body) = chat(&host, &name, whole).await;
    assert_eq!(status, 200, "{body}");
    assert_kept(body["choices"][0]["message"]["content"].as_str().unwrap());
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conversation_goes_on_after_a_call_whose_arguments_are_no_object() {
    let (host, name, _folder) = host_with_tools("hermes", false).await;
    for arguments in ["{\"x\": ", "[1]", "one"] {
        let function = json!({"name": "move_to", "arguments": arguments});
        let call = json!({"id": "call_1", "type": "function", "function": function});
        let messages = json!([{"role": "user", "content": "Go."}, {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "What?"}]);
        let (status, body) = chat(&host, &name, json!({"messages": messages, "max_tokens": 4})).await;
        assert_eq!(status, 200, "{arguments}: {body}");
    }
    host.server.shutdown().await;
}

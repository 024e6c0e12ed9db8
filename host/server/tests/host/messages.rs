//! Messages in Anthropic's form: what its SDKs and agents send, and the form in which they expect replies and errors.

use std::time::Duration;

use crate::common::{
    self, Host, config, events, first_chunk, host_with_template, model_with_tools, reasoning_host,
};
use infer_core::SequenceId;
use infer_server::config::{Bounds, Config, MaxSeqLen};
use infer_server::tenants::{KeyDigest, fresh};
use reqwest::{Method, Response};
use serde_json::{Value, json};

const PATH: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// A request. `extra` replaces or adds fields.
fn body(extra: &Value) -> Value {
    let mut body = json!({"model": "demo", "max_tokens": 24, "temperature": 0,
        "messages": [{"role": "user", "content": "What is a prefix cache?"}]});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

async fn message(host: &Host, extra: Value) -> Value {
    let answer = host.post(PATH, &body(&extra)).await;
    let status = answer.status();
    let message: Value = answer.json().await.unwrap();
    assert_eq!(status, 200, "{extra}: {message}");
    message
}

/// A message put together from the events of a stream, whose order is checked.
async fn streamed(host: &Host, mut extra: Value) -> Value {
    extra["stream"] = json!(true);
    let answer = host.post(PATH, &body(&extra)).await;
    assert_eq!(answer.status(), 200, "{extra}");
    let mut events = events(answer).await.into_iter();
    let (name, first) = events.next().unwrap();
    assert_eq!(name, "message_start");
    let mut message = first["message"].clone();
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
    let mut open: Option<String> = None;
    let mut ended = 0;
    for (name, event) in events {
        assert_eq!(event["type"], name.as_str());
        let at = message["content"].as_array().unwrap().len();
        match name.as_str() {
            "content_block_start" => {
                assert_eq!((event["index"].as_u64(), &open), (Some(at as u64), &None));
                message["content"].as_array_mut().unwrap().push(event["content_block"].clone());
                open = Some(String::new());
            }
            "content_block_delta" => {
                assert_eq!(event["index"], at - 1);
                let delta = &event["delta"];
                let key = match delta["type"].as_str().unwrap() {
                    "text_delta" => "text",
                    "thinking_delta" => "thinking",
                    "input_json_delta" => "partial_json",
                    other => panic!("{other}"),
                };
                open.as_mut().expect("a block is open").push_str(delta[key].as_str().unwrap());
            }
            "content_block_stop" => {
                assert_eq!(event["index"], at - 1);
                let (block, said) = (&mut message["content"][at - 1], open.take().expect("a block is open"));
                match block["type"].as_str().unwrap().to_owned().as_str() {
                    "tool_use" => block["input"] = serde_json::from_str(&said).unwrap(),
                    kind => block[kind] = json!(said),
                }
            }
            "message_delta" => {
                assert!(open.is_none());
                for (key, value) in event["delta"].as_object().unwrap() {
                    message[key] = value.clone();
                }
                message["usage"] = event["usage"].clone();
                ended += 1;
            }
            "message_stop" => ended += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!(ended, 2, "message_delta and message_stop");
    message
}

fn text(message: &Value) -> &str {
    assert_eq!(message["content"].as_array().unwrap().len(), 1, "{message}");
    message["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{message}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_is_the_chat_in_another_form_whole_and_streamed() {
    let host = Host::start(config()).await;
    let chat = json!({"model": "demo", "max_tokens": 24, "temperature": 0,
        "messages": [{"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is a prefix cache, and what does it do for prompts?"}]});
    let chat: Value = host.post("/v1/chat/completions", &chat).await.json().await.unwrap();
    let same = json!({"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "What is a prefix cache, and what does it do for prompts?"}]}]});
    let answer = host.client.post(host.url(&format!("{PATH}?beta=true")));
    let answer = answer.header("x-request-id", "mine").header("anthropic-version", "2023-06-01");
    let answer = answer.header("anthropic-beta", "a,b").json(&body(&same)).send().await.unwrap();
    assert_eq!((&answer.headers()["request-id"], answer.status().as_u16()), (&"mine".parse().unwrap(), 200));
    let message: Value = answer.json().await.unwrap();
    let heads = ["id", "type", "role", "model", "stop_sequence"].map(|name| &message[name]);
    assert_eq!(json!(heads), json!(["msg_mine", "message", "assistant", "demo", null]));
    assert_eq!(text(&message), chat["choices"][0]["message"]["content"]);
    assert!(["end_turn", "max_tokens"].contains(&message["stop_reason"].as_str().unwrap()), "{message}");
    assert!(message["timings"]["ttft_ms"].is_number(), "{message}");

    // Both find the chat's prompt cached, which Anthropic doesn't count as input.
    let count = |usage: &Value, name: &str| usage[name].as_u64().unwrap_or_else(|| panic!("{usage}"));
    let count_body = json!({"model": "demo", "system": same["system"], "messages": same["messages"]});
    let counted: Value = host.post(COUNT, &count_body).await.json().await.unwrap();
    let prompt_tokens = count(&chat["usage"], "prompt_tokens");
    assert_eq!(counted, json!({"input_tokens": prompt_tokens}));
    let stream = streamed(&host, same).await;
    for message in [&message, &stream] {
        let usage = &message["usage"];
        let cached = count(usage, "cache_read_input_tokens");
        assert!(cached > 0, "{usage}");
        assert_eq!(count(usage, "input_tokens") + cached, prompt_tokens);
        assert_eq!(count(usage, "output_tokens"), count(&chat["usage"], "completion_tokens"));
        assert_eq!(count(usage, "cache_creation_input_tokens"), 0);
    }
    let parts = ["content", "stop_reason", "stop_sequence", "model", "role", "type"];
    assert_eq!(parts.map(|part| &stream[part]), parts.map(|part| &message[part]));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reason_of_the_end_is_told() {
    let host = Host::start(Config { max_seq_len: MaxSeqLen::Tokens(64), ..config() }).await;
    let whole = message(&host, json!({})).await;
    let said = text(&whole).to_owned();
    let stop: String = said.chars().skip(said.chars().count() / 2).take(4).collect();
    let sequences = json!({"stop_sequences": ["never said", stop]});
    for message in [message(&host, sequences.clone()).await, streamed(&host, sequences).await] {
        assert_eq!(
            (&message["stop_reason"], &message["stop_sequence"]),
            (&json!("stop_sequence"), &json!(stop))
        );
        assert_eq!(text(&message), said.split(&stop).next().unwrap());
    }
    let endless = |max_tokens: u32| json!({"max_tokens": max_tokens, "ignore_eos": true});
    for (max_tokens, reason) in [(4, "max_tokens"), (32_000, "model_context_window_exceeded")] {
        for message in [message(&host, endless(max_tokens)).await, streamed(&host, endless(max_tokens)).await]
        {
            assert_eq!(message["stop_reason"], reason, "{message}");
        }
    }
    let nothing = message(&host, json!({"max_tokens": 0})).await;
    assert_eq!((&nothing["content"], &nothing["usage"]["output_tokens"]), (&json!([]), &json!(0)));
    host.server.shutdown().await;
}

fn lookup() -> Value {
    json!({"name": "lookup", "description": "Looks up.", "input_schema": {
        "type": "object", "properties": {"answer": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["answer"], "additionalProperties": false}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tools_are_used_and_their_results_read() {
    for style in ["hermes", "llama3"] {
        let folder = model_with_tools(style);
        let model = folder.path().display().to_string();
        let served_model_names = vec!["demo".to_owned()];
        let host = Host::start(Config { model, served_model_names, ..config() }).await;
        for choice in [
            json!({"type": "tool", "name": "lookup"}),
            json!({"type": "any", "disable_parallel_tool_use": true}),
        ] {
            let forced = json!({"tools": [lookup()], "tool_choice": choice, "max_tokens": 200, "seed": 1});
            for message in [message(&host, forced.clone()).await, streamed(&host, forced.clone()).await] {
                let call = &message["content"][0];
                assert_eq!(
                    (&call["type"], &call["name"]),
                    (&json!("tool_use"), &json!("lookup")),
                    "{message}"
                );
                assert!(call["input"]["answer"].as_u64().is_some_and(|answer| answer < 10), "{message}");
                assert!(call["id"].as_str().unwrap().starts_with("toolu_"), "{message}");
                assert_eq!(message["stop_reason"], "tool_use", "{message}");
                let next = json!([
                    {"role": "user", "content": "Look it up."},
                    {"role": "assistant", "content": message["content"]},
                    {"role": "user", "content": [
                        {"type": "tool_result", "tool_use_id": call["id"], "content": [{"type": "text", "text": "9"}]},
                        {"type": "text", "text": "So?"}]},
                ]);
                let fields = json!({"tools": [lookup()], "messages": next, "max_tokens": 4});
                self::message(&host, fields).await;
            }
        }
        // The prompt mentions them only if they may be used.
        let counted = async |extra: Value| {
            let mut body = body(&extra);
            body.as_object_mut()
                .unwrap()
                .retain(|name, _| !["max_tokens", "temperature"].contains(&name.as_str()));
            let counted: Value = host.post(COUNT, &body).await.json().await.unwrap();
            counted["input_tokens"].as_u64().unwrap_or_else(|| panic!("{counted}"))
        };
        let bare = counted(json!({})).await;
        assert!(counted(json!({"tools": [lookup()]})).await > bare + 20);
        assert_eq!(counted(json!({"tools": [lookup()], "tool_choice": {"type": "none"}})).await, bare);
        host.server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_has_the_form_that_the_request_describes() {
    let host = Host::start(config()).await;
    let format = json!({"type": "json_schema", "schema": lookup()["input_schema"]});
    let message = message(&host, json!({"output_config": {"format": format}, "max_tokens": 100})).await;
    let parsed: Value = serde_json::from_str(text(&message)).unwrap();
    assert!(parsed["answer"].as_u64().is_some_and(|answer| answer < 10), "{message}");
    host.server.shutdown().await;
}

/// A template that shows whether the model is to think, and what it thought before.
const THINKING: &str = "{# <think></think> #}{{ bos_token }}{{ 'on on on' if enable_thinking else 'off' }}\
    {% for m in messages %}{{ m.reasoning_content }}{{ m.content }}<|end|>{% endfor %}<|assistant|>";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thinking_is_a_block_of_its_own_and_may_be_sent_back() {
    let (host, _folder) = reasoning_host(THINKING, true).await;
    // The opening tag is the likeliest token, and the closing one after it has been written.
    let forced = |extra: Value| {
        let mut fields = json!({"max_tokens": 60, "logit_bias": {"2": 100, "3": 80}, "repetition_penalty": 2, "structured_outputs": {"choice": ["Two."]}});
        fields.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        fields
    };
    // It thinks though nobody asks it to, so it is told to nobody.
    let whole = message(&host, forced(json!({}))).await;
    assert_eq!(whole["content"], json!([{"type": "text", "text": "Two."}]), "{whole}");
    assert!(whole["usage"]["output_tokens_details"]["thinking_tokens"].as_u64().unwrap() > 0, "{whole}");
    host.server.shutdown().await;

    let thinking = json!({"type": "enabled", "budget_tokens": 2_000});
    // The tags as ordinary tokens, and a text that is known.
    let template = "{# </think> #}{{ bos_token }}<|user|>{{ messages[-1].content }}<|end|><|assistant|>";
    let (host, _folder) = host_with_template(template).await;
    let output = "<think>\nOne\nand one.\n</think>\n\nTwo.";
    let forced = json!({"structured_outputs": {"choice": [output]}, "max_tokens": 60, "thinking": thinking});
    for message in [message(&host, forced.clone()).await, streamed(&host, forced).await] {
        let thinking = json!({"type": "thinking", "thinking": "One\nand one.", "signature": ""});
        assert_eq!(message["content"], json!([thinking, {"type": "text", "text": "Two."}]));
    }
    host.server.shutdown().await;

    // Its reply begins inside the reasoning.
    let template =
        "{{ bos_token }}<|user|>{{ messages[-1].content }}<|end|><|assistant|><think>\n{# </think> #}";
    let (host, _folder) = host_with_template(template).await;
    let endless = json!({"ignore_eos": true, "max_tokens": 9, "thinking": thinking});
    let whole = message(&host, endless.clone()).await;
    let block = &whole["content"][0];
    assert_eq!((&block["type"], &block["signature"]), (&json!("thinking"), &json!("")), "{whole}");
    assert!(!block["thinking"].as_str().unwrap().is_empty(), "{whole}");
    assert_eq!(whole["usage"]["output_tokens_details"]["thinking_tokens"], 9);
    assert_eq!(streamed(&host, endless.clone()).await["content"], whole["content"]);
    let mut omitted = endless.clone();
    omitted["thinking"] = json!({"type": "adaptive", "display": "omitted"});
    for message in [message(&host, omitted.clone()).await, streamed(&host, omitted).await] {
        assert_eq!(message["content"], json!([{"type": "thinking", "thinking": "", "signature": ""}]));
    }
    let mut unasked = endless;
    unasked["thinking"] = json!({"type": "disabled"});
    for message in [message(&host, unasked.clone()).await, streamed(&host, unasked.clone()).await] {
        assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &json!("max_tokens")));
    }
    // Such a reply is a turn like any other in the next request.
    let turn = |role: &str, content: Value| json!({"role": role, "content": content});
    unasked["messages"] =
        json!([turn("user", json!("a")), turn("assistant", json!([])), turn("user", json!("b"))]);
    assert_eq!(message(&host, unasked).await["stop_reason"], "max_tokens");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn template_is_told_whether_to_think_and_what_was_thought() {
    let (host, _folder) = reasoning_host(THINKING, true).await;
    let counted = async |extra: Value| {
        let mut body = json!({"model": "demo", "messages": [{"role": "user", "content": "Hi"}]});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let counted: Value = host.post(COUNT, &body).await.json().await.unwrap();
        counted["input_tokens"].as_u64().unwrap_or_else(|| panic!("{extra}: {counted}"))
    };
    let off = counted(json!({"thinking": {"type": "disabled"}})).await;
    assert!(counted(json!({"thinking": {"type": "enabled", "budget_tokens": 2_000}})).await > off);
    let kwargs = json!({"enable_thinking": false});
    assert_eq!(counted(json!({"thinking": {"type": "adaptive"}, "chat_template_kwargs": kwargs})).await, off);
    let replied = |blocks: Value| {
        json!({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": blocks},
            {"role": "user", "content": "So?"}]})
    };
    let said = json!({"type": "text", "text": "Yes."});
    let bare = counted(replied(json!([said]))).await;
    let thought = json!({"type": "thinking", "thinking": "What is a prefix cache?", "signature": "x"});
    assert!(counted(replied(json!([thought, said]))).await > bare);
    let redacted = json!({"type": "redacted_thinking", "data": "x"});
    assert_eq!(counted(replied(json!([redacted, said]))).await, bare);
    host.server.shutdown().await;
}

/// Checks an error of Anthropic's form, and returns it.
async fn error(answer: Response, status: u16, kind: &str) -> Value {
    let (found, id) = (answer.status().as_u16(), answer.headers()["request-id"].clone());
    let body: Value = answer.json().await.unwrap();
    assert_eq!((found, &body["type"]), (status, &json!("error")), "{body}");
    assert_eq!(
        (&body["error"]["type"], &body["request_id"]),
        (&json!(kind), &json!(id.to_str().unwrap())),
        "{body}"
    );
    assert!(body["error"]["message"].is_string() && body["error"]["code"].is_string(), "{body}");
    body["error"].clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_error_has_anthropics_form_and_names_the_field() {
    let host = Host::start(Config { max_seq_len: MaxSeqLen::Tokens(64), ..config() }).await;
    let long = json!([{"role": "user", "content": "What is a prefix cache? ".repeat(40)}]);
    let image = json!([{"role": "user", "content": [{"type": "image", "source": {"type": "base64"}}]}]);
    for (extra, status, param, part) in [
        (json!({"max_tokens": null}), 400, "max_tokens", "missing"),
        (json!({"model": null}), 400, "model", "missing"),
        (json!({"messages": []}), 400, "messages", "must not be empty"),
        (json!({"messages": "Hi"}), 400, "messages", "expected a list"),
        (json!({"system": 5}), 400, "system", "expected text"),
        (json!({"model": "claude"}), 422, "model", "this host serves `demo`"),
        (
            json!({"messages": image}),
            422,
            "messages",
            "messages[0]: content[0]: type: a block of type `image`",
        ),
        (
            json!({"messages": long}),
            422,
            "messages",
            "prompt is too long: messages: this model's maximum context",
        ),
        (json!({"tools": [lookup()]}), 422, "tools", "the model's chat template has no tools"),
        (json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}), 422, "tools", "`bash_20250124`"),
        (json!({"tool_choice": {"type": "any"}}), 422, "tool_choice", "no tools to choose from"),
        (json!({"mcp_servers": [{}]}), 422, "mcp_servers", "only [] is"),
        (json!({"stop": "x"}), 422, "stop", "`stop_sequences`"),
        (json!({"logit_bias": {"999999": 1}}), 422, "logit_bias", "not a token"),
        (json!({"foo": 1}), 422, "foo", "unknown field `foo`"),
    ] {
        let answer = host.post(PATH, &body(&extra)).await;
        let error = error(answer, status, "invalid_request_error").await;
        assert_eq!(error["param"], param, "{extra}: {error}");
        assert!(error["message"].as_str().unwrap().contains(part), "{extra}: {error}");
    }
    let answer = host.post(COUNT, &body(&json!({}))).await;
    assert_eq!(error(answer, 422, "invalid_request_error").await["code"], "unknown_field");
    let answer = host.client.post(host.url(PATH)).body("{").send().await.unwrap();
    error(answer, 400, "invalid_request_error").await;
    let answer = host.client.post(host.url(PATH)).header("content-type", "text/plain").send().await.unwrap();
    error(answer, 415, "invalid_request_error").await;
    let answer = host.client.get(host.url(COUNT)).send().await.unwrap();
    error(answer, 405, "invalid_request_error").await;
    let answer = host.client.post(host.url(PATH)).body("x".repeat(9 << 20)).send().await.unwrap();
    error(answer, 413, "request_too_large").await;
    let answer = host.admin(Method::POST, "/admin/drain").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let answer = host.post(PATH, &body(&json!({}))).await;
    assert!(answer.headers().contains_key("retry-after"));
    error(answer, 503, "overloaded_error").await;
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn key_is_taken_from_either_header() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let key = fresh().unwrap();
    std::fs::write(file.path(), format!("[tenants.alice]\nkeys = [\"{}\"]\n", KeyDigest::of(&key))).unwrap();
    let host = Host::start(Config { api_keys: Some(file.path().to_owned()), ..config() }).await;
    let bearer = format!("Bearer {key}");
    for (name, value, code) in [
        ("x-api-key", key.as_str(), None),
        ("authorization", &bearer, None),
        ("x-api-key", "sk-ant-unknown", Some("invalid_api_key")),
        ("x-other", "x", Some("missing_api_key")),
    ] {
        for path in [PATH, COUNT, "/v1/models"] {
            let mut sent = body(&json!({"max_tokens": 1}));
            if path == COUNT {
                sent = json!({"model": "demo", "messages": sent["messages"]});
            }
            let request = match path {
                "/v1/models" => host.client.get(host.url(path)),
                _ => host.client.post(host.url(path)).json(&sent),
            };
            let answer = request.header(name, value).send().await.unwrap();
            match code {
                None => assert_eq!(answer.status(), 200, "{name} {path}"),
                Some(code) if path == "/v1/models" => {
                    let body: Value = answer.json().await.unwrap();
                    assert_eq!(body["error"]["code"], code, "{body}");
                }
                Some(code) => {
                    let error = error(answer, 401, "authentication_error").await;
                    assert_eq!(error["code"], code, "{error}");
                    assert!(error["message"].as_str().unwrap().contains("x-api-key: KEY"), "{error}");
                }
            }
        }
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_leaves_frees_its_blocks() {
    let host = Host::start(Config { prefix_caching: false, ..config() }).await;
    let endless = |stream: bool| body(&json!({"stream": stream, "ignore_eos": true, "max_tokens": 1_500}));
    host.server.engine().hold_steps();
    let stream = host.post(PATH, &endless(true)).await;
    let send = host.client.post(host.url(PATH)).json(&endless(false)).send();
    let whole = tokio::spawn(async move { drop(send.await) });
    host.until("both wait", |s| s["queue"]["waiting"] == 2).await;
    host.server.engine().allow_steps(20);
    let stream = first_chunk(stream).await;
    let state = host.until("both run", |s| s["queue"]["running"] == 2).await;
    assert!(state["memory"]["used"].as_u64().unwrap() > 0);
    drop(stream);
    whole.abort();
    let state = host.until("nothing runs", |s| s["queue"]["running"] == 0).await;
    assert_eq!(
        (&state["memory"]["used"], &state["counters"]["finished"]["cancelled"]),
        (&json!(0), &json!(2))
    );
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_that_takes_too_long_ends_with_an_error() {
    let host = Host::start(config()).await;
    host.server.engine().allow_steps(8);
    let answer =
        host.post(PATH, &body(&json!({"stream": true, "ignore_eos": true, "max_tokens": 1_500}))).await;
    let state = host.until("it decodes", |s| s["requests"][0]["state"] == "decode").await;
    let id = SequenceId(state["requests"][0]["id"].as_u64().unwrap());
    host.server.engine().expire(vec![(id, "too late".to_owned())]).unwrap();
    let (name, last) = events(answer).await.pop().unwrap();
    let why = &last["error"];
    assert_eq!(
        (name.as_str(), &last["type"], &why["type"], &why["param"], &why["code"]),
        ("error", &json!("error"), &json!("timeout_error"), &Value::Null, &json!("request_timeout")),
        "{last}"
    );
    assert!(why["message"].as_str().unwrap().starts_with("too late; it had generated "), "{last}");
    host.server.shutdown().await;

    let bounds = Bounds { request_timeout: Duration::from_millis(200), ..common::bounds() };
    let host = Host::start(Config { bounds, ..config() }).await;
    host.server.engine().hold_steps();
    let answer = host.post(PATH, &body(&json!({}))).await;
    assert_eq!(answer.headers()["x-should-retry"], "false");
    error(answer, 504, "timeout_error").await;
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fields_of_this_host_alone_work() {
    let host = Host::start(config()).await;
    host.server.engine().hold_steps();
    let fields = json!({"session_id": "s1", "priority": 3, "seed": 7, "min_p": 0.1, "stream": true,
        "metadata": {"user_id": "me"}, "cache_salt": "x", "ttft_deadline_ms": 1_000, "expected_output_tokens": 2});
    let answer = host.post(PATH, &body(&fields)).await;
    let state = host.until("it waits", |s| s["requests"].as_array().is_some_and(|all| all.len() == 1)).await;
    let waiting = &state["requests"][0];
    assert_eq!((&waiting["session"], &waiting["priority"]), (&json!("s1"), &json!(3)), "{waiting}");
    assert_eq!(waiting["user"], "me", "{waiting}");
    let detail = host.admin_get(&format!("/admin/requests/{}", waiting["id"])).await;
    assert_eq!(detail["expected_tokens"], 2, "{detail}");
    host.server.engine().release_steps();
    assert_eq!(events(answer).await.last().unwrap().0, "message_stop");
    host.server.shutdown().await;
}

//! Replies that begin with a text of the client's, in a chat and in Anthropic's form.

use crate::common::{Host, config, events, host_with_template, reasoning_host};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";
const BEGINNING: &str = "A prefix cache ";

/// A conversation whose last message begins like this.
fn begun(text: &str) -> Value {
    json!([{"role": "user", "content": "What is a prefix cache?"}, {"role": "assistant", "content": text}])
}

/// A request that continues the last message. `extra` replaces or adds fields.
fn body(text: &str, extra: Value) -> Value {
    let mut body = json!({"model": "demo", "temperature": 0, "max_tokens": 12, "messages": begun(text)});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

async fn posted(host: &Host, path: &str, body: Value) -> Value {
    let answer = host.post(path, &body).await;
    let (status, answer) = (answer.status(), answer.json::<Value>().await.unwrap());
    assert_eq!(status, 200, "{body}: {answer}");
    answer
}

/// The text of tokens.
async fn spelled(host: &Host, tokens: &[Value]) -> String {
    let text = posted(host, "/detokenize", json!({"model": "demo", "tokens": tokens})).await;
    text["prompt"].as_str().unwrap().to_owned()
}

/// The tokens of such a conversation's prompt.
async fn tokens(host: &Host, extra: Value) -> Vec<Value> {
    let mut body = json!({"model": "demo", "messages": begun(BEGINNING)});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    posted(host, "/tokenize", body).await["tokens"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_goes_on_where_it_ends() {
    let host = Host::start(config()).await;
    let prompt = tokens(&host, json!({"continue_final_message": true})).await;
    let whole = tokens(&host, json!({"add_generation_prompt": false})).await;
    let (text, whole) = (spelled(&host, &prompt).await, spelled(&host, &whole).await);
    assert!(text.ends_with(BEGINNING), "{text}");
    assert!(
        !whole.ends_with(BEGINNING) && !whole.ends_with(BEGINNING.trim_end()),
        "no end of the turn: {whole}"
    );

    let completion =
        json!({"model": "demo", "prompt": prompt, "temperature": 0, "max_tokens": 12, "stream": false});
    let completion = posted(&host, "/v1/completions", completion).await;
    let expected = completion["choices"][0]["text"].as_str().unwrap();
    assert!(!expected.is_empty());

    let chat = posted(&host, CHAT, body(BEGINNING, json!({"continue_final_message": true}))).await;
    assert_eq!(chat["choices"][0]["message"]["content"], expected);
    assert_eq!(chat["usage"]["prompt_tokens"], prompt.len());
    let stream = json!({"continue_final_message": true, "add_generation_prompt": false, "stream": true});
    let chunks = events(host.post(CHAT, &body(BEGINNING, stream)).await).await;
    let deltas = chunks.iter().filter_map(|(_, chunk)| chunk["choices"][0]["delta"]["content"].as_str());
    assert_eq!(deltas.collect::<String>(), expected);

    let message = posted(&host, MESSAGES, body(BEGINNING, json!({}))).await;
    assert_eq!(message["content"], json!([{"type": "text", "text": expected}]));
    let counted = json!({"model": "demo", "messages": begun(BEGINNING)});
    let counted = posted(&host, "/v1/messages/count_tokens", counted).await;
    assert_eq!(counted["input_tokens"], prompt.len());

    // A required form is that of what is added.
    let form = json!({"continue_final_message": true, "structured_outputs": {"choice": ["keeps blocks."]}, "max_tokens": 30});
    let chat = posted(&host, CHAT, body(BEGINNING, form)).await;
    assert_eq!(chat["choices"][0]["message"]["content"], "keeps blocks.");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reasoning_goes_on_only_where_the_text_is_within_it() {
    let template = "{# <think></think> #}{{ bos_token }}{% for m in messages %}{{ m.content | trim }}<|end|>{% endfor %}";
    let (host, _folder) = reasoning_host(template, true).await;
    let fields = json!({"continue_final_message": true, "ignore_eos": true, "max_tokens": 9});
    let within = posted(&host, CHAT, body("<think>\nLet me", fields.clone())).await;
    let message = &within["choices"][0]["message"];
    assert!(
        message["content"] == "" && !message["reasoning_content"].as_str().unwrap().is_empty(),
        "{within}"
    );
    assert_eq!(within["usage"]["completion_tokens_details"]["reasoning_tokens"], 9);
    // Nothing is dropped where the text goes on: not even a blank.
    let raw = json!({"continue_final_message": true, "separate_reasoning": false, "ignore_eos": true, "max_tokens": 9});
    let raw = posted(&host, CHAT, body("<think>\nLet me", raw)).await;
    assert_eq!(
        raw["choices"][0]["message"]["content"].as_str().unwrap().trim_end(),
        message["reasoning_content"].as_str().unwrap()
    );
    let behind = posted(&host, CHAT, body("<think>\nWell.\n</think>\n\nIt", fields)).await;
    let message = &behind["choices"][0]["message"];
    assert!(!message["content"].as_str().unwrap().is_empty(), "{behind}");
    assert!(message["reasoning_content"].is_null(), "{behind}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_go_on_is_refused() {
    let (host, _folder) = host_with_template("{{ bos_token }}{{ messages[-1].content | upper }}").await;
    let format = json!({"output_config": {"format": {"type": "json_schema", "schema": {"type": "integer"}}}});
    let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    let calling = json!([{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]);
    let both = json!({"continue_final_message": true, "add_generation_prompt": true});
    for (path, extra, message) in [
        (CHAT, json!({"continue_final_message": true}), "doesn't show the last one's text as it is"),
        (MESSAGES, json!({}), "doesn't show the last one's text as it is"),
        (CHAT, json!({"continue_final_message": true, "messages": calling}), "the last one has calls"),
        (CHAT, both, "continue_final_message: can't be used together with add_generation_prompt"),
        (CHAT, json!({"continue_final_message": "yes"}), "continue_final_message: expected true or false"),
        (MESSAGES, format, "output_config: a required form is that of a whole reply"),
    ] {
        let answer = host.post(path, &body(BEGINNING, extra.clone())).await;
        let (status, answer) = (answer.status().as_u16(), answer.json::<Value>().await.unwrap());
        assert!([400, 422].contains(&status), "{extra}: {status} {answer}");
        let said = answer["error"]["message"].as_str().unwrap();
        assert!(said.contains(message), "{extra}: {said}");
    }
    host.server.shutdown().await;
}

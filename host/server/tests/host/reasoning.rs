//! Chats with a model that reasons before it replies.

use crate::common::{Host, TAGS, config, events, host_with_template, reasoning_host};
use serde_json::{Value, json};

const ASKING: &str = "{# <think></think> #}{{ bos_token }}{{ messages[-1].content }}<|end|><|assistant|>";
const OUTPUT: &str = "<think>\nOne\nand one.\n</think>\n\nTwo.";

const OPEN: usize = TAGS[0];
const CLOSE: usize = TAGS[1];

fn body(extra: Value) -> Value {
    let mut body = json!({"model": "demo", "temperature": 0, "max_tokens": 60,
        "messages": [{"role": "user", "content": "What is one and one?"}]});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

async fn reply(host: &Host, extra: Value) -> (Value, Value) {
    let answer = host.post("/v1/chat/completions", &body(extra.clone())).await;
    let status = answer.status();
    let body: Value = answer.json().await.unwrap();
    assert_eq!(status, 200, "{extra}: {body}");
    (body["choices"][0].clone(), body["usage"]["completion_tokens_details"].clone())
}

/// The output is forced: the demo model doesn't reason of itself.
fn forced(extra: Value) -> Value {
    let mut fields = json!({"structured_outputs": {"choice": [OUTPUT]}});
    fields.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    fields
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reasoning_is_returned_beside_the_content() {
    let (host, _folder) = reasoning_host(ASKING, false).await;
    let (choice, details) = reply(&host, json!({})).await;
    assert_eq!(
        (&choice["message"]["reasoning_content"], &details),
        (&Value::Null, &json!({"reasoning_tokens": 0}))
    );
    host.server.shutdown().await;

    // The tags as ordinary tokens, which the form has to spell out.
    let template = "{# </think> #}{{ bos_token }}<|user|>{{ messages[-1].content }}<|end|><|assistant|>";
    let (host, _folder) = host_with_template(template).await;
    let (choice, details) = reply(&host, forced(json!({}))).await;
    assert_eq!(choice["message"]["reasoning_content"], "One\nand one.");
    assert_eq!(choice["message"]["content"], "Two.");
    assert_eq!(choice["finish_reason"], "stop");
    let tokens = details["reasoning_tokens"].as_u64().unwrap();

    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let stream = json!({"stream": true, "stream_options": options});
    let answer = host.post("/v1/chat/completions", &body(forced(stream))).await;
    let chunks = events(answer).await;
    let chunks: Vec<&Value> =
        chunks.iter().map(|(_, chunk)| chunk).filter(|chunk| chunk.is_object()).collect();
    let text = |name: &str| -> String {
        chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"][name].as_str()).collect()
    };
    assert_eq!((text("reasoning_content").as_str(), text("content").as_str()), ("One\nand one.", "Two."));
    let counts: Vec<u64> = chunks
        .iter()
        .map(|chunk| chunk["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap())
        .collect();
    assert!(counts.is_sorted() && counts.first() == Some(&0) && counts.last() == Some(&tokens), "{counts:?}");

    let (choice, details) = reply(&host, forced(json!({"separate_reasoning": false}))).await;
    assert_eq!(choice["message"]["content"], OUTPUT);
    assert_eq!((&choice["message"]["reasoning_content"], &details), (&Value::Null, &Value::Null));
    host.server.shutdown().await;

    // A model whose template knows no reasoning.
    let host = Host::start(config()).await;
    let (choice, details) = reply(&host, forced(json!({}))).await;
    assert_eq!((choice["message"]["content"].as_str(), &details), (Some(OUTPUT), &Value::Null));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reply_to_a_prompt_that_opens_the_reasoning_begins_inside() {
    for special in [false, true] {
        let (host, _folder) = reasoning_host(&format!("{ASKING}<think>\n{{# </think> #}}"), special).await;
        let (choice, details) = reply(&host, json!({"ignore_eos": true, "max_tokens": 9})).await;
        assert_eq!((&choice["message"]["content"], &choice["finish_reason"]), (&json!(""), &json!("length")));
        assert!(!choice["message"]["reasoning_content"].as_str().unwrap().is_empty(), "{choice}");
        assert_eq!(details["reasoning_tokens"], 9);
        let stream = json!({"ignore_eos": true, "max_tokens": 9, "stream": true});
        let chunks = events(host.post("/v1/chat/completions", &body(stream)).await).await;
        let deltas = chunks.iter().map(|(_, chunk)| &chunk["choices"][0]["delta"]);
        let streamed: String = deltas.filter_map(|delta| delta["reasoning_content"].as_str()).collect();
        assert_eq!(choice["message"]["reasoning_content"], streamed);
        let whole = json!({"ignore_eos": true, "max_tokens": 9, "separate_reasoning": false});
        let (raw, _) = reply(&host, whole).await;
        assert!(raw["message"]["content"].as_str().is_some_and(|text| !text.is_empty()), "{raw}");
        host.server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn required_form_holds_after_the_reasoning() {
    for special in [false, true] {
        let digits = json!({"regex": "[0-9]{4}"});
        let is_shaped = |text: &Value| text.as_str().unwrap().parse::<u16>().is_ok();
        // The closing tag is always the likeliest token.
        let (opened, _folder) = reasoning_host(&format!("{ASKING}<think>\n"), special).await;
        let fields = json!({"structured_outputs": digits, "logit_bias": {CLOSE.to_string(): 100}});
        let (choice, details) = reply(&opened, fields.clone()).await;
        assert!(
            is_shaped(&choice["message"]["content"]) && details["reasoning_tokens"] == 1,
            "{choice}: {details}"
        );
        // Its blanks are kept.
        let mut blank = fields.clone();
        blank["structured_outputs"] = json!({"choice": [" yes", " no"]});
        let (choice, _) = reply(&opened, blank).await;
        let content = choice["message"]["content"].as_str().unwrap();
        assert!([" yes", " no"].contains(&content), "{choice}");
        // Without separation the content has the form.
        let mut whole = fields;
        whole["separate_reasoning"] = json!(false);
        let (choice, _) = reply(&opened, whole).await;
        assert!(is_shaped(&choice["message"]["content"]), "{choice}");
        opened.server.shutdown().await;

        // The opening tag is the likeliest token, and the closing one after it has been written.
        let (asked, _folder) = reasoning_host(ASKING, special).await;
        let bias = json!({OPEN.to_string(): 100, CLOSE.to_string(): 80});
        let fields = json!({"structured_outputs": digits, "logit_bias": bias, "repetition_penalty": 2});
        let (choice, details) = reply(&asked, fields).await;
        assert!(
            is_shaped(&choice["message"]["content"]) && details["reasoning_tokens"] == 2,
            "{choice}: {details}"
        );
        let (choice, details) = reply(&asked, json!({"structured_outputs": digits})).await;
        assert!(
            is_shaped(&choice["message"]["content"]) && details["reasoning_tokens"] == 0,
            "{choice}: {details}"
        );
        asked.server.shutdown().await;
    }
}

//! Chat templates are untrusted programs: what they may do, what they render to, and what stops them.
//!
//! One binary with a module for each concept, because every test binary links wasmtime. Alone stays the one that
//! measures its process (`memory`).

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../model/tests/common/gguf.rs"]
mod convert;

mod allowed;
mod channels;
mod choice;
mod dates;
mod dialect;
mod golden;
mod hostile;
mod tojson;

use common::sandbox;
use infer_chat::ChatTemplate;
use infer_model::Source;
use serde_json::{Value as Json, json};

fn render(template: &str, messages: &Json) -> Result<String, String> {
    let config = json!({
        "chat_template": template,
        "bos_token": "<s>",
        "eos_token": {"content": "</s>", "special": true}
    });
    let bytes = config.to_string();
    let source = Source::Embedded(&[("tokenizer_config.json", bytes.as_bytes())]);
    let template = ChatTemplate::load(sandbox(), &source).map_err(|error| error.to_string())?;
    let template = template.expect("there is a template");
    template.render(messages, true).map_err(|error| error.to_string())
}

/// A checkpoint with a template for conversations and one for those with tools.
fn two_templates(default: &str, tool_use: &str) -> ChatTemplate {
    let config = json!({"chat_template": [
        {"name": "default", "template": default}, {"name": "tool_use", "template": tool_use}]});
    let config = config.to_string();
    let source = [("tokenizer_config.json", config.as_bytes())];
    ChatTemplate::load(sandbox(), &Source::Embedded(&source)).expect("loads").expect("two")
}

//! Which of several templates is used.

use infer_chat::{ChatTemplate, Tools};
use infer_model::Source;
use serde_json::json;

use crate::common::{self, sandbox};
use crate::two_templates;

#[test]
fn the_default_of_several_templates_and_the_separate_file_are_found() {
    let list = json!({"chat_template": [
        {"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]});
    let list = list.to_string();
    let config: &[u8] = list.as_bytes();
    let load = |files: &[(&str, &[u8])]| {
        let template = ChatTemplate::load(sandbox(), &Source::Embedded(files)).expect("loads");
        template.map(|template| template.render(&json!([]), false).expect("renders"))
    };
    assert_eq!(load(&[("tokenizer_config.json", config)]).as_deref(), Some("plain"));
    let file: &[u8] = b"from the file";
    let both = [("tokenizer_config.json", config), ("chat_template.jinja", file)];
    assert_eq!(load(&both).as_deref(), Some("from the file"));
    assert_eq!(load(&[("tokenizer_config.json", b"{}")]), None);
    assert_eq!(load(&[]), None);
}

#[test]
fn conversations_with_tools_go_through_the_template_that_is_for_them() {
    let hermes = "{% for tool in tools %}{{ tool }}{% endfor %}<tool_call>{{ messages[0].role }}";
    let template = two_templates("{{ messages[0].role }}", hermes);
    assert_eq!(template.tools(), Tools::Hermes);
    let messages = json!([{"role": "user", "content": "x"}]);
    for (variables, prompt) in [
        (json!({}), "user"),
        (json!({"tools": null}), "user"),
        (json!({"tools": ["a", "b"]}), "ab<tool_call>user"),
    ] {
        let rendered = template.render_with(&messages, false, &common::variables(&variables));
        assert_eq!(rendered.as_deref(), Ok(prompt), "{variables}");
    }
}

#[test]
fn template_for_tools_may_have_a_file_of_its_own() {
    let named = |name: &str| json!({"name": name, "template": format!("{name} of the list")});
    let list = json!({"chat_template": [named("default"), named("tool_use")]}).to_string();
    let config = ("tokenizer_config.json", list.as_bytes());
    let plain = ("chat_template.jinja", &b"plain of its file"[..]);
    let tools = ("additional_chat_templates/tool_use.jinja", &b"tool_use of its file"[..]);
    for (files, expected) in [
        (vec![plain, tools], ["plain of its file", "tool_use of its file"]),
        (vec![config, plain, tools], ["plain of its file", "tool_use of its file"]),
        (vec![config, tools], ["default of the list", "tool_use of its file"]),
        (vec![config, plain], ["plain of its file", "plain of its file"]),
        (vec![config], ["default of the list", "tool_use of the list"]),
    ] {
        let template = ChatTemplate::load(sandbox(), &Source::Embedded(&files)).expect("loads").expect("one");
        let rendered = [json!({}), json!({"tools": ["a"]})].map(|variables| {
            template.render_with(&json!([]), false, &common::variables(&variables)).expect("renders")
        });
        assert_eq!(rendered, expected);
    }
    let error = ChatTemplate::load(sandbox(), &Source::Embedded(&[plain, (tools.0, &b"\xff"[..])])).err();
    let error = error.expect("that is no text").to_string();
    assert!(error.contains("additional_chat_templates/tool_use.jinja is no UTF-8"), "{error}");
    // Nobody can do without the other one.
    assert!(ChatTemplate::load(sandbox(), &Source::Embedded(&[tools])).expect("loads").is_none());
}

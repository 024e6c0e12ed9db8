//! Chat templates are untrusted programs: what they may do, and what stops them.

mod common;

use common::sandbox;
use infer_chat::{ChatTemplate, Tools};
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

#[test]
fn templates_render_as_hugging_face_does() {
    let messages = json!([{"role": "user", "content": " <b> & 'it' \\u003c "}]);
    for (template, prompt) in [
        ("{{ bos_token }}{{ messages[0].content | trim }}{{ eos_token }}", "<s><b> & 'it' \\u003c</s>"),
        ("{{ messages[0] | tojson }}", r#"{"role": "user", "content": " <b> & 'it' \\u003c "}"#),
        ("{{ [1, {'a': true}] | tojson(indent=2) }}", "[\n  1,\n  {\n    \"a\": true\n  }\n]"),
        ("  {% if add_generation_prompt %}\n  open\n  {% endif %}\nend\n", "  open\nend"),
        ("{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}x{% endfor %}", ""),
        ("{{ 'a-b-c'.split('-')[-1].upper() }}", "C"),
        ("{{ pad_token }}{% if strftime_now is defined %}today{% endif %}", ""),
    ] {
        assert_eq!(render(template, &messages).as_deref(), Ok(prompt), "{template}");
    }
}

/// The texts are transformers' own (5.23.0).
#[test]
fn objects_keep_the_order_that_clients_wrote() {
    let messages = json!([{"role": "user", "content": "ü", "tool_calls": [{"function":
        {"name": "w", "arguments": {"zip": 1, "city": "a"}}}]}]);
    let tools = json!([{"type": "function", "function": {"name": "w", "description": "d", "parameters":
        {"type": "object", "properties": {"zip": {"type": "string"}, "city": {"type": "string"}}, "required": ["zip"]}}}]);
    let variables = common::variables(&json!({"tools": tools}));
    for (text, prompt) in [
        (
            "{% for tool in tools %}{{ tool | tojson }}{% endfor %}",
            r#"{"type": "function", "function": {"name": "w", "description": "d", "parameters": {"type": "object", "properties": {"zip": {"type": "string"}, "city": {"type": "string"}}, "required": ["zip"]}}}"#,
        ),
        (
            "{{ messages[0].tool_calls[0].function.arguments | tojson(indent=2) }}",
            "{\n  \"zip\": 1,\n  \"city\": \"a\"\n}",
        ),
        (
            "{{ messages[0].tool_calls }}",
            "[{'function': {'name': 'w', 'arguments': {'zip': 1, 'city': 'a'}}}]",
        ),
        ("{% for name, value in messages[0].items() %}{{ name }} {% endfor %}", "role content tool_calls "),
        (
            "{% for name in messages[0].tool_calls[0].function.arguments %}{{ name }} {% endfor %}",
            "zip city ",
        ),
        ("{{ {'b': 1, 'a': [1.5, none, 'ü<']} | tojson }}", r#"{"b": 1, "a": [1.5, null, "ü<"]}"#),
    ] {
        let template = common::template(text).expect("sound");
        assert_eq!(template.render_with(&messages, true, &variables).as_deref(), Ok(prompt), "{text}");
    }
}

#[test]
fn templates_without_a_fallback_are_told_the_date() {
    let on = |day: u32, text: &str, variables: Json| {
        let template = common::template(text).expect("sound").on_day(day);
        template.render_with(&json!([]), true, &common::variables(&variables))
    };
    // As Mistral-Small-24B-Instruct-2501's begins.
    let mistral = "{%- set today = strftime_now(\"%Y-%m-%d\") %}The current date is {{ today }}.";
    assert_eq!(on(20_118, mistral, json!({})).as_deref(), Ok("The current date is 2025-01-30."));
    assert_eq!(on(20_119, mistral, json!({})).as_deref(), Ok("The current date is 2025-01-31."));
    let comment = "{# strftime_now is new #}{{ strftime_now ('%Y') }}{# unless strftime_now #}";
    assert_eq!(on(20_118, comment, json!({})).as_deref(), Ok("2025"), "comments ask nothing");
    let same = on(20_118, mistral, json!({"strftime_now": 0}));
    assert_eq!(same.as_deref(), Ok("The current date is 2025-01-30."), "no variable stands for it");
    let error = on(20_118, "{{ strftime_now('%Q') }}", json!({})).expect_err("nobody knows that").to_string();
    assert!(error.contains("no directive `%Q`"), "{error}");

    for fallback in [
        "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}ever{% endif %}",
        "{% if strftime_now is not defined %}ever{% else %}{{ strftime_now('%Y') }}{% endif %}",
        "{% if strftime_now  is  defined %}{{ strftime_now('%Y') }}{% else %}ever{% endif %}",
        "{%- if strftime_now -%}{{ strftime_now('%Y') }}{% else %}ever{% endif %}",
        "{{ strftime_now('%Y') if strftime_now else 'ever' }}",
    ] {
        for variables in [json!({}), json!({"strftime_now": 0})] {
            assert_eq!(on(20_118, fallback, variables).as_deref(), Ok("ever"), "{fallback}");
        }
    }

    let year = render("{{ strftime_now('%Y') }}", &json!([])).expect("the clock's");
    assert!(year.parse::<u32>().is_ok_and(|year| year >= 2025), "{year}");
}

#[test]
fn what_a_template_may_not_do_is_an_error() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}";
    let large = "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}\
        {% for a in range(20) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}x";
    for (template, reason) in [
        (endless, "too many steps"),
        (large, "more than 16777216 bytes"),
        ("{{ raise_exception('no such role') }}", "no such role"),
        ("{{ open('/etc/passwd') }}", "unknown function"),
        ("{% include '/etc/passwd' %}", "not found"),
        ("{% for %}", "has an error"),
    ] {
        let error = render(template, &json!([])).expect_err(template);
        assert!(error.contains(reason), "{template}: {error}");
    }
}

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
    let config = json!({"chat_template": [
        {"name": "default", "template": "{{ messages[0].role }}"}, {"name": "tool_use", "template": hermes}]});
    let config = config.to_string();
    let source = [("tokenizer_config.json", config.as_bytes())];
    let template = ChatTemplate::load(sandbox(), &Source::Embedded(&source)).expect("loads").expect("two");
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
fn both_of_two_templates_are_told_the_day() {
    let [plain, tools] = ["{{ strftime_now('%F') }}", "{{ strftime_now('%F') }} {{ tools[0] }}"];
    let config = json!({"chat_template": [
        {"name": "default", "template": plain}, {"name": "tool_use", "template": tools}]});
    let config = config.to_string();
    let source = [("tokenizer_config.json", config.as_bytes())];
    let template = ChatTemplate::load(sandbox(), &Source::Embedded(&source)).expect("loads").expect("two");
    let template = template.on_day(20_118);
    for (variables, prompt) in [(json!({}), "2025-01-30"), (json!({"tools": ["a"]}), "2025-01-30 a")] {
        let rendered = template.render_with(&json!([]), false, &common::variables(&variables));
        assert_eq!(rendered.as_deref(), Ok(prompt), "{variables}");
    }
}

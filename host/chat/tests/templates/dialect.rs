//! Templates mean what they mean to transformers.

use serde_json::json;

use crate::{common, render};

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

#[test]
fn tools_and_documents_are_none_where_there_are_none() {
    let forms = [
        "{% if tools is not none %}some{% else %}none{% endif %}",
        "{% if tools is defined and tools %}some{% else %}none{% endif %}",
        "{% if tools is iterable and tools | length %}some{% else %}none{% endif %}",
        "{% if documents is not none %}some{% else %}none{% endif %}",
        "{% if documents is iterable and documents | length %}some{% else %}none{% endif %}",
    ];
    for form in forms {
        let template = common::template(form).expect("sound");
        for (variables, said) in [
            (json!({}), "none"),
            (json!({"tools": null, "documents": null}), "none"),
            (json!({"tools": ["a"], "documents": ["b"]}), "some"),
        ] {
            let rendered = template.render_with(&json!([]), true, &common::variables(&variables));
            assert_eq!(rendered.as_deref(), Ok(said), "{form} {variables}");
        }
    }
    // These are Python's answers, too.
    let iterable = "{{ tools is defined }} {{ none is iterable }} {{ [] is iterable }} {{ 'x' is iterable }} \
        {{ 1 is iterable }} {{ nothing is iterable }}";
    assert_eq!(render(iterable, &json!([])).as_deref(), Ok("True False True True False True"));
}

/// The texts are those of jinja2 with transformers' extension.
#[test]
fn replies_that_are_marked_for_training_are_written_as_others_are() {
    let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
    for (template, prompt) in [
        (
            "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}!{% endgeneration %}\
             {% else %}{{ m.content }}?{% endif %}{% endfor %}",
            "a?b!",
        ),
        ("a\n  {%- generation -%}\n b\n  {% endgeneration %}\nc", "ab\nc"),
        (
            "{% set x = 'a' %}{% for i in [1, 2] %}{% generation %}{% set x = 'b' %}{{ x }}{{ loop.index }}\
             {% endgeneration %}{{ x }}{% endfor %}",
            "b1ab2a",
        ),
        ("{{ '{% generation %}' }}{% generation %}{% endgeneration %}", "{% generation %}"),
    ] {
        assert_eq!(render(template, &messages).as_deref(), Ok(prompt), "{template}");
    }
    let error = render("{% generation %}", &messages).expect_err("it never ends");
    assert!(error.contains("has an error"), "{error}");
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

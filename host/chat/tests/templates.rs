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

/// The texts are Python's.
#[test]
fn tojson_takes_the_options_that_python_has() {
    let messages =
        json!([{"b": ["a, b: \"c\"", 1.5, []], "a": {"z": null, "y": "\u{e9}\u{1f600}\u{7f}\n<"}}]);
    let indented = "{\n  \"a\" = {\n    \"y\" = 1;\n    \"x\" = []\n  }\n}";
    for (options, json) in [
        ("", r#"{"b": ["a, b: \"c\"", 1.5, []], "a": {"z": null, "y": "é😀\x7f\n<"}}"#),
        ("separators=(',', ':')", r#"{"b":["a, b: \"c\"",1.5,[]],"a":{"z":null,"y":"é😀\x7f\n<"}}"#),
        ("separators=['; ', '→']", r#"{"b"→["a, b: \"c\""; 1.5; []]; "a"→{"z"→null; "y"→"é😀\x7f\n<"}}"#),
        ("sort_keys=true", r#"{"a": {"y": "é😀\x7f\n<", "z": null}, "b": ["a, b: \"c\"", 1.5, []]}"#),
        (
            "ensure_ascii=true",
            r#"{"b": ["a, b: \"c\"", 1.5, []], "a": {"z": null, "y": "\u00e9\ud83d\ude00\u007f\n<"}}"#,
        ),
        (
            "ensure_ascii=true, sort_keys=true, separators=('→', ':')",
            r#"{"a":{"y":"\u00e9\ud83d\ude00\u007f\n<"→"z":null}→"b":["a, b: \"c\""→1.5→[]]}"#,
        ),
        (
            "ensure_ascii=false, sort_keys=false, separators=none, indent=none",
            r#"{"b": ["a, b: \"c\"", 1.5, []], "a": {"z": null, "y": "é😀\x7f\n<"}}"#,
        ),
    ] {
        let template = format!("{{{{ messages[0] | tojson({options}) }}}}");
        let json = json.replace(r"\x7f", "\u{7f}");
        assert_eq!(render(&template, &messages).as_deref(), Ok(json.as_str()), "{options}");
    }
    let template = "{{ {'a': {'y': 1, 'x': []}} | tojson(indent=2, separators=(';', ' = ')) }}";
    assert_eq!(render(template, &messages).as_deref(), Ok(indented));
    for (placed, named) in [
        ("true", "ensure_ascii=true"),
        ("false, 2", "indent=2"),
        ("false, none, (',', ':'), true", "separators=(',', ':'), sort_keys=true"),
        ("indent=true", "indent=1"),
        ("true, indent=2", "ensure_ascii=true, indent=2"),
    ] {
        let [placed, named] = [placed, named].map(|options| {
            render(&format!("{{{{ messages[0] | tojson({options}) }}}}"), &messages).expect(options)
        });
        assert_eq!(placed, named);
    }
    for (options, why) in [
        ("true, 2, none, true, true", "four options"),
        ("true, ensure_ascii=true", "unknown keyword argument 'ensure_ascii'"),
        ("separator=(',', ':')", "unknown keyword argument 'separator'"),
        ("separators=(',',)", "must be two texts"),
        ("separators=(1, 2)", "must be two texts"),
        ("separators=7", "must be two texts"),
    ] {
        let error = render(&format!("{{{{ 1 | tojson({options}) }}}}"), &messages).expect_err(options);
        assert!(error.contains(why), "{options}: {error}");
    }
}

/// The texts are Python's.
#[test]
fn tojson_writes_small_and_large_numbers_as_python_does() {
    for (number, json) in [
        (json!(0.001), "0.001"),
        (json!(0.0001), "0.0001"),
        (json!(0.000_123_4), "0.0001234"),
        (json!(0.000_099), "9.9e-05"),
        (json!(-0.000_01), "-1e-05"),
        (json!(1.25e-9), "1.25e-09"),
        (json!(5e-324), "5e-324"),
        (json!(0.0), "0.0"),
        (json!(-0.0), "-0.0"),
        (json!(1e15), "1000000000000000.0"),
        (json!(1e16), "1e+16"),
        (json!(-1.5e300), "-1.5e+300"),
        (json!(0), "0"),
        (json!(-12), "-12"),
    ] {
        let text = json!({"e-5": ["0.00001 1e-5", number], "x": number});
        let whole = format!(r#"{{"e-5": ["0.00001 1e-5", {json}], "x": {json}}}"#);
        assert_eq!(render("{{ messages[0] | tojson }}", &json!([text])), Ok(whole), "{number}");
        let close = format!(r#"{{"e-5":["0.00001 1e-5",{json}],"x":{json}}}"#);
        let template = "{{ messages[0] | tojson(separators=(',', ':')) }}";
        assert_eq!(render(template, &json!([text])), Ok(close), "{number}");
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

/// Some templates write the schemas of tools out as TypeScript or Python.
#[test]
fn instructions_are_for_tools_as_well_as_for_messages() {
    let text = "{% for part in tools or documents or messages %}{% for i in range(1000) %}{% set x = i %}{% endfor %}\
        {{ part }}{% endfor %}";
    let template = common::template(text).expect("sound");
    let many = vec!["x"; 100];
    for name in ["tools", "documents"] {
        let rendered = template.render_with(&json!([]), true, &common::variables(&json!({name: many})));
        assert_eq!(rendered.expect(name), "x".repeat(100));
    }
    assert_eq!(template.render(&json!(many), true).expect("messages"), "x".repeat(100));
    let endless = "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}";
    let endless = common::template(endless).expect("sound");
    let refused = endless.render_with(&json!([]), true, &common::variables(&json!({"tools": many})));
    assert!(refused.expect_err("that takes too long").to_string().contains("too many steps"));
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
fn calls_in_channels_are_known_only_if_all_messages_have_channels() {
    let channels = "{{ tools }}<|start|>{{ messages[0].role }}<|channel|><|message|>";
    for (default, harmony, tools) in
        [(channels, true, Tools::Harmony), ("{{ messages[0].role }}", false, Tools::Other)]
    {
        let config = json!({"chat_template": [
            {"name": "default", "template": default}, {"name": "tool_use", "template": channels}]});
        let config = config.to_string();
        let source = [("tokenizer_config.json", config.as_bytes())];
        let template =
            ChatTemplate::load(sandbox(), &Source::Embedded(&source)).expect("loads").expect("two");
        assert_eq!((template.reads().harmony, template.tools()), (harmony, tools), "{default}");
    }
}

/// Written for this test, with what templates of messages with channels ask of a renderer: macros that call themselves and
/// read what is set for them, variables that outlive a loop, later messages, and the date.
#[test]
fn template_of_messages_with_channels_is_known_and_rendered() {
    let text = r#"{%- macro kind(schema, required) -%}
{%- if schema.type == "array" -%}{{- kind(schema['items'], []) + "[]" -}}
{%- elif schema.type == "object" -%}{%- for name, inner in schema.properties.items() -%}
{{- name -}}{%- if name not in (required or []) -%}?{%- endif -%}: {{ kind(inner, inner.required or []) -}}
{%- if not loop.last -%}{{- ", " -}}{%- endif -%}{%- endfor -%}
{%- elif schema.type is iterable and schema.type is not string -%}{{- schema.type | join(" | ") -}}
{%- else -%}{{- schema.type -}}{%- endif -%}
{%- endmacro -%}
{%- macro system() -%}
{%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif -%}
{{- "Day: " + strftime_now("%Y-%m-%d") + " Effort: " + reasoning_effort -}}
{%- if builtin_tools %}{%- set found = namespace(one=false) %}{%- for tool in builtin_tools %}
{%- if tool == "one" %}{%- set found.one = true %}{%- endif %}{%- endfor %}{{- " One: " ~ found.one -}}{%- endif -%}
{%- endmacro -%}
{{- "<|start|>system<|message|>" + system() + "<|end|>" -}}
{%- for tool in tools or [] %}{%- set tool = tool.function %}
{{- "// " + tool.description + " " + tool.name + " {" + kind(tool.parameters, tool.parameters.required) + "}" -}}
{%- endfor -%}
{%- set rest = messages[1:] if messages[0].role == "system" else messages -%}
{%- set last = namespace(name=none) -%}
{%- for message in rest -%}
{%- if message.role == "assistant" and "tool_calls" in message -%}
{%- set future = namespace(found=false) -%}
{%- for other in rest[loop.index:] -%}
{%- if other.role == "assistant" and "tool_calls" not in other -%}{%- set future.found = true -%}{%- endif -%}
{%- endfor -%}
{%- if message.thinking and not future.found -%}
{{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" -}}{%- endif -%}
{%- set last.name = message.tool_calls[0].function.name -%}
{{- "<|start|>assistant to=functions." + last.name + "<|channel|>commentary json<|message|>" -}}
{{- message.tool_calls[0].function.arguments | tojson + "<|call|>" -}}
{%- elif message.role == "tool" -%}
{%- if last.name is none -%}{{- raise_exception("no call") -}}{%- endif -%}
{{- "<|start|>functions." + last.name + " to=assistant<|channel|>commentary<|message|>" -}}
{{- message.content | tojson + "<|end|>" -}}
{%- else -%}
{{- "<|start|>" + message.role + ("<|channel|>final" if message.role == "assistant" else "") -}}
{{- "<|message|>" + message.content + "<|end|>" -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"#;
    let template = common::template(text).expect("it is sound").on_day(20_118);
    assert_eq!(template.tools(), Tools::Harmony);
    assert!(template.reads().harmony && !template.reads().parts && !template.reasons());
    let parameters = json!({"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string"}, "days": {"type": "array", "items": {"type": ["integer", "null"]}}}});
    let tools = json!([{"type": "function", "function": {
        "name": "weather", "description": "Tells.", "parameters": parameters}}]);
    let asking = json!([
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Ulm?"},
        {"role": "assistant", "content": "", "thinking": "I look.", "tool_calls": [
            {"type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}}]},
        {"role": "tool", "content": "\"rain\""},
    ]);
    let system = "<|start|>system<|message|>Day: 2025-01-30 Effort: ";
    let called = "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>\
        {\"city\": \"Ulm\"}<|call|><|start|>functions.weather to=assistant<|channel|>commentary<|message|>\
        \"\\\"rain\\\"\"<|end|>";
    let variables = common::variables(&json!({"tools": tools, "reasoning_effort": "high"}));
    let prompt = template.render_with(&asking, true, &variables).expect("it renders");
    let expected = format!(
        "{system}high<|end|>// Tells. weather {{city: string, days?: integer | null[]}}\
         <|start|>user<|message|>Ulm?<|end|>\
         <|start|>assistant<|channel|>analysis<|message|>I look.<|end|>{called}<|start|>assistant"
    );
    assert_eq!(prompt, expected);
    let mut replied = asking.as_array().expect("a list").clone();
    replied.push(json!({"role": "assistant", "content": "Rain."}));
    let variables = common::variables(&json!({"builtin_tools": ["one"]}));
    let prompt = template.render_with(&replied.into(), false, &variables).expect("it renders");
    let expected = format!(
        "{system}medium One: True<|end|><|start|>user<|message|>Ulm?<|end|>{called}\
         <|start|>assistant<|channel|>final<|message|>Rain.<|end|>"
    );
    assert_eq!(prompt, expected);
    let error = template.render(&json!([{"role": "tool", "content": "x"}]), true).expect_err("no call");
    assert!(error.to_string().contains("no call"), "{error}");
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

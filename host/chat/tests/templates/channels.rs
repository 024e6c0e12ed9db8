//! Templates of messages with channels.

use infer_chat::Tools;
use serde_json::json;

use crate::{common, two_templates};

#[test]
fn calls_in_channels_are_known_only_if_all_messages_have_channels() {
    let channels = "{{ tools }}<|start|>{{ messages[0].role }}<|channel|><|message|>";
    for (default, harmony, tools) in
        [(channels, true, Tools::Harmony), ("{{ messages[0].role }}", false, Tools::Other)]
    {
        let template = two_templates(default, channels);
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

//! JSON schemas of fields that the host checks more strictly than their Rust types, and rules between fields.

use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::json;

/// Schema of `response_format`.
pub(crate) fn response_format(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["object", "null"],
        "required": ["type"],
        "properties": {
            "type": {"enum": ["text", "json_object", "json_schema"]},
            "json_schema": {
                "type": "object",
                "required": ["schema"],
                "properties": {
                    "name": {"type": "string", "maxLength": 512},
                    "description": {"type": "string"},
                    "schema": {"type": "object", "description": "JSON Schema that the output must match."},
                    "strict": {"type": ["boolean", "null"]}
                }
            }
        }
    })
}

/// Schema of `structured_outputs`.
pub(crate) fn structured_outputs(_: &mut SchemaGenerator) -> Schema {
    let ways = ["json", "json_object", "regex", "choice", "grammar"];
    let ways = ways.map(|way| json!({"type": "object", "required": [way]}));
    let either: Vec<_> = [json!({"type": "null"})].into_iter().chain(ways).collect();
    json_schema!({
        "oneOf": either,
        "additionalProperties": false,
        "properties": {
            "json": {"type": ["object", "string"], "description": "JSON Schema that the output must match."},
            "json_object": {"const": true},
            "regex": {"type": "string", "minLength": 1},
            "choice": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
            "grammar": {"type": "string", "minLength": 1, "description": "A grammar in Lark syntax."},
            "disable_any_whitespace": {
                "type": ["boolean", "null"],
                "description": "Whether `json` and `json_object` are written without white space. Otherwise a blank, or \
                    a newline and an indent, may be between two parts."
            },
            "disable_additional_properties": {"enum": [false, null]},
            "disable_fallback": {"enum": [false, null]},
            "whitespace_pattern": {"type": "null"}
        }
    })
}

/// Schema of `tool_choice`.
pub(crate) fn tool_choice(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "oneOf": [
            {"enum": ["none", "auto", "required", null]},
            {
                "type": "object",
                "required": ["type", "function"],
                "properties": {
                    "type": {"const": "function"},
                    "function": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {"name": {"type": "string"}}
                    }
                }
            },
            {
                "type": "object",
                "required": ["type", "allowed_tools"],
                "properties": {
                    "type": {"const": "allowed_tools"},
                    "allowed_tools": {
                        "type": "object",
                        "required": ["mode", "tools"],
                        "properties": {
                            "mode": {"enum": ["auto", "required"]},
                            "tools": {"type": "array", "minItems": 1, "items": {"type": "object"}}
                        }
                    }
                }
            }
        ]
    })
}

/// Schema of a response's `input`.
pub(crate) fn response_input(_: &mut SchemaGenerator) -> Schema {
    let part = json!({
        "type": "object",
        "required": ["type"],
        "properties": {
            "type": {"enum": ["input_text", "output_text", "text", "refusal"]},
            "text": {"type": "string"},
            "refusal": {"type": "string"}
        }
    });
    let content = json!({"anyOf": [{"type": "string"}, {"type": "array", "items": part}]});
    let item = |kind: &str, required: &[&str], properties: serde_json::Value| {
        let mut properties = properties;
        properties["type"] = json!({"const": kind});
        json!({"type": "object", "required": required, "properties": properties})
    };
    let text = json!({"type": "string"});
    let role = json!({"enum": ["system", "developer", "user", "assistant"]});
    json_schema!({
        "anyOf": [
            {"type": "string"},
            {
                "type": "array",
                "minItems": 1,
                "maxItems": 4096,
                "items": {"anyOf": [
                    item("message", &["role", "content"], json!({"role": role, "content": content})),
                    item(
                        "function_call",
                        &["type", "call_id", "name", "arguments"],
                        json!({"call_id": text, "name": text, "arguments": text})
                    ),
                    item(
                        "function_call_output",
                        &["type", "call_id", "output"],
                        json!({"call_id": text, "output": content})
                    ),
                    item("reasoning", &["type"], json!({"content": {"type": ["array", "null"]}}))
                ]}
            }
        ]
    })
}

/// Schema of a response's `include`.
pub(crate) fn response_include(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["array", "null"],
        "items": {"enum": [
            "message.output_text.logprobs",
            "reasoning.encrypted_content",
            "message.input_image.image_url",
            "file_search_call.results",
            "web_search_call.results",
            "web_search_call.action.sources",
            "code_interpreter_call.outputs",
            "computer_call_output.output.image_url"
        ]}
    })
}

/// Schema of a response's `tools`.
pub(crate) fn response_tools(generator: &mut SchemaGenerator) -> Schema {
    let function = generator.subschema_for::<crate::responses::FunctionTool>();
    json_schema!({
        "type": ["array", "null"],
        "maxItems": 512,
        "items": {"anyOf": [
            function,
            {
                "type": "object",
                "required": ["type", "name", "tools"],
                "properties": {
                    "type": {"const": "namespace"},
                    "name": {"type": "string"},
                    "description": {"type": ["string", "null"]},
                    "tools": {"type": "array", "items": function}
                }
            }
        ]}
    })
}

/// Schema of a response's `tool_choice`.
pub(crate) fn response_tool_choice(_: &mut SchemaGenerator) -> Schema {
    let named = json!({
        "type": "object",
        "required": ["type", "name"],
        "properties": {"type": {"const": "function"}, "name": {"type": "string"}}
    });
    json_schema!({
        "oneOf": [
            {"enum": ["none", "auto", "required", null]},
            named,
            {
                "type": "object",
                "required": ["type", "mode", "tools"],
                "properties": {
                    "type": {"const": "allowed_tools"},
                    "mode": {"enum": ["auto", "required"]},
                    "tools": {"type": "array", "minItems": 1, "items": named}
                }
            }
        ]
    })
}

/// Schema of `format` in a response's `text`.
pub(crate) fn text_format(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["object", "null"],
        "required": ["type"],
        "properties": {
            "type": {"enum": ["text", "json_object", "json_schema"]},
            "name": {"type": "string"},
            "description": {"type": ["string", "null"]},
            "schema": {"type": "object", "description": "JSON Schema that the text must match."},
            "strict": {"type": ["boolean", "null"]}
        }
    })
}

/// Schema of a message's `content`.
pub(crate) fn content(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [
            {"type": ["string", "null"]},
            {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["type", "text"],
                    "properties": {"type": {"const": "text"}, "text": {"type": "string"}}
                }
            }
        ]
    })
}

/// Schema of a call's `arguments`.
pub(crate) fn arguments(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": ["string", "object", "null"]})
}

/// `/tokenize` takes exactly one of `prompt` and `messages`.
pub(crate) fn prompt_or_messages(schema: &mut Schema) {
    let given = |name: &str, kind: &str, other: &str| {
        let properties = json!({name: {"type": kind}, other: {"type": "null"}});
        json!({"required": [name], "properties": properties})
    };
    let either = [given("prompt", "string", "messages"), given("messages", "array", "prompt")];
    schema.insert("anyOf".to_owned(), json!(either));
}

/// Only an assistant's message may lack content.
pub(crate) fn content_or_assistant(schema: &mut Schema) {
    let content = json!({"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}});
    let assistant = json!({"properties": {"role": {"const": "assistant"}}});
    schema.insert("anyOf".to_owned(), json!([assistant, content]));
}

/// `max_tokens` may be 0 only with `echo`.
pub(crate) fn tokens_or_echo(schema: &mut Schema) {
    let echo = json!({"required": ["echo"], "properties": {"echo": {"const": true}}});
    schema.insert("anyOf".to_owned(), json!([{"properties": {"max_tokens": {"minimum": 1}}}, echo]));
}

/// Schema of Anthropic's text, or list of blocks. Which blocks may be where is up to the server.
pub(crate) fn text_or_blocks(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "anyOf": [
            {"type": "string"},
            {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["type"],
                    "properties": {"type": {"type": "string"}, "text": {"type": "string"}}
                }
            }
        ]
    })
}

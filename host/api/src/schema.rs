//! JSON schemas of fields whose Rust type says less than the host checks.

use schemars::{Schema, SchemaGenerator, json_schema};

/// `response_format`.
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
                    "schema": {"type": "object", "description": "JSON Schema that the output fulfils."},
                    "strict": {"type": ["boolean", "null"]}
                }
            }
        }
    })
}

/// `structured_outputs`.
pub(crate) fn structured_outputs(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": ["object", "null"],
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": false,
        "properties": {
            "json": {"type": ["object", "string"], "description": "JSON Schema that the output fulfils."},
            "json_object": {"const": true},
            "regex": {"type": "string", "minLength": 1},
            "choice": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
            "grammar": {"type": "string", "minLength": 1, "description": "A grammar in Lark's notation."}
        }
    })
}

/// `tool_choice`.
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
            }
        ]
    })
}

/// `content` of a message.
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

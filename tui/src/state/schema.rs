//! Checks a configuration against its policy's JSON Schema before it is sent.
//!
//! Supports what the schemas of policies use: types, ranges, enums, lengths, properties, items. Everything
//! else is left to the host, where the policy itself checks every configuration; a whole schema library would
//! only make a few messages appear earlier.

use serde_json::Value;

/// Returns what is wrong, each fault with its path; empty if nothing is.
#[must_use]
pub fn check(schema: &Value, value: &Value) -> Vec<String> {
    let mut wrong = Vec::new();
    walk(schema, value, "", &mut wrong);
    wrong
}

fn walk(schema: &Value, value: &Value, path: &str, wrong: &mut Vec<String>) {
    let mut say = |text: String| {
        wrong.push(if path.is_empty() { text } else { format!("{path}: {text}") });
    };
    if let Some(types) = schema.get("type") {
        let names: Vec<&str> = match types {
            Value::String(name) => vec![name],
            Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        if !names.is_empty() && !names.iter().any(|name| is_of(name, value)) {
            say(format!("must be {}, not {value}", names.join(" or ")));
            return;
        }
    }
    if let Some(choices) = schema.get("enum").and_then(Value::as_array)
        && !choices.contains(value)
    {
        let choices: Vec<String> = choices.iter().map(ToString::to_string).collect();
        say(format!("must be one of {}, not {value}", choices.join(", ")));
    }
    if let Some(number) = value.as_f64() {
        let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
        type Holds = fn(f64, f64) -> bool;
        let bounds: [(&str, &str, Holds); 4] = [
            ("minimum", "at least", |n, b| n >= b),
            ("maximum", "at most", |n, b| n <= b),
            ("exclusiveMinimum", "more than", |n, b| n > b),
            ("exclusiveMaximum", "less than", |n, b| n < b),
        ];
        for (key, words, holds) in bounds {
            if let Some(bound) = bound(key)
                && !holds(number, bound)
            {
                say(format!("must be {words} {bound}, not {value}"));
            }
        }
    }
    let length = match value {
        Value::String(text) => Some((text.chars().count(), "minLength", "maxLength", "characters")),
        Value::Array(items) => Some((items.len(), "minItems", "maxItems", "items")),
        _ => None,
    };
    if let Some((length, least, most, what)) = length {
        let bound = |key: &str| schema.get(key).and_then(Value::as_u64).map(|bound| bound as usize);
        if bound(least).is_some_and(|least| length < least) || bound(most).is_some_and(|most| length > most) {
            say(format!("has {length} {what}"));
        }
    }
    if let (Value::Array(items), Some(of)) = (value, schema.get("items")) {
        for (at, item) in items.iter().enumerate() {
            walk(of, item, &join(path, &at.to_string()), wrong);
        }
    }
    if let Value::Object(fields) = value {
        object(schema, fields, path, wrong);
    }
}

fn object(schema: &Value, fields: &serde_json::Map<String, Value>, path: &str, wrong: &mut Vec<String>) {
    for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
        if let Some(name) = name.as_str()
            && !fields.contains_key(name)
        {
            wrong.push(format!("{}: is missing", join(path, name)));
        }
    }
    let properties = schema.get("properties").and_then(Value::as_object);
    let others = schema.get("additionalProperties");
    for (name, value) in fields {
        let at = join(path, name);
        match (properties.and_then(|all| all.get(name)), others) {
            (Some(schema), _) => walk(schema, value, &at, wrong),
            (None, Some(Value::Bool(false))) => wrong.push(format!("{at}: unknown field")),
            (None, Some(schema @ Value::Object(_))) => walk(schema, value, &at, wrong),
            (None, _) => {}
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

fn is_of(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|number| number.fract() == 0.0),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_fault_names_its_field_and_the_rule() {
        let schema = json!({
            "type": "object", "additionalProperties": false, "required": ["mode"],
            "properties": {
                "reserve": {"type": "number", "minimum": 0, "maximum": 0.9},
                "slots": {"type": "integer", "exclusiveMinimum": 0},
                "mode": {"enum": ["a", "b"]},
                "weights": {"type": "object", "additionalProperties": {"type": "number", "minimum": 1}},
                "list": {"type": "array", "items": {"type": "string"}, "maxItems": 2},
            }
        });
        let good = json!({"mode": "a", "reserve": 0.5, "slots": 3, "weights": {"x": 1}, "list": ["y"]});
        assert_eq!(check(&schema, &good), Vec::<String>::new());
        for (config, want) in [
            (json!([]), "must be object, not []"),
            (json!({}), "mode: is missing"),
            (json!({"mode": "c"}), "mode: must be one of \"a\", \"b\", not \"c\""),
            (json!({"mode": "a", "reserve": 1}), "reserve: must be at most 0.9, not 1"),
            (json!({"mode": "a", "slots": 0}), "slots: must be more than 0, not 0"),
            (json!({"mode": "a", "slots": 1.5}), "slots: must be integer, not 1.5"),
            (json!({"mode": "a", "weights": {"x": 0}}), "weights.x: must be at least 1, not 0"),
            (json!({"mode": "a", "list": ["x", 2]}), "list.1: must be string, not 2"),
            (json!({"mode": "a", "list": ["x", "y", "z"]}), "list: has 3 items"),
            (json!({"mode": "a", "typo": 1}), "typo: unknown field"),
        ] {
            assert_eq!(check(&schema, &config), [want], "{config}");
        }
    }

    #[test]
    fn without_a_schema_anything_is_valid() {
        assert!(check(&Value::Null, &json!({"x": [1, {"y": null}]})).is_empty());
    }
}

//! Which parts of a JSON schema an automaton can keep to. What JSON Schema calls an annotation is taken out of a
//! schema, because the compiler refuses what it doesn't know; what would have to be enforced and can't be is found for
//! a request that wants all of its schema enforced.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::pattern::is_enforceable;

/// Known formats; any other one says nothing about a string.
pub(super) const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// Keywords that restrict values in ways that no automaton of this kind follows.
const UNENFORCED: &[&str] = &[
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "unevaluatedItems",
    "propertyNames",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "unevaluatedProperties",
    "not",
    "if",
    "then",
    "else",
    "$recursiveRef",
    "$dynamicRef",
];
/// Keywords with schemas by name. Definitions count where a `$ref` leads to them.
const BY_NAME: &[&str] = &["properties", "patternProperties"];
/// Keywords with a schema or a list of them.
const WITHIN: &[&str] =
    &["items", "prefixItems", "additionalItems", "additionalProperties", "allOf", "anyOf", "oneOf"];
/// The farthest bounds of numbers that the compiler takes, either way: the last double before 2^63. Schemas of 64-bit integers
/// and of floats have farther ones.
const FARTHEST: i64 = 9_223_372_036_854_774_784;
/// Longest place in a schema that an error shows.
const PLACE_BYTES: usize = 200;

/// Takes what restricts nothing out of a schema that is not too deep, brings bounds of numbers near enough, and takes out patterns that can't be enforced unless it is
/// `strict`.
///
/// # Errors
/// It is `strict`, and has a keyword that can't be enforced: which and where.
pub fn ready(schema: &mut Value, strict: bool) -> Result<(), String> {
    let schemas = find(schema, strict)?;
    clean(schema, &schemas);
    Ok(())
}

/// The schemas that the compiler reads, by address: the root, what its keywords hold, and what a `$ref` leads to.
fn find(root: &Value, strict: bool) -> Result<HashSet<*const Value>, String> {
    let mut search = Search { strict, found: HashSet::new(), references: Vec::new() };
    search.walk(root, &mut "#".to_owned())?;
    while let Some(reference) = search.references.pop() {
        if let Some(target) = target(root, reference) {
            search.walk(target, &mut reference.to_owned())?;
        }
    }
    Ok(search.found)
}

/// Where a reference leads, read as the compiler reads it.
fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    if reference == "#" || reference == "#/" {
        return Some(root);
    }
    reference.strip_prefix("#/")?.split('/').try_fold(root, |value, segment| match value {
        Value::Array(list) => list.get(segment.parse::<usize>().ok()?),
        value => value.get(segment),
    })
}

struct Search<'a> {
    strict: bool,
    found: HashSet<*const Value>,
    /// Those that were met and not followed yet.
    references: Vec<&'a str>,
}

impl<'a> Search<'a> {
    fn walk(&mut self, schema: &'a Value, place: &mut String) -> Result<(), String> {
        let Value::Object(keywords) = schema else { return Ok(()) };
        if !self.found.insert(std::ptr::from_ref(schema)) {
            return Ok(());
        }
        self.references.extend(keywords.get("$ref").and_then(Value::as_str));
        for (keyword, value) in keywords {
            let keyword = keyword.as_str();
            if self.strict && !is_enforced(keyword, value, keywords) {
                place.truncate(place.floor_char_boundary(PLACE_BYTES));
                return Err(format!("`{keyword}` at {place} can't be enforced"));
            }
            let above = place.len();
            place.push('/');
            place.push_str(keyword);
            match value {
                Value::Object(named) if BY_NAME.contains(&keyword) => {
                    named.iter().try_for_each(|(name, schema)| self.walk_at(name, schema, place))?;
                }
                Value::Array(list) if WITHIN.contains(&keyword) => {
                    let mut schemas = list.iter().enumerate();
                    schemas.try_for_each(|(at, schema)| self.walk_at(&at.to_string(), schema, place))?;
                }
                schema if WITHIN.contains(&keyword) => self.walk(schema, place)?,
                _ => {}
            }
            place.truncate(above);
        }
        Ok(())
    }

    fn walk_at(&mut self, key: &str, schema: &'a Value, place: &mut String) -> Result<(), String> {
        let above = place.len();
        place.push('/');
        place.push_str(key);
        self.walk(schema, place)?;
        place.truncate(above);
        Ok(())
    }
}

/// Whether a keyword of `keywords` can be kept to, or restricts nothing.
fn is_enforced(keyword: &str, value: &Value, keywords: &Map<String, Value>) -> bool {
    match (keyword, value) {
        ("pattern", Value::String(pattern)) => is_enforceable(pattern),
        ("patternProperties", Value::Object(named)) => named.keys().all(|pattern| is_enforceable(pattern)),
        _ => !UNENFORCED.contains(&keyword) || is_idle(keyword, value, keywords),
    }
}

/// Whether a keyword that can't be enforced restricts nothing, given its value and the `keywords` beside it.
fn is_idle(keyword: &str, value: &Value, keywords: &Map<String, Value>) -> bool {
    let beside = |keyword: &str| keywords.contains_key(keyword);
    let is_empty = value.as_object().is_some_and(Map::is_empty);
    let allows_all = *value == Value::Bool(true) || is_empty;
    match keyword {
        "uniqueItems" | "not" => *value == Value::Bool(false),
        "unevaluatedItems" | "unevaluatedProperties" | "propertyNames" => allows_all,
        "dependencies" | "dependentRequired" | "dependentSchemas" => is_empty,
        "minContains" | "maxContains" => !beside("contains"),
        "if" => !beside("then") && !beside("else"),
        "then" | "else" => allows_all || !beside("if"),
        _ => false,
    }
}

/// Children come first: what is taken out of a map moves the rest of it.
fn clean(value: &mut Value, schemas: &HashSet<*const Value>) {
    let is_schema = schemas.contains(&std::ptr::from_ref::<Value>(value));
    match value {
        Value::Array(list) => list.iter_mut().for_each(|value| clean(value, schemas)),
        Value::Object(keywords) => {
            keywords.values_mut().for_each(|value| clean(value, schemas));
            if is_schema {
                keep(keywords);
            }
        }
        _ => {}
    }
}

fn keep(keywords: &mut Map<String, Value>) {
    for (keyword, bound) in keywords.iter_mut() {
        match (keyword.as_str(), bound.as_f64()) {
            ("minimum" | "exclusiveMinimum", Some(least)) if least < -(FARTHEST as f64) => {
                *bound = Value::from(-FARTHEST);
            }
            ("maximum" | "exclusiveMaximum", Some(most)) if most > FARTHEST as f64 => {
                *bound = Value::from(FARTHEST);
            }
            _ => {}
        }
    }
    let idle = keywords.iter().filter(|(keyword, value)| is_idle(keyword, value, keywords));
    let idle: Vec<String> = idle.map(|(keyword, _)| keyword.clone()).collect();
    keywords.retain(|keyword, value| match (keyword.as_str(), value) {
        ("format", Value::String(format)) => FORMATS.contains(&format.as_str()),
        ("pattern", Value::String(pattern)) => is_enforceable(pattern),
        ("patternProperties", Value::Object(named)) => {
            named.retain(|pattern, _| is_enforceable(pattern));
            true
        }
        _ => !idle.contains(keyword),
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn annotations_are_taken_out_where_they_are_keywords() {
        let mut schema = json!({
            "properties": {
                "format": {"type": "string", "format": "path"},
                "day": {"type": "string", "format": "date"},
                "price": {"anyOf": [{"type": "number"}, {"type": "string", "pattern": "^(?!x)y$", "format": "1"}]},
            },
            "$defs": {"pattern": {"items": {"format": "binary", "title": "format"}}},
            "components": {"deep": [{"format": "path", "items": {"$ref": "#"}}]},
            "allOf": [{"$ref": "#/$defs/pattern"}, {"$ref": "#/components/deep/0"}],
            "patternProperties": {"^x-": {"format": "path"}, "\\by": true},
            "const": {"format": "path", "pattern": "(?=x)"},
            "additionalProperties": false,
        });
        let expected = json!({
            "properties": {
                "format": {"type": "string"},
                "day": {"type": "string", "format": "date"},
                "price": {"anyOf": [{"type": "number"}, {"type": "string"}]},
            },
            "$defs": {"pattern": {"items": {"title": "format"}}},
            "components": {"deep": [{"items": {"$ref": "#"}}]},
            "allOf": [{"$ref": "#/$defs/pattern"}, {"$ref": "#/components/deep/0"}],
            "patternProperties": {"^x-": {}},
            "const": {"format": "path", "pattern": "(?=x)"},
            "additionalProperties": false,
        });
        ready(&mut schema, false).unwrap();
        assert_eq!(schema, expected);
        let mut annotated = json!({"type": "string", "format": "path", "pattern": "^a"});
        ready(&mut annotated, true).unwrap();
        assert_eq!(
            annotated,
            json!({"type": "string", "pattern": "^a"}),
            "only what JSON Schema ignores, too"
        );
    }

    #[test]
    fn bounds_that_are_too_far_are_brought_nearer() {
        let far = json!({"minimum": i64::MIN, "maximum": u64::MAX, "items": {"exclusiveMaximum": 1.7e308,
            "exclusiveMinimum": -3.4e38, "const": {"minimum": -1e300}}});
        let near = json!({"minimum": -FARTHEST, "maximum": FARTHEST, "items": {"exclusiveMaximum": FARTHEST,
            "exclusiveMinimum": -FARTHEST, "const": {"minimum": -1e300}}});
        let within = json!({"minimum": -9_007_199_254_740_991_i64, "maximum": 1e18, "exclusiveMaximum": 3});
        for (schema, ready_schema) in [(far, near), (within.clone(), within)] {
            let mut schema = schema;
            ready(&mut schema, true).unwrap();
            assert_eq!(schema, ready_schema);
        }
    }

    #[test]
    fn keywords_that_restrict_nothing_are_taken_out() {
        let idle = json!({"uniqueItems": false, "not": false, "unevaluatedItems": {}, "propertyNames": true,
            "unevaluatedProperties": true, "dependentRequired": {}, "minContains": 1, "then": {"type": "null"}});
        let mut schema = idle.clone();
        ready(&mut schema, true).unwrap();
        assert_eq!(schema, json!({}));
        for (keyword, value) in [
            ("uniqueItems", json!(true)),
            ("not", json!({})),
            ("unevaluatedItems", json!(false)),
            ("propertyNames", json!({"maxLength": 1})),
            ("dependentRequired", json!({"a": ["b"]})),
            ("contains", json!({})),
            ("if", json!(true)),
        ] {
            let mut schema = idle.clone();
            schema[keyword] = value;
            ready(&mut schema, true).expect_err(keyword);
        }
    }

    #[test]
    fn keywords_that_cant_be_enforced_are_found_by_their_place() {
        for (schema, fault) in [
            (json!({"not": {}}), "`not` at # can't"),
            (
                json!({"properties": {"a": {"anyOf": [true, {"type": "array", "uniqueItems": true}]}}}),
                "`uniqueItems` at #/properties/a/anyOf/1 can't",
            ),
            (
                json!({"$ref": "#/$defs/d", "$defs": {"d": {"propertyNames": {"maxLength": 3}}}}),
                "`propertyNames` at #/$defs/d can't",
            ),
            (
                json!({"items": {"$ref": "#/components/schemas/a"}, "components": {"schemas": {
                    "a": {"$ref": "#/components/schemas/b"}, "b": {"anyOf": [{"contains": {}}]}}}}),
                "`contains` at #/components/schemas/b/anyOf/0 can't",
            ),
            (
                json!({"$ref": "#/$defs/g/0", "$defs": {"g": [{"pattern": "a\\b"}]}}),
                "`pattern` at #/$defs/g/0 can't",
            ),
            (json!({"patternProperties": {"(?=x)": true}}), "`patternProperties` at # can't"),
        ] {
            let error = ready(&mut schema.clone(), true).expect_err(fault);
            assert!(error.starts_with(fault), "{error}");
            ready(&mut schema.clone(), false).unwrap();
        }
        for mut fine in [
            json!({"properties": {"not": {"type": "string"}}, "required": ["not"]}),
            json!({"enum": [{"if": 1}], "default": {"then": 2}}),
            json!({"$defs": {"unused": {"not": {}}}, "$ref": "#/$defs/missing"}),
            json!({"items": {"$ref": "#"}}),
        ] {
            ready(&mut fine, true).unwrap();
        }
        let mut deep = json!({"properties": {"ü".repeat(1_000): {"not": {}}}});
        assert!(ready(&mut deep, true).unwrap_err().len() < 300);
    }
}

//! A configuration as a form: one field per property of the schema, entered as JSON or plain text and checked
//! while it is typed. A list of policies is one form with the fields of all members.

use infer_api::unique;
use serde_json::{Map, Value, json};

use super::schema;
use super::text::LineEdit;
use crate::input::Key;

/// One property.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: String,
    /// Index of the policy that it belongs to.
    member: usize,
    /// Its schema; null if it has none.
    pub schema: Value,
    /// The typed value; empty means the policy's default.
    pub value: LineEdit,
}

/// A configuration being edited.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// Its fields in the schema's order.
    pub fields: Vec<Field>,
    /// Index of the field with the cursor.
    pub at: usize,
    /// The policies that the fields belong to: one, or the members of a list.
    members: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq)]
struct Member {
    /// Its name if it is in a list.
    name: Option<String>,
    schema: Value,
}

impl Form {
    /// Creates a form for a schema, filled with the current configuration. Values that the schema doesn't
    /// name get fields, too. `None` if there are no fields. A list's configuration is `[{"name", "config"},
    /// ..]`, and its schema has the members' schemas as `prefixItems`.
    #[must_use]
    pub fn new(schema: &Value, current: &Value) -> Option<Self> {
        let Value::Array(list) = current else {
            let fields = fields(0, schema, current)?;
            let members = vec![Member { name: None, schema: schema.clone() }];
            return (!fields.is_empty()).then_some(Self { fields, at: 0, members });
        };
        let schemas = schema.get("prefixItems")?.as_array().filter(|all| all.len() == list.len())?;
        let mut form = Self { fields: Vec::new(), at: 0, members: Vec::new() };
        for (at, (entry, schema)) in list.iter().zip(schemas).enumerate() {
            form.fields.extend(fields(at, schema, entry.get("config").unwrap_or(&Value::Null))?);
            let name = Some(entry.get("name")?.as_str()?.to_owned());
            form.members.push(Member { name, schema: schema.clone() });
        }
        (!form.fields.is_empty()).then_some(form)
    }

    /// Returns a field's name, in a list preceded by its policy's.
    #[must_use]
    pub fn label(&self, field: &Field) -> String {
        match &self.members[field.member].name {
            Some(policy) => format!("{policy} {}", field.name),
            None => field.name.clone(),
        }
    }

    /// Takes a key; returns false if the key doesn't edit.
    pub fn on_key(&mut self, key: Key) -> bool {
        let last = self.fields.len() - 1;
        match key {
            Key::Up | Key::BackTab => self.at = self.at.saturating_sub(1),
            Key::Down | Key::Tab => self.at = (self.at + 1).min(last),
            key => return self.fields[self.at].value.on_key(key),
        }
        true
    }

    /// Inserts text into the current field.
    pub fn insert(&mut self, text: &str) {
        self.fields[self.at].value.insert(text);
    }

    /// Returns the configuration.
    ///
    /// # Errors
    /// Every fault, with its field's name.
    pub fn config(&self) -> Result<Value, Vec<String>> {
        let mut wrong = Vec::new();
        let mut all = Vec::new();
        for (at, member) in self.members.iter().enumerate() {
            let typed = self.fields.iter().filter(|field| field.member == at && !field.value.is_empty());
            let config = Value::Object(typed.map(|field| (field.name.clone(), read(field))).collect());
            let faults = schema::check(&member.schema, &config).into_iter();
            match &member.name {
                None => {
                    wrong.extend(faults);
                    all.push(config);
                }
                Some(name) => {
                    wrong.extend(faults.map(|fault| format!("{name} {fault}")));
                    all.push(json!({"name": name, "config": config}));
                }
            }
        }
        let single = self.members.first().is_some_and(|member| member.name.is_none());
        match wrong.is_empty() {
            true if single => Ok(all.remove(0)),
            true => Ok(Value::Array(all)),
            false => Err(wrong),
        }
    }

    /// Returns what is wrong with a field's current value.
    #[must_use]
    pub fn fault(&self, field: &Field) -> Option<String> {
        if field.value.is_empty() {
            return None;
        }
        schema::check(&field.schema, &read(field)).into_iter().next()
    }
}

/// Returns a field per property of a policy's schema, then one per value that the schema doesn't name.
fn fields(member: usize, schema: &Value, current: &Value) -> Option<Vec<Field>> {
    let current = match current {
        Value::Null => Map::new(),
        other => other.as_object()?.clone(),
    };
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let others = current.keys().filter(|name| !properties.contains_key(*name));
    let field = |name: &String| Field {
        name: name.clone(),
        member,
        schema: properties.get(name).cloned().unwrap_or(Value::Null),
        value: LineEdit::new(&current.get(name).map_or_else(String::new, shown)),
    };
    Some(properties.keys().chain(others).map(field).collect())
}

/// Formats a value as it is typed: strings without quotes.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Parses what was typed: as JSON if it is valid, without a key twice, and the field is not a string, else as a string.
fn read(field: &Field) -> Value {
    let text = field.value.text();
    let wants_text = field.schema.get("type").and_then(Value::as_str) == Some("string")
        || field
            .schema
            .get("enum")
            .and_then(Value::as_array)
            .is_some_and(|all| all.iter().all(Value::is_string));
    if wants_text {
        return Value::String(text);
    }
    unique::parse(text.trim().as_bytes()).unwrap_or(Value::String(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(current: &Value) -> Form {
        let schema = json!({
            "type": "object", "additionalProperties": false,
            "properties": {
                "max": {"type": "integer", "minimum": 1, "default": 100},
                "mode": {"type": "string", "enum": ["a", "b"]},
            }
        });
        Form::new(&schema, current).unwrap()
    }

    #[test]
    fn current_values_are_filled_in_and_empty_fields_are_omitted() {
        let form = form(&json!({"max": 7}));
        assert_eq!(form.fields.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["max", "mode"]);
        assert_eq!(form.config(), Ok(json!({"max": 7})));
    }

    #[test]
    fn faults_name_their_fields() {
        let mut form = form(&Value::Null);
        for key in [Key::Char('0'), Key::Down, Key::Char('c')] {
            assert!(form.on_key(key));
        }
        assert_eq!(form.fault(&form.fields[0]).unwrap(), "must be at least 1, not 0");
        assert_eq!(
            form.config().unwrap_err(),
            ["max: must be at least 1, not 0", "mode: must be one of \"a\", \"b\", not \"c\""]
        );
        form.on_key(Key::Wipe);
        form.on_key(Key::Char('b'));
        form.on_key(Key::Up);
        form.on_key(Key::Home);
        form.on_key(Key::Char('4'));
        assert_eq!(form.config(), Ok(json!({"max": 40, "mode": "b"})));
    }

    #[test]
    fn a_list_is_one_form_with_the_fields_of_all_members() {
        let part = |least: u32| json!({"properties": {"max": {"type": "integer", "minimum": least}}});
        let schema = json!({"type": "array", "prefixItems": [part(1), {}, part(5)]});
        let entry = |name: &str, config: Value| json!({"name": name, "config": config});
        let list = json!([entry("a", json!({"max": 2})), entry("b", json!({})), entry("c", json!({}))]);
        let mut form = Form::new(&schema, &list).unwrap();
        let labels: Vec<String> = form.fields.iter().map(|field| form.label(field)).collect();
        assert_eq!(labels, ["a max", "c max"]);
        assert_eq!(form.config().as_ref(), Ok(&list), "unchanged values keep their order");
        form.on_key(Key::Down);
        form.on_key(Key::Char('3'));
        assert_eq!(form.config().unwrap_err(), ["c max: must be at least 5, not 3"]);
        form.on_key(Key::Char('0'));
        assert_eq!(form.config().unwrap()[2], entry("c", json!({"max": 30})));
        assert_eq!(Form::new(&json!({}), &list), None, "no member has a schema");
    }

    #[test]
    fn without_properties_there_is_no_form() {
        assert_eq!(Form::new(&json!({"type": "object"}), &Value::Null), None);
        assert_eq!(Form::new(&Value::Null, &json!([{"a": 1}])), None);
    }
}

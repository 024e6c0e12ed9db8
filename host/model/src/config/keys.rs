//! Typed reads from an untrusted JSON object: each error names the file and the key, and says what would be valid. The
//! meaning of keys is defined elsewhere.

use serde_json::{Map, Value};

use crate::error::ModelError;

/// Maximum accepted size: sizes are multiplied and allocated.
pub(super) const MAX_SIZE: usize = 1 << 20;

/// A JSON object and the file that it came from.
pub(crate) struct Keys {
    file: String,
    map: Map<String, Value>,
    /// The file's own names for keys, where they differ.
    names: Vec<(&'static str, String)>,
}

impl Keys {
    pub(crate) fn of_map(file: String, map: Map<String, Value>, names: Vec<(&'static str, String)>) -> Self {
        Self { file, map, names }
    }

    pub(super) fn parse(file: &str, bytes: &[u8]) -> Result<Self, ModelError> {
        match serde_json::from_slice(bytes) {
            Ok(Value::Object(map)) => Ok(Self { file: file.to_owned(), map, names: Vec::new() }),
            Ok(_) => Err(ModelError::config(format!("{file} must contain a JSON object"))),
            Err(error) => Err(ModelError::config(format!("{file} is not JSON: {error}"))),
        }
    }

    /// The value, or null if the key is absent.
    pub(super) fn get(&self, key: &str) -> &Value {
        self.map.get(key).unwrap_or(&Value::Null)
    }

    fn optional<'a, T>(
        &'a self,
        key: &str,
        what: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, ModelError> {
        match self.get(key) {
            Value::Null => Ok(None),
            value => read(value).map(Some).ok_or_else(|| self.wrong(key, what)),
        }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, ModelError> {
        self.optional(key, "a string", Value::as_str)
    }

    pub(super) fn flag(&self, key: &str) -> Result<Option<bool>, ModelError> {
        self.optional(key, "true or false", Value::as_bool)
    }

    pub(super) fn number(&self, key: &str) -> Result<Option<f64>, ModelError> {
        self.optional(key, "a number", Value::as_f64)
    }

    /// A whole number, including 0.
    pub(super) fn count(&self, key: &str) -> Result<Option<usize>, ModelError> {
        self.optional(key, &format!("a whole number up to {MAX_SIZE}"), |value| {
            usize::try_from(value.as_u64()?).ok().filter(|count| *count <= MAX_SIZE)
        })
    }

    pub(super) fn optional_size(&self, key: &str) -> Result<Option<usize>, ModelError> {
        self.optional(key, &format!("a whole number from 1 to {MAX_SIZE}"), |value| {
            let size = usize::try_from(value.as_u64()?).ok()?;
            (1..=MAX_SIZE).contains(&size).then_some(size)
        })
    }

    pub(super) fn size(&self, key: &str) -> Result<usize, ModelError> {
        self.bounded(key, MAX_SIZE)
    }

    pub(super) fn bounded(&self, key: &str, most: usize) -> Result<usize, ModelError> {
        let size = self.optional(key, &format!("a whole number from 1 to {most}"), |value| {
            let size = usize::try_from(value.as_u64()?).ok()?;
            (1..=most).contains(&size).then_some(size)
        })?;
        size.ok_or_else(|| self.missing(key))
    }

    pub(super) fn object(&self, key: &str) -> Result<Option<&Map<String, Value>>, ModelError> {
        self.optional(key, "an object", Value::as_object)
    }

    /// The names of all keys.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.map.keys().map(String::as_str)
    }

    /// The object under `key`, which messages name.
    pub(super) fn section(&self, key: &str) -> Result<Option<Self>, ModelError> {
        let file = format!("{}: {}", self.file, self.shown(key));
        Ok(self.object(key)?.map(|map| Self { file, map: map.clone(), names: Vec::new() }))
    }

    pub(super) fn list(&self, key: &str) -> Result<Option<&Vec<Value>>, ModelError> {
        self.optional(key, "a list", Value::as_array)
    }

    /// A list of whole numbers; empty if the key is absent.
    pub(super) fn counts(&self, key: &str) -> Result<Vec<usize>, ModelError> {
        let count = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let counts = self.optional(key, "a list of whole numbers", |value| {
            value.as_array()?.iter().map(count).collect::<Option<Vec<_>>>()
        })?;
        Ok(counts.unwrap_or_default())
    }

    pub(super) fn token_ids(&self, key: &str) -> Result<Vec<u32>, ModelError> {
        let id = |value: &Value| value.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = self.optional(key, "a token id or a list of them", |value| match value {
            Value::Array(ids) => ids.iter().map(id).collect(),
            one => id(one).map(|id| vec![id]),
        })?;
        Ok(ids.unwrap_or_default())
    }

    /// The object under `key`, falling back to `defaults` and then to this object.
    pub(super) fn nested(&self, key: &str, defaults: &[(&str, Value)]) -> Self {
        let mut map = self.map.clone();
        map.extend(defaults.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        if let Some(Value::Object(inner)) = self.map.get(key) {
            map.extend(inner.clone());
        }
        Self { file: self.file.clone(), map, names: self.names.clone() }
    }

    /// The same object with these values for keys that it lacks. Null is a value, except for those `or_null`.
    pub(super) fn or(
        &self,
        defaults: impl IntoIterator<Item = (&'static str, Value)>,
        or_null: &[&str],
    ) -> Self {
        let mut map = self.map.clone();
        map.retain(|key, value| !(value.is_null() && or_null.contains(&key.as_str())));
        for (key, value) in defaults {
            map.entry(key).or_insert(value);
        }
        Self { file: self.file.clone(), map, names: self.names.clone() }
    }

    /// Whether the key is there, null or not.
    pub(super) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    fn shown<'a>(&'a self, key: &'a str) -> &'a str {
        self.names.iter().find(|(name, _)| *name == key).map_or(key, |(_, shown)| shown)
    }

    pub(super) fn missing(&self, key: &str) -> ModelError {
        ModelError::config(format!("{} has no {}", self.file, self.shown(key)))
    }

    pub(super) fn wrong(&self, key: &str, expected: &str) -> ModelError {
        self.wrong_value(key, expected, self.get(key))
    }

    /// The same for a value from elsewhere.
    pub(super) fn wrong_value(&self, key: &str, expected: &str, value: &Value) -> ModelError {
        ModelError::config(format!("{}: {} must be {expected}, is {value}", self.file, self.shown(key)))
    }

    pub(super) fn unsupported(&self, key: &str, why: &str) -> ModelError {
        ModelError::unsupported(format!("{}: {} {why}", self.file, self.shown(key)))
    }
}

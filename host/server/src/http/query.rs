//! Query parameters: each at most once, unknown ones are refused by name.

use super::ApiError;
use hyper::StatusCode;

/// The decoded query of a request.
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes `a=1&b=2`; only `known` names may occur.
    pub fn parse(raw: Option<&str>, known: &[&str]) -> Result<Self, ApiError> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for (key, value) in form_urlencoded::parse(raw.unwrap_or("").as_bytes()) {
            if !known.contains(&&*key) {
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let message = format!("unknown query parameter `{key}`; known here: {known}");
                return Err(
                    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown_parameter", message).param(&key)
                );
            }
            if pairs.iter().any(|(k, _)| *k == key) {
                return Err(ApiError::invalid(&key, "given more than once"));
            }
            pairs.push((key.into_owned(), value.into_owned()));
        }
        Ok(Self(pairs))
    }

    /// A parameter's value.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }
}

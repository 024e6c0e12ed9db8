//! Query parameters. Unknown and repeated ones are rejected by name.

use super::ApiError;
use hyper::StatusCode;

/// The decoded query of a request.
pub struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes `a=1&b=2`. Any name but the `known` ones is an error.
    pub fn parse(raw: Option<&str>, known: &[&str]) -> Result<Self, ApiError> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for (key, value) in form_urlencoded::parse(raw.unwrap_or("").as_bytes()) {
            if !known.contains(&&*key) {
                let known = if known.is_empty() { "no parameters".to_owned() } else { known.join(", ") };
                let message = format!("unknown query parameter `{key}`; this path accepts {known}");
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

    /// Returns a parameter's value.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }
}

/// The text of a segment of a path. `+`, `&` and `=` mean themselves there, unlike in queries.
pub fn path_text(segment: &str) -> String {
    let plain = segment.replace('+', "%2B").replace('&', "%26").replace('=', "%3D");
    form_urlencoded::parse(plain.as_bytes()).next().map_or(String::new(), |(text, _)| text.into_owned())
}

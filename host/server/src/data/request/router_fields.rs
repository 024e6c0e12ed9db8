//! Fields of vLLM and SGLang that routers add to the requests they forward. Accepted with the values that
//! have no effect, because a client behind a router never set them.

use serde_json::Value;

use crate::http::ApiError;

/// Names, each with its only accepted value.
const FIELDS: [(&str, bool); 7] = [
    ("no_stop_trim", false),
    ("skip_special_tokens", true),
    ("return_hidden_states", false),
    ("continue_final_message", false),
    ("separate_reasoning", true),
    ("stream_reasoning", true),
    ("include_reasoning", true),
];

/// Removes them from a request's fields. They are not part of the documented API.
pub fn take(fields: &mut Vec<(String, Value)>) -> Result<(), ApiError> {
    for (name, only) in FIELDS {
        let Some(at) = fields.iter().position(|(key, _)| key == name) else { continue };
        match fields.swap_remove(at).1 {
            Value::Null => {}
            Value::Bool(value) if value == only => {}
            Value::Bool(value) => {
                let message = format!("{value} is not supported; only {only} is");
                return Err(ApiError::invalid(name, message).code("not_supported"));
            }
            _ => return Err(ApiError::wrong_type(name, "true or false")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_without_effect_are_accepted_and_others_rejected() {
        let one = |name: &str, value: Value| take(&mut vec![(name.to_owned(), value)]);
        one("skip_special_tokens", true.into()).unwrap();
        one("include_reasoning", Value::Null).unwrap();
        let error = one("return_hidden_states", true.into()).unwrap_err();
        assert_eq!((error.status().as_u16(), error.reason()), (422, "not_supported"));
        assert_eq!(one("no_stop_trim", 1.into()).unwrap_err().status(), 400);
        let mut others =
            vec![("prompt".to_owned(), Value::Null), ("stream_reasoning".to_owned(), true.into())];
        take(&mut others).unwrap();
        assert_eq!(others.len(), 1, "other fields stay");
    }
}

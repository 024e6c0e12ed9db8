//! Fields of vLLM, SGLang, transformers and OpenAI's older API that this host lacks. Routers add them to the requests
//! they forward and clients send them at their defaults, so they are accepted with the values that have no effect.

use serde_json::{Value, json};

use super::fields::not_supported;
use crate::http::ApiError;

/// The value with which a field has no effect. Null is another one for each.
#[derive(Clone, Copy)]
enum Only {
    Null,
    True,
    False,
    One,
    EmptyList,
    NoCall,
}

/// Fields of completions and chats, each with its only accepted value.
const SHARED: &[(&str, Only)] = &[
    ("allowed_token_ids", Only::Null),
    ("bad_words", Only::EmptyList),
    ("continue_final_message", Only::False),
    ("custom_logit_processor", Only::Null),
    ("early_stopping", Only::False),
    ("ebnf", Only::Null),
    ("guided_choice", Only::Null),
    ("guided_decoding_backend", Only::Null),
    ("guided_grammar", Only::Null),
    ("guided_json", Only::Null),
    ("guided_json_object", Only::Null),
    ("guided_regex", Only::Null),
    ("guided_whitespace_pattern", Only::Null),
    ("include_reasoning", Only::True),
    ("include_stop_str_in_output", Only::False),
    ("json_schema", Only::Null),
    ("kv_transfer_params", Only::Null),
    ("length_penalty", Only::One),
    ("logits_processors", Only::Null),
    ("lora_path", Only::Null),
    ("no_stop_trim", Only::False),
    ("num_beams", Only::One),
    ("prompt_logprobs", Only::Null),
    ("regex", Only::Null),
    ("return_hidden_states", Only::False),
    ("return_tokens_as_token_ids", Only::False),
    ("separate_reasoning", Only::True),
    ("session_params", Only::Null),
    ("skip_special_tokens", Only::True),
    ("spaces_between_special_tokens", Only::True),
    ("stop_regex", Only::Null),
    ("stream_reasoning", Only::True),
    ("structural_tag", Only::Null),
    ("truncate_prompt_tokens", Only::Null),
    ("use_beam_search", Only::False),
    ("vllm_xargs", Only::Null),
];

/// Fields that only chats lack, and fields that only chats have elsewhere.
const OF_CHATS: &[(&str, Only)] = &[
    ("add_special_tokens", Only::False),
    ("best_of", Only::One),
    ("chat_template", Only::Null),
    ("documents", Only::Null),
    ("echo", Only::False),
    ("function_call", Only::NoCall),
    ("functions", Only::EmptyList),
    ("mm_processor_kwargs", Only::Null),
];

/// JSON schemas of those of completions and chats.
pub fn schemas() -> impl Iterator<Item = (&'static str, Value)> {
    SHARED.iter().map(|&(name, only)| (name, schema(only)))
}

/// JSON schemas of those of chats alone.
pub fn schemas_of_chats() -> impl Iterator<Item = (&'static str, Value)> {
    OF_CHATS.iter().map(|&(name, only)| (name, schema(only)))
}

fn schema(only: Only) -> Value {
    let mut schema = match only {
        Only::Null => json!({"type": "null"}),
        Only::True => json!({"enum": [true, null]}),
        Only::False => json!({"enum": [false, null]}),
        Only::One => json!({"enum": [1, null]}),
        Only::EmptyList => json!({"type": ["array", "null"], "maxItems": 0}),
        Only::NoCall => json!({"enum": ["none", "auto", null]}),
    };
    schema["description"] = json!("A field of other servers, accepted where it has no effect.");
    schema
}

/// Removes those of completions and chats from a request's fields. They are not part of the documented API.
///
/// # Errors
/// 422 for a value that would have an effect, 400 for one of another type.
pub fn take(fields: &mut Vec<(String, Value)>) -> Result<(), ApiError> {
    remove(fields, SHARED)
}

/// Removes those of chats alone.
///
/// # Errors
/// As those of [`take`].
pub fn take_of_chats(fields: &mut Vec<(String, Value)>) -> Result<(), ApiError> {
    remove(fields, OF_CHATS)
}

fn remove(fields: &mut Vec<(String, Value)>, known: &[(&str, Only)]) -> Result<(), ApiError> {
    for &(name, only) in known {
        let Some(at) = fields.iter().position(|(key, _)| key == name) else { continue };
        check(name, &fields.swap_remove(at).1, only)?;
    }
    Ok(())
}

fn check(name: &str, value: &Value, only: Only) -> Result<(), ApiError> {
    let (fits, accepted) = match (only, value) {
        (_, Value::Null) => return Ok(()),
        (Only::Null, _) => (false, "null"),
        (Only::True, Value::Bool(on)) => (*on, "true"),
        (Only::False, Value::Bool(on)) => (!on, "false"),
        (Only::One, Value::Number(number)) => (number.as_f64() == Some(1.0), "1"),
        (Only::EmptyList, Value::Array(list)) => (list.is_empty(), "[]"),
        (Only::NoCall, Value::String(word)) => (["none", "auto"].contains(&word.as_str()), "none or auto"),
        (Only::NoCall, Value::Object(_)) => (false, "none or auto"),
        (Only::True | Only::False, _) => return Err(ApiError::wrong_type(name, "true or false")),
        (Only::One, _) => return Err(ApiError::wrong_type(name, "a number")),
        (Only::EmptyList, _) => return Err(ApiError::wrong_type(name, "a list")),
        (Only::NoCall, _) => return Err(ApiError::wrong_type(name, "a word or an object")),
    };
    if fits { Ok(()) } else { Err(not_supported(name, value, accepted)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: Value) -> Result<(), ApiError> {
        let mut fields = vec![(name.to_owned(), value)];
        take(&mut fields)?;
        take_of_chats(&mut fields)?;
        assert!(fields.is_empty(), "{name}");
        Ok(())
    }

    #[test]
    fn values_without_effect_are_accepted_and_others_rejected() {
        for (name, value, other, wrong_type) in [
            ("skip_special_tokens", json!(true), json!(false), json!("yes")),
            ("return_hidden_states", json!(false), json!(true), json!(1)),
            ("length_penalty", json!(1.0), json!(0.5), json!("1")),
            ("length_penalty", json!(1), json!(2), json!([])),
            ("bad_words", json!([]), json!(["a"]), json!("a")),
            ("num_beams", json!(1), json!(4), json!("1")),
            ("functions", json!([]), json!([{"name": "f"}]), json!({})),
            ("function_call", json!("none"), json!({"name": "f"}), json!(true)),
            ("function_call", json!("auto"), json!("f"), json!([])),
        ] {
            one(name, value.clone()).unwrap_or_else(|e| panic!("{name}: {}", e.message()));
            one(name, Value::Null).unwrap_or_else(|e| panic!("{name}: {}", e.message()));
            let error = one(name, other).unwrap_err();
            assert_eq!((error.status().as_u16(), error.reason()), (422, "not_supported"), "{name}");
            assert!(error.message().starts_with(name), "{}", error.message());
            assert_eq!(one(name, wrong_type).unwrap_err().status(), 400, "{name}");
        }
        one("guided_json", Value::Null).unwrap();
        for other in [json!({}), json!(false), json!(0)] {
            let error = one("guided_json", other).unwrap_err();
            assert_eq!((error.status().as_u16(), error.reason()), (422, "not_supported"));
            assert!(error.message().ends_with("use `json` in `structured_outputs`"), "{}", error.message());
        }
    }

    #[test]
    fn other_fields_stay() {
        let mut fields = vec![
            ("prompt".to_owned(), Value::Null),
            ("stream_reasoning".to_owned(), true.into()),
            ("documents".to_owned(), Value::Null),
        ];
        take(&mut fields).unwrap();
        let left: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(left, ["prompt", "documents"]);
        take_of_chats(&mut fields).unwrap();
        assert_eq!(fields.len(), 1);
    }
}

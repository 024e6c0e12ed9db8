//! `GET /v1/models`, `/version`, `POST /tokenize`, `/detokenize`.

use hyper::StatusCode;
use infer_api::completions::{DetokenizeAnswer, ModelCard, ModelList, TokenizeAnswer};
use serde_json::{Map, Value};

use crate::app::App;
use crate::http::{Answer, ApiError, json};

/// The served model.
pub fn list(app: &App) -> Result<Answer, ApiError> {
    let served = app.served()?;
    let card = ModelCard {
        id: served.model_names[0].clone(),
        object: "model".to_owned(),
        created: app.clock.started_unix_s(),
        owned_by: "infer".to_owned(),
        max_model_len: served.max_seq_len,
    };
    Ok(json(StatusCode::OK, &ModelList { object: "list".to_owned(), data: vec![card] }))
}

/// Name and version of the host, and how the model's weights are held once it is loaded.
pub fn version(app: &App) -> Answer {
    let mut version = serde_json::json!({"name": "infer", "version": env!("CARGO_PKG_VERSION")});
    if let Ok(served) = app.served() {
        version["dtype"] = served.weights.as_str().into();
    }
    json(StatusCode::OK, &version)
}

/// Text to tokens.
pub async fn tokenize(app: &App, body: &[u8]) -> Result<Answer, ApiError> {
    let served = app.served()?;
    let mut fields = object(body)?;
    check_model(&mut fields, &served.model_names)?;
    let prompt = match fields.remove("prompt") {
        Some(Value::String(text)) => text,
        None | Some(Value::Null) => {
            return Err(ApiError::bad_request("missing_field", "prompt: missing; give text").param("prompt"));
        }
        Some(_) => return Err(ApiError::wrong_type("prompt", "text")),
    };
    let special = match fields.remove("add_special_tokens") {
        None | Some(Value::Null) => true,
        Some(Value::Bool(b)) => b,
        Some(_) => return Err(ApiError::wrong_type("add_special_tokens", "true or false")),
    };
    refuse_unknown(&fields)?;
    let tokens = if prompt.is_empty() { Vec::new() } else { served.encode(prompt, special).await? };
    Ok(json(
        StatusCode::OK,
        &TokenizeAnswer { count: tokens.len(), max_model_len: served.max_seq_len, tokens },
    ))
}

/// Tokens to text.
pub fn detokenize(app: &App, body: &[u8]) -> Result<Answer, ApiError> {
    let served = app.served()?;
    let mut fields = object(body)?;
    check_model(&mut fields, &served.model_names)?;
    let wrong = || ApiError::wrong_type("tokens", "a list of token ids");
    let list = match fields.remove("tokens") {
        Some(Value::Array(list)) => list,
        None | Some(Value::Null) => {
            return Err(ApiError::bad_request("missing_field", "tokens: missing; give a list of token ids")
                .param("tokens"));
        }
        Some(_) => return Err(wrong()),
    };
    refuse_unknown(&fields)?;
    let mut tokens = Vec::with_capacity(list.len());
    for value in list {
        let id = value.as_u64().or_else(|| value.as_i64().map(|_| u64::MAX)).ok_or_else(wrong)?;
        let known = u32::try_from(id).ok().filter(|&id| id < served.vocab_size);
        tokens.push(known.ok_or_else(|| {
            let message =
                format!("{value} is no token of this model; ids go from 0 to {}", served.vocab_size - 1);
            ApiError::invalid("tokens", message)
        })?);
    }
    let prompt = served.tokenizer.decode(&tokens, false).map_err(|e| ApiError::invalid("tokens", e))?;
    Ok(json(StatusCode::OK, &DetokenizeAnswer { prompt }))
}

fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    serde_json::from_slice(body)
        .map_err(|e| ApiError::bad_request("invalid_json", format!("the body is not a valid request: {e}")))
}

fn check_model(fields: &mut Map<String, Value>, names: &[String]) -> Result<(), ApiError> {
    match fields.remove("model") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::String(model)) if names.contains(&model) => Ok(()),
        Some(Value::String(_)) => {
            Err(ApiError::invalid("model", format!("this host serves `{}`", names[0]))
                .code("model_not_found"))
        }
        Some(_) => Err(ApiError::wrong_type("model", "a string")),
    }
}

fn refuse_unknown(fields: &Map<String, Value>) -> Result<(), ApiError> {
    match fields.keys().next() {
        None => Ok(()),
        Some(name) => {
            let shown: String = name.chars().take(64).collect();
            let message = format!("unknown field `{shown}`");
            Err(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown_field", message).param(&shown))
        }
    }
}

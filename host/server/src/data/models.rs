//! `GET /v1/models`, `/version`, `POST /tokenize`, `/detokenize`.

use hyper::StatusCode;
use infer_api::models::{ModelCard, ModelList};
use infer_api::tokenize::{DetokenizeAnswer, TokenizeAnswer};
use infer_model::{SamplingDefaults, Tokenizer};
use serde_json::Value;

use super::chat::ending::Ending;
use super::chat::{self, ChatPrompt, messages};
use super::request::fields::{self, boolean, object, refuse_rest};
use super::request::json::{Fields, PromptField};
use super::request::model_names::{Models, Named};
use super::response::logprobs;
use super::sequence::job::Asked;
use crate::app::{App, Served};
use crate::http::{Answer, ApiError, ReadBody, json, path_text};
use crate::texts::{FieldText, Purpose, tokenizer_error};

/// Lists the served model under each of its names, and its adapters, as far as the tenant may use them.
pub fn list(asked: Asked<'_>) -> Result<Answer, ApiError> {
    let served = asked.app.served()?;
    let adapters = served.adapters.current();
    let models = served.models(asked.tenant, &adapters);
    let data = models.named().map(|model| card(asked, served, model)).collect();
    Ok(json(StatusCode::OK, &ModelList { object: "list".to_owned(), data }))
}

/// Returns the served model, or an adapter, by one of its names. Slashes in names may be written plainly or as `%2F`;
/// those before and after a name don't matter.
pub fn one(asked: Asked<'_>, name: &str) -> Result<Answer, ApiError> {
    let served = asked.app.served()?;
    let decoded = path_text(name);
    let adapters = served.adapters.current();
    let models = served.models(asked.tenant, &adapters);
    let alike = |name: &str| name.trim_matches('/') == decoded.trim_matches('/');
    let found = models.find(&decoded).or_else(|| models.named().find(|model| alike(model.name())));
    let Some(model) = found else {
        return Err(ApiError::not_found(fields::not_served(&decoded, models))
            .param("model")
            .code("model_not_found"));
    };
    Ok(json(StatusCode::OK, &card(asked, served, model)))
}

/// The card of a name.
fn card(asked: Asked<'_>, served: &Served, model: Named<'_>) -> ModelCard {
    let adapter = match model {
        Named::Own(_) => None,
        Named::Adapter(adapter) => Some(adapter),
    };
    ModelCard {
        id: model.name().to_owned(),
        object: "model".to_owned(),
        created: asked.app.clock.started_unix_s(),
        owned_by: "infer".to_owned(),
        root: adapter.map_or(&served.checkpoint, |adapter| &adapter.names.root).clone(),
        parent: adapter.and_then(|_| served.own_name(asked.tenant)).map(str::to_owned),
        max_model_len: served.max_seq_len,
        embedding_dimensions: served.embeds.as_ref().ok().map(|embeds| embeds.dimensions),
    }
}

/// Name and version of the host and, once the model is loaded, the type of its weights and its default
/// sampling parameters.
pub fn version(app: &App) -> Answer {
    let mut version = serde_json::json!({"name": "infer", "version": env!("CARGO_PKG_VERSION")});
    if let Ok(served) = app.served() {
        version["dtype"] = served.weights.as_str().into();
        let SamplingDefaults { temperature, top_p, top_k, min_p, repetition_penalty } = served.sampling;
        version["sampling"] = serde_json::json!({
            "temperature": temperature.unwrap_or(1.0),
            "top_p": top_p.unwrap_or(1.0),
            "top_k": top_k.unwrap_or(0),
            "min_p": min_p.unwrap_or(0.0),
            "repetition_penalty": repetition_penalty.unwrap_or(1.0),
        });
    }
    json(StatusCode::OK, &version)
}

/// Fields of `/tokenize`.
pub const TOKENIZE_FIELDS: &[&str] = &[
    "model",
    "prompt",
    "messages",
    "tools",
    "add_special_tokens",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "return_token_strs",
];
/// Fields of `/detokenize`.
pub const DETOKENIZE_FIELDS: &[&str] = &["model", "tokens"];

/// Tokenizes text, or the prompt that the chat template makes of a conversation.
pub async fn tokenize(asked: Asked<'_>, body: ReadBody) -> Result<Answer, ApiError> {
    let served = asked.app.served()?;
    let purpose = Purpose::Count(asked.path);
    let mut fields = fields::read(&body)?;
    let room = body.into_room();
    check_model(&mut fields, served.models(asked.tenant, &served.adapters.current()))?;
    let special = boolean(&mut fields, "add_special_tokens")?.unwrap_or(true);
    let strings = boolean(&mut fields, "return_token_strs")?.unwrap_or(false);
    let messages = fields::list(&mut fields, "messages", "messages")?;
    let tools = chat::take_tools(&mut fields)?;
    let ending = Ending::take(&mut fields)?;
    let mut variables = object(&mut fields, "chat_template_kwargs")?.unwrap_or_default();
    let prompt = fields.prompt.take().filter(|prompt| *prompt != PromptField::Null);
    refuse_rest(&fields, TOKENIZE_FIELDS)?;
    let tokens = match (prompt, messages) {
        (Some(PromptField::Text(text)), None) if text.is_empty() => Vec::new(),
        (Some(PromptField::Text(text)), None) => {
            let text = FieldText { field: "prompt", text, special, purpose };
            served.encode(text, room).await?
        }
        (Some(_), None) => return Err(ApiError::wrong_type("prompt", "text")),
        (None, Some(messages)) => {
            let reads = served.chat_template().await?.reads();
            let messages = messages::normalize(Some(messages), reads)?;
            variables.extend(tools.map(|tools| ("tools".to_owned(), Value::Array(tools))));
            let prompt = ChatPrompt { messages, ending, variables };
            chat::render(served, prompt, purpose, room).await?.tokens
        }
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid("messages", "give either `messages` or `prompt`, not both"));
        }
        (None, None) => {
            let message = "prompt: missing; give text, or `messages`";
            return Err(ApiError::bad_request("missing_field", message).param("prompt"));
        }
    };
    let work = if strings { 4 * tokens.len() } else { 0 };
    let spell = move |tokenizer: &Tokenizer| {
        let token_strs = strings.then(|| tokens.iter().map(|&t| logprobs::spell(tokenizer, t)).collect());
        (tokens, token_strs)
    };
    let (tokens, token_strs) = served.with_tokenizer(work, spell).await?;
    let (count, max_model_len) = (tokens.len(), served.max_seq_len);
    Ok(json(StatusCode::OK, &TokenizeAnswer { count, max_model_len, tokens, token_strs }))
}

/// Decodes tokens to text.
pub async fn detokenize(asked: Asked<'_>, body: ReadBody) -> Result<Answer, ApiError> {
    let served = asked.app.served()?;
    let mut fields = fields::read(&body)?;
    let room = body.into_room();
    check_model(&mut fields, served.models(asked.tenant, &served.adapters.current()))?;
    let Some(list) = fields::list(&mut fields, "tokens", "token ids")? else {
        let message = "tokens: missing; give a list of token ids";
        return Err(ApiError::bad_request("missing_field", message).param("tokens"));
    };
    if fields.prompt.is_some() {
        return Err(fields::unknown_field("prompt", DETOKENIZE_FIELDS));
    }
    refuse_rest(&fields, DETOKENIZE_FIELDS)?;
    let token = |value: &Value| {
        let known = fields::token_id("tokens", value)?;
        (known < served.vocab_size).then_some(known).ok_or_else(|| {
            let last = served.vocab_size - 1;
            let message = format!("{value} is not a token of this model; ids range from 0 to {last}");
            ApiError::invalid("tokens", message)
        })
    };
    let tokens: Vec<u32> = list.iter().map(token).collect::<Result<_, _>>()?;
    let bytes = 4 * list.len();
    drop(list);
    let decode = move |tokenizer: &Tokenizer| {
        let _room = room;
        tokenizer.decode(&tokens, false)
    };
    let prompt = served.with_tokenizer(bytes, decode).await?;
    let prompt = prompt.map_err(|e| tokenizer_error("tokens", e))?;
    Ok(json(StatusCode::OK, &DetokenizeAnswer { prompt }))
}

/// Checks that the model is served, if the body names one.
fn check_model(fields: &mut Fields, models: Models<'_>) -> Result<(), ApiError> {
    match fields::string(fields, "model")? {
        Some(model) if models.find(&model).is_none() => Err(fields::wrong_model(&model, models)),
        _ => Ok(()),
    }
}

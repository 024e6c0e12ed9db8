//! The fields of a chat request.

use infer_chat::{ChatTemplate, Tools};
use serde_json::{Map, Value};

use super::messages;
use super::prompt::ChatPrompt;
use super::tools::Offer;
use crate::data::request::common::{self, Common, MAX_LOGPROBS};
use crate::data::request::fields::{
    self, boolean, check_model, integer, label, list, not_supported, object, refuse_rest, string,
};
use crate::data::request::json::Fields;
use crate::http::ApiError;

/// Fields that completions lack or define differently.
const OWN_FIELDS: &[&str] = &[
    "messages",
    "max_completion_tokens",
    "max_tokens",
    "logprobs",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "add_generation_prompt",
    "chat_template_kwargs",
    "modalities",
    "store",
    "service_tier",
    "prompt_cache_key",
    "safety_identifier",
];

/// Fields of other hosts. Null is accepted; any other value is an error that says so.
const UNSUPPORTED: &[&str] = &[
    "audio",
    "function_call",
    "functions",
    "prediction",
    "prompt_cache_retention",
    "reasoning_effort",
    "verbosity",
    "web_search_options",
];

/// All fields of a body but the unsupported ones.
pub fn known_fields() -> Vec<&'static str> {
    [OWN_FIELDS, common::FIELDS].concat()
}

/// A request whose fields have been checked, but not yet against the model and the host.
#[derive(Debug)]
pub struct Parsed {
    pub prompt: ChatPrompt,
    pub offer: Offer,
    pub max_tokens: Option<u32>,
    pub logprobs: Option<u32>,
    pub common: Common,
}

/// Parses and checks a body.
pub fn parse(body: &[u8], models: &[String], template: &ChatTemplate) -> Result<Parsed, ApiError> {
    let mut fields = fields::read(body)?;
    if fields.prompt.is_some() {
        let error = ApiError::invalid("prompt", "unknown field; chats use `messages`");
        return Err(error.code("unknown_field"));
    }
    let messages = messages::normalize(list(&mut fields, "messages", "messages")?, template.reads())?;
    let max_tokens = match integer(&mut fields, "max_completion_tokens", 1, u32::MAX)? {
        Some(most) => {
            fields.take("max_tokens");
            Some(most)
        }
        None => integer(&mut fields, "max_tokens", 1, u32::MAX)?,
    };
    let logprobs = logprobs(&mut fields)?;
    let offer = Offer::take(&mut fields)?;
    let mut variables: Map<String, Value> = object(&mut fields, "chat_template_kwargs")?.unwrap_or_default();
    if offer.is_shown() {
        check_template(template.tools())?;
        variables.insert("tools".to_owned(), Value::Array(offer.tools.clone()));
    }
    let add_generation_prompt = boolean(&mut fields, "add_generation_prompt")?.unwrap_or(true);
    let model = check_model(&mut fields, models);
    let common = Common::take(&mut fields)?;
    if offer.is_forced() && common.shape.is_some() {
        let message = "a forced call can't be combined with another output format";
        return Err(ApiError::invalid("tool_choice", message));
    }
    if offer.is_forced() && common.ignore_eos {
        return Err(ApiError::invalid(
            "ignore_eos",
            "a forced call needs the model's end token, so it can't be ignored",
        ));
    }
    only_defaults(&mut fields)?;
    refuse_rest(&fields, &[&known_fields(), UNSUPPORTED].concat())?;
    model?;
    let prompt = ChatPrompt { messages, add_generation_prompt, variables };
    Ok(Parsed { prompt, offer, max_tokens, logprobs, common })
}

fn check_template(tools: Tools) -> Result<(), ApiError> {
    let why = match tools {
        Tools::Hermes | Tools::Llama3 => return Ok(()),
        Tools::None => "the model's chat template has no tools",
        Tools::Other => "this host does not know the syntax of this model's calls",
    };
    Err(ApiError::invalid("tools", why).code("not_supported"))
}

fn logprobs(fields: &mut Fields) -> Result<Option<u32>, ApiError> {
    let asked = boolean(fields, "logprobs")?.unwrap_or(false);
    let top = integer(fields, "top_logprobs", 0, MAX_LOGPROBS)?;
    match (asked, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(ApiError::invalid("top_logprobs", "only allowed with `logprobs: true`")),
    }
}

/// Accepts the fields that have no effect on this host with the values that request none.
fn only_defaults(fields: &mut Fields) -> Result<(), ApiError> {
    if let Some(modalities) = list(fields, "modalities", "modalities")?
        && modalities != [Value::from("text")]
    {
        return Err(not_supported("modalities", &Value::Array(modalities), "[\"text\"]"));
    }
    if boolean(fields, "store")? == Some(true) {
        return Err(not_supported("store", &Value::Bool(true), "false"));
    }
    if let Some(tier) = string(fields, "service_tier")?.filter(|tier| tier != "auto" && tier != "default") {
        return Err(not_supported("service_tier", &Value::String(tier), "auto"));
    }
    label(fields, "prompt_cache_key")?;
    label(fields, "safety_identifier")?;
    for name in UNSUPPORTED {
        if let Some(value) = fields.take(name) {
            return Err(not_supported(name, &value, "null"));
        }
    }
    Ok(())
}

//! The fields of a chat request.

use infer_chat::{ChatTemplate, Reads, Tools};
use serde_json::{Map, Value};

use super::ending::Ending;
use super::messages;
use super::prompt::ChatPrompt;
use super::tools::Offer;
use crate::data::request::common::{self, Common, MAX_LOGPROBS};
use crate::data::request::fields::{
    self, boolean, check_model, check_word, integer, label, list, not_supported, object, refuse_rest, string,
};
use crate::data::request::json::Fields;
use crate::data::request::model_names::Models;
use crate::data::request::router_fields;
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
    "continue_final_message",
    "chat_template_kwargs",
    "reasoning_effort",
    "separate_reasoning",
    "verbosity",
    "modalities",
    "store",
    "service_tier",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
];

/// Fields of OpenAI's API that would change the response if they were honoured. Null is accepted; any other
/// value is an error that says so.
pub const UNSUPPORTED: &[&str] = &["audio", "moderation", "web_search_options"];

const EFFORT: &str = "reasoning_effort";
/// Instructions to the model that are passed to the template, and their values.
const HINTS: [(&str, &[&str]); 2] = [
    (EFFORT, &["none", "minimal", "low", "medium", "high", "xhigh", "max"]),
    ("verbosity", &["low", "medium", "high"]),
];
const SERVICE_TIERS: &[&str] = &["auto", "default", "flex", "scale", "priority", "fast"];

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
    pub separate_reasoning: bool,
    pub common: Common,
}

/// Parses and checks a body.
pub fn parse(body: &[u8], models: Models<'_>, template: &ChatTemplate) -> Result<Parsed, ApiError> {
    take(fields::read(body)?, models, template)
}

/// Checks a body's fields, or those that a request in another form amounts to.
pub fn take(mut fields: Fields, models: Models<'_>, template: &ChatTemplate) -> Result<Parsed, ApiError> {
    if fields.prompt.is_some() {
        let error = ApiError::invalid("prompt", "unknown field; chats use `messages`");
        return Err(error.code("unknown_field"));
    }
    let messages = messages::normalize(list(&mut fields, "messages", "messages")?, template.reads())?;
    let max_tokens = fields::token_limit(&mut fields, &["max_completion_tokens", "max_tokens"], 1)?;
    let logprobs = logprobs(&mut fields)?;
    let offer = Offer::take(&mut fields)?;
    let mut variables: Map<String, Value> = object(&mut fields, "chat_template_kwargs")?.unwrap_or_default();
    hints(&mut fields, template.reads(), &mut variables)?;
    show(&offer, template.tools(), &mut variables)?;
    let ending = Ending::take(&mut fields)?;
    let separate_reasoning = boolean(&mut fields, "separate_reasoning")?.unwrap_or(true);
    let model = check_model(&mut fields, models);
    let mut common = Common::take(&mut fields)?;
    check_end(&offer, &common)?;
    without_effect(&mut fields)?;
    refuse_rest(&fields, &[&known_fields(), UNSUPPORTED].concat())?;
    common.adapter = model?;
    let prompt = ChatPrompt { messages, ending, variables };
    Ok(Parsed { prompt, offer, max_tokens, logprobs, separate_reasoning, common })
}

/// Gives a template the functions that the prompt mentions, if any.
///
/// # Errors
/// The template has no tools, or this host can't read the calls.
pub fn show(offer: &Offer, tools: Tools, variables: &mut Map<String, Value>) -> Result<(), ApiError> {
    if offer.is_shown() {
        check_template(tools)?;
        variables.insert("tools".to_owned(), Value::Array(offer.tools.clone()));
    }
    Ok(())
}

/// Refuses a forced call that may not end.
pub fn check_end(offer: &Offer, common: &Common) -> Result<(), ApiError> {
    if offer.is_forced() && common.ignore_eos {
        let message = "a forced call needs the model's end token, so it can't be ignored";
        return Err(ApiError::invalid("ignore_eos", message));
    }
    Ok(())
}

fn check_template(tools: Tools) -> Result<(), ApiError> {
    let why = match tools {
        Tools::Hermes | Tools::Llama3 | Tools::Harmony => return Ok(()),
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

/// Sets template variables of the same names. `chat_template_kwargs` wins over them.
fn hints(fields: &mut Fields, reads: Reads, variables: &mut Map<String, Value>) -> Result<(), ApiError> {
    for (name, known) in HINTS {
        let Some(word) = word(fields, name, known)? else { continue };
        if word == "none" {
            // The switch in the templates of models that either reason or don't, such as Qwen3.
            variables.entry("enable_thinking").or_insert(Value::Bool(false));
        }
        let word = if name == EFFORT { effort(word, reads) } else { word };
        variables.entry(name).or_insert(Value::String(word));
    }
    Ok(())
}

/// An effort in the words of a template. Models whose messages have channels know three; others become the nearest.
pub fn effort(word: String, reads: Reads) -> String {
    match word.as_str() {
        "none" | "minimal" if reads.harmony => "low".to_owned(),
        "xhigh" | "max" if reads.harmony => "high".to_owned(),
        _ => word,
    }
}

/// Checks the fields that don't affect the response: what they ask for concerns OpenAI's storage, billing
/// and caches, or is the default of something that this host lacks.
fn without_effect(fields: &mut Fields) -> Result<(), ApiError> {
    router_fields::take_of_chats(&mut fields.rest)?;
    if let Some(modalities) = list(fields, "modalities", "modalities")?
        && modalities != [Value::from("text")]
    {
        return Err(not_supported("modalities", &Value::Array(modalities), "[\"text\"]"));
    }
    boolean(fields, "store")?;
    word(fields, "service_tier", SERVICE_TIERS)?;
    object(fields, "prediction")?;
    object(fields, "prompt_cache_options")?;
    label(fields, "prompt_cache_key")?;
    label(fields, "prompt_cache_retention")?;
    label(fields, "safety_identifier")?;
    for name in UNSUPPORTED {
        if let Some(value) = fields.take(name) {
            return Err(not_supported(name, &value, "null"));
        }
    }
    Ok(())
}

/// Takes a field whose value is one of a few words.
fn word(fields: &mut Fields, name: &str, known: &[&str]) -> Result<Option<String>, ApiError> {
    let word = string(fields, name)?;
    if let Some(word) = &word {
        check_word(name, "", word, known)?;
    }
    Ok(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hints_become_template_variables_that_kwargs_override() {
        let cases = [
            (json!({"verbosity": null}), json!({}), json!({})),
            (
                json!({"reasoning_effort": "high", "verbosity": "low"}),
                json!({"x": 1}),
                json!({"reasoning_effort": "high", "verbosity": "low", "x": 1}),
            ),
            (
                json!({"reasoning_effort": "none"}),
                json!({}),
                json!({"reasoning_effort": "none", "enable_thinking": false}),
            ),
            (
                json!({"reasoning_effort": "none"}),
                json!({"reasoning_effort": "own", "enable_thinking": true}),
                json!({"reasoning_effort": "own", "enable_thinking": true}),
            ),
        ];
        for (body, kwargs, expected) in cases {
            let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
            let mut variables = kwargs.as_object().unwrap().clone();
            hints(&mut fields, Reads::default(), &mut variables).unwrap();
            assert_eq!(Value::Object(variables), expected, "{body}");
        }
        let channels = Reads { harmony: true, ..Reads::default() };
        for (effort, known) in [("none", "low"), ("low", "low"), ("medium", "medium"), ("max", "high")] {
            let body = json!({"reasoning_effort": effort, "verbosity": "low"});
            let (mut fields, mut variables) =
                (Fields::parse(body.to_string().as_bytes()).unwrap(), Map::new());
            hints(&mut fields, channels, &mut variables).unwrap();
            assert_eq!(
                (&variables["reasoning_effort"], &variables["verbosity"]),
                (&json!(known), &json!("low"))
            );
        }
        for (body, status) in [(json!({"verbosity": "loud"}), 422), (json!({"reasoning_effort": 1}), 400)] {
            let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
            let error = hints(&mut fields, Reads::default(), &mut Map::new()).unwrap_err();
            assert_eq!(error.status().as_u16(), status, "{body}: {}", error.message());
        }
    }
}

//! The fields of a response's request, turned into those of the chat that it amounts to.
//!
//! What both have is left to the chat's own reader, whose errors are given the names of the fields here. Everything
//! that would need storage is refused: each request is a conversation of its own, from its first word on.

use infer_api::responses::{ReasoningConfig, Response, TextConfig};
use infer_chat::{ChatTemplate, Reads};
use serde_json::{Map, Value, json};

use super::input;
use super::tools::{self, Spaces};
use crate::data::chat::request::{self as chat, Parsed};
use crate::data::request::common::{self, MAX_LOGPROBS};
use crate::data::request::fields::{
    self, boolean, integer, list, not_supported, object, string, unknown_field,
};
use crate::data::request::json::{Fields, PromptField};
use crate::data::request::model_names::Models;
use crate::data::request::router_fields;
use crate::http::ApiError;

/// Fields that chats lack or have in another form.
const OWN_FIELDS: &[&str] = &[
    "input",
    "instructions",
    "max_output_tokens",
    "include",
    "top_logprobs",
    "tools",
    "tool_choice",
    "max_tool_calls",
    "text",
    "reasoning",
    "truncation",
    "background",
    "client_metadata",
];
/// Fields that are the same in chats, besides those that all requests share.
const FIELDS_OF_CHATS: &[&str] = &[
    "parallel_tool_calls",
    "chat_template_kwargs",
    "store",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
];
/// Shared fields that are missing here.
const MISSING: &[&str] = &["n", "return_token_ids", "response_format"];

/// Fields that only mean something where responses are stored or text is judged, each with what to do instead. Null
/// is accepted.
pub const UNSUPPORTED: &[(&str, &str)] = &[
    ("previous_response_id", "nothing is stored here; send the whole conversation as `input`"),
    ("conversation", "nothing is stored here; send the whole conversation as `input`"),
    ("prompt", "no prompt templates are stored here; send `instructions` and `input`"),
    ("context_management", "this host does not shorten conversations; the client has to"),
    ("moderation", "this host does not judge texts"),
];

/// Fields of chats and other servers, and what takes their place here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("messages", "the conversation is `input` here"),
    ("max_tokens", "use `max_output_tokens`"),
    ("max_completion_tokens", "use `max_output_tokens`"),
    ("max_new_tokens", "use `max_output_tokens`"),
    ("response_format", "use `format` in `text`"),
    ("reasoning_effort", "use `effort` in `reasoning`"),
    ("verbosity", "use `verbosity` in `text`"),
    ("logprobs", "use `message.output_text.logprobs` in `include`"),
    ("n", "there is one response to a request"),
];

/// Fields of chats, and their names here.
const NAMES: &[(&str, &str)] = &[
    ("messages", "input"),
    ("max_completion_tokens", "max_output_tokens"),
    ("max_tokens", "max_output_tokens"),
    ("logprobs", "top_logprobs"),
    ("response_format", "text.format"),
    ("verbosity", "text.verbosity"),
    ("reasoning_effort", "reasoning.effort"),
];

const LOGPROBS: &str = "message.output_text.logprobs";
/// What `include` may ask for. All but the log-probabilities concern stored items, images, and tools that servers run.
const INCLUDABLE: &[&str] = &[
    LOGPROBS,
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
];
const SUMMARIES: &[&str] = &["auto", "concise", "detailed"];

/// All fields of a body but the unsupported ones.
pub fn known_fields() -> Vec<&'static str> {
    let shared = common::FIELDS.iter().filter(|name| !MISSING.contains(name));
    OWN_FIELDS.iter().chain(FIELDS_OF_CHATS).chain(shared).copied().collect()
}

/// A request whose fields have been checked, but not yet against the host.
pub struct Request {
    /// The chat that it amounts to.
    pub chat: Parsed,
    /// The response, as far as the request determines it.
    pub response: Response,
    /// The functions that are called by two names.
    pub spaces: Spaces,
}

/// Parses and checks a body.
pub fn parse(body: &[u8], models: Models<'_>, template: &ChatTemplate) -> Result<Request, ApiError> {
    let (fields, mut response, spaces) = translated(fields::read(body)?, template.reads())?;
    let chat = chat::take(fields, models, template).map_err(named)?;
    if chat.common.stream_options.is_some_and(|options| options.continuous_usage) {
        let message = "continuous_usage_stats is not supported; the usage comes with the last event";
        return Err(ApiError::invalid("stream_options", message).code("not_supported"));
    }
    response.parallel_tool_calls = chat.offer.parallel;
    if chat.offer.is_shown() {
        response.tools = chat.offer.tools.iter().map(tools::flat).collect();
    }
    response.max_output_tokens = chat.max_tokens;
    response.top_logprobs = chat.logprobs.unwrap_or(0);
    response.metadata.clone_from(&chat.common.metadata);
    response.user.clone_from(&chat.common.user);
    Ok(Request { chat, response, spaces })
}

/// Gives an error about the chat the names of the fields here.
pub fn named(error: ApiError) -> ApiError {
    NAMES.iter().fold(error, |error, (chats, own)| error.renamed(chats, own))
}

/// The fields of the chat, what the response repeats of the request, and the functions of namespaces.
fn translated(mut from: Fields, reads: Reads) -> Result<(Fields, Response, Spaces), ApiError> {
    refuse_unsupported(&mut from)?;
    router_fields::take(&mut from.rest)?;
    let mut response = Response {
        object: "response".to_owned(),
        status: "in_progress".to_owned(),
        service_tier: "default".to_owned(),
        truncation: "disabled".to_owned(),
        instructions: string(&mut from, "instructions")?,
        max_tool_calls: integer(&mut from, "max_tool_calls", 1, u32::MAX)?,
        prompt_cache_key: peeked(&from, "prompt_cache_key"),
        safety_identifier: peeked(&from, "safety_identifier"),
        ..Response::default()
    };
    object(&mut from, "client_metadata")?;
    let mut to = Fields::default();
    let messages = input::messages(from.take("input"), response.instructions.as_deref(), reads)?;
    set(&mut to, "messages", Some(messages.into()));
    set(&mut to, "max_completion_tokens", from.take("max_output_tokens"));
    let (tools, spaces) = tools::tools(&mut from)?;
    set(&mut to, "tools", tools);
    response.tool_choice = from.take("tool_choice").unwrap_or_else(|| Value::from("auto"));
    set(&mut to, "tool_choice", Some(tools::choice(&response.tool_choice)?));
    response.text = text(&mut from, &mut to)?;
    response.reasoning = reasoning(&mut from, &mut to)?;
    logprobs(&mut from, &mut to)?;
    let known = known_fields();
    if let Some((name, _)) = from.rest.iter().find(|(name, _)| !known.contains(&name.as_str())) {
        return Err(unknown(name, &known));
    }
    to.rest.append(&mut from.rest);
    Ok((to, response, spaces))
}

fn set(fields: &mut Fields, name: &str, value: Option<Value>) {
    fields.rest.extend(value.map(|value| (name.to_owned(), value)));
}

/// A field that is checked later, if it is text.
fn peeked(fields: &Fields, name: &str) -> Option<String> {
    let (_, value) = fields.rest.iter().find(|(key, _)| key == name)?;
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn unknown(name: &str, known: &[&str]) -> ApiError {
    match ELSEWHERE.iter().find(|(elsewhere, _)| *elsewhere == name) {
        Some((_, advice)) => {
            let message = format!("unknown field `{name}`; {advice}");
            ApiError::invalid(name, message).code("unknown_field")
        }
        None => unknown_field(name, known),
    }
}

fn refuse_unsupported(fields: &mut Fields) -> Result<(), ApiError> {
    for (name, why) in UNSUPPORTED {
        let given = match *name {
            // The parser keeps it apart.
            "prompt" => fields.prompt.take().is_some_and(|prompt| prompt != PromptField::Null),
            name => fields.take(name).is_some(),
        };
        if given {
            let message = format!("not supported: {why}");
            return Err(ApiError::invalid(name, message).code("not_supported"));
        }
    }
    if boolean(fields, "background")?.unwrap_or(false) {
        let message = "true is not supported: nothing is stored here, and no request outlives its connection";
        return Err(ApiError::invalid("background", message).code("not_supported"));
    }
    match string(fields, "truncation")? {
        Some(word) if word != "disabled" => Err(not_supported("truncation", &Value::from(word), "disabled")),
        _ => Ok(()),
    }
}

/// Takes `text`: the form is a chat's `response_format`.
fn text(from: &mut Fields, to: &mut Fields) -> Result<TextConfig, ApiError> {
    let mut text = object(from, "text")?.unwrap_or_default();
    let given = taken(&mut text, "format").unwrap_or_else(|| json!({"type": "text"}));
    let verbosity = taken(&mut text, "verbosity");
    refuse_others("text", &text, &["format", "verbosity"])?;
    let Value::Object(mut required) = given else {
        return Err(ApiError::wrong_type("text.format", "an object with a `type`"));
    };
    // Members of other forms have no effect, whatever they are, so the response doesn't repeat them.
    let mut format = json!({"type": required.get("type")});
    if format["type"] == "json_schema" {
        if required.contains_key("json_schema") {
            let message = "text.format: name and schema are beside the type here, not within `json_schema`";
            return Err(ApiError::bad_request("wrong_type", message).param("text.format"));
        }
        format = Value::Object(required.clone());
        required.remove("type");
        required = Map::from_iter([
            ("type".to_owned(), Value::from("json_schema")),
            ("json_schema".to_owned(), Value::Object(required)),
        ]);
    }
    set(to, "response_format", Some(Value::Object(required)));
    let shown = verbosity.as_ref().and_then(Value::as_str).map(str::to_owned);
    set(to, "verbosity", verbosity);
    Ok(TextConfig { format, verbosity: shown })
}

/// Takes `reasoning`. The reasoning itself is returned whatever the request says about summaries.
fn reasoning(from: &mut Fields, to: &mut Fields) -> Result<ReasoningConfig, ApiError> {
    const NAME: &str = "reasoning";
    let mut reasoning = object(from, NAME)?.unwrap_or_default();
    let effort = taken(&mut reasoning, "effort");
    let mut summary = |name: &str| match taken(&mut reasoning, name) {
        None => Ok(None),
        Some(Value::String(word)) if SUMMARIES.contains(&word.as_str()) => Ok(Some(word)),
        Some(value) => {
            let only = SUMMARIES.join(", ");
            Err(not_supported(&format!("{NAME}.{name}"), &value, &only))
        }
    };
    let (summary, generate_summary) = (summary("summary")?, summary("generate_summary")?);
    refuse_others(NAME, &reasoning, &["effort", "summary", "generate_summary"])?;
    let shown = effort.as_ref().and_then(Value::as_str).map(str::to_owned);
    set(to, "reasoning_effort", effort);
    Ok(ReasoningConfig { effort: shown, summary, generate_summary })
}

/// Takes a field of an object. Null counts as absent.
fn taken(object: &mut Map<String, Value>, name: &str) -> Option<Value> {
    object.remove(name).filter(|value| !value.is_null())
}

fn refuse_others(field: &str, left: &Map<String, Value>, known: &[&str]) -> Result<(), ApiError> {
    match left.iter().find(|(_, value)| !value.is_null()) {
        None => Ok(()),
        Some((name, _)) => {
            let message = format!("unknown field `{name:.64}`; known: {}", known.join(", "));
            Err(ApiError::invalid(field, message).code("unknown_field"))
        }
    }
}

fn logprobs(from: &mut Fields, to: &mut Fields) -> Result<(), ApiError> {
    const NAME: &str = "include";
    let mut asked = false;
    for value in list(from, NAME, "texts")?.unwrap_or_default() {
        match value.as_str() {
            Some(name) if INCLUDABLE.contains(&name) => asked |= name == LOGPROBS,
            Some(name) => {
                let message = format!("`{name:.64}` is not one of {}", INCLUDABLE.join(", "));
                return Err(ApiError::invalid(NAME, message));
            }
            None => return Err(ApiError::wrong_type(NAME, "a list of texts")),
        }
    }
    let top = integer(from, "top_logprobs", 0, MAX_LOGPROBS)?;
    if top.is_some_and(|top| top > 0) && !asked {
        let message = format!("only allowed with `{LOGPROBS}` in `{NAME}`");
        return Err(ApiError::invalid("top_logprobs", message));
    }
    set(to, "logprobs", Some(Value::from(asked)));
    set(to, "top_logprobs", top.map(Value::from));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translate(body: &Value) -> Result<(Map<String, Value>, Response), ApiError> {
        let fields = fields::read(body.to_string().as_bytes())?;
        let (fields, response, _) = translated(fields, Reads::default())?;
        Ok((fields.rest.into_iter().collect(), response))
    }

    #[test]
    fn fields_become_those_of_a_chat() {
        let schema = json!({"type": "object"});
        let body = json!({
            "model": "m", "input": "a", "instructions": "b", "max_output_tokens": 5, "seed": 1, "store": true,
            "text": {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": true},
                "verbosity": "low"},
            "reasoning": {"effort": "high", "summary": "auto"},
            "include": ["reasoning.encrypted_content", "message.output_text.logprobs"], "top_logprobs": 2,
            "truncation": "disabled", "background": false, "previous_response_id": null, "prompt": null,
            "client_metadata": {"a": "b"}, "max_tool_calls": 3, "prompt_cache_key": "k", "guided_json": null,
        });
        let (chat, response) = translate(&body).unwrap();
        let inner = json!({"name": "n", "schema": schema, "strict": true});
        let expected = json!({
            "model": "m", "seed": 1, "store": true, "prompt_cache_key": "k", "max_completion_tokens": 5,
            "messages": [{"role": "system", "content": "b"}, {"role": "user", "content": "a"}],
            "tool_choice": "auto", "verbosity": "low", "reasoning_effort": "high", "logprobs": true,
            "top_logprobs": 2, "response_format": {"type": "json_schema", "json_schema": inner},
        });
        assert_eq!(Value::Object(chat), expected);
        assert_eq!(response.text.format, body["text"]["format"]);
        assert_eq!(serde_json::to_value(&response.reasoning).unwrap(), body["reasoning"]);
        let repeated = (response.instructions.as_deref(), response.prompt_cache_key.as_deref());
        assert_eq!((repeated, response.max_tool_calls), ((Some("b"), Some("k")), Some(3)));
    }

    /// Generated clients fill them in, and a response of another type than documented would break these.
    #[test]
    fn members_that_mean_nothing_in_a_form_are_not_repeated() {
        for kind in ["text", "json_object"] {
            let format = json!({"type": kind, "name": "", "schema": {}, "strict": {}});
            let (_, response) = translate(&json!({"input": "a", "text": {"format": format}})).unwrap();
            assert_eq!(response.text.format, json!({"type": kind}));
        }
    }

    #[test]
    fn what_needs_storage_and_what_is_unknown_is_refused_with_advice() {
        for (fields, status, message) in [
            (
                json!({"previous_response_id": "resp_1"}),
                422,
                "previous_response_id: not supported: nothing is stored",
            ),
            (json!({"conversation": {"id": "c"}}), 422, "conversation: not supported: nothing is stored"),
            (json!({"prompt": {"id": "p"}}), 422, "prompt: not supported: no prompt templates are stored"),
            (json!({"prompt": "p"}), 422, "prompt: not supported"),
            (json!({"moderation": {"model": "m"}}), 422, "moderation: not supported"),
            (json!({"background": true}), 422, "background: true is not supported"),
            (json!({"background": 1}), 400, "background: expected true or false"),
            (json!({"truncation": "auto"}), 422, "truncation: \"auto\" is not supported; only disabled is"),
            (
                json!({"messages": []}),
                422,
                "messages: unknown field `messages`; the conversation is `input` here",
            ),
            (json!({"n": 1}), 422, "n: unknown field `n`; there is one response"),
            (
                json!({"response_format": null}),
                422,
                "response_format: unknown field `response_format`; use `format`",
            ),
            (
                json!({"max_tokens": 5}),
                422,
                "max_tokens: unknown field `max_tokens`; use `max_output_tokens`",
            ),
            (json!({"max_output_token": 5}), 422, "did you mean `max_output_tokens`?"),
            (json!({"instructions": []}), 400, "instructions: expected a string"),
            (json!({"text": {"style": 1}}), 422, "text: unknown field `style`; known: format, verbosity"),
            (json!({"text": {"format": "text"}}), 400, "text.format: expected an object with a `type`"),
            (
                json!({"text": {"format": {"type": "json_schema", "json_schema": {}}}}),
                400,
                "text.format: name and schema are beside the type here",
            ),
            (json!({"reasoning": {"efort": "low"}}), 422, "reasoning: unknown field `efort`; known: effort"),
            (json!({"reasoning": {"summary": "long"}}), 422, "reasoning.summary: \"long\" is not supported"),
            (json!({"include": ["all"]}), 422, "include: `all` is not one of message.output_text.logprobs"),
            (json!({"include": [1]}), 400, "include: expected a list of texts"),
            (
                json!({"top_logprobs": 1}),
                422,
                "top_logprobs: only allowed with `message.output_text.logprobs`",
            ),
            (json!({"client_metadata": "x"}), 400, "client_metadata: expected an object"),
            (json!({"max_tool_calls": 0}), 422, "max_tool_calls: must be at least 1"),
            (json!({"guided_json": {}}), 422, "guided_json: "),
        ] {
            let mut body = json!({"model": "m", "input": "a"});
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let error = translate(&body).map(drop).unwrap_err();
            assert_eq!(error.status().as_u16(), status, "{fields}: {}", error.message());
            assert!(error.message().contains(message), "{fields}: {}", error.message());
        }
    }
}

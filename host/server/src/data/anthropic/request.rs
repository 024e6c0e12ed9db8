//! The fields of a request in Anthropic's form.

use infer_chat::{ChatTemplate, Reads};
use serde_json::{Map, Value};

use super::blocks::Thinking;
use super::{conversation, tools, unused};
use crate::data::chat::ending::Ending;
use crate::data::chat::request::{Parsed, check_end, effort as known_effort, show};
use crate::data::chat::{ChatPrompt, Offer, messages};
use crate::data::fields::{self, check_model, integer, object, refuse_rest};
use crate::data::json::Fields;
use crate::data::request::common::{self, Common};
use crate::data::request::model_names::Models;
use crate::data::structured::Shape;
use crate::http::ApiError;

/// Fields of both endpoints that make the prompt.
const OF_PROMPT: &[&str] = &[
    "model",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "thinking",
    FORMERLY,
    CONFIG,
    "chat_template_kwargs",
];
/// Anthropic's further fields.
const OF_MESSAGES: &[&str] = &["max_tokens", "stop_sequences"];
/// Fields of all other requests that are missing here or read in another way.
const NOT_SHARED: &[&str] = &["model", "n", "stop", "return_token_ids", "stream_options", "response_format"];

/// Fields of `/v1/messages/count_tokens` besides those that both endpoints ignore.
pub const COUNT_FIELDS: &[&str] = OF_PROMPT;
const CONFIG: &str = "output_config";
/// Where Anthropic's API had the form of the reply before.
const FORMERLY: &str = "output_format";
const EFFORTS: &[&str] = &["low", "medium", "high", "xhigh", "max"];

/// All fields of `/v1/messages` but those without effect.
pub fn known_fields() -> Vec<&'static str> {
    OF_PROMPT.iter().chain(OF_MESSAGES).copied().chain(shared_fields()).collect()
}

/// Fields that are those of all other requests. Anthropic's API has some of them, too.
fn shared_fields() -> impl Iterator<Item = &'static str> {
    common::FIELDS.iter().copied().filter(|name| !NOT_SHARED.contains(name))
}

/// A request whose fields have been checked, but not yet against the model and the host.
#[derive(Debug)]
pub struct Request {
    pub parsed: Parsed,
    /// 0 asks to cache the prompt and to generate nothing.
    pub max_tokens: u32,
    /// What of the reasoning the reply has.
    pub thinking: Thinking,
}

/// Parses and checks a body of `/v1/messages`.
pub fn parse(body: &[u8], models: Models<'_>, template: &ChatTemplate) -> Result<Request, ApiError> {
    let mut fields = read(body)?;
    let Asked { prompt, offer, shape, thinking } = prompt(&mut fields, template)?;
    if shape.is_some() && prompt.ending == Ending::Within {
        let message =
            "a required form is that of a whole reply, but the last of the messages begins one (prefill)";
        return Err(ApiError::invalid(CONFIG, message));
    }
    let Some(max_tokens) = integer(&mut fields, "max_tokens", 0, u32::MAX)? else {
        let message = "max_tokens: missing; give the most tokens to generate";
        return Err(ApiError::bad_request("missing_field", message).param("max_tokens"));
    };
    let stop = common::stops(&mut fields, "stop_sequences")?;
    let model = check_model(&mut fields, models);
    let mut common = shared(&mut fields)?;
    common.stop = stop;
    if shape.is_some() && common.shape.is_some() {
        return Err(ApiError::invalid(
            "structured_outputs",
            "can't be used together with output_config.format",
        ));
    }
    if shape.is_some() && common.ignore_eos {
        let message = "structured output needs the model's end token, so it can't be ignored";
        return Err(ApiError::invalid("ignore_eos", message));
    }
    common.shape = shape.or(common.shape.take());
    if common.min_tokens > max_tokens {
        let message = format!("{} is more than max_tokens = {max_tokens}", common.min_tokens);
        return Err(ApiError::invalid("min_tokens", message));
    }
    check_end(&offer, &common)?;
    unused::take_of_both(&mut fields)?;
    unused::take_of_messages(&mut fields)?;
    let known: Vec<_> = known_fields().into_iter().chain(unused::schemas().map(|(name, _)| name)).collect();
    refuse_rest(&fields, &known)?;
    common.adapter = model?;
    let (max, logprobs, separate_reasoning) = (Some(max_tokens), None, true);
    let parsed = Parsed { prompt, offer, max_tokens: max, logprobs, separate_reasoning, common };
    Ok(Request { parsed, max_tokens, thinking })
}

/// Parses and checks a body of `/v1/messages/count_tokens`.
pub fn parse_count(body: &[u8], models: Models<'_>, template: &ChatTemplate) -> Result<ChatPrompt, ApiError> {
    let mut fields = read(body)?;
    let Asked { prompt, .. } = prompt(&mut fields, template)?;
    let model = check_model(&mut fields, models);
    unused::take_of_both(&mut fields)?;
    let known: Vec<_> = COUNT_FIELDS.iter().copied().chain(unused::of_both()).collect();
    refuse_rest(&fields, &known)?;
    model?;
    Ok(prompt)
}

fn read(body: &[u8]) -> Result<Fields, ApiError> {
    let fields = fields::read(body)?;
    if fields.prompt.is_some() {
        let error = ApiError::invalid("prompt", "unknown field; messages are in `messages`");
        return Err(error.code("unknown_field"));
    }
    Ok(fields)
}

/// What both endpoints read.
struct Asked {
    prompt: ChatPrompt,
    offer: Offer,
    /// The required form of the reply.
    shape: Option<Shape>,
    thinking: Thinking,
}

fn prompt(fields: &mut Fields, template: &ChatTemplate) -> Result<Asked, ApiError> {
    let conversation::Conversation { messages, ends_with_reply } = conversation::take(fields)?;
    let messages = messages::normalize(Some(messages), template.reads())?;
    let offer = tools::take(fields)?;
    let mut variables = object(fields, "chat_template_kwargs")?.unwrap_or_default();
    let thinking = thinking(fields, &mut variables)?;
    let shape = output(fields, template.reads(), &mut variables)?;
    show(&offer, template.tools(), &mut variables)?;
    let ending = if ends_with_reply { Ending::Within } else { Ending::Reply };
    let prompt = ChatPrompt { messages, ending, variables };
    Ok(Asked { prompt, offer, shape, thinking })
}

/// Takes the shared fields.
fn shared(fields: &mut Fields) -> Result<Common, ApiError> {
    let mut chat = Fields::default();
    for name in shared_fields() {
        chat.rest.extend(fields.take(name).map(|value| (name.to_owned(), value)));
    }
    if let Some((_, Value::Object(metadata))) = chat.rest.iter_mut().find(|(name, _)| name == "metadata") {
        metadata.retain(|_, value| !value.is_null());
    }
    let mut common = Common::take(&mut chat)?;
    let user = common.metadata.remove("user_id").filter(|user| !user.is_empty());
    common.session_id = common.session_id.take().or_else(|| session_of(user.as_deref()?));
    common.user = common.user.take().or(user);
    Ok(common)
}

/// The session in Claude Code's id of a user: a member of a JSON object, in older versions the end of a text.
fn session_of(user: &str) -> Option<String> {
    let session = match serde_json::from_str::<Value>(user) {
        Ok(user) => user["session_id"].as_str()?.to_owned(),
        Err(_) => user.rsplit_once("_session_")?.1.to_owned(),
    };
    (!session.is_empty()).then_some(session)
}

/// Sets the switch in the templates of models that either reason or don't. Returns what the reply shows of the reasoning:
/// some models reason whatever they are told, and who doesn't ask for it reads the first block as text.
fn thinking(fields: &mut Fields, variables: &mut Map<String, Value>) -> Result<Thinking, ApiError> {
    const NAME: &str = "thinking";
    let Some(mut thinking) = object(fields, NAME)? else {
        return Ok(shown(variables, false, Thinking::Shown));
    };
    let reasons =
        match word(&mut thinking, NAME, "type", &["enabled", "adaptive", "between_tools", "disabled"])? {
            Some(kind) => kind != "disabled",
            None => return Err(ApiError::wrong_type(NAME, "an object with a `type`")),
        };
    if let Some(budget) = thinking.get("budget_tokens").filter(|budget| !budget.is_null()) {
        // It has no effect: nothing ends the reasoning of a model but the model.
        if fields::whole(&format!("{NAME}.budget_tokens"), budget)? < 1 {
            return Err(ApiError::invalid(NAME, format!("budget_tokens must be at least 1, got {budget}")));
        }
    }
    let display = word(&mut thinking, NAME, "display", &["summarized", "omitted"])?;
    let display = if display.as_deref() == Some("omitted") { Thinking::Omitted } else { Thinking::Shown };
    Ok(shown(variables, reasons, display))
}

/// Whether the model `reasons`, unless the variables say that already; and how that is displayed, if it does.
fn shown(variables: &mut Map<String, Value>, reasons: bool, display: Thinking) -> Thinking {
    let reasons = variables.entry("enable_thinking").or_insert(Value::Bool(reasons));
    if *reasons == Value::Bool(false) { Thinking::None } else { display }
}

/// Takes the effort, which becomes a variable of the template, and the form of the reply.
fn output(
    fields: &mut Fields,
    reads: Reads,
    variables: &mut Map<String, Value>,
) -> Result<Option<Shape>, ApiError> {
    let mut config = object(fields, CONFIG)?.unwrap_or_default();
    if let Some(effort) = word(&mut config, CONFIG, "effort", EFFORTS)? {
        variables.entry("reasoning_effort").or_insert(Value::String(known_effort(effort, reads)));
    }
    let formerly = fields.take(FORMERLY).map(|format| (FORMERLY, format));
    let format = config.remove("format").filter(|format| !format.is_null());
    // Advice to the model, which no template passes on.
    config.remove("task_budget");
    if let Some(name) = config.keys().next() {
        let error = fields::unknown_field(name, &["effort", "format", "task_budget"]);
        return Err(ApiError::invalid(CONFIG, error.message()).code("unknown_field"));
    }
    format.map(|format| (CONFIG, format)).or(formerly).map(|(field, format)| shape(field, format)).transpose()
}

fn shape(field: &'static str, format: Value) -> Result<Shape, ApiError> {
    let Value::Object(mut format) = format else {
        return Err(ApiError::wrong_type(field, "a format, which is an object"));
    };
    if word(&mut format, field, "type", &["json_schema"])?.is_none() {
        return Err(ApiError::wrong_type(field, "a format with a `type`"));
    }
    Shape::json(field, format.remove("schema").unwrap_or_default())
}

/// Takes a member whose value is one of a few words.
fn word(
    object: &mut Map<String, Value>,
    field: &str,
    name: &str,
    known: &[&str],
) -> Result<Option<String>, ApiError> {
    match object.remove(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(word)) => {
            fields::check_word(field, &format!("{name} "), &word, known)?;
            Ok(Some(word))
        }
        Some(_) => Err(ApiError::wrong_type(field, &format!("a word as `{name}`"))),
    }
}

#[cfg(test)]
mod tests {
    use infer_chat::Sandbox;
    use infer_model::Source;
    use serde_json::json;

    use super::*;

    fn template() -> ChatTemplate {
        let text = b"{% if tools %}<tool_call></tool_call>{{ tools }}{% endif %}{{ messages }}";
        let files = [("chat_template.jinja", text.as_slice())];
        let template = ChatTemplate::load(&Sandbox::new(None).unwrap(), &Source::Embedded(&files));
        template.unwrap().expect("a template")
    }

    fn body(extra: &Value) -> Vec<u8> {
        let mut body =
            json!({"model": "demo", "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]});
        for (key, value) in extra.as_object().unwrap() {
            body[key] = value.clone();
        }
        body.to_string().into_bytes()
    }

    #[test]
    fn fields_are_read_and_wrong_ones_named() {
        let (template, names) = (template(), ["demo".to_owned()]);
        let models = Models::all(&names);
        let parsed = |extra: Value| parse(&body(&extra), models, &template);
        let good =
            |extra: Value| parsed(extra.clone()).unwrap_or_else(|e| panic!("{extra}: {}", e.message()));

        let request = good(json!({
            "stop_sequences": ["a", "b"], "metadata": {"user_id": "me", "team": "x", "none": null},
            "temperature": 0.5, "top_k": 5, "stream": true, "seed": 1, "session_id": "s", "priority": 2,
            "cache_control": {"type": "ephemeral"}, "service_tier": "auto",
        }));
        let common = &request.parsed.common;
        assert_eq!(common.stop, ["a", "b"]);
        assert_eq!((common.user.as_deref(), common.session_id.as_deref()), (Some("me"), Some("s")));
        assert_eq!(json!(common.metadata), json!({"team": "x"}));
        assert_eq!((common.stream, common.seed, common.priority), (Some(true), Some(1), 2));
        assert_eq!((request.max_tokens, request.thinking), (8, Thinking::None));
        for (user, given, session) in [
            ("{\"device_id\": \"a\", \"session_id\": \"b\"}", None, Some("b")),
            ("user_a_account__session_b-c", None, Some("b-c")),
            ("user_a_account__session_b-c", Some("mine"), Some("mine")),
            ("{\"session_id\": \"\"}", None, None),
            ("{\"session_id\": 5}", None, None),
            ("5", None, None),
            ("a_session_", None, None),
        ] {
            let request = good(json!({"metadata": {"user_id": user}, "session_id": given}));
            assert_eq!(request.parsed.common.session_id.as_deref(), session, "{user}");
            assert_eq!(request.parsed.common.user.as_deref(), Some(user));
        }
        let request = good(json!({"metadata": {"user_id": null}, "user": "me"}));
        assert_eq!(request.parsed.common.user.as_deref(), Some("me"));
        let request = good(json!({"metadata": {"user_id": "you"}, "user": "me"}));
        assert_eq!(request.parsed.common.user.as_deref(), Some("me"));

        for (extra, status, part) in [
            (json!({"model": null}), 400, "model: missing"),
            (json!({"model": "other"}), 422, "model: this host serves `demo`"),
            (json!({"max_tokens": null}), 400, "max_tokens: missing"),
            (json!({"max_tokens": "8"}), 400, "max_tokens: "),
            (json!({"max_tokens": -1}), 422, "max_tokens: "),
            (json!({"max_tokens": 8, "min_tokens": 9}), 422, "min_tokens: 9 is more than max_tokens = 8"),
            (json!({"stop_sequences": 1}), 400, "stop_sequences: expected"),
            (json!({"stop_sequences": vec!["x"; 17]}), 422, "stop_sequences: at most 16"),
            (json!({"metadata": {"user_id": 1}}), 400, "metadata: "),
            (json!({"temperature": -1}), 422, "temperature: "),
            (json!({"prompt": "x"}), 422, "prompt: unknown field"),
            (json!({"stop": ["x"]}), 422, "unknown field `stop`; `/v1/messages` has `stop_sequences`"),
            (json!({"max_token": 1}), 422, "did you mean `max_tokens`?"),
            (json!({"betas": []}), 422, "the header `anthropic-beta`"),
            (json!({"n": 2}), 422, "unknown field `n`"),
            (json!({"container": "c"}), 422, "container: "),
            (
                json!({"messages": [{"role": "assistant", "content": "{"}],
                    "output_config": {"format": {"type": "json_schema", "schema": {}}}}),
                422,
                "output_config: a required form",
            ),
            (
                json!({"ignore_eos": true, "output_config": {"format": {"type": "json_schema", "schema": {}}}}),
                422,
                "ignore_eos: ",
            ),
        ] {
            let error = parsed(extra.clone()).unwrap_err();
            assert_eq!(error.status(), status, "{extra}: {}", error.message());
            assert!(error.message().contains(part), "{extra}: {}", error.message());
        }
    }

    #[test]
    fn thinking_and_effort_become_template_variables_that_kwargs_override() {
        let (template, names) = (template(), ["demo".to_owned()]);
        let models = Models::all(&names);
        for (extra, variables, shown) in [
            (json!({}), json!({"enable_thinking": false}), Thinking::None),
            (
                json!({"chat_template_kwargs": {"enable_thinking": true}}),
                json!({"enable_thinking": true}),
                Thinking::Shown,
            ),
            (json!({"thinking": {"type": "disabled"}}), json!({"enable_thinking": false}), Thinking::None),
            (
                json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "max"}}),
                json!({"enable_thinking": true, "reasoning_effort": "max"}),
                Thinking::Shown,
            ),
            (
                json!({"thinking": {"type": "adaptive", "display": "omitted"},
                    "chat_template_kwargs": {"enable_thinking": false, "x": 1}}),
                json!({"enable_thinking": false, "x": 1}),
                Thinking::None,
            ),
            (
                json!({"thinking": {"type": "adaptive", "display": "omitted"}}),
                json!({"enable_thinking": true}),
                Thinking::Omitted,
            ),
        ] {
            let request = parse(&body(&extra), models, &template)
                .unwrap_or_else(|error| panic!("{extra}: {}", error.message()));
            let found = Value::Object(request.parsed.prompt.variables);
            assert_eq!((found, request.thinking), (variables, shown), "{extra}");
        }
        for (extra, status, part) in [
            (json!({"thinking": true}), 400, "thinking: expected an object"),
            (json!({"thinking": {}}), 400, "thinking: expected an object with a `type`"),
            (json!({"thinking": {"type": "on"}}), 422, "thinking: type `on` is not supported"),
            (json!({"thinking": {"type": "enabled", "budget_tokens": 0}}), 422, "at least 1, got 0"),
            (json!({"thinking": {"type": "enabled", "budget_tokens": "x"}}), 400, "thinking.budget_tokens: "),
            (json!({"thinking": {"type": "enabled", "display": "all"}}), 422, "thinking: display `all`"),
            (json!({"output_config": {"effort": "some"}}), 422, "output_config: effort `some`"),
            (
                json!({"output_config": {"efort": "low"}}),
                422,
                "output_config: unknown field `efort`; did you mean",
            ),
        ] {
            let error = parse(&body(&extra), models, &template).unwrap_err();
            assert_eq!(error.status(), status, "{extra}: {}", error.message());
            assert!(error.message().contains(part), "{extra}: {}", error.message());
        }
    }

    #[test]
    fn form_of_the_reply_is_a_schema_in_either_place() {
        let (template, names) = (template(), ["demo".to_owned()]);
        let models = Models::all(&names);
        let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]});
        let format = json!({"type": "json_schema", "schema": schema});
        let outputs = json!({"structured_outputs": {"json": schema}});
        let key = |extra: &Value| {
            let request = parse(&body(extra), models, &template);
            let request = request.unwrap_or_else(|error| panic!("{extra}: {}", error.message()));
            request.parsed.common.shape.expect("a form").key()
        };
        for extra in [json!({"output_config": {"format": format}}), json!({"output_format": format})] {
            assert_eq!(key(&extra), key(&outputs), "{extra}");
        }
        let loose = json!({"type": "json_schema", "schema": {"type": "string", "pattern": "(?=x)"}});
        for (extra, status, part) in [
            (json!({"output_config": {"format": "json"}}), 400, "output_config: expected a format"),
            (json!({"output_config": {"format": {}}}), 400, "output_config: expected a format with a `type`"),
            (json!({"output_config": {"format": {"type": "text"}}}), 422, "output_config: type `text`"),
            (json!({"output_format": {"type": "json_schema"}}), 400, "output_format: expected a JSON schema"),
            (
                json!({"output_config": {"format": loose}}),
                422,
                "output_config: `pattern` at # can't be enforced",
            ),
            (
                json!({"output_config": {"format": format}, "structured_outputs": {"json": {}}}),
                422,
                "structured_outputs: can't be used together with output_config.format",
            ),
        ] {
            let error = parse(&body(&extra), models, &template).unwrap_err();
            assert_eq!(error.status(), status, "{extra}: {}", error.message());
            assert!(error.message().contains(part), "{extra}: {}", error.message());
        }
    }

    #[test]
    fn count_reads_what_makes_the_prompt() {
        let (template, names) = (template(), ["demo".to_owned()]);
        let models = Models::all(&names);
        let count = |extra: Value| {
            let mut body: Value = serde_json::from_slice(&body(&extra)).unwrap();
            body.as_object_mut()
                .unwrap()
                .retain(|name, _| extra.get("max_tokens").is_some() || name != "max_tokens");
            parse_count(body.to_string().as_bytes(), models, &template)
        };
        let prompt = count(json!({"system": "Be brief.", "tools": [{"name": "a", "input_schema": {}}]}))
            .unwrap_or_else(|error| panic!("{}", error.message()));
        assert_eq!(prompt.messages[0]["content"], "Be brief.");
        assert_eq!(prompt.variables["tools"][0]["function"]["name"], "a");
        assert_eq!(prompt.ending, Ending::Reply);
        let reply = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
        let prompt = count(json!({"messages": reply})).unwrap_or_else(|error| panic!("{}", error.message()));
        assert_eq!(prompt.ending, Ending::Within);
        let error = count(json!({"max_tokens": 1})).unwrap_err();
        assert_eq!((error.status().as_u16(), error.reason()), (422, "unknown_field"));
    }
}

//! The OpenAPI document of the data plane. Its schemas come from the wire types and its paths from the route
//! table; tests compare both with what the handlers read.

use std::sync::OnceLock;

use hyper::StatusCode;
use infer_api::admin::ErrorBody;
use infer_api::chat::{ChatChunkChoice, ChatCompletion, ChatFields};
use infer_api::completions::{Completion, CompletionRequest, DoneEvent, ErrorEvent, PromptEvent, TokenEvent};
use infer_api::embeddings::{EmbeddingList, EmbeddingsRequest};
use infer_api::messages::{MessagesError, MessagesEvent, MessagesFields, MessagesReply, TokenCount};
use infer_api::models::{ModelCard, ModelList};
use infer_api::responses::{
    DeltaEvent, DoneTextEvent, FailureEvent, ItemEvent, PartEvent, Response, ResponseEvent, ResponsesFields,
};
use infer_api::tokenize::{DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest};
use schemars::JsonSchema;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use super::anthropic;
use super::chat::request::UNSUPPORTED;
use super::request::fields::FOREIGN_LIMIT;
use super::request::router_fields;
use super::responses_api::request as responses;
use super::route::{Endpoint, ROUTES, Route};
use crate::app::App;
use crate::http::{Answer, ErrorForm, json as answer_json};

/// Fields of completions that chats lack.
const COMPLETION_ONLY: &[&str] =
    &["prompt", "max_tokens", "echo", "add_special_tokens", "suffix", "best_of", "logprobs"];

/// Fields that responses lack as well, besides those that chats lack.
const NOT_OF_RESPONSES: &[&str] = &["n", "return_token_ids", "response_format"];

/// Schemas of bodies with a `model` field, and whether it is required.
const NAMING: &[(&str, bool)] = &[
    ("CompletionRequest", true),
    ("ChatRequest", true),
    ("MessagesRequest", true),
    ("CountTokensRequest", true),
    ("ResponsesRequest", true),
    ("EmbeddingsRequest", true),
    ("TokenizeRequest", false),
    ("DetokenizeRequest", false),
];

/// `GET /openapi.json`. Once the model is loaded, the document lists its names, unless some tenant may not know them all:
/// it needs no key.
pub fn answer(app: &App) -> Answer {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    let mut document = DOCUMENT.get_or_init(document).clone();
    let paths = document["paths"].as_object_mut().expect("it has paths");
    paths.retain(|path, _| ROUTES.iter().any(|route| route.path == path && route.is_served(&app.config)));
    if let Some(served) = app.served().ok().filter(|_| !app.tenants.limit_models()) {
        for (schema, required) in NAMING {
            let mut names: Vec<Value> = served.names().into_iter().map(Value::String).collect();
            names.extend((!required).then_some(Value::Null));
            document["components"]["schemas"][schema]["properties"]["model"]["enum"] = Value::Array(names);
        }
    }
    answer_json(StatusCode::OK, &document)
}

/// The whole document.
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| s.definitions_path = "/components/schemas".into());
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for route in ROUTES {
        let operation = operation(route, &mut generator);
        paths.insert(route.path.to_owned(), json!({route.method.to_lowercase(): operation}));
    }
    let mut schemas: Map<String, Value> = generator.take_definitions(true).into_iter().collect();
    for (own, name, path, without) in [
        ("ChatFields", "ChatRequest", "/v1/chat/completions", &[][..]),
        ("ResponsesFields", "ResponsesRequest", "/v1/responses", NOT_OF_RESPONSES),
    ] {
        let request = request_like_a_chat(&schemas, own, path, without);
        schemas.insert(name.to_owned(), request);
        schemas.remove(own);
    }
    let messages = messages_request(&schemas);
    schemas.insert("CountTokensRequest".to_owned(), count_request(&messages));
    schemas.insert("MessagesRequest".to_owned(), messages);
    schemas.remove("MessagesFields");
    for (schema, foreign) in foreign() {
        let fields = schemas[schema]["properties"].as_object_mut().expect("it has fields");
        for (name, schema) in foreign {
            fields.entry(name).or_insert(schema);
        }
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "infer",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "An LLM inference host with two stream dialects: named events, and OpenAI's chunks."
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"}
            }
        }
    })
}

/// A chat's own fields, or those of another form of chats, and those that it shares with completions.
fn request_like_a_chat(schemas: &Map<String, Value>, own: &str, path: &str, without: &[&str]) -> Value {
    let mut request = schemas[own].clone();
    let shared = schemas["CompletionRequest"]["properties"].as_object().expect("it has fields");
    let fields = request["properties"].as_object_mut().expect("it has fields");
    let absent = |name: &str| COMPLETION_ONLY.contains(&name) || without.contains(&name);
    for (name, schema) in shared.iter().filter(|(name, _)| !absent(name)) {
        fields.entry(name.clone()).or_insert_with(|| schema.clone());
    }
    fields["stream"]["description"] = json!("Stream the response as server-sent events. Default: false.");
    request["required"].as_array_mut().expect("the conversation is required").push(json!("model"));
    request["additionalProperties"] = json!(false);
    request["description"] = json!(format!("Body of `POST {path}`."));
    request
}

/// The fields of messages in Anthropic's form, and those that they share with completions.
fn messages_request(schemas: &Map<String, Value>) -> Value {
    let mut request = schemas["MessagesFields"].clone();
    let shared = &schemas["CompletionRequest"]["properties"];
    let fields = request["properties"].as_object_mut().expect("it has fields");
    for name in anthropic::known_fields() {
        fields.entry(name).or_insert_with(|| shared[name].clone());
    }
    fields.extend(anthropic::unused_schemas().map(|(name, schema)| (name.to_owned(), schema)));
    fields["stream"]["description"] = json!("Stream the response as server-sent events. Default: false.");
    request["required"].as_array_mut().expect("messages are required").push(json!("model"));
    request["additionalProperties"] = json!(false);
    request["description"] = json!("Body of `POST /v1/messages`.");
    request
}

/// The fields that make the prompt, in which a reply may be the last message.
fn count_request(messages: &Value) -> Value {
    let mut request = messages.clone();
    let fields = request["properties"].as_object_mut().expect("it has fields");
    fields.retain(|name, _| anthropic::COUNT_FIELDS.contains(&name.as_str()) || anthropic::both_ignore(name));
    fields["messages"]["description"] = json!("The conversation so far.");
    request["required"] = json!(["messages", "model"]);
    request["description"] = json!("Body of `POST /v1/messages/count_tokens`.");
    request
}

/// The fields that requests may have beside the documented ones, which other clients send.
fn foreign() -> [(&'static str, Vec<(&'static str, Value)>); 4] {
    let limit = json!({
        "type": ["integer", "null"],
        "minimum": 1,
        "description": "Another name of `max_tokens`, which wins over it."
    });
    let limit = [(FOREIGN_LIMIT, limit)];
    let never = UNSUPPORTED.iter().map(|&name| (name, json!({"type": "null"})));
    let stored = responses::UNSUPPORTED.iter().map(|&(name, _)| (name, json!({"type": "null"})));
    let shared = || router_fields::schemas().chain(limit.clone());
    [
        ("CompletionRequest", shared().collect()),
        ("ChatRequest", shared().chain(router_fields::schemas_of_chats()).chain(never).collect()),
        ("ResponsesRequest", router_fields::schemas().chain(stored).collect()),
        ("EmbeddingsRequest", router_fields::schemas().collect()),
    ]
}

/// What distinguishes an endpoint's operation from the others.
struct Described {
    summary: &'static str,
    /// Schema of the body.
    request: Option<Value>,
    /// Schema of the JSON response; `None` for text.
    response: Option<Value>,
}

fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

fn described(endpoint: Endpoint, of: &mut SchemaGenerator) -> Described {
    let posted =
        |summary, request, response| Described { summary, request: Some(request), response: Some(response) };
    let got = |summary, response| Described { summary, request: None, response: Some(response) };
    let object = json!({"type": "object"});
    match endpoint {
        Endpoint::Completions => {
            // Only streams have these, and their schema isn't part of the operation.
            schema::<PromptEvent>(of);
            schema::<TokenEvent>(of);
            schema::<DoneEvent>(of);
            schema::<ErrorEvent>(of);
            posted("Complete prompts", schema::<CompletionRequest>(of), schema::<Completion>(of))
        }
        Endpoint::Chat => {
            schema::<ChatFields>(of);
            schema::<ChatChunkChoice>(of);
            let request = json!({"$ref": "#/components/schemas/ChatRequest"});
            posted("Complete a conversation", request, schema::<ChatCompletion>(of))
        }
        Endpoint::Messages => {
            schema::<MessagesFields>(of);
            schema::<MessagesEvent>(of);
            let request = json!({"$ref": "#/components/schemas/MessagesRequest"});
            posted("Complete a conversation in Anthropic's form", request, schema::<MessagesReply>(of))
        }
        Endpoint::CountTokens => {
            let request = json!({"$ref": "#/components/schemas/CountTokensRequest"});
            posted("Count the tokens of a conversation", request, schema::<TokenCount>(of))
        }
        Endpoint::Responses => {
            schema::<ResponsesFields>(of);
            schema::<ResponseEvent<'_>>(of);
            schema::<ItemEvent<'_>>(of);
            schema::<PartEvent<'_>>(of);
            schema::<DeltaEvent<'_>>(of);
            schema::<DoneTextEvent<'_>>(of);
            schema::<FailureEvent<'_>>(of);
            let request = json!({"$ref": "#/components/schemas/ResponsesRequest"});
            posted("Respond to a conversation", request, schema::<Response>(of))
        }
        Endpoint::Embeddings => {
            posted("Embed texts", schema::<EmbeddingsRequest>(of), schema::<EmbeddingList>(of))
        }
        Endpoint::Models => got("List the served model", schema::<ModelList>(of)),
        Endpoint::Model => got("Get the served model by its name", schema::<ModelCard>(of)),
        Endpoint::Tokenize => {
            posted("Tokenize text or messages", schema::<TokenizeRequest>(of), schema::<TokenizeAnswer>(of))
        }
        Endpoint::Detokenize => {
            posted("Decode tokens to text", schema::<DetokenizeRequest>(of), schema::<DetokenizeAnswer>(of))
        }
        Endpoint::Health => got("Liveness", object),
        Endpoint::Ready => got("Readiness", object),
        Endpoint::Version => got("Name and version of the host", object),
        Endpoint::OpenApi => got("This document", object),
        Endpoint::Metrics => Described { summary: "Prometheus metrics", request: None, response: None },
    }
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let Described { summary, request, response } = described(route.endpoint, generator);
    let mut content = match response {
        Some(schema) => json!({"application/json": {"schema": schema}}),
        None => {
            let text = json!({"schema": {"type": "string"}});
            json!({"text/plain": text, "application/openmetrics-text": text})
        }
    };
    if generates(route.endpoint) {
        // Without a schema: tools disagree on whether it would describe each event or the whole text.
        content["text/event-stream"] = json!({});
    }
    let mut responses = json!({"200": {"description": "OK", "content": content}});
    let error = match route.endpoint.error_form() {
        ErrorForm::OpenAi => schema::<ErrorBody>(generator),
        ErrorForm::Anthropic => schema::<MessagesError>(generator),
    };
    for (status, why) in errors(route) {
        responses[status] = json!({"description": why, "content": {"application/json": {"schema": error}}});
    }
    let mut operation = json!({"summary": summary, "responses": responses});
    if let Some(schema) = request {
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    if !route.open {
        // The empty requirement: a host without configured keys needs none.
        operation["security"] = json!([{"key": []}, {"x-api-key": []}, {}]);
    }
    if route.endpoint == Endpoint::Model {
        operation["parameters"] =
            json!([{"name": "model", "in": "path", "required": true, "schema": {"type": "string"}}]);
    }
    operation
}

/// Whether the endpoint generates text, and streams it on request.
fn generates(endpoint: Endpoint) -> bool {
    use Endpoint::{Chat, Completions, Messages, Responses};
    matches!(endpoint, Completions | Chat | Messages | Responses)
}

/// Errors of a path: status and description.
fn errors(route: &Route) -> Vec<(&'static str, &'static str)> {
    let mut errors = Vec::new();
    if route.method == "POST" {
        errors.extend([
            (
                "400",
                "Malformed JSON, a field of the wrong type, an empty prompt, or a model that makes no embeddings; or a \
                 head with a missing, doubled or invalid Host field",
            ),
            ("408", "The body arrived too slowly"),
            ("413", "The body is too large"),
            ("415", "The content type is not JSON, or the body is compressed"),
            ("422", "A value out of range, an unknown field, or an unknown model"),
            ("501", "The body has a transfer coding other than chunked"),
        ]);
    } else {
        errors.push(("400", "A head with a missing, doubled or invalid Host field"));
    }
    if generates(route.endpoint) || route.endpoint == Endpoint::Embeddings {
        errors.extend([
            ("429", "The tenant's rate limit is exceeded"),
            ("500", "The device or the host failed"),
            ("504", "The request took longer than --request-timeout"),
        ]);
    }
    if !route.open {
        errors.push(("401", "The API key is missing or unknown"));
        errors.push(("403", "The request names an origin that --allowed-origins doesn't list"));
    }
    if route.endpoint == Endpoint::Model {
        errors.push(("404", "No such model"));
    }
    if !matches!(route.endpoint, Endpoint::Version | Endpoint::Metrics | Endpoint::OpenApi) {
        errors.push(("503", "Loading, at capacity or draining; see Retry-After"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::chat::request;
    use crate::data::{anthropic, completions, embeddings, models};

    fn fields_of(document: &Value, schema: &str) -> Vec<String> {
        let properties = document["components"]["schemas"][schema]["properties"].as_object();
        let mut names: Vec<_> = properties.unwrap_or_else(|| panic!("{schema}")).keys().cloned().collect();
        names.sort();
        names
    }

    #[test]
    fn document_lists_exactly_the_fields_that_handlers_read() {
        let document = document();
        let read = [
            ("CompletionRequest", completions::known_fields()),
            ("ChatRequest", request::known_fields()),
            ("MessagesRequest", anthropic::known_fields()),
            ("CountTokensRequest", anthropic::COUNT_FIELDS.to_vec()),
            ("ResponsesRequest", responses::known_fields()),
            ("EmbeddingsRequest", embeddings::known_fields()),
            ("TokenizeRequest", models::TOKENIZE_FIELDS.to_vec()),
            ("DetokenizeRequest", models::DETOKENIZE_FIELDS.to_vec()),
        ];
        for (schema, mut names) in read {
            let foreign =
                foreign().into_iter().filter(|(of, _)| *of == schema).flat_map(|(_, fields)| fields);
            names.extend(foreign.map(|(name, _)| name));
            let ignored = anthropic::unused_schemas().map(|(name, _)| name);
            match schema {
                "MessagesRequest" => names.extend(ignored),
                "CountTokensRequest" => names.extend(ignored.filter(|name| anthropic::both_ignore(name))),
                _ => {}
            }
            names.sort_unstable();
            names.dedup();
            assert_eq!(fields_of(&document, schema), names, "{schema}");
        }
    }

    /// Clients that are generated from the document send a required field always, if only as null.
    #[test]
    fn only_what_a_request_must_have_is_required() {
        let document = document();
        for (schema, required) in [
            ("CompletionRequest", &["model", "prompt"][..]),
            ("ChatRequest", &["messages", "model"]),
            ("MessagesRequest", &["max_tokens", "messages", "model"]),
            ("CountTokensRequest", &["messages", "model"]),
            ("Turn", &["content", "role"]),
            ("OfferedTool", &["input_schema", "name"]),
            ("ToolChoice", &["type"]),
            ("Thinking", &["type"]),
            ("OutputConfig", &[]),
            ("ResponsesRequest", &["input", "model"]),
            ("EmbeddingsRequest", &["input", "model"]),
            ("FunctionTool", &["name", "type"]),
            ("TextConfig", &[]),
            ("ReasoningConfig", &[]),
            ("Message", &["role"]),
            ("Tool", &["function", "type"]),
            ("Function", &["name"]),
            ("ToolCall", &["function"]),
            ("CalledFunction", &[]),
            ("StreamOptions", &[]),
            ("TokenizeRequest", &[]),
            ("DetokenizeRequest", &["tokens"]),
        ] {
            let listed = document["components"]["schemas"][schema]["required"].as_array();
            let mut listed: Vec<_> = listed.into_iter().flatten().filter_map(Value::as_str).collect();
            listed.sort_unstable();
            assert_eq!(listed, required, "{schema}");
        }
    }

    #[test]
    fn examples_of_the_readme_have_documented_fields() {
        let document = document();
        let examples = include_str!("../../README.md").lines().filter_map(|line| {
            let path = line.split_once("localhost:8000")?.1.split_once(' ')?.0;
            Some((path, line.split_once("-d '")?.1.split_once('\'')?.0))
        });
        let mut seen = 0;
        for (path, body) in examples {
            let Ok(body) = serde_json::from_str::<Value>(body) else { continue };
            let operation = &document["paths"][path]["post"]["requestBody"]["content"]["application/json"];
            let reference = operation["schema"]["$ref"].as_str().unwrap_or_else(|| panic!("{path}"));
            let schema = document.pointer(reference.trim_start_matches('#')).unwrap();
            for name in body.as_object().unwrap().keys() {
                assert!(schema["properties"][name].is_object(), "{path}: {name}");
            }
            for name in schema["required"].as_array().into_iter().flatten() {
                assert!(!body[name.as_str().unwrap()].is_null(), "{path}: {name} is missing in {body}");
            }
            seen += 1;
        }
        assert!(seen >= 6, "{seen}");
    }

    #[test]
    fn document_has_every_path_and_no_dangling_reference() {
        let document = document();
        for route in ROUTES {
            let method = route.method.to_lowercase();
            let responses = &document["paths"][route.path][&method]["responses"];
            assert!(responses["200"].is_object(), "{route:?}");
            // Before any endpoint is asked, the head is checked.
            let why = responses["400"]["description"].as_str().unwrap_or_default();
            assert!(why.contains("missing, doubled or invalid Host field"), "{route:?}: {why}");
        }
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#").skip(1) {
            let pointer = reference.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
        assert!(text.matches("\"$ref\"").count() > 10);
    }
}

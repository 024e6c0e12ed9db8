//! The OpenAPI document that the host publishes of its data plane: schemas are those of the wire types, paths
//! those of the route table. Tests hold both against what handlers read.

use std::sync::OnceLock;

use hyper::StatusCode;
use infer_api::admin::ErrorBody;
use infer_api::chat::{ChatChunkChoice, ChatCompletion, ChatFields};
use infer_api::completions::{Completion, CompletionRequest, DoneEvent, ErrorEvent, PromptEvent, TokenEvent};
use infer_api::models::{ModelCard, ModelList};
use infer_api::tokenize::{DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use super::route::{ROUTES, Route};
use crate::app::App;
use crate::http::{Answer, json as answer_json};

/// Fields of completions that chats don't have.
const NOT_OF_CHATS: &[&str] =
    &["prompt", "max_tokens", "echo", "add_special_tokens", "suffix", "best_of", "logprobs"];

/// Schemas of bodies that name the model, and whether they must.
const NAMING: &[(&str, bool)] = &[
    ("CompletionRequest", true),
    ("ChatRequest", true),
    ("TokenizeRequest", false),
    ("DetokenizeRequest", false),
];

/// `GET /openapi.json`. Once the model is loaded, the document says what it is called.
pub fn answer(app: &App) -> Answer {
    static DOCUMENT: OnceLock<Value> = OnceLock::new();
    let mut document = DOCUMENT.get_or_init(document).clone();
    if let Ok(served) = app.served() {
        for (schema, required) in NAMING {
            let mut names: Vec<Value> = served.model_names.iter().map(|name| json!(name)).collect();
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
    generator.subschema_for::<ErrorBody>();
    let mut schemas: Map<String, Value> = generator.take_definitions(true).into_iter().collect();
    let chat = chat_request(&schemas);
    schemas.insert("ChatRequest".to_owned(), chat);
    schemas.remove("ChatFields");
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "infer",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "An inference host. Streams come in two dialects: named events, or OpenAI's chunks."
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}
        }
    })
}

/// A chat's own fields and those that it shares with completions.
fn chat_request(schemas: &Map<String, Value>) -> Value {
    let mut chat = schemas["ChatFields"].clone();
    let shared = schemas["CompletionRequest"]["properties"].as_object().expect("it has fields");
    let fields = chat["properties"].as_object_mut().expect("it has fields");
    for (name, schema) in shared.iter().filter(|(name, _)| !NOT_OF_CHATS.contains(&name.as_str())) {
        fields.entry(name.clone()).or_insert_with(|| schema.clone());
    }
    fields["stream"]["description"] = json!("Answer as events; off.");
    chat["required"].as_array_mut().expect("messages are required").push(json!("model"));
    chat["additionalProperties"] = json!(false);
    chat["description"] = json!("Body of `POST /v1/chat/completions`.");
    chat
}

fn operation(route: &Route, generator: &mut SchemaGenerator) -> Value {
    let mut of = |name: &str| -> Value {
        macro_rules! schema {
            ($($known:ident),*) => {
                match name {
                    $(stringify!($known) => generator.subschema_for::<$known>().to_value(),)*
                    _ => unreachable!("{name} is listed"),
                }
            };
        }
        schema!(
            Completion,
            CompletionRequest,
            ChatFields,
            ChatCompletion,
            ChatChunkChoice,
            ModelList,
            ModelCard,
            TokenizeRequest,
            TokenizeAnswer,
            DetokenizeRequest,
            DetokenizeAnswer,
            TokenEvent,
            PromptEvent,
            DoneEvent,
            ErrorEvent,
            ErrorBody
        )
    };
    let (summary, body, answer) = match route.path {
        "/v1/completions" => {
            for event in ["PromptEvent", "TokenEvent", "DoneEvent", "ErrorEvent"] {
                of(event);
            }
            let request = of("CompletionRequest");
            ("Continues prompts", Some(request), Some(of("Completion")))
        }
        "/v1/chat/completions" => {
            for schema in ["ChatFields", "ChatChunkChoice"] {
                of(schema);
            }
            let request = json!({"$ref": "#/components/schemas/ChatRequest"});
            ("Answers a conversation", Some(request), Some(of("ChatCompletion")))
        }
        "/v1/models" => ("The served model", None, Some(of("ModelList"))),
        "/v1/models/{model}" => ("The served model by its name", None, Some(of("ModelCard"))),
        "/tokenize" => {
            let request = of("TokenizeRequest");
            ("Text or messages to tokens", Some(request), Some(of("TokenizeAnswer")))
        }
        "/detokenize" => {
            let request = of("DetokenizeRequest");
            ("Tokens to text", Some(request), Some(of("DetokenizeAnswer")))
        }
        "/health" => ("Alive", None, Some(json!({"type": "object"}))),
        "/health/ready" => ("Takes requests", None, Some(json!({"type": "object"}))),
        "/version" => ("Name and version", None, Some(json!({"type": "object"}))),
        "/openapi.json" => ("This document", None, Some(json!({"type": "object"}))),
        _ => ("Prometheus metrics", None, None),
    };
    let mut content = match answer {
        Some(schema) => json!({"application/json": {"schema": schema}}),
        None => {
            let text = json!({"schema": {"type": "string"}});
            json!({"text/plain": text, "application/openmetrics-text": text})
        }
    };
    if route.path.ends_with("/completions") {
        // Without a schema: some read one as that of the whole text, others as that of each event.
        content["text/event-stream"] = json!({});
    }
    let mut responses = json!({"200": {"description": "OK", "content": content}});
    let error = of("ErrorBody");
    for (status, why) in errors(route) {
        responses[status] = json!({"description": why, "content": {"application/json": {"schema": error}}});
    }
    let mut operation = json!({"summary": summary, "responses": responses});
    if let Some(schema) = body {
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": schema}}});
    }
    if !route.open {
        // An empty requirement: where no keys are configured, none is needed.
        operation["security"] = json!([{"key": []}, {}]);
    }
    if route.path.contains('{') {
        operation["parameters"] =
            json!([{"name": "model", "in": "path", "required": true, "schema": {"type": "string"}}]);
    }
    operation
}

/// What may go wrong on a path, by status.
fn errors(route: &Route) -> Vec<(&'static str, &'static str)> {
    let mut errors = Vec::new();
    if route.method == "POST" {
        errors.extend([
            ("400", "Malformed JSON, wrong types, an empty prompt"),
            ("408", "The body came too slowly"),
            ("413", "The body is too large"),
            ("415", "Not JSON"),
            ("422", "A value that can't be used, an unknown field, another model"),
        ]);
    }
    if route.path.ends_with("/completions") {
        errors.extend([
            ("429", "Refused for this tenant"),
            ("500", "The device or the host failed"),
            ("504", "It took longer than this host allows (--request-timeout)"),
        ]);
    }
    if !route.open {
        errors.push(("401", "No key, or an unknown one"));
    }
    if route.path.contains('{') {
        errors.push(("404", "No such model"));
    }
    if !["/version", "/metrics", "/openapi.json"].contains(&route.path) {
        errors.push(("503", "Not now: loading, full, draining; with Retry-After"));
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::chat::request;
    use crate::data::{completions, models};

    fn fields_of(document: &Value, schema: &str) -> Vec<String> {
        let properties = document["components"]["schemas"][schema]["properties"].as_object();
        let mut names: Vec<_> = properties.unwrap_or_else(|| panic!("{schema}")).keys().cloned().collect();
        names.sort();
        names
    }

    #[test]
    fn the_document_has_the_fields_that_handlers_read_and_no_others() {
        let document = document();
        let read = [
            ("CompletionRequest", completions::known_fields()),
            ("ChatRequest", request::known_fields()),
            ("TokenizeRequest", models::TOKENIZE_FIELDS.to_vec()),
            ("DetokenizeRequest", models::DETOKENIZE_FIELDS.to_vec()),
        ];
        for (schema, mut names) in read {
            names.sort_unstable();
            assert_eq!(fields_of(&document, schema), names, "{schema}");
        }
    }

    #[test]
    fn every_reference_leads_somewhere_and_every_path_is_there() {
        let document = document();
        for route in ROUTES {
            let method = route.method.to_lowercase();
            assert!(document["paths"][route.path][&method]["responses"]["200"].is_object(), "{route:?}");
        }
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#").skip(1) {
            let pointer = reference.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
        assert!(text.matches("\"$ref\"").count() > 10);
    }
}

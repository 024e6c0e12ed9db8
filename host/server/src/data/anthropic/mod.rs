//! `POST /v1/messages` and `/v1/messages/count_tokens`: conversations in Anthropic's form, for its SDKs and the agents
//! made with them. A request becomes a chat's, whose replies `chat` generates; only fields and events differ.
//!
//! Deliberately absent: tools that a server runs, blocks other than text, and batches.

mod blocks;
mod conversation;
mod request;
mod sink;
mod tools;
mod unused;

pub use request::{COUNT_FIELDS, known_fields};
pub use unused::{both_ignore, schemas as unused_schemas};

use hyper::StatusCode;
use infer_api::messages::TokenCount;
use infer_chat::ChatTemplate;

use self::request::Request;
use self::sink::{About, MessageBody, MessageFrames};
use super::chat::{self, Begun, Bounded};
use super::response::{collect, stream_answer};
use super::sequence::job::{Asked, Longest};
use crate::data::request::model_names::Models;
use crate::http::{Answer, ApiError, ReadBody, json};
use crate::texts::Purpose;

/// Generates a message.
pub async fn create(asked: Asked<'_>, body: ReadBody) -> Result<Answer, ApiError> {
    let app = asked.app;
    let served = app.served()?;
    let template = served.chat_template().await?;
    let Request { parsed, max_tokens, thinking } =
        request::parse(&body, served.models(asked.tenant, &served.adapters.current()), &template)?;
    let streams = parsed.common.stream.unwrap_or(false);
    let model = served.shown_name(asked.tenant, parsed.common.adapter.as_deref()).to_owned();
    // Agents ask for more than small contexts have. Anthropic's newer models then use what there is.
    let longest = if max_tokens == 0 { Longest::Asked(0) } else { Longest::Room(max_tokens) };
    let bounded = Bounded { parsed, longest };
    let Begun { group, replies, prompt } = chat::begin(asked, &template, bounded, body.into_room()).await?;
    let about = About {
        id: format!("msg_{}", asked.request_id.as_str()),
        model,
        prompt_tokens: prompt.len() as u32,
        max_tokens,
        thinking,
        speech: replies.speech,
    };
    if streams {
        return Ok(stream_answer(app, group, Box::new(MessageFrames::new(about))));
    }
    let mut body = MessageBody::new(about);
    let totals = collect(group, &mut body).await?;
    Ok(json(StatusCode::OK, &body.reply(&totals)))
}

/// Counts the tokens of a conversation as a prompt.
pub async fn count(asked: Asked<'_>, body: ReadBody) -> Result<Answer, ApiError> {
    let served = asked.app.served()?;
    let template = served.chat_template().await?;
    let adapters = served.adapters.current();
    let prompt = request::parse_count(&body, served.models(asked.tenant, &adapters), &template)?;
    let rendered = chat::render(served, prompt, Purpose::Count(asked.path), body.into_room()).await?;
    Ok(json(StatusCode::OK, &TokenCount { input_tokens: rendered.tokens.len() as u32 }))
}

/// Parses and checks a body as far as that needs no model. Returns the prompt's text.
pub fn check(body: &[u8], models: &[String], template: &ChatTemplate) -> Result<String, ApiError> {
    let models = Models::all(models);
    let prompt = match request::parse(body, models, template) {
        Ok(request) => request.parsed.prompt,
        Err(_) => request::parse_count(body, models, template)?,
    };
    Ok(prompt.render(template)?.text)
}

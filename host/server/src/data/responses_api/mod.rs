//! `POST /v1/responses`: OpenAI's other form of a chat, without what it stores.
//!
//! A request is turned into the chat that it amounts to (`request`, `input`, `tools`), which generates as any other;
//! only what comes back is written in this form (`reply`). Deliberately absent: stored responses and conversations,
//! tools that a server runs, and prompts from elsewhere.

mod events;
mod input;
mod reply;
pub mod request;
mod tools;

use hyper::StatusCode;
use infer_chat::ChatTemplate;
use infer_model::Tokenizer;

use self::reply::Reply;
use self::request::{Request, named};
use super::chat::{Begun, begin};
use crate::data::request::model_names::Models;
use crate::data::response::{collect, stream_answer};
use crate::data::sequence::job::Asked;
use crate::http::{Answer, ApiError, ReadBody, json_bytes};

/// Handles a request.
pub async fn respond(asked: Asked<'_>, body: ReadBody) -> Result<Answer, ApiError> {
    let app = asked.app;
    let served = app.served()?;
    let template = served.chat_template().await.map_err(named)?;
    let Request { chat, mut response, spaces } =
        request::parse(&body, served.models(asked.tenant, &served.adapters.current()), &template)?;
    let streams = chat.common.stream.unwrap_or(false);
    let sampling = chat.common.sampling.params(&served.sampling);
    response.id = format!("resp_{}", asked.request_id.as_str());
    response.created_at = app.clock.unix_s();
    served.shown_name(asked.tenant, chat.common.adapter.as_deref()).clone_into(&mut response.model);
    (response.temperature, response.top_p) = (sampling.temperature, sampling.top_p);
    let mut room = body.into_room();
    // What the response repeats of the request is needed until its end.
    let repeated = room.part(serde_json::to_vec(&response).map_or(0, |json| json.len()));
    let Begun { group, replies, .. } = begin(asked, &template, chat, room).await.map_err(named)?;
    let mut reply = Reply::new(response, repeated, spaces, &replies, app.clock);
    if streams {
        return Ok(stream_answer(app, group, Box::new(reply.streamed())));
    }
    let totals = collect(group, &mut reply).await?;
    let spelled = reply.spelled_bytes();
    let write = move |tokenizer: &Tokenizer| reply.written(&totals, tokenizer);
    let written = served.with_tokenizer(spelled, write).await?;
    Ok(json_bytes(StatusCode::OK, written))
}

/// Parses and checks a body as far as that needs no host, and renders its conversation.
pub fn check(body: &[u8], models: &[String], template: &ChatTemplate) -> Result<String, ApiError> {
    let Request { chat, .. } = request::parse(body, Models::all(models), template)?;
    Ok(chat.prompt.render(template)?.text)
}

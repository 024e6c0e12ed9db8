//! `POST /v1/chat/completions`, always in OpenAI's form. The checkpoint's own template turns messages into a
//! prompt, and reasoning and function calls are parsed out of the model's output.

mod call_json;
mod calls;
pub mod ending;
mod harmony;
pub mod messages;
mod pending;
mod prompt;
mod reasoning;
pub mod request;
mod sink;
mod speaker;
mod tools;

pub use calls::Part;
pub use harmony::Opening;
pub use pending::{GivenTemplate, PendingTemplate, no_template};
pub use prompt::{ChatPrompt, PromptText, Rendered, render};
pub use reasoning::Expected;
pub use sink::{Replies, random_id};
pub use speaker::{Speaker, Speech, is_object};
pub use tools::{MAX_TOOLS, Offer, check_name, check_new, check_tool, cut, place, take_tools};

use std::sync::Arc;

use hyper::StatusCode;
use infer_chat::ChatTemplate;

use self::ending::Ending;
use self::harmony::Required;
use self::request::Parsed;
use self::sink::{ChatBody, ChatFrames};
use super::structured::{Prelude, Shape};
use crate::data::request::model_names::Models;
use crate::data::response::frames::Head;
use crate::data::response::{collect, stream_answer};
use crate::data::sequence::group::Group;
use crate::data::sequence::job::{Asked, Job, Longest};
use crate::http::{Answer, ApiError, ReadBody, Room, json_bytes};
use crate::texts::Purpose;

/// Handles a request.
pub async fn chat(asked: Asked<'_>, body: ReadBody) -> Result<Answer, ApiError> {
    let app = asked.app;
    let served = app.served()?;
    let template = served.chat_template().await?;
    let parsed = request::parse(&body, served.models(asked.tenant, &served.adapters.current()), &template)?;
    let (streams, options) = (parsed.common.stream.unwrap_or(false), parsed.common.stream_options);
    let model = served.shown_name(asked.tenant, parsed.common.adapter.as_deref()).to_owned();
    let Begun { group, replies, prompt } = begin(asked, &template, parsed, body.into_room()).await?;
    let prompt_ids = replies.token_ids.then_some(&*prompt);
    let created = app.clock.unix_s();
    let head = |object| Head::new("chatcmpl", object, asked.request_id, &model, created);
    if streams {
        let (head, prompt_tokens) = (head("chat.completion.chunk"), prompt.len() as u32);
        let frames = ChatFrames::new(head, group.choices(), replies, options, prompt_tokens);
        return Ok(stream_answer(app, group, Box::new(frames.with_prompt(prompt_ids))));
    }
    let mut body = ChatBody::new(group.choices(), replies);
    let totals = collect(group, &mut body).await?;
    let (head, spelled) = (head("chat.completion"), body.spelled_bytes());
    let head = match prompt_ids {
        Some(ids) => head.with_prompt(ids),
        None => head,
    };
    let written =
        served.with_tokenizer(spelled, move |tokenizer| body.written(&head, totals, tokenizer)).await?;
    Ok(json_bytes(StatusCode::OK, written))
}

/// A conversation whose replies are being generated.
pub struct Begun {
    /// The replies, as they come.
    pub group: Group,
    /// What they may contain.
    pub replies: Replies,
    /// The rendered conversation.
    pub prompt: Arc<[u32]>,
}

/// A request, and how long its replies may be.
pub struct Bounded {
    /// The request. Its own limit doesn't count.
    pub parsed: Parsed,
    /// The limit.
    pub longest: Longest,
}

impl From<Parsed> for Bounded {
    fn from(parsed: Parsed) -> Self {
        let longest = parsed.max_tokens.map_or(Longest::Room(u32::MAX), Longest::Asked);
        Self { parsed, longest }
    }
}

/// Renders a conversation and starts its replies. `room` is what the request's body occupies until then.
pub async fn begin(
    asked: Asked<'_>,
    template: &ChatTemplate,
    request: impl Into<Bounded>,
    room: Room,
) -> Result<Begun, ApiError> {
    let served = asked.app.served()?;
    let Bounded { parsed, longest } = request.into();
    let Parsed { prompt, offer, max_tokens: _, logprobs, separate_reasoning, mut common } = parsed;
    common.check_options(common.stream.unwrap_or(false))?;
    let special = calls::TAGS.into_iter().all(|tag| served.tokenizer.is_special(tag));
    let shape = offer.shape(template.tools(), special, common.shape.take())?;
    let continues = prompt.ending == Ending::Within;
    if template.reads().harmony {
        Opening::check(&served.tokenizer)?;
    }
    let Rendered { tokens, reasoning, opening } = render(served, prompt, Purpose::Prompt, room).await?;
    let names: Vec<String> =
        if offer.is_shown() { offer.names().map(str::to_owned).collect() } else { Vec::new() };
    let (reasoning, prelude) = match &opening {
        Some(opening) => {
            let reasoning = if separate_reasoning { Expected::Tagged } else { Expected::Never };
            let required = match offer.is_forced() {
                true => Required::Call,
                false => Required::Form { functions: &names },
            };
            let prelude = match shape {
                Some(_) => opening.prelude(required, &served.tokenizer)?,
                None => Prelude::None,
            };
            (reasoning, prelude)
        }
        None if separate_reasoning && template.reasons() => {
            reasoning::expect(reasoning, shape.is_some(), &served.tokenizer)
        }
        None => (Expected::Never, Prelude::None),
    };
    let place = opening.clone();
    let replies = Replies {
        speech: Speech {
            reasoning,
            shaped: prelude != Prelude::None,
            opening,
            style: template.tools(),
            names,
            forced: offer.is_forced(),
            parallel: offer.parallel,
        },
        logprobs: logprobs.is_some().then(|| served.tokenizer.clone()),
        token_ids: common.return_token_ids,
    };
    let prompt: Arc<[u32]> = tokens.into();
    let job = Job {
        source: "messages",
        prompts: vec![Arc::clone(&prompt)],
        goes_on: continues,
        tags: replies.speech.tags(),
        place,
        longest,
        embed: false,
        logprobs,
        prompt_logprobs: None,
        shape,
        prelude,
        common,
    };
    let group = job.start(asked).await?;
    Ok(Begun { group, replies, prompt })
}

/// Parses and checks a body as far as that needs no model. Returns the prompt's text and the required form of
/// the output, if any.
pub fn check(
    body: &[u8],
    models: &[String],
    template: &ChatTemplate,
) -> Result<(String, Option<Shape>), ApiError> {
    let Parsed { prompt, offer, common, .. } = request::parse(body, Models::all(models), template)?;
    let PromptText { text, .. } = prompt.render(template)?;
    Ok((text, offer.shape(template.tools(), false, common.shape)?))
}

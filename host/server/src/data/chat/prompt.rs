//! From messages to tokens, off the threads that serve connections: templates are programs.

use infer_model::ModelErrorKind;
use serde_json::{Map, Value};

use crate::app::Served;
use crate::http::{ApiError, Room};

/// A conversation as a template takes it.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatPrompt {
    /// Checked messages.
    pub messages: Value,
    /// Whether it ends where an answer begins.
    pub add_generation_prompt: bool,
    /// Further variables, tools among them.
    pub variables: Map<String, Value>,
}

/// The tokens of a conversation that came in a body.
pub async fn render(served: &Served, prompt: ChatPrompt, room: Room) -> Result<Vec<u32>, ApiError> {
    let (template, tokenizer) = (served.chat_template().await?, served.tokenizer.clone());
    let work = move || {
        let _room = room;
        let ChatPrompt { messages, add_generation_prompt, variables } = prompt;
        let text = template.render_with(&messages, add_generation_prompt, &variables)?;
        // The template has written the special tokens itself.
        tokenizer.encode(&text, false)
    };
    served.off_thread(work).await?.map_err(|error| match error.kind {
        ModelErrorKind::Template => ApiError::invalid("messages", error.message).code("template_refused"),
        _ => ApiError::invalid("messages", error),
    })
}

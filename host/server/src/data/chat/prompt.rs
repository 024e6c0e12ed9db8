//! Renders messages to tokens. Templates are programs, so this runs off the threads that serve connections.

use infer_model::{ModelError, ModelErrorKind};
use serde_json::{Map, Value};

use super::reasoning;
use crate::app::Served;
use crate::http::{ApiError, Room};
use crate::texts::{FieldText, Purpose};

/// A conversation and the template's other inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatPrompt {
    /// Checked messages.
    pub messages: Value,
    /// Whether the prompt ends where the reply begins.
    pub add_generation_prompt: bool,
    /// Other variables, including tools.
    pub variables: Map<String, Value>,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// Whether it ends with the tag that opens the model's reasoning.
    pub opens_reasoning: bool,
}

/// Renders a conversation and tokenizes it. `room` is the share of its body in the memory budget.
pub async fn render(
    served: &Served,
    prompt: ChatPrompt,
    purpose: Purpose,
    room: Room,
) -> Result<Rendered, ApiError> {
    let template = served.chat_template().await?;
    let work = move || {
        let ChatPrompt { messages, add_generation_prompt, variables } = prompt;
        (template.render_with(&messages, add_generation_prompt, &variables), room)
    };
    let (text, room) = served.off_thread(work).await?;
    let text = text.map_err(|error: ModelError| match error.kind {
        ModelErrorKind::Template => ApiError::invalid("messages", error.message).code("template_refused"),
        _ => ApiError::invalid("messages", error),
    })?;
    let opens_reasoning = reasoning::opens(&text);
    // The template has already written the special tokens.
    let text = FieldText { field: "messages", text, special: false, purpose };
    Ok(Rendered { tokens: served.encode(text, room).await?, opens_reasoning })
}

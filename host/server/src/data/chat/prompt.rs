//! Renders messages to tokens. Templates are programs, so this runs off the threads that serve connections.

use infer_chat::ChatTemplate;
use infer_model::ModelErrorKind;
use serde_json::{Map, Value};

use super::ending::{self, Ending};
use super::harmony::{self, Opening};
use super::reasoning::{self, Expected};
use crate::app::Served;
use crate::http::{ApiError, Room};
use crate::texts::{FieldText, Purpose};

/// A conversation and the template's other inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatPrompt {
    /// Checked messages.
    pub messages: Value,
    /// Where it ends.
    pub ending: Ending,
    /// Other variables, including tools.
    pub variables: Map<String, Value>,
}

/// The text of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptText {
    /// The text, with its special tokens written out.
    pub text: String,
    /// How a reply to it begins, if the model reasons.
    pub reasoning: Expected,
    /// Where it leaves its last message, if the model's messages have channels.
    pub opening: Option<Opening>,
}

/// A rendered conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendered {
    /// The prompt.
    pub tokens: Vec<u32>,
    /// How a reply to it begins, if the model reasons.
    pub reasoning: Expected,
    /// Where it leaves its last message, if the model's messages have channels.
    pub opening: Option<Opening>,
}

impl ChatPrompt {
    /// Renders the conversation.
    ///
    /// # Errors
    /// The template refuses it, or doesn't show the text that is to be continued; or the machine has no memory for it.
    pub fn render(mut self, template: &ChatTemplate) -> Result<PromptText, ApiError> {
        let continued = match self.ending {
            Ending::Within => Some(ending::mark(&mut self.messages)?),
            Ending::Reply | Ending::Messages => None,
        };
        let is_harmony = template.reads().harmony;
        if is_harmony && let Some(Value::Array(tools)) = self.variables.get_mut("tools") {
            harmony::describe(tools);
        }
        let text = template.render_with(&self.messages, self.ending == Ending::Reply, &self.variables);
        let text = text.map_err(|error| match error.kind {
            ModelErrorKind::Template => ApiError::invalid("messages", error.message).code("template_refused"),
            ModelErrorKind::Machine => ApiError::unavailable("memory", error.message),
            _ => ApiError::invalid("messages", error),
        })?;
        let (reasoning, text) = match continued {
            None => (reasoning::after_prompt(&text), text),
            Some(continued) => (continued.reasoning, continued.cut(text)?),
        };
        let opening = is_harmony.then(|| Opening::after(&text));
        Ok(PromptText { text, reasoning, opening })
    }
}

/// Renders a conversation and tokenizes it. `room` is the share of its body in the memory budget.
pub async fn render(
    served: &Served,
    prompt: ChatPrompt,
    purpose: Purpose,
    room: Room,
) -> Result<Rendered, ApiError> {
    let template = served.chat_template().await?;
    let render = move || (prompt.render(&template), room);
    let (text, room) = served.off_thread("rendering the conversation", render).await?;
    let PromptText { text, reasoning, opening } = text?;
    // The template has already written the special tokens.
    let text = FieldText { field: "messages", text, special: false, purpose };
    Ok(Rendered { tokens: served.encode(text, room).await?, reasoning, opening })
}

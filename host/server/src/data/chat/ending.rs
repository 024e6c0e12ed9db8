//! Where a prompt ends: where a reply begins, or in the middle of one that the model continues.
//!
//! Templates can't be told to stop within a message: they trim texts and add what ends a turn. So a mark is put behind
//! the text, and the prompt is what the template writes before it.

use serde_json::{Value, json};

use super::reasoning::{self, Expected};
use super::sink::random_id;
use crate::data::fields::boolean;
use crate::data::json::Fields;
use crate::http::ApiError;

const BEGINS: &str = "add_generation_prompt";
const CONTINUES: &str = "continue_final_message";

/// Where a prompt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// Where the reply begins.
    Reply,
    /// Behind the last message.
    Messages,
    /// Behind the last message's text, which the model continues.
    Within,
}

impl Ending {
    /// Takes the fields of a request.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let begins = boolean(fields, BEGINS)?;
        match (boolean(fields, CONTINUES)?.unwrap_or(false), begins) {
            (true, Some(true)) => {
                let message = format!("can't be used together with {BEGINS}, which begins another message");
                Err(ApiError::invalid(CONTINUES, message))
            }
            (true, _) => Ok(Self::Within),
            (false, Some(false)) => Ok(Self::Messages),
            (false, _) => Ok(Self::Reply),
        }
    }
}

/// A message that is to be continued.
#[derive(Debug)]
pub struct Continued {
    /// What has been put behind its text.
    mark: String,
    /// Whether the text ends within the model's reasoning.
    pub reasoning: Expected,
}

/// Marks the end of the last message's text.
///
/// # Errors
/// It has calls, which come after its text.
pub fn mark(messages: &mut Value) -> Result<Continued, ApiError> {
    // No template trims or escapes it, and no client can know it.
    let mark = random_id("end");
    let last = messages.as_array_mut().and_then(|messages| messages.last_mut()).expect("checked messages");
    if !last["tool_calls"].is_null() {
        return Err(ApiError::invalid("messages", "the last one has calls, so its text can't be continued"));
    }
    let content = &mut last["content"];
    if let Value::Array(parts) = content
        && parts.is_empty()
    {
        parts.push(json!({"type": "text", "text": ""}));
    }
    let text = match content {
        Value::Array(parts) => &mut parts.last_mut().expect("one was added")["text"],
        text => text,
    };
    let said = text.as_str().expect("checked messages have texts");
    let reasoning = reasoning::after_text(said);
    *text = Value::String(format!("{said}{mark}"));
    Ok(Continued { mark, reasoning })
}

impl Continued {
    /// A prompt up to the end of the message's text.
    pub fn cut(&self, mut prompt: String) -> Result<String, ApiError> {
        let mut found = prompt.match_indices(&self.mark);
        let (Some((end, _)), None) = (found.next(), found.next()) else {
            let message =
                "the chat template doesn't show the last one's text as it is, so it can't be continued";
            return Err(ApiError::invalid("messages", message).code("template_refused"));
        };
        prompt.truncate(end);
        Ok(prompt)
    }
}

#[cfg(test)]
mod tests {
    use infer_chat::{ChatTemplate, Sandbox};
    use infer_model::Source;
    use serde_json::Map;

    use super::super::ChatPrompt;
    use super::*;

    fn rendered(template: &str, messages: Value) -> Result<(String, Expected), ApiError> {
        let files = [("chat_template.jinja", template.as_bytes())];
        let sandbox = Sandbox::new(None).unwrap();
        let template = ChatTemplate::load(&sandbox, &Source::Embedded(&files)).unwrap().expect("a template");
        let prompt = ChatPrompt { messages, ending: Ending::Within, variables: Map::new() };
        prompt.render(&template).map(|prompt| (prompt.text, prompt.reasoning))
    }

    const TURNS: &str = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>{% endfor %}\
        {% if add_generation_prompt %}<assistant>{% endif %}";

    #[test]
    fn prompt_ends_with_the_text_whatever_the_template_adds() {
        let asked =
            |text: Value| json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": text}]);
        let parts =
            "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}<end>{% endfor %}";
        for (template, messages, expected) in [
            (TURNS, asked(json!("It is ")), "<user>Hi<end><assistant>It is "),
            (TURNS, asked(json!("")), "<user>Hi<end><assistant>"),
            (TURNS, asked(json!("end_0")), "<user>Hi<end><assistant>end_0"),
            (TURNS, json!([{"role": "user", "content": "Once"}]), "<user>Once"),
            (
                "{{ messages | tojson }}",
                json!([{"role": "user", "content": "a\"é"}]),
                "[{\"role\": \"user\", \"content\": \"a\\\"é",
            ),
            (
                parts,
                json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]),
                "[a][b",
            ),
            (parts, json!([{"role": "assistant", "content": []}]), "["),
        ] {
            let found =
                rendered(template, messages.clone()).unwrap_or_else(|error| panic!("{}", error.message()));
            assert_eq!(found, (expected.to_owned(), Expected::Never), "{messages}");
        }
    }

    #[test]
    fn text_may_end_within_the_reasoning() {
        for (text, expected) in [
            ("<think>", Expected::Opened),
            ("<think>\n", Expected::Opened),
            ("<think>\nLet me", Expected::Within),
            ("<think>\nDone.\n</think>\n\nIt", Expected::Never),
            ("</think>", Expected::Never),
            ("It", Expected::Never),
        ] {
            let (_, found) = rendered(TURNS, json!([{"role": "assistant", "content": text}])).unwrap();
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn what_has_no_single_end_is_refused() {
        let call = json!({"type": "function", "function": {"name": "f", "arguments": {}}});
        let calling = json!([{"role": "assistant", "content": "", "tool_calls": [call]}]);
        let said = json!([{"role": "assistant", "content": "a"}]);
        for (template, messages, code) in [
            (TURNS, calling, "invalid_value"),
            ("nothing", said.clone(), "template_refused"),
            ("{{ messages[0].content }}{{ messages[0].content }}", said.clone(), "template_refused"),
            ("{{ messages[0].content | upper }}", said, "template_refused"),
        ] {
            let error = rendered(template, messages).unwrap_err();
            assert_eq!(
                (error.status().as_u16(), error.reason()),
                (422, code),
                "{template}: {}",
                error.message()
            );
            assert!(error.message().starts_with("messages: "), "{}", error.message());
        }
    }

    #[test]
    fn fields_that_contradict_each_other_are_refused() {
        let taken = |body: Value| Ending::take(&mut Fields::parse(body.to_string().as_bytes()).unwrap());
        for (body, expected) in [
            (json!({}), Ending::Reply),
            (json!({BEGINS: true, CONTINUES: false}), Ending::Reply),
            (json!({BEGINS: false}), Ending::Messages),
            (json!({BEGINS: false, CONTINUES: true}), Ending::Within),
            (json!({BEGINS: null, CONTINUES: true}), Ending::Within),
        ] {
            assert_eq!(taken(body.clone()).unwrap(), expected, "{body}");
        }
        let error = taken(json!({BEGINS: true, CONTINUES: true})).unwrap_err();
        assert!(
            error.message().starts_with("continue_final_message: can't be used together"),
            "{}",
            error.message()
        );
        assert!(taken(json!({CONTINUES: 1})).is_err());
    }
}

//! Server-sent events of both dialects as one kind of step: a token, the end, a failure.

use infer_api::completions::{DoneEvent, ErrorEvent, TokenEvent};
use infer_api::usage::{PromptTokensDetails, Usage};

use super::Dialect;

/// Meaning of an event.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// A token: its id if the dialect has one, and its text.
    Token(Option<u32>, String),
    /// The stream is complete; its usage, if the event carries it.
    Done(Option<Usage>),
    /// Usage, before the end.
    Usage(Usage),
    /// An event to ignore.
    Other,
}

/// Interprets an event.
///
/// # Errors
/// If the server reports an error, with its message, or if the event is malformed.
pub fn read(dialect: Dialect, name: &str, data: &str) -> Result<Step, String> {
    if data.is_empty() {
        return Ok(Step::Other);
    }
    let malformed = |error: serde_json::Error| format!("malformed event `{name}`: {error}");
    match dialect {
        Dialect::Named => match name {
            "token" => {
                let token: TokenEvent = serde_json::from_str(data).map_err(malformed)?;
                Ok(Step::Token(Some(token.token_id), token.token))
            }
            "done" => {
                let done: DoneEvent = serde_json::from_str(data).map_err(malformed)?;
                Ok(Step::Done(Some(done.usage)))
            }
            "error" => {
                let error: ErrorEvent = serde_json::from_str(data).map_err(malformed)?;
                Err(format!("error event {}: {}", error.code, error.error))
            }
            "" => Err("an event without a name; is this the OpenAI dialect? (--dialect openai)".to_owned()),
            _ => Ok(Step::Other),
        },
        Dialect::Openai if data == "[DONE]" => Ok(Step::Done(None)),
        Dialect::Openai => {
            let value: serde_json::Value = serde_json::from_str(data).map_err(malformed)?;
            if let Some(error) = value.get("error") {
                return Err(format!("error chunk: {error}"));
            }
            let choice = &value["choices"][0];
            if choice.is_null() && value["usage"].is_object() {
                return Ok(Step::Usage(usage(&value["usage"])));
            }
            let ends = choice["finish_reason"].is_string();
            // Content of a completion, of a chat, or of a chat's reasoning.
            let delta = &choice["delta"];
            let reasoning = delta["reasoning_content"].as_str().or_else(|| delta["reasoning"].as_str());
            match (choice["text"].as_str(), delta["content"].as_str().or(reasoning)) {
                // The last chunk may carry only the finish reason.
                (Some(""), _) if ends => Ok(Step::Other),
                (Some(text), _) => Ok(Step::Token(None, text.to_owned())),
                // A chat's first chunk carries the role.
                (None, Some("") | None) => Ok(Step::Other),
                (None, Some(text)) => Ok(Step::Token(None, text.to_owned())),
            }
        }
    }
}

/// Usage; counts that the server omits are 0.
fn usage(value: &serde_json::Value) -> Usage {
    let count = |value: &serde_json::Value| value.as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    Usage {
        prompt_tokens: count(&value["prompt_tokens"]),
        completion_tokens: count(&value["completion_tokens"]),
        total_tokens: count(&value["total_tokens"]),
        prompt_tokens_details: PromptTokensDetails {
            cached_tokens: count(&value["prompt_tokens_details"]["cached_tokens"]),
        },
        completion_tokens_details: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use infer_api::sse::Events;

    fn steps(dialect: Dialect, text: &str, chunk: usize) -> Vec<Result<Step, String>> {
        let mut events = Events::default();
        let mut steps = Vec::new();
        for bytes in text.as_bytes().chunks(chunk) {
            events.push(bytes).unwrap();
            while let Some((name, data)) = events.next() {
                steps.push(read(dialect, &name, &data));
            }
        }
        steps
    }

    #[test]
    fn named_events_are_read_across_chunk_boundaries() {
        let text = "event: token\ndata: {\"token\":\"a\",\"token_id\":5}\n\n: keep-alive\n\n\
                    event: error\ndata: {\"error\":\"out of memory\",\"code\":\"device\"}\n\n";
        let want = vec![
            Ok(Step::Token(Some(5), "a".to_owned())),
            Ok(Step::Other),
            Err("error event device: out of memory".to_owned()),
        ];
        assert_eq!(steps(Dialect::Named, text, 1), want);
        assert_eq!(steps(Dialect::Named, text, 1_000), want);
    }

    #[test]
    fn openai_chunks_are_read() {
        let text = "data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":null}]}\r\n\r\n\
                    data: {\"choices\":[{\"index\":0,\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n\
                    data: {\"error\":{\"message\":\"no\"}}\n\ndata: [DONE]\n\n";
        let steps = steps(Dialect::Openai, text, 7);
        assert_eq!(
            steps[0],
            Ok(Step::Token(None, String::new())),
            "an empty text is a token that doesn't complete a character"
        );
        assert_eq!(steps[1], Ok(Step::Other));
        assert!(steps[2].as_ref().is_err_and(|error| error.contains("no")), "{steps:?}");
        assert_eq!(steps[3], Ok(Step::Done(None)));
    }

    #[test]
    fn chat_chunks_are_read() {
        let text = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n\
                    data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n\
                    data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n\
                    data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":1,\"total_tokens\":5}}\n\n";
        let steps = steps(Dialect::Openai, text, 11);
        assert_eq!(steps[..3], [Ok(Step::Other), Ok(Step::Token(None, "hi".to_owned())), Ok(Step::Other)]);
        let Ok(Step::Usage(usage)) = &steps[3] else { panic!("{steps:?}") };
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (4, 1));
    }
}

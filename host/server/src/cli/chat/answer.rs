//! A streamed answer: chunks of OpenAI's form as they come, what they add up to, and its figures. Times are measured
//! here, because chunks have none.

use std::time::Duration;

use serde_json::Value;

/// Ends that several servers give answers which are not whole, without calling them errors.
const CUTS: [&str; 4] = ["cancelled", "abort", "error", "content_filter"];

/// The end of an answer that has its maximum length.
const LENGTH: &str = "length";
/// What users are told of it.
pub const CUT_AT_LENGTH: &str = "cut off at its maximum length";

/// What takes less than this came at once, and tells nothing of the server's rate.
const MEASURABLE: Duration = Duration::from_millis(5);

/// What a chunk adds.
#[derive(Debug, Default, PartialEq)]
pub struct Chunk {
    pub reasoning: String,
    pub text: String,
    /// Why the answer ends, in its last chunk.
    finish: Option<String>,
    tokens: Option<Tokens>,
}

/// Token counts of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tokens {
    prompt: u64,
    generated: u64,
    /// Tokens of the prompt that the prefix cache had; not every server says.
    cached: Option<u64>,
}

impl Chunk {
    /// Reads the data of an event.
    ///
    /// # Errors
    /// If it is malformed, or tells of an error, with its message.
    pub fn read(data: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(data).map_err(|error| format!("malformed chunk: {error}"))?;
        if value.get("error").is_some_and(|error| !error.is_null()) {
            return Err(message(&value).unwrap_or(data).to_owned());
        }
        let choice = &value["choices"][0];
        let delta = &choice["delta"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let reasoning = text(&delta["reasoning_content"]).or_else(|| text(&delta["reasoning"]));
        Ok(Self {
            reasoning: reasoning.unwrap_or_default(),
            text: text(&delta["content"]).unwrap_or_default(),
            finish: text(&choice["finish_reason"]),
            tokens: tokens(&value["usage"]),
        })
    }
}

fn tokens(usage: &Value) -> Option<Tokens> {
    Some(Tokens {
        prompt: usage["prompt_tokens"].as_u64()?,
        generated: usage["completion_tokens"].as_u64()?,
        cached: usage["prompt_tokens_details"]["cached_tokens"].as_u64(),
    })
}

/// The message of an error as a body or a chunk has it, in the forms of several servers.
pub fn message(value: &Value) -> Option<&str> {
    let error = &value["error"];
    [&error["message"], error, &value["message"], &value["detail"]].into_iter().find_map(Value::as_str)
}

/// What has come of an answer.
#[derive(Debug, Default)]
pub struct Answer {
    pub reasoning: String,
    pub text: String,
    finish: Option<String>,
    tokens: Option<Tokens>,
    /// When the first and the last text came, since the request was sent.
    times: Option<(Duration, Duration)>,
}

impl Answer {
    /// Adds a chunk that came so long after the request was sent.
    pub fn add(&mut self, chunk: &Chunk, since_sent: Duration) {
        if !(chunk.reasoning.is_empty() && chunk.text.is_empty()) {
            let first = self.times.map_or(since_sent, |(first, _)| first);
            self.times = Some((first, since_sent));
        }
        self.reasoning.push_str(&chunk.reasoning);
        self.text.push_str(&chunk.text);
        if chunk.finish.is_some() {
            self.finish.clone_from(&chunk.finish);
        }
        self.tokens = chunk.tokens.or(self.tokens);
    }

    /// Whether no text has come.
    pub fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.text.is_empty()
    }

    /// Whether the server has said why it ends.
    pub fn is_finished(&self) -> bool {
        self.finish.is_some()
    }

    /// What the server calls the end of an answer that it cut off for reasons of its own.
    pub fn cut_by(&self) -> Option<&str> {
        self.finish.as_deref().filter(|reason| CUTS.contains(reason))
    }

    /// Whether it ends for its length alone.
    pub fn is_cut_at_length(&self) -> bool {
        self.finish.as_deref() == Some(LENGTH)
    }

    /// One line of its figures, those that are known. `stopped` tells that the user ended it.
    pub fn figures(&self, stopped: bool) -> String {
        let mut parts = Vec::new();
        match self.finish.as_deref() {
            _ if stopped => parts.push("stopped".to_owned()),
            None | Some("stop") => {}
            Some(LENGTH) => parts.push(CUT_AT_LENGTH.to_owned()),
            Some(reason) => parts.push(format!("ended by {reason}")),
        }
        if let Some(Tokens { generated, .. }) = self.tokens {
            parts.push(format!("{generated} {}", if generated == 1 { "token" } else { "tokens" }));
            parts.extend(self.rate(generated).map(|rate| format!("{rate:.0} tok/s")));
        }
        parts.extend(self.times.map(|(first, _)| format!("TTFT {}", short(first))));
        match self.tokens {
            Some(Tokens { prompt, cached: Some(cached), .. }) => {
                parts.push(format!("{cached} of {prompt} prompt tokens cached"));
            }
            Some(Tokens { prompt, cached: None, .. }) => parts.push(format!("{prompt} prompt tokens")),
            None => {}
        }
        parts.join(", ")
    }

    /// Tokens per second after the first; `None` if they came together, as from a proxy that buffers.
    fn rate(&self, generated: u64) -> Option<f64> {
        let (first, last) = self.times?;
        let took = last - first;
        (generated > 1 && took >= MEASURABLE).then(|| (generated - 1) as f64 / took.as_secs_f64())
    }
}

/// A duration in as few digits as tell it.
fn short(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1e3;
    if ms < 10.0 {
        format!("{ms:.1} ms")
    } else if ms < 1_000.0 {
        format!("{ms:.0} ms")
    } else {
        format!("{:.1} s", ms / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(chunks: &[(u64, &str)]) -> Answer {
        let mut answer = Answer::default();
        for (ms, data) in chunks {
            answer.add(&Chunk::read(data).unwrap(), Duration::from_millis(*ms));
        }
        answer
    }

    #[test]
    fn chunks_add_up_to_an_answer_with_its_figures() {
        let answer = answer(&[
            (5, r#"{"choices":[{"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#),
            (12, r#"{"choices":[{"delta":{"reasoning_content":"hm"},"finish_reason":null}]}"#),
            (22, r#"{"choices":[{"delta":{"content":"Pag"}}]}"#),
            (32, r#"{"choices":[{"delta":{"content":"ed"}}],"error":null}"#),
            (32, r#"{"choices":[{"delta":{},"finish_reason":"stop"}],"usage":null}"#),
            (
                33,
                r#"{"choices":[],"usage":{"prompt_tokens":58,"completion_tokens":5,"total_tokens":63,
                    "prompt_tokens_details":{"cached_tokens":48}}}"#,
            ),
        ]);
        assert_eq!((&*answer.reasoning, &*answer.text, answer.is_finished()), ("hm", "Paged", true));
        assert_eq!(answer.figures(false), "5 tokens, 200 tok/s, TTFT 12 ms, 48 of 58 prompt tokens cached");
    }

    #[test]
    fn figures_are_those_that_are_known() {
        let text = r#"{"choices":[{"delta":{"content":"x"}}]}"#;
        assert_eq!(answer(&[]).figures(true), "stopped");
        assert_eq!(answer(&[(4, text)]).figures(true), "stopped, TTFT 4.0 ms");
        let usage = r#"{"choices":[{"delta":{},"finish_reason":"length"}],
                        "usage":{"prompt_tokens":3,"completion_tokens":1}}"#;
        let cut = "cut off at its maximum length, 1 token, TTFT 1.5 s, 3 prompt tokens";
        assert_eq!(answer(&[(1_500, text), (1_500, usage)]).figures(false), cut);
        let more = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":11}}"#;
        let at_once = "11 tokens, TTFT 40 ms, 3 prompt tokens";
        assert_eq!(answer(&[(40, text), (41, text), (41, more)]).figures(false), at_once);
        let cancelled = r#"{"choices":[{"delta":{},"finish_reason":"cancelled"}]}"#;
        assert_eq!(answer(&[(40, text), (41, cancelled)]).figures(false), "ended by cancelled, TTFT 40 ms");
        assert!(answer(&[]).is_empty() && !answer(&[(1, text)]).is_empty());
        assert_eq!(answer(&[(40, text), (41, cancelled)]).cut_by(), Some("cancelled"));
        assert!(answer(&[(40, usage)]).is_cut_at_length() && !answer(&[(41, cancelled)]).is_cut_at_length());
        for whole in [usage, r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#, text] {
            assert_eq!(answer(&[(40, whole)]).cut_by(), None);
        }
    }

    #[test]
    fn errors_are_found_in_the_forms_of_several_servers() {
        for (data, words) in [
            (r#"{"error":{"message":"out of memory","code":"memory"}}"#, "out of memory"),
            (r#"{"error":"no room"}"#, "no room"),
            (r#"{"error":{"code":500}}"#, r#"{"error":{"code":500}}"#),
            ("{", "malformed chunk: "),
        ] {
            assert!(Chunk::read(data).unwrap_err().starts_with(words), "{data}");
        }
        for (body, expected) in [
            (r#"{"message":"a"}"#, Some("a")),
            (r#"{"detail":"b"}"#, Some("b")),
            (r#"{"detail":[1]}"#, None),
            ("3", None),
        ] {
            assert_eq!(message(&serde_json::from_str(body).unwrap()), expected, "{body}");
        }
        assert_eq!(Chunk::read("{}"), Ok(Chunk::default()), "of other kinds of events nothing is taken");
    }
}

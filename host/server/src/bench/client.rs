//! Requests over HTTP, timed when their bytes arrive.

use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::Request;
use hyper::body::Bytes;
use infer_api::completions::{CompletionRequest, StreamOptions};
use infer_api::sse::Events;
use infer_api::usage::Usage;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::history::History;
use super::sse::{Step, read};
use crate::web::{Trust, Web};

/// Longest gap in a stream before it counts as failed.
const SILENCE: Duration = Duration::from_secs(300);

/// What helps where the list of models doesn't.
const NAME_IT: &str = "name the model with --served-model";

/// Stream format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// `token` and `done` events.
    #[default]
    Named,
    /// OpenAI's unnamed chunks.
    Openai,
}

/// Endpoint and form of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// `/v1/completions` with token ids: exact lengths.
    #[default]
    Completions,
    /// `/v1/completions` with text, for servers that take no token ids.
    Text,
    /// `/v1/chat/completions`; always in OpenAI's dialect.
    Chat,
}

/// Required output length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Lengths {
    /// Exactly as requested: end tokens are ignored, and any other length is a failure.
    #[default]
    Exact,
    /// Any length, for servers that don't support `ignore_eos`.
    Any,
}

/// The server, and how to talk to it.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// `http://HOST:PORT` or `https://HOST:PORT`, or the full URL of an endpoint.
    pub url: String,
    /// Certificates to accept.
    pub trust: Trust,
    /// Stream format of the server.
    pub dialect: Dialect,
    /// Endpoint and form of requests.
    pub api: Api,
    /// Required output length.
    pub lengths: Lengths,
    /// Sent as a bearer token.
    pub api_key: Option<String>,
    /// Model name in requests; `None` takes the first of `/v1/models`.
    pub model: Option<String>,
}

/// A request's timing, or why it failed.
pub type Outcome = Result<Timing, String>;

/// Timing at the client, in milliseconds since the request was sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timing {
    /// Time to the first token.
    pub ttft_ms: f64,
    /// Times between tokens.
    pub itl_ms: Vec<f64>,
    /// Time to the end of the stream.
    pub latency_ms: f64,
    /// Tokens received.
    pub completion_tokens: u32,
    /// Prompt tokens that the server reports as cached.
    pub cached_tokens: u32,
    /// Prompt tokens as the server counts them; 0 if it doesn't report them.
    pub prompt_tokens: u32,
    /// Ids of the tokens, if the dialect has them.
    pub tokens: Vec<u32>,
    /// Text of the output.
    pub text: String,
}

/// A request, with what a recorded one may have.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// Its prompt.
    pub history: &'a History,
    /// Number of tokens to generate.
    pub max_tokens: u32,
    /// In place of the target's.
    pub api_key: Option<&'a str>,
    /// Its conversation, or 0. Only hosts of ours are told, as of what follows.
    pub session: u64,
    /// Larger is more urgent.
    pub priority: i32,
    /// When its first token is due.
    pub ttft_deadline_ms: Option<u64>,
    /// How many tokens its client expected.
    pub expected_output_tokens: Option<u32>,
}

impl<'a> Ask<'a> {
    /// An ordinary request.
    pub fn new(history: &'a History, max_tokens: u32) -> Self {
        Self {
            history,
            max_tokens,
            api_key: None,
            session: 0,
            priority: 0,
            ttft_deadline_ms: None,
            expected_output_tokens: None,
        }
    }
}

/// Sends requests; clones share connections.
#[derive(Clone)]
pub struct Client {
    web: Web,
    url: String,
    model: String,
    target: Target,
}

impl Client {
    /// Determines the endpoint's URL and the model's name.
    pub async fn connect(mut target: Target) -> Result<Self, String> {
        let base = target.url.trim_end_matches('/');
        let path = if target.api == Api::Chat { "chat/completions" } else { "completions" };
        let url = if base.ends_with("/completions") {
            base.to_owned()
        } else {
            format!("{}/v1/{path}", base.trim_end_matches("/v1"))
        };
        if target.api == Api::Chat {
            target.dialect = Dialect::Openai;
        }
        let web = Web::new(&url, &target.trust, SILENCE)?;
        let mut client = Self { web, url, model: String::new(), target };
        client.model = match client.target.model.clone() {
            Some(model) => model,
            None => client.first_model().await?,
        };
        Ok(client)
    }

    /// URL of the endpoint.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Model name in requests.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The most tokens, prompt and output together, of a request to this model; `None` if the server doesn't say.
    pub async fn longest(&self) -> Option<u32> {
        let models = self.models().await.ok()?;
        let cards = models["data"].as_array()?;
        let own = cards.iter().find(|card| card["id"] == self.model.as_str())?;
        own["max_model_len"].as_u64().and_then(|tokens| u32::try_from(tokens).ok())
    }

    /// When the server was started, in seconds since 1970; `None` unless it is a host of ours.
    pub async fn started(&self) -> Option<u64> {
        let models = self.models().await.ok()?;
        let card = &models["data"][0];
        card["created"].as_u64().filter(|_| card["owned_by"] == "infer")
    }

    async fn first_model(&self) -> Result<String, String> {
        let models = self.models().await?;
        // Other servers' model cards lack some of our fields, but all have an id.
        let first = models["data"][0]["id"].as_str().map(str::to_owned);
        first.ok_or_else(|| format!("{} lists no model; {NAME_IT}", self.models_url()))
    }

    fn models_url(&self) -> String {
        let base = self.url.trim_end_matches("/completions").trim_end_matches("/chat");
        format!("{base}/models")
    }

    /// The server's list of models.
    async fn models(&self) -> Result<Value, String> {
        let url = self.models_url();
        let wrong = |error: &dyn std::fmt::Display| format!("{url}: {error}; {NAME_IT}");
        let request = self.request("GET", &url, None).body(Full::default()).map_err(|e| wrong(&e))?;
        let reply = self.web.send(request).await.map_err(|e| format!("{url}: {e}"))?;
        if !reply.status().is_success() {
            let advice = match reply.status().as_u16() {
                401 | 403 => "give a key of that host with --api-key",
                _ => NAME_IT,
            };
            return Err(format!("{url}: status {}; {advice}", reply.status()));
        }
        let text = reply.text().await.map_err(|e| wrong(&e))?;
        serde_json::from_str(&text).map_err(|e| wrong(&e))
    }

    /// Sends the history and reads the response's stream to its end. An error is one line without control characters,
    /// whatever the server sent.
    pub async fn run_one(&self, ask: &Ask<'_>) -> Outcome {
        let outcome = self.exchange(ask).await;
        outcome.map_err(|error| error.replace(char::is_control, " "))
    }

    async fn exchange(&self, ask: &Ask<'_>) -> Outcome {
        let body = self.body(ask).to_string();
        let accept = match self.target.dialect {
            Dialect::Named => "text/event-stream",
            Dialect::Openai => "application/json, text/event-stream",
        };
        let request = self
            .request("POST", &self.url, ask.api_key)
            .header("content-type", "application/json")
            .header("accept", accept)
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| error.to_string())?;
        let sent = Instant::now();
        let mut reply = self.web.send(request).await?;
        if !reply.status().is_success() {
            let status = reply.status();
            let text = reply.text().await.unwrap_or_default();
            let text: String = text.chars().take(300).collect();
            return Err(format!("HTTP {status}: {text}"));
        }
        let mut stream = Stream::new(self.target.dialect, sent);
        while let Some(chunk) = reply.chunk().await? {
            if stream.take(&chunk)? {
                reply.end().await;
                return stream.finish(ask.max_tokens, self.target.lengths);
            }
        }
        Err("the stream ended without its end event".to_owned())
    }

    fn body(&self, ask: &Ask<'_>) -> Value {
        let &Ask { history, max_tokens, session, priority, ttft_deadline_ms, .. } = ask;
        let exact = self.target.lengths == Lengths::Exact;
        if self.target.api == Api::Chat {
            let mut body = json!({
                "model": self.model, "messages": history.messages(), "max_tokens": max_tokens, "temperature": 0,
                "stream": true, "stream_options": {"include_usage": true},
            });
            if exact {
                body["ignore_eos"] = Value::Bool(true);
            }
            return body;
        }
        let openai = self.target.dialect == Dialect::Openai;
        let deadline = ttft_deadline_ms.map(|ms| u32::try_from(ms).unwrap_or(u32::MAX));
        let request = CompletionRequest {
            model: self.model.clone(),
            prompt: history.prompt(self.target.api == Api::Text),
            max_tokens: Some(max_tokens),
            temperature: Some(0.0),
            stream: Some(true),
            stream_options: openai
                .then_some(StreamOptions { include_usage: true, ..StreamOptions::default() }),
            ignore_eos: exact.then_some(true),
            session_id: (!openai && session != 0).then(|| session.to_string()),
            priority: (!openai && priority != 0).then_some(priority),
            ttft_deadline_ms: deadline.filter(|_| !openai),
            expected_output_tokens: ask.expected_output_tokens.filter(|_| !openai),
            ..CompletionRequest::default()
        };
        serde_json::to_value(request).expect("a request is JSON")
    }

    fn request(&self, method: &str, url: &str, key: Option<&str>) -> hyper::http::request::Builder {
        let request = Request::builder().method(method).uri(url);
        match key.or(self.target.api_key.as_deref()) {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }
}

/// A stream that is being read.
struct Stream {
    dialect: Dialect,
    sent: Instant,
    last_token: Option<Instant>,
    events: Events,
    usage: Option<Usage>,
    timing: Timing,
}

impl Stream {
    fn new(dialect: Dialect, sent: Instant) -> Self {
        Self {
            dialect,
            sent,
            last_token: None,
            events: Events::default(),
            usage: None,
            timing: Timing::default(),
        }
    }

    /// Reads a chunk; true once the stream's end event has arrived.
    fn take(&mut self, chunk: &[u8]) -> Result<bool, String> {
        let now = Instant::now();
        self.events.push(chunk)?;
        while let Some((name, data)) = self.events.next() {
            match read(self.dialect, &name, &data)? {
                Step::Token(id, text) => self.token(id, &text, now),
                Step::Usage(usage) => self.usage = Some(usage),
                Step::Done(usage) => {
                    self.usage = usage.or(self.usage);
                    self.timing.latency_ms = milliseconds(now - self.sent);
                    return Ok(true);
                }
                Step::Other => {}
            }
        }
        Ok(false)
    }

    fn token(&mut self, id: Option<u32>, text: &str, now: Instant) {
        match self.last_token {
            None => self.timing.ttft_ms = milliseconds(now - self.sent),
            Some(last) => self.timing.itl_ms.push(milliseconds(now - last)),
        }
        self.last_token = Some(now);
        self.timing.completion_tokens += 1;
        self.timing.tokens.extend(id);
        self.timing.text.push_str(text);
    }

    /// Completes the timing. With exact lengths, any other length is a failure, because its figures would not be
    /// comparable.
    fn finish(mut self, max_tokens: u32, lengths: Lengths) -> Outcome {
        if let Some(usage) = self.usage {
            if self.dialect == Dialect::Named && usage.completion_tokens != self.timing.completion_tokens {
                let events = self.timing.completion_tokens;
                return Err(format!("{events} token events, but usage counts {}", usage.completion_tokens));
            }
            // A chunk of the OpenAI dialect may hold several tokens; the usage counts them.
            self.timing.completion_tokens = usage.completion_tokens;
            self.timing.prompt_tokens = usage.prompt_tokens;
            self.timing.cached_tokens = usage.prompt_tokens_details.cached_tokens;
        }
        let came = self.timing.completion_tokens;
        if lengths == Lengths::Exact && came != max_tokens {
            return Err(format!("received {came} tokens, {max_tokens} were requested (see --lengths)"));
        }
        if came == 0 || self.last_token.is_none() {
            return Err("received no tokens".to_owned());
        }
        Ok(self.timing)
    }
}

fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_stream(text: &str, max_tokens: u32) -> Outcome {
        let mut stream = Stream::new(Dialect::Named, Instant::now());
        assert_eq!(stream.take(text.as_bytes()), Ok(true));
        stream.finish(max_tokens, Lengths::Exact)
    }

    #[test]
    fn stream_with_the_wrong_length_is_a_failure() {
        let token = "event: token\ndata: {\"token\":\"\",\"token_id\":3}\n\n";
        let done = |count: u32| {
            format!(
                "event: done\ndata: {{\"finish_reason\":\"length\",\"usage\":{{\"prompt_tokens\":1,\
                 \"completion_tokens\":{count},\"total_tokens\":9}},\"timings\":{{\"prefilled_tokens\":1,\
                 \"kv_bytes\":1}}}}\n\n"
            )
        };
        let timing = read_stream(&format!("{token}{token}{}", done(2)), 2).unwrap();
        assert_eq!((timing.completion_tokens, timing.itl_ms.len(), timing.tokens), (2, 1, vec![3, 3]));
        assert!(read_stream(&format!("{token}{}", done(1)), 2).unwrap_err().contains("received 1 tokens"));
        assert!(read_stream(&format!("{token}{}", done(2)), 2).unwrap_err().contains("usage counts 2"));
    }
}

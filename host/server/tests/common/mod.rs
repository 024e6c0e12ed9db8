//! Shared by the host's tests: a host in this process, a client, SSE parsing.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod port;
pub mod process;

use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use infer_server::config::{Bounds, Config};
use infer_server::serve::{self, RunningServer};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longer than whatever works takes, however busy the machine is.
pub const LONG: Duration = Duration::from_secs(120);

/// Limits that nothing reaches by being slow. A test of one of them replaces it.
pub fn bounds() -> Bounds {
    Bounds {
        body_timeout: LONG,
        engine_patience: LONG,
        scrape_patience: LONG,
        keep_alive: LONG,
        last_save: LONG,
        ..Bounds::default()
    }
}

/// A small, quick configuration of the demo model on free ports.
pub fn config() -> Config {
    Config {
        bounds: bounds(),
        port: 0,
        admin_port: 0,
        threads: 2,
        kv_memory_bytes: Some(64 << 20),
        admin_token: Some("test-token-0123456789".to_owned()),
        ..Config::default()
    }
}

/// A host and an HTTP client.
pub struct Host {
    pub server: RunningServer,
    /// Client of both planes.
    pub client: reqwest::Client,
}

impl Host {
    /// Starts a host.
    pub async fn start(config: Config) -> Self {
        let server = serve::start(config).await.unwrap_or_else(|e| panic!("the host starts: {e}"));
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { server, client }
    }

    /// A URL of the data plane.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.server.data_addr)
    }

    /// Posts JSON to the data plane.
    pub async fn post(&self, path: &str, body: &Value) -> reqwest::Response {
        self.client.post(self.url(path)).json(body).send().await.unwrap()
    }

    /// Starts a completion. `extra` replaces or adds fields.
    pub async fn complete(&self, extra: Value) -> reqwest::Response {
        self.post("/v1/completions", &request(extra)).await
    }

    /// All events of a completion.
    pub async fn events(&self, extra: Value) -> Vec<(String, Value)> {
        let answer = self.complete(extra).await;
        assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
        events(answer).await
    }

    /// A request to the admin plane.
    pub fn admin(&self, method: reqwest::Method, path: &str) -> reqwest::RequestBuilder {
        let url = format!("http://{}{path}", self.server.admin_addr);
        self.client.request(method, url).bearer_auth(&self.server.admin_token)
    }

    /// Gets JSON from the admin plane.
    pub async fn admin_get(&self, path: &str) -> Value {
        let answer = self.admin(reqwest::Method::GET, path).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        answer.json().await.unwrap()
    }

    /// Sends a request, or its beginning, on a new connection. Returns the connection and the first part of the
    /// response. A busy machine may take longer than a short header timeout to send after it has connected; the
    /// host then closes the connection without a response, and another one is opened.
    pub async fn begin(&self, request: &str) -> (TcpStream, String) {
        for _ in 0..20 {
            let mut stream = TcpStream::connect(self.server.data_addr).await.unwrap();
            let mut first = vec![0; 4_096];
            if stream.write_all(request.as_bytes()).await.is_ok()
                && let Ok(length @ 1..) = stream.read(&mut first).await
            {
                first.truncate(length);
                return (stream, String::from_utf8(first).unwrap());
            }
        }
        panic!("no response to {request:?}");
    }

    /// Polls until the state fulfils a condition, and returns it. Panics with the last state if it never
    /// does.
    pub async fn until(&self, what: &str, fulfilled: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let state = self.admin_get("/admin/state").await;
            if fulfilled(&state) {
                return state;
            }
            assert!(begun.elapsed() < LONG, "never: {what}; last state: {state:#}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Polls until the metrics, those of single tenants too, have all of these texts, and returns them.
    pub async fn until_metrics(&self, texts: &[&str]) -> String {
        let begun = Instant::now();
        loop {
            let metrics = self.admin(reqwest::Method::GET, "/metrics").send().await.unwrap();
            let metrics = metrics.text().await.unwrap();
            let Some(missing) = texts.iter().find(|text| !metrics.contains(**text)) else { return metrics };
            assert!(begun.elapsed() < LONG, "never in the metrics: {missing}\n{metrics}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Shuts the host down, however long its connections take to close.
    pub async fn ends(self) {
        self.server.finish_streams().await;
        self.server.close_within(LONG).await;
    }
}

/// The body of a completion request. `extra` replaces or adds fields.
pub fn request(extra: Value) -> Value {
    let mut body =
        json!({"model": "demo", "prompt": "What is a prefix cache?", "temperature": 0, "max_tokens": 8});
    for (key, value) in extra.as_object().expect("an object of fields") {
        body[key] = value.clone();
    }
    body
}

/// Reads a stream to its end. Returns its events' names and data.
pub async fn events(answer: reqwest::Response) -> Vec<(String, Value)> {
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let text = answer.text().await.unwrap();
    parse_events(&text)
}

/// The chunks of an OpenAI stream, which must end with `[DONE]`.
pub async fn chunks(answer: reqwest::Response) -> Vec<Value> {
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.headers()["content-type"], "text/event-stream");
    let mut events = parse_events(&answer.text().await.unwrap());
    assert_eq!(events.pop().unwrap().1, "[DONE]");
    assert!(events.iter().all(|(name, _)| name.is_empty()), "{events:?}");
    events.into_iter().map(|(_, data)| data).collect()
}

/// Parses a whole stream. Returns its events' names and data.
pub fn parse_events(text: &str) -> Vec<(String, Value)> {
    assert!(text.ends_with("\n\n"), "the last frame is complete");
    text.split("\n\n")
        .filter(|frame| !frame.is_empty() && !frame.starts_with(':'))
        .map(|frame| {
            let mut name = String::new();
            let mut data = String::new();
            for line in frame.lines() {
                if let Some(value) = line.strip_prefix("event: ") {
                    value.clone_into(&mut name);
                } else if let Some(value) = line.strip_prefix("data: ") {
                    value.clone_into(&mut data);
                } else {
                    panic!("unexpected line in a frame: {line}");
                }
            }
            let value = serde_json::from_str(&data).unwrap_or(Value::String(data));
            (name, value)
        })
        .collect()
}

/// Token ids of named events.
pub fn token_ids(events: &[(String, Value)]) -> Vec<u64> {
    events.iter().filter(|(name, _)| name == "token").map(|(_, d)| d["token_id"].as_u64().unwrap()).collect()
}

/// Text of named events.
pub fn text_of(events: &[(String, Value)]) -> String {
    events.iter().filter(|(name, _)| name == "token").map(|(_, d)| d["token"].as_str().unwrap()).collect()
}

/// Waits for the first bytes of a stream, so that it has begun.
pub async fn first_chunk(
    answer: reqwest::Response,
) -> impl StreamExt<Item = reqwest::Result<impl AsRef<[u8]>>> {
    let mut stream = Box::pin(answer.bytes_stream());
    stream.next().await.expect("a chunk").expect("readable");
    stream
}

/// The tokens that [`name_tags`] names.
pub const TAGS: [usize; 2] = [2, 3];

/// Makes two tokens of a copy of the demo model tags, special or not.
pub fn name_tags(folder: &Path, tags: [&str; 2], special: bool) {
    let path = folder.join("tokenizer.json");
    let mut text = std::fs::read_to_string(&path).unwrap();
    for (own, tag) in ["<|system|>", "<|user|>"].into_iter().zip(tags) {
        text = text.replace(own, tag);
    }
    let mut tokenizer: Value = serde_json::from_str(&text).unwrap();
    for (id, tag) in TAGS.into_iter().zip(tags) {
        let token = &mut tokenizer["added_tokens"][id];
        assert_eq!((&token["id"], &token["content"]), (&json!(id), &json!(tag)));
        token["special"] = json!(special);
    }
    std::fs::write(path, tokenizer.to_string()).unwrap();
}

/// A copy of the demo model.
fn model_copy() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in infer_demo::FILES {
        std::fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

/// A host of the demo model with this chat template; two of its tokens are the tags of reasoning.
pub async fn reasoning_host(template: &str, special: bool) -> (Host, tempfile::TempDir) {
    let folder = model_copy();
    name_tags(folder.path(), ["<think>", "</think>"], special);
    let path = folder.path().join("own.jinja");
    std::fs::write(&path, template).unwrap();
    let model = folder.path().to_str().unwrap().to_owned();
    let served_model_names = vec!["demo".to_owned()];
    let host = Host::start(Config { model, served_model_names, chat_template: Some(path), ..config() }).await;
    (host, folder)
}

/// A host of the demo model with this chat template.
pub async fn host_with_template(template: &str) -> (Host, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("own.jinja");
    std::fs::write(&path, template).unwrap();
    (Host::start(Config { chat_template: Some(path), ..config() }).await, folder)
}

/// The demo model with a chat template that supports tools in the given style.
pub fn model_with_tools(style: &str) -> tempfile::TempDir {
    let folder = model_copy();
    let end =
        if style == "hermes" { "<tool_call></tool_call>" } else { "Environment: ipython \"parameters\"" };
    let template = format!(
        "{{{{ bos_token }}}}{{% if tools %}}<|system|>{{{{ tools | tojson }}}} {end}<|end|>{{% endif %}}\
         {{% for m in messages %}}<|{{{{ 'user' if m.role == 'tool' else m.role }}}}|>{{{{ m.content }}}}\
         {{% for c in m.tool_calls or [] %}}{{{{ c.function.arguments | tojson }}}}{{% endfor %}}<|end|>{{% endfor %}}\
         <|assistant|>"
    );
    std::fs::write(folder.path().join("chat_template.jinja"), template).unwrap();
    folder
}

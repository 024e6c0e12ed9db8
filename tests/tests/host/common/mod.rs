//! A host with the demo model in this process, its clients, and what sixteen of them stream.
#![allow(dead_code, reason = "each test binary uses its part of this")]

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use infer_server::config::{Bounds, Config, PolicyLimits};
use infer_server::serve::{self, RunningServer};
use infer_tests::tokenizer;
use reqwest::{Client, Method};
use serde_json::{Value, json};

pub const STREAMS: usize = 16;
/// How long anything may take on a busy machine; normally it takes far less.
pub const PATIENCE: Duration = Duration::from_secs(600);

pub struct Host {
    pub server: RunningServer,
    pub client: Client,
}

impl Host {
    pub async fn start() -> Self {
        Self::start_with(|config| config).await
    }

    pub async fn start_with(change: impl FnOnce(Config) -> Config) -> Self {
        static HOSTS: AtomicU32 = AtomicU32::new(0);
        let name = format!("faults-{}-{}", std::process::id(), HOSTS.fetch_add(1, Ordering::Relaxed));
        let fault_dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let config = Config {
            port: 0,
            admin_port: 0,
            threads: 2,
            kv_memory_bytes: Some(64 << 20),
            admin_token: Some("test-token-0123456789".to_owned()),
            fault_dir: Some(fault_dir),
            policy_limits: policy_limits(),
            bounds: Bounds {
                engine_patience: PATIENCE,
                // More than the longest stream has: its reader may stand still for as long as the engine needs for it.
                stream_events: 4_096,
                ..Bounds::default()
            },
            ..Config::default()
        };
        let server = serve::start(change(config)).await.unwrap_or_else(|e| panic!("the host starts: {e}"));
        Self { server, client: Client::builder().no_proxy().build().expect("a client") }
    }

    pub fn admin(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let url = format!("http://{}{path}", self.server.admin_addr);
        self.client.request(method, url).bearer_auth(&self.server.admin_token)
    }

    /// A component into the scheduler's slot; add the body.
    pub fn put_scheduler(&self, query: &[(&str, &str)]) -> reqwest::RequestBuilder {
        let url = format!("http://{}/admin/policies/scheduler", self.server.admin_addr);
        let url = reqwest::Url::parse_with_params(&url, query).expect("a URL");
        self.client.put(url).bearer_auth(&self.server.admin_token)
    }

    /// A request to the admin plane and its answer.
    pub async fn ask(&self, method: Method, path: &str) -> (u16, Value) {
        answer_of(self.admin(method, path)).await
    }

    pub async fn scheduler_slot(&self) -> Value {
        let answer = self.admin(Method::GET, "/admin/policies").send().await.expect("an answer");
        let policies: Value = answer.json().await.expect("JSON");
        policies["slots"][0].clone()
    }

    /// Sixteen greedy streams at once; the token ids of each, to its end.
    pub async fn stream_all(&self) -> Vec<Vec<u64>> {
        let mut streams = tokio::task::JoinSet::new();
        for index in 0..STREAMS {
            let (client, url) =
                (self.client.clone(), format!("http://{}/v1/completions", self.server.data_addr));
            streams.spawn(async move {
                let body = json!({"model": "demo", "prompt": prompt(index), "temperature": 0,
                                  "ignore_eos": true, "max_tokens": 600 + 40 * index});
                let answer = client.post(url).json(&body).send().await.expect("an answer");
                assert_eq!(answer.status(), 200);
                (index, tokens_of(&answer.text().await.expect("the whole stream")))
            });
        }
        let mut all = streams.join_all().await;
        all.sort();
        all.into_iter().map(|(_, tokens)| tokens).collect()
    }
}

/// Limits that only a policy that misbehaves exceeds, and faults that add up however far a slow machine draws them apart.
pub fn policy_limits() -> PolicyLimits {
    PolicyLimits {
        deadline: Duration::from_millis(500),
        strike_window: 6 * PATIENCE,
        starvation_bound: PATIENCE,
        ..PolicyLimits::default()
    }
}

/// Status and body.
pub async fn answer_of(request: reqwest::RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.expect("an answer");
    (answer.status().as_u16(), answer.json().await.expect("JSON"))
}

fn prompt(index: usize) -> Vec<u32> {
    let text = "What is a prefix cache? Why is decode bound by memory? How does a hot swap work? ";
    tokenizer().encode(&text.repeat(1 + index % 4)[index..], true).expect("encodes")
}

fn tokens_of(stream: &str) -> Vec<u64> {
    let done = stream.matches("event: done\n").count();
    assert_eq!(done, 1, "one `done` ends the stream: {stream}");
    assert!(!stream.contains("event: error\n"), "{stream}");
    let data = stream.split("\n\n").filter_map(|frame| frame.strip_prefix("event: token\ndata: "));
    data.map(|data| {
        let token: Value = serde_json::from_str(data).expect("JSON");
        token["token_id"].as_u64().expect("an id")
    })
    .collect()
}

//! The whole path over HTTP: policies swapped, and misbehaving, while sixteen clients stream.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use infer_server::config::Config;
use infer_server::serve::{RunningServer, Server};
use infer_tests::{FAULTY_SCHEDULER, tokenizer};
use reqwest::{Client, Method};
use serde_json::{Value, json};

const STREAMS: usize = 16;
const SWAPS: usize = 200;
const SWAP_EVERY: Duration = Duration::from_millis(50);

struct Host {
    server: RunningServer,
    client: Client,
}

impl Host {
    async fn start() -> Self {
        let config = Config {
            port: 0,
            admin_port: 0,
            threads: 2,
            kv_memory_bytes: Some(64 << 20),
            admin_token: Some("test-token-0123456789".to_owned()),
            ..Config::default()
        };
        let server = Server::start(config).await.unwrap_or_else(|e| panic!("the host starts: {e}"));
        Self { server, client: Client::builder().no_proxy().build().expect("a client") }
    }

    fn admin(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let url = format!("http://{}{path}", self.server.admin_addr);
        self.client.request(method, url).bearer_auth(&self.server.admin_token)
    }

    async fn scheduler_slot(&self) -> Value {
        let answer = self.admin(Method::GET, "/admin/policies").send().await.expect("an answer");
        let policies: Value = answer.json().await.expect("JSON");
        policies["slots"][0].clone()
    }

    /// Sixteen greedy streams at once; the token ids of each, to its end.
    async fn stream_all(&self) -> Vec<Vec<u64>> {
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_swaps_under_sixteen_streams_change_no_token_and_fail_no_request() {
    let host = Host::start().await;
    let undisturbed = host.stream_all().await;
    assert!(undisturbed.iter().enumerate().all(|(i, tokens)| tokens.len() == 600 + 40 * i));

    let finished = AtomicBool::new(false);
    let swaps = async {
        let mut pauses_us = Vec::new();
        let mut ticks = tokio::time::interval(SWAP_EVERY);
        for swap in 0..SWAPS {
            ticks.tick().await;
            let name = if swap % 2 == 0 { "static-batch" } else { "continuous" };
            let put = host.admin(Method::PUT, "/admin/policies/scheduler").json(&json!({"name": name}));
            let answer = put.send().await.expect("an answer");
            assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
            let answer: Value = answer.json().await.expect("JSON");
            assert_eq!(answer["to"], name);
            pauses_us.push(answer["pause_us"].as_f64().expect("a pause"));
        }
        finished.store(true, Ordering::Relaxed);
        pauses_us
    };
    let rounds = async {
        // The first begins with the first swap; each runs to its end, so all swaps fall into one.
        let mut rounds = 0;
        while !finished.load(Ordering::Relaxed) {
            assert_eq!(host.stream_all().await, undisturbed);
            rounds += 1;
        }
        rounds
    };
    let (mut pauses_us, rounds) = tokio::join!(swaps, rounds);
    pauses_us.sort_by(f64::total_cmp);
    println!(
        "{SWAPS} swaps over {rounds} rounds of {STREAMS} streams, pause median {:.1} us, largest {:.1} us",
        pauses_us[SWAPS / 2],
        pauses_us[SWAPS - 1]
    );
    assert_eq!(host.scheduler_slot().await["faults"], 0);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misbehaving_scheduler_is_reported_and_no_stream_notices() {
    let host = Host::start().await;
    let undisturbed = host.stream_all().await;
    for (fault, reason) in [("trap", "trap"), ("spin", "deadline"), ("unknown-id", "invalid-decision")] {
        let before = host.scheduler_slot().await["faults"].as_u64().expect("a count");
        let config = format!(r#"{{"fault": "{fault}", "after": 100}}"#);
        let url = format!("http://{}/admin/policies/scheduler", host.server.admin_addr);
        let url = reqwest::Url::parse_with_params(&url, [("config", config)]).expect("a URL");
        let put = host.client.put(url).bearer_auth(&host.server.admin_token);
        let answer = put.body(FAULTY_SCHEDULER).send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
        assert_eq!(host.stream_all().await, undisturbed, "{fault}");
        let slot = host.scheduler_slot().await;
        assert!(slot["faults"].as_u64().expect("a count") > before, "{slot}");
        assert_eq!(slot["last_fault"]["reason"], reason, "{slot}");
        assert_eq!(slot["last_fault"]["policy"], "faulty-scheduler", "{slot}");
        assert_ne!(slot["name"], "faulty-scheduler", "it was taken out: {slot}");
    }
    host.server.shutdown().await;
}

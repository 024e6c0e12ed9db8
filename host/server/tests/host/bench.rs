//! The load generator against a real host: lengths, counts, both dialects, the baseline's tokens, counted errors.
//! No speed is asserted, because it depends on the machine that runs the test.

use crate::common::process::{Home, complaint};
use crate::common::{Host, config};
use infer_server::bench::{
    self, Api, Arrival, BenchError, Dialect, Plan, RateSearch, Recording, Report, Shape, Target, Targets,
    Workload, loading,
};
use infer_server::config::{Config, MaxSeqLen};
use infer_server::generate::Sequential;
use infer_server::tenants::{KeyDigest, fresh};
use infer_sim::trace::{After, Recorded, Shares, Text};

fn short(requests: usize, vocab_size: u32) -> Workload {
    let shape = Shape { prompt_tokens: (20, 60), output_tokens: (2, 9), shared_prefix: 0, vocab_size };
    Workload::make("W2", 5, requests, 3, shape)
}

fn plan(url: String, dialect: Dialect, model: Option<&str>, workloads: Vec<Workload>) -> Plan {
    let target = Target { url, dialect, model: model.map(str::to_owned), ..Target::default() };
    let targets = Targets { ttft_ms: Some(1e6), itl_ms: Some(1e6) };
    Plan { target, workloads, seed: 5, targets, subject: "a test".to_owned(), ..Plan::default() }
}

async fn measure(host: &Host, plan: Plan, baseline: Option<Sequential>) -> Result<Report, BenchError> {
    let report = bench::run(plan, baseline).await;
    let state = host.admin_get("/admin/state").await;
    assert_eq!(state["queue"]["running"], 0, "every stream has been read to its end");
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn served_tokens_equal_the_baseline() {
    let config = config();
    let local = config.clone();
    let baseline = tokio::task::spawn_blocking(move || Sequential::load(&local)).await.unwrap().unwrap();
    let workload = short(7, baseline.vocab_size());
    let wanted: u64 = workload.jobs.iter().map(|job| u64::from(job.max_tokens)).sum();
    let host = Host::start(config).await;
    let plan = plan(host.url(""), Dialect::Named, None, vec![workload]);
    let report = measure(&host, plan, Some(baseline)).await.unwrap();
    let result = &report.workloads[0];
    assert_eq!((result.completed, report.failed()), (7, 0), "{}", report.text());
    assert_eq!((result.output_tokens, result.cached_tokens), (wanted, 0));
    assert_eq!((result.ttft_ms.count, result.itl_ms.count as u64), (7, wanted - 7));
    let local = result.in_process.as_ref().unwrap();
    assert_eq!(local.identical, Some(7), "{}", report.text());
    assert!(report.text().contains("identical to the baseline's in 7 of 7"), "{}", report.text());
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_dialect_counts_the_same_tokens() {
    let host = Host::start(config()).await;
    let workload = short(4, 256);
    let wanted: u64 = workload.jobs.iter().map(|job| u64::from(job.max_tokens)).sum();
    let url = host.url("/v1/completions");
    let report =
        measure(&host, plan(url, Dialect::Openai, Some("demo"), vec![workload]), None).await.unwrap();
    assert_eq!((report.workloads[0].output_tokens, report.failed()), (wanted, 0), "{}", report.text());
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_resend_their_history_and_a_saved_report_is_rendered() {
    let config = config();
    let local = config.clone();
    let baseline = tokio::task::spawn_blocking(move || Sequential::load(&local)).await.unwrap().unwrap();
    let shape = Shape { prompt_tokens: (20, 30), output_tokens: (4, 9), shared_prefix: 0, vocab_size: 256 };
    let talk = Workload { turns: 3, ..Workload::make("W4", 5, 6, 2, shape) };
    let host = Host::start(config).await;
    let plan = plan(host.url(""), Dialect::Named, None, vec![talk]);
    let report = measure(&host, plan, Some(baseline)).await.unwrap();
    let result = &report.workloads[0];
    assert_eq!((result.completed, report.failed()), (6, 0), "{}", report.text());
    let local = result.in_process.as_ref().unwrap();
    assert_eq!(local.identical, Some(6), "the histories are the same on both sides: {}", report.text());
    assert!(result.cached_tokens >= 4 * 16, "later turns hit the earlier ones: {}", report.text());
    assert_eq!(result.goodput.map(|good| (good.good, good.share)), Some((6, 1.0)));
    let cached = result.samples.iter().map(|sample| u64::from(sample.cached_tokens));
    assert_eq!(cached.sum::<u64>(), result.cached_tokens);
    let text = report.text();
    let times = |of: &str| text.lines().find(|line| line.contains(of)).map(|line| line.ends_with(" 4"));
    assert_eq!((times("of hits"), times("of misses")), (Some(true), Some(false)), "{text}");

    // A report survives JSON, and can be shown next to another.
    let json = serde_json::to_string(&report).unwrap();
    let mut other: Report = serde_json::from_str(&json).unwrap();
    other.subject = "<another>".to_owned();
    let page = bench::html(&[report, other]);
    assert!(page.contains("&lt;another&gt;") && !page.contains("<another>"));
    assert!(
        !page.contains("http://www") && !page.contains("src=") && !page.contains("<script"),
        "the page is self-contained"
    );
    assert!(page.matches("<svg").count() >= 4, "{page}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn open_loop_sends_text_prompts_at_their_arrival_times() {
    let host = Host::start(config()).await;
    let workload = short(6, 256).arriving(Arrival::Poisson(200.0));
    let moments = workload.arrivals_ms(5).unwrap();
    let mut plan = plan(host.url(""), Dialect::Openai, None, vec![workload]);
    plan.target.api = Api::Text;
    let report = measure(&host, plan, None).await.unwrap();
    assert_eq!(report.failed(), 0, "{}", report.text());
    for (sample, moment) in report.workloads[0].samples.iter().zip(moments) {
        assert!(sample.sent_ms >= moment, "not before its arrival time");
    }
    assert!(report.workloads[0].prompt_tokens > 0, "the server counts them");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn search_for_a_rate_ends_where_all_or_none_are_sustained() {
    let host = Host::start(config()).await;
    let search = |ttft_ms: f64| {
        let mut plan = plan(host.url(""), Dialect::Named, None, vec![short(1, 256)]);
        plan.targets = Targets { ttft_ms: Some(ttft_ms), itl_ms: None };
        plan.search = Some(RateSearch {
            first: 200.0,
            burstiness: 1.0,
            limits: (90.0, 500.0),
            seconds: 0.1,
            share: 0.9,
        });
        plan
    };
    let rates = |report: &Report| -> Vec<(Arrival, usize)> {
        report.workloads.iter().map(|run| (run.arrival, run.samples.len())).collect()
    };
    let always = measure(&host, search(1e9), None).await.unwrap();
    let of = |rate, requests| (Arrival::Poisson(rate), requests);
    assert_eq!(rates(&always), [of(200.0, 20), of(400.0, 40), of(500.0, 50)], "from low to high");
    let found = &always.sustained[0];
    assert_eq!((found.rate, found.share_there, found.beyond), (Some(500.0), Some(1.0), None));
    assert!(always.text().contains("W2 sustains 500 per second, the highest"), "{}", always.text());

    let never = measure(&host, search(1e-9), None).await.unwrap();
    assert_eq!(rates(&never), [of(90.0, 10), of(100.0, 10), of(200.0, 20)]);
    let found = &never.sustained[0];
    assert_eq!((found.rate, found.beyond, found.limited_by.as_deref()), (None, Some(90.0), Some("TTFT")));
    let cached: u64 = never.workloads.iter().map(|run| run.cached_tokens).sum();
    assert_eq!(never.failed(), 0, "{}", never.text());
    // The second search repeats prompts of the first; within one, every rate has its own.
    let again = always.workloads.iter().map(|run| run.cached_tokens).sum::<u64>();
    assert!(again == 0 && cached > 0, "{again} {cached}");
    assert!(bench::html(&[never]).contains("sustain 90 per second"));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_requests_are_counted_and_named() {
    // The requests are longer than this host accepts; the warm-up request is not.
    let host = Host::start(Config { max_seq_len: MaxSeqLen::Tokens(48), ..config() }).await;
    let shape = Shape { prompt_tokens: (64, 64), output_tokens: (2, 2), shared_prefix: 0, vocab_size: 256 };
    let plan = plan(host.url(""), Dialect::Named, None, vec![Workload::make("W1", 1, 2, 1, shape)]);
    let report = measure(&host, plan, None).await.unwrap();
    assert_eq!((report.workloads[0].completed, report.failed()), (0, 2));
    assert!(report.text().contains("failed 2x  HTTP 422"), "{}", report.text());
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_warm_up_skips_its_workload_but_keeps_the_others() {
    let host = Host::start(Config { max_seq_len: MaxSeqLen::Tokens(80), ..config() }).await;
    let mut refused = short(3, 256);
    refused.warm_up.prompt = vec![1; 90];
    let url = host.url("");
    let alone = plan(url.clone(), Dialect::Named, None, vec![refused.clone()]);
    let error = bench::run(alone, None).await.unwrap_err().to_string();
    assert!(error.contains("the warm-up request failed: HTTP 422"), "{error}");

    let both = plan(url, Dialect::Named, None, vec![short(4, 256), refused, short(2, 256)]);
    let report = measure(&host, both, None).await.unwrap();
    let counts = report.workloads.iter().map(|w| (w.completed, w.errors.values().sum::<usize>()));
    assert_eq!(counts.collect::<Vec<_>>(), [(4, 0), (0, 3), (2, 0)], "{}", report.text());
    let said = "failed 3x  not sent: the warm-up request failed: HTTP 422";
    assert!(report.text().contains(said), "{}", report.text());
    let judged = report.workloads.iter().map(|w| w.goodput.map(|goodput| goodput.good));
    assert_eq!(judged.collect::<Vec<_>>(), [Some(4), None, Some(2)], "what was never sent has no goodput");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_server_is_an_error() {
    let target = "http://127.0.0.1:1".to_owned();
    let error = bench::run(plan(target, Dialect::Named, None, vec![short(1, 256)]), None).await.unwrap_err();
    assert!(error.to_string().starts_with("--url: "), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn server_that_wants_a_key_is_given_one_with_a_flag() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("[tenants.a]\nkeys = [\"{}\"]\n", KeyDigest::of("k"))).unwrap();
    let host = Host::start(Config { api_keys: Some(file.path().to_owned()), ..config() }).await;
    let error = bench::run(plan(host.url(""), Dialect::Named, None, vec![short(1, 256)]), None).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("--api-key") && !error.contains("--served-model"), "{error}");
    host.server.shutdown().await;
}

#[test]
fn loading_is_measured_next_to_a_copy_of_the_same_bytes() {
    let report = loading::run(&config(), 2, |_| {}).unwrap();
    assert_eq!((report.rounds.len(), report.weights.as_str()), (2, "bf16"));
    assert!(report.bytes > 0 && report.rounds.iter().all(|round| round.copy_seconds > 0.0), "{report:?}");
    assert_eq!(report.text().lines().filter(|line| line.contains("GB/s")).count(), 3, "{}", report.text());

    let missing = Config { model: "/nowhere".to_owned(), ..config() };
    let error = loading::run(&missing, 1, |_| {}).unwrap_err().to_string();
    assert!(error.contains("/nowhere"), "{error}");
}

#[test]
fn flags_that_would_falsify_the_report_are_refused() {
    let home = Home::new();
    let nowhere = ["bench", "serve", "--url", "http://127.0.0.1:1"];
    let refused: [(&str, &str); 14] = [
        ("--workload w4 --dialect openai", "--workload: w4 resends the output of earlier turns"),
        ("--workload w1,w4 --dialect openai --api completions", "use --api text or --api chat"),
        ("--baseline on --api chat", "--baseline: both sides must compute"),
        ("--baseline on --api text", "--baseline: "),
        ("--baseline on --lengths any", "--lengths exact"),
        ("--served-model-name llama", "name the model of requests with --served-model"),
        ("--trace t.csv --baseline on", "--baseline: a trace has none"),
        ("--trace t.csv --workload w2", "'--trace <FILE>' cannot be used with '--workload <WORKLOAD>'"),
        ("--speed 2", "--trace <FILE>"),
        ("--trace t.csv --speed 2 --rate 4", "cannot be used with"),
        ("--trace t.csv --closed-loop --rate 4", "cannot be used with"),
        ("--trace t.csv --rate 2,4", "--rate: a trace is replayed at one rate"),
        ("--trace t.csv --rate 2 --burstiness 0.5", "--burstiness: the arrivals of a trace are recorded"),
        ("--trace t.csv --rate 2 --find-rate --ttft-target-ms 9", "try several --rate"),
    ];
    // These get as far as connecting to a server that isn't there.
    let sent = ["--workload w4", "--workload w4 --dialect openai --api text", "--workload w4 --api chat"];
    let cases = refused.into_iter().map(|(flags, words)| (flags, words, 2));
    for (flags, words, code) in cases.chain(sent.map(|flags| (flags, "--url: ", 1))) {
        let flags: Vec<&str> = flags.split(' ').collect();
        let output = home.command("", &[&nowhere, &flags[..]].concat()).output().expect("sh starts");
        let said = complaint(&output);
        assert!(output.status.code() == Some(code) && said.contains(words), "{flags:?}: {said}");
    }
}

#[test]
fn kernel_and_engine_benchmarks_need_a_named_device() {
    let home = Home::new();
    for command in ["kernels", "engine"] {
        let output = home.command("", &["bench", command, "--device", "auto"]).output().expect("sh starts");
        let said = complaint(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("`auto` is not one of `cpu`, `cuda`, `cuda:N`"), "{said}");
    }
}

#[test]
fn own_server_needs_no_api_key_and_chats_have_no_baseline() {
    let home = Home::new();
    let mut run =
        home.command("", &["bench", "serve", "--api", "chat", "--workload", "w2", "--requests", "1"]);
    // None of these files exists, and none is read.
    run.args(["--tls-cert", "cert.pem", "--tls-key", "key.pem", "--api-keys", "tenants.toml"]);
    run.args(["--sse-dialect", "named", "--kv-memory", "32MiB"]);
    let output = run.output().expect("sh starts");
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", complaint(&output));
    assert!(
        report.contains("1 completed, 0 failed") && !report.contains("in process, one after"),
        "{report}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn soft_limit_of_open_files_is_raised_for_many_streams() {
    let host = Host::start(config()).await;
    let home = Home::new();
    let (url, requests) = (host.url(""), ["--workload", "w2", "--requests", "24", "--concurrency", "24"]);
    let mut run = home.command("ulimit -Sn 24", &["bench", "serve", "--url", &url]);
    let output = tokio::task::spawn_blocking(move || run.args(requests).output()).await.unwrap();
    let output = output.expect("sh starts");
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(report.contains("24 completed, 0 failed"), "{report}{}", complaint(&output));
    host.server.shutdown().await;
}

/// A conversation of two turns, of tenant 3, and a request of tenant 8 that begins with the first one's text.
fn recorded() -> Vec<Recorded> {
    let text = |blocks: &[u64], shares| Text { block_tokens: 16, blocks: blocks.to_vec(), whole: 0, shares };
    let first = Recorded {
        id: 1,
        tenant: 3,
        session: 5,
        priority: 2,
        prompt_tokens: 40,
        output_tokens: 12,
        max_tokens: 64,
        text: text(&[71, 72], None),
        followed: true,
        ..Recorded::default()
    };
    let after = Some(After { id: 1, think_us: 30_000 });
    let shares = Some(Shares { id: 1, tokens: 52 });
    let turn = Recorded {
        id: 2,
        prompt_tokens: 60,
        output_tokens: 3,
        text: text(&[], shares),
        after,
        followed: false,
        ..first.clone()
    };
    let other = Recorded { id: 3, at_us: 400_000, tenant: 8, session: 0, followed: false, ..first.clone() };
    vec![first, turn, other]
}

#[tokio::test(flavor = "multi_thread")]
async fn trace_is_replayed_with_its_times_turns_tenants_and_shared_text() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let keys = [3, 8].map(|tenant| (tenant, fresh().unwrap()));
    let table =
        |(tenant, key): &(u32, String)| format!("[tenants.t{tenant}]\nkeys = [\"{}\"]\n", KeyDigest::of(key));
    std::fs::write(file.path(), keys.iter().map(table).collect::<String>()).unwrap();
    let host = Host::start(Config { api_keys: Some(file.path().to_owned()), ..config() }).await;
    let recording = Recording {
        name: "morning".to_owned(),
        requests: recorded(),
        speed: 2.0,
        rate: None,
        vocab_size: 200,
        seed: 5,
        keys: keys.into(),
    };
    let target = Target { url: host.url(""), model: Some("demo".to_owned()), ..Target::default() };
    let plan = Plan { target, recordings: vec![recording], ..Plan::default() };
    let report = measure(&host, plan, None).await.unwrap();
    let result = &report.workloads[0];
    assert_eq!((result.completed, report.failed()), (3, 0), "{}", report.text());
    assert_eq!((result.prompt_tokens, result.output_tokens), (40 + 60 + 40, 12 + 3 + 12));
    assert!(
        result.description.contains("at 2 times the recorded speed, 40 to 60 tokens in"),
        "{}",
        result.description
    );
    // In the order in which they were sent.
    let sample = |prompt_tokens, tenant: &str| {
        let mut all = result.samples.iter();
        all.find(|s| s.prompt_tokens == prompt_tokens && s.tenant == tenant).unwrap()
    };
    let [first, turn, other] = [sample(40, "tenant-3"), sample(60, "tenant-3"), sample(40, "tenant-8")];
    assert!(turn.sent_ms >= first.sent_ms + first.latency_ms + 15.0, "half the recorded pause: {turn:?}");
    assert!(other.sent_ms >= 200.0, "half the recorded time: {other:?}");
    // All of the first turn but its last token, whose keys were never needed.
    assert_eq!([first, turn, other].map(|s| s.cached_tokens), [0, 48, 0], "tenants share no text");
    let text = report.text();
    assert!(text.contains("      tenant-3 ") && text.contains("      tenant-8 "), "{text}");
    assert!(!text.contains("the prompts share nothing"), "{text}");
    let state = host.admin_get("/admin/state").await;
    let ended = |name: &str| {
        state["tenants"].as_array().unwrap().iter().find(|t| t["name"] == name).unwrap()["requests"].clone()
    };
    // The warm-up is the first tenant's.
    assert_eq!((ended("t3"), ended("t8")), (3.into(), 1.into()));
    let cache = host.admin_get("/admin/cache").await;
    assert_eq!(cache["sessions"].as_array().unwrap().len(), 1, "{cache}");
    host.server.shutdown().await;
}

//! Metrics and traces as monitoring systems receive them.

#[cfg(feature = "otel")]
use crate::common::events;
use crate::common::{Host, config, first_chunk, request};
use futures_util::StreamExt;
use infer_server::config::{Config, MetricsPlane};
use infer_server::tenants::KeyDigest;
use reqwest::Method;
use serde_json::{Value, json};
#[cfg(feature = "otel")]
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Names of all metrics in a text, with suffixes.
fn names(text: &str) -> std::collections::BTreeSet<String> {
    let samples = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    samples.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_of_dashboard_alerts_and_routers_exist_in_both_formats() {
    let home = tempfile::tempdir().unwrap();
    let policy_state = Some(home.path().join("state"));
    let host = Host::start(Config { policy_state, ..config() }).await;
    drop(host.events(json!({})).await);
    let get = |accept: &'static str| host.client.get(host.url("/metrics")).header("accept", accept).send();
    let plain = get("text/plain").await.unwrap();
    assert_eq!(plain.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let plain = plain.text().await.unwrap();
    let open = get("application/openmetrics-text;version=1.0.0,text/plain;q=0.5").await.unwrap();
    assert!(open.headers()["content-type"].to_str().unwrap().starts_with("application/openmetrics-text"));
    let open = open.text().await.unwrap();
    assert!(open.ends_with("# EOF\n") && !plain.contains("# EOF"));
    assert!(plain.contains("# TYPE infer_generated_tokens_total counter\n"), "{plain}");
    let there = names(&plain);
    assert_eq!(there, names(&open));

    let dashboard = include_str!("../../deploy/grafana-dashboard.json");
    let dashboard: Value = serde_json::from_str(dashboard).unwrap();
    let targets =
        dashboard["panels"].as_array().unwrap().iter().filter_map(|panel| panel["targets"].as_array());
    let shown = targets.flatten().map(|target| target["expr"].as_str().unwrap());
    let alerts = include_str!("../../deploy/alerts.yaml");
    for (text, least) in [(shown.collect::<Vec<_>>().join("\n").as_str(), 40), (alerts, 10)] {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
        let named = |word: &&str| ["infer_", "process_", "vllm:"].iter().any(|start| word.starts_with(start));
        let named: Vec<_> = words.filter(named).collect();
        let missing: Vec<_> = named.iter().filter(|name| !there.contains(**name)).collect();
        assert!(missing.is_empty() && named.len() > least, "{missing:?} of {named:?}");
    }
    for alias in [
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:num_preemptions_total",
        "vllm:request_success_total",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_bucket",
        "vllm:e2e_request_latency_seconds_bucket",
        "vllm:request_queue_time_seconds_bucket",
        "vllm:cache_config_info",
    ] {
        assert!(there.contains(alias), "{alias}");
        let labelled =
            plain.lines().any(|line| line.starts_with(alias) && line.contains("model_name=\"demo\""));
        assert!(labelled || alias == "vllm:cache_config_info", "{alias} lacks the model's name");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_on_the_planes_that_the_setting_names() {
    for metrics in [MetricsPlane::Public, MetricsPlane::Admin] {
        let host = Host::start(Config { metrics, ..config() }).await;
        let public = metrics == MetricsPlane::Public;
        let get = async |path: &str| {
            let answer = host.client.get(host.url(path)).send().await.unwrap();
            (answer.status().as_u16(), answer.text().await.unwrap())
        };
        let (status, text) = get("/metrics").await;
        assert_eq!(
            (status, text.contains("(--metrics)")),
            (if public { 200 } else { 404 }, !public),
            "{text}"
        );
        let document: Value = serde_json::from_str(&get("/openapi.json").await.1).unwrap();
        assert_eq!(document["paths"]["/metrics"].is_object(), public);
        assert!(document["paths"]["/v1/models/{model}"].is_object(), "{}", document["paths"]);

        let answer = host.admin(Method::GET, "/metrics").send().await.unwrap();
        assert_eq!(answer.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
        assert!(answer.text().await.unwrap().contains("\ninfer_ready 1"));
        let without_token = host.client.get(format!("http://{}/metrics", host.server.admin_addr));
        assert_eq!(without_token.send().await.unwrap().status(), 401);
        host.server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_are_in_nobodys_metrics_but_the_operators_unless_the_setting_says_so() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let (key, digest) = ("a-key", KeyDigest::of("a-key"));
    std::fs::write(file.path(), format!("[tenants.acme]\nkeys = [\"{digest}\"]\n")).unwrap();
    for metrics in [MetricsPlane::Public, MetricsPlane::Tenants] {
        let host = Host::start(Config { metrics, api_keys: Some(file.path().to_owned()), ..config() }).await;
        let post = host.client.post(host.url("/v1/completions")).bearer_auth(key).json(&request(json!({})));
        assert!(post.send().await.unwrap().text().await.unwrap().contains("event: done"));
        for accept in ["text/plain", "application/openmetrics-text"] {
            let text = async |plane: reqwest::RequestBuilder| {
                plane.header("accept", accept).send().await.unwrap().text().await.unwrap()
            };
            let public = text(host.client.get(host.url("/metrics"))).await;
            let all = text(host.admin(Method::GET, "/metrics")).await;
            let told = "infer_tenant_requests_total{tenant=\"acme\"} 1";
            assert!(all.contains(told), "{all}");
            let is_shown = metrics == MetricsPlane::Tenants;
            assert_eq!(public.contains(told), is_shown, "{public}");
            assert_eq!(public.contains("acme") || public.contains("infer_tenant_"), is_shown, "{public}");
            for kept in ["vllm:num_requests_running{", "\ninfer_ready 1", "infer_prompt_tokens_total "] {
                assert!(public.contains(kept), "`{kept}` isn't in: {public}");
            }
            assert_eq!(public.ends_with("# EOF\n"), accept != "text/plain", "{public}");
        }
        host.server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_in_the_queue_is_known_while_a_stream_runs_and_counts_once() {
    let host = Host::start(config()).await;
    let counts = async || {
        let text = host.client.get(host.url("/metrics")).send().await.unwrap().text().await.unwrap();
        let count = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.map_or(0, |count| count.parse::<u64>().unwrap())
        };
        [
            count("infer_request_queue_time_seconds_count"),
            count("infer_tenant_request_queue_time_seconds_count{tenant=\"default\"}"),
            count("infer_prefill_time_seconds_count"),
        ]
    };
    let long = json!({"ignore_eos": true, "max_tokens": 1_500});
    host.server.engine().allow_steps(20);
    let running = first_chunk(host.complete(long.clone()).await).await;
    host.server.engine().hold_steps();
    let state = host.admin_get("/admin/state").await;
    assert_eq!(state["queue"]["running"], 1, "the stream has not ended: {state:#}");
    assert_eq!(counts().await, [1, 1, 0]);
    for row in [&state["latencies"], &state["tenants"][0]] {
        assert!(row["queue_p50_ms"].as_f64().unwrap() > 0.0, "{row}");
    }
    // One that leaves the queue without having run has no time.
    let waiting = host.complete(long).await;
    host.until("it waits", |state| state["queue"]["waiting"] == 1).await;
    drop(waiting);
    host.until("it has left", |state| state["queue"]["waiting"] == 0).await;
    host.server.engine().release_steps();
    let rest = running.collect::<Vec<_>>().await;
    assert!(rest.last().unwrap().as_ref().is_ok_and(|end| end.as_ref().ends_with(b"\n\n")));
    assert_eq!(counts().await, [1, 1, 1]);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steps_calls_and_changes_of_policies_are_counted() {
    let host = Host::start(config()).await;
    drop(host.events(json!({})).await);
    let values = async |names: &[&str]| -> Vec<f64> {
        let text = host.client.get(host.url("/metrics")).send().await.unwrap().text().await.unwrap();
        let value = |name: &&str| {
            let value = text.lines().find_map(|line| line.strip_prefix(*name)?.strip_prefix(' '));
            value.unwrap_or_else(|| panic!("{name} is missing in:\n{text}")).parse::<f64>().unwrap()
        };
        names.iter().map(value).collect()
    };
    let steps = [
        "infer_steps_total",
        "infer_step_seconds_count",
        "infer_step_seconds_bucket{le=\"+Inf\"}",
        "infer_step_seconds_sum",
    ];
    let [begun, count, last, sum] = values(&steps).await[..] else { panic!("four values") };
    assert!(begun > 0.0 && (count, last) == (begun, begun) && sum > 0.0, "{begun} {count} {last} {sum}");
    let calls = [
        "infer_policy_call_seconds_count{kind=\"scheduler\",name=\"continuous\"}",
        "infer_policy_call_seconds_sum{kind=\"scheduler\",name=\"continuous\"}",
    ];
    let before = values(&calls).await;
    assert!(before[0] > 0.0 && before[1] > 0.0, "{before:?}");

    let scheduler = |query: &str| host.admin(Method::PUT, &format!("/admin/policies/scheduler{query}"));
    for (query, name) in [("", "static-batch"), ("?mode=shadow", "srpt")] {
        let answer = scheduler(query).json(&json!({"name": name})).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
    }
    let counted = [
        "infer_policy_changes_total{kind=\"scheduler\",change=\"swap\"}",
        "infer_policy_changes_total{kind=\"scheduler\",change=\"rollback\"}",
        "infer_policy_trial{kind=\"scheduler\",mode=\"shadow\"}",
        "infer_policy_call_seconds_count{kind=\"scheduler\",name=\"static-batch\"}",
    ];
    assert_eq!(values(&counted).await[..3], [1.0, 0.0, 1.0]);
    let back = host.admin(Method::POST, "/admin/policies/scheduler/rollback").send().await.unwrap();
    assert_eq!(back.status(), 200);
    assert_eq!(values(&counted[..2]).await, [1.0, 1.0]);
    assert!(values(&calls).await >= before, "the policy that came back was loaded all along");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefix_hits_are_those_of_prompts_that_fill_a_block() {
    let host = Host::start(config()).await;
    let long: Vec<u32> = (5..55).collect();
    let other: Vec<u32> = (60..110).collect();
    // Its first two blocks are those of another request, not those of its session.
    let diverged: Vec<u32> = (5..45).chain(200..210).collect();
    for request in [
        json!({"prompt": long}),
        json!({"prompt": long}),
        json!({"prompt": other, "session_id": "s"}),
        json!({"prompt": diverged, "session_id": "s"}),
        json!({"prompt": [5, 6, 7]}),
        json!({"prompt": [5, 6, 7]}),
    ] {
        drop(host.events(request).await);
    }
    let text = host.client.get(host.url("/metrics")).send().await.unwrap().text().await.unwrap();
    let full = "event=\"FULL_HIT_NO_PREFILL_NEEDED\"";
    let away = "event=\"CONVERSATIONAL_MISS_UNEXPECTED_PROMPT\"";
    let miss = "event=\"MISS_FULL\"";
    for (name, label, value) in [
        ("eligible_requests_total", full, 1),
        ("eligible_requests_total", away, 1),
        ("eligible_requests_total", miss, 2),
        ("hit_requests_total", full, 1),
        ("hit_requests_total", away, 1),
        ("hit_requests_total", miss, 0),
        ("hit_tokens_total", full, 50),
        ("hit_tokens_total", away, 32),
        // With those of the short prompt.
        ("cached_tokens_total", full, 53),
        ("time_to_first_token_seconds_count", "prefix=\"hit\"", 2),
        ("time_to_first_token_seconds_count", "prefix=\"miss\"", 2),
        ("time_to_first_token_seconds_count", "prefix=\"none\"", 2),
    ] {
        let line = format!("infer_prefix_cache_{name}{{{label}}} {value}\n");
        assert!(text.contains(&line), "{line} is missing in:\n{text}");
    }
    host.server.shutdown().await;
}

/// The head and the body of an export, which the collector accepts.
#[cfg(feature = "otel")]
async fn one_export(mut stream: tokio::net::TcpStream) -> (String, Value) {
    let mut got = Vec::new();
    loop {
        let read = stream.read_buf(&mut got).await.unwrap();
        let text = String::from_utf8_lossy(&got);
        assert!(read > 0, "it breaks off: {text}");
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let head = head.to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if body.len() == length.parse::<usize>().unwrap() {
            let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
            stream.write_all(answer).await.unwrap();
            return (head, serde_json::from_str(body).unwrap());
        }
    }
}

#[cfg(feature = "otel")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_is_one_trace_under_the_callers_span() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    // A collector, which may get the spans of a request in several exports.
    let (sender, mut exports) = tokio::sync::mpsc::unbounded_channel();
    let collector = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            sender.send(one_export(stream).await).unwrap();
        }
    });
    let host = Host::start(Config { otlp: Some(format!("http://{address}")), ..config() }).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    let answer = host
        .client
        .post(host.url("/v1/completions"))
        .header("traceparent", format!("00-{trace}-00f067aa0ba902b7-01"))
        .header("x-request-id", "traced")
        .json(&request(json!({})))
        .send()
        .await
        .unwrap();
    drop(events(answer).await);
    host.server.shutdown().await;
    let mut spans = Vec::new();
    while spans.len() < 4 {
        let (head, mut body) = exports.recv().await.unwrap();
        assert!(head.starts_with("post /v1/traces http/1.1") && head.contains("application/json"), "{head}");
        let more = body["resourceSpans"][0]["scopeSpans"][0]["spans"].take();
        spans.extend(more.as_array().unwrap_or_else(|| panic!("{body:#}")).clone());
    }
    collector.abort();
    let named =
        |name: &str| spans.iter().find(|s| s["name"] == name).unwrap_or_else(|| panic!("{name}: {spans:#?}"));
    let request = named("completion");
    assert_eq!((&request["traceId"], &request["parentSpanId"]), (&json!(trace), &json!("00f067aa0ba902b7")));
    for part in ["queue", "prefill", "decode"] {
        assert_eq!(
            (&named(part)["traceId"], &named(part)["parentSpanId"]),
            (&json!(trace), &request["spanId"])
        );
    }
    let attributes = request["attributes"].to_string();
    assert!(attributes.contains("infer.request_id") && attributes.contains("traced"), "{attributes}");
    for attribute in [
        r#""gen_ai.operation.name","value":{"stringValue":"text_completion"}"#,
        r#""url.path","value":{"stringValue":"/v1/completions"}"#,
    ] {
        assert!(attributes.contains(attribute), "{attributes}");
    }
}

//! Other paths, ids of requests, and what is taken for a proxy.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::common::{Host, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_that_is_taken_for_a_proxy_says_so() {
    let host = Host::start(config()).await;
    let mut stream = tokio::net::TcpStream::connect(host.server.data_addr).await.unwrap();
    stream.write_all(b"CONNECT a:1 HTTP/1.1\r\nhost: a:1\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 404") && answer.contains("this host is no proxy"), "{answer}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_ids_are_echoed_or_generated() {
    let host = Host::start(config()).await;
    let answer = host.client.get(host.url("/health")).header("x-request-id", "mine-1").send().await.unwrap();
    assert_eq!(answer.headers()["x-request-id"], "mine-1");
    let answer =
        host.client.get(host.url("/health")).header("x-request-id", "has space").send().await.unwrap();
    assert_eq!(answer.headers()["x-request-id"].len(), 16);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn models_health_version_and_metrics_are_served() {
    let host = Host::start(config()).await;
    host.events(json!({"ignore_eos": true})).await;
    // It never starts, so its prompt isn't counted.
    host.server.engine().hold_steps();
    let left = host.complete(json!({})).await;
    host.until("it waits", |state| state["requests"].as_array().unwrap().len() == 1).await;
    drop(left);
    host.until("its client is gone", |state| state["requests"] == json!([])).await;
    host.server.engine().release_steps();
    let get = async |path: &str| {
        let answer = host.client.get(host.url(path)).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        answer.text().await.unwrap()
    };
    let models: Value = serde_json::from_str(&get("/v1/models").await).unwrap();
    assert_eq!(models["data"][0]["id"], "demo");
    assert_eq!(models["data"][0]["root"], "demo");
    assert_eq!(models["data"][0].get("parent"), Some(&Value::Null));
    assert!(models["data"][0]["max_model_len"].as_u64().unwrap() >= 512);
    get("/health").await;
    get("/health/ready").await;
    get("/version").await;
    let metrics = get("/metrics").await;
    for line in [
        "infer_ready 1",
        "infer_requests_finished_total{reason=\"length\"}",
        "infer_prefix_cache_events_total{event=\"CONVERSATIONAL_HIT\"} 0",
        "infer_prefix_cache_events_total{event=\"CROSS_REQUEST_HIT\"} 0",
        "infer_prefix_cache_events_total{event=\"MISS_FULL\"} 1",
        "infer_prefix_cache_events_total{event=\"FULL_HIT_NO_PREFILL_NEEDED\"} 0",
        "infer_prefix_cache_events_total{event=\"CONVERSATIONAL_MISS_UNEXPECTED_PROMPT\"} 0",
        "infer_prefix_cache_eligible_requests_total{event=\"MISS_FULL\"} 0",
        "infer_prefix_cache_cached_tokens_total{event=\"MISS_FULL\"} 0",
        "infer_prefix_cache_prefilled_tokens_total{event=\"MISS_FULL\"} 7",
        "infer_prefix_cache_time_to_first_token_seconds_count{prefix=\"none\"} 1",
        "infer_prompt_tokens_total 7",
        "infer_generated_tokens_total 8",
        "infer_requests_submitted_total 2",
        "infer_requests_failed_total 0",
        "infer_requests_running_limit 32",
        "infer_kv_blocks ",
        "infer_kv_blocks_available",
        "infer_max_admissible_tokens",
        "infer_device_faults_total 0",
        "infer_step_seconds_bucket{le=\"+Inf\"} ",
        "infer_policy_call_seconds_count{kind=\"scheduler\",name=\"continuous\"} ",
        "infer_policy_faults_total{kind=\"scheduler\",reason=\"trap\"} 0",
        "infer_policy_changes_total{kind=\"admission\",change=\"swap\"} 0",
        "infer_policy_trial{kind=\"prefix-cache\",mode=\"canary\"} 0",
        "infer_policy_quarantined 0",
        "process_max_fds ",
        "vllm:num_requests_running{model_name=\"demo\"} 0",
        "vllm:num_requests_waiting{model_name=\"demo\"} 0",
        "vllm:kv_cache_usage_perc{",
        "vllm:prefix_cache_queries_total{",
        "vllm:prefix_cache_hits_total{",
        "vllm:prompt_tokens_total{",
        "vllm:generation_tokens_total{model_name=\"demo\"} 8",
        "vllm:num_preemptions_total{",
        "vllm:request_success_total{model_name=\"demo\",finished_reason=\"length\"} 1",
        "vllm:time_to_first_token_seconds_count{model_name=\"demo\"} 1",
        "vllm:inter_token_latency_seconds_count{model_name=\"demo\"} 7",
        "vllm:e2e_request_latency_seconds_count{model_name=\"demo\"} 1",
        "vllm:request_queue_time_seconds_count{model_name=\"demo\"} 1",
        "vllm:cache_config_info{",
    ] {
        assert!(metrics.contains(line), "{line} is missing in:\n{metrics}");
    }
    host.server.shutdown().await;
}

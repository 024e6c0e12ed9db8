//! What policies publish about themselves, as the admin plane and the metrics show it.

use crate::common::{Host, config};
use reqwest::Method;
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gauges_of_live_and_shadow_policies_are_shown() {
    let host = Host::start(config()).await;
    let put = async |query: &str, body: Value| {
        let path = format!("/admin/policies/admission{query}");
        let answer = host.admin(Method::PUT, &path).json(&body).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
    };
    put("", json!([{"name": "memory-aware"}, {"name": "tenant-cap"}])).await;
    put("?mode=shadow", json!({"name": "slo"})).await;
    // Once rates have been measured, there is an estimate.
    let shown = async || {
        drop(host.events(json!({"max_tokens": 20, "ignore_eos": true})).await);
        let policies = host.admin_get("/admin/policies").await;
        let slot = policies["slots"].as_array().unwrap().iter().find(|slot| slot["kind"] == "admission");
        let slot = slot.unwrap().clone();
        (!slot["shadow"]["gauges"].as_array().unwrap().is_empty()).then_some(slot)
    };
    let slot = loop {
        if let Some(slot) = shown().await {
            break slot;
        }
    };
    let names = |gauges: &Value| -> Vec<Value> {
        gauges.as_array().unwrap().iter().map(|gauge| json!([gauge["policy"], gauge["name"]])).collect()
    };
    assert_eq!(names(&slot["gauges"]), [json!(["memory-aware", "claimed_blocks"])], "{slot}");
    assert_eq!(names(&slot["shadow"]["gauges"]), [json!(["slo", "estimated_ttft_ms"])], "{slot}");
    let metrics = host.client.get(host.url("/metrics")).send().await.unwrap().text().await.unwrap();
    for labels in [
        r#"kind="admission",name="memory-aware",mode="live",gauge="claimed_blocks""#,
        r#"kind="admission",name="slo",mode="shadow",gauge="estimated_ttft_ms""#,
    ] {
        let name = format!("infer_policy_gauge{{{labels}}} ");
        let value = metrics.lines().find_map(|line| line.strip_prefix(&name));
        let value = value.unwrap_or_else(|| panic!("{name} is missing in:\n{metrics}"));
        assert!(value.parse::<f64>().unwrap().is_finite(), "{value}");
    }
    host.server.shutdown().await;
}

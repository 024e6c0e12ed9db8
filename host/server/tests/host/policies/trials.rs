//! Canaries: what can fail them, and what is no reason to.

use reqwest::Method;
use serde_json::{Value, json};

use super::slot_of;
use crate::common::{Host, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canary_says_what_can_fail_it_and_its_verdict_ends_with_the_next_swap() {
    let host = Host::start(config()).await;
    let ask = async |method: Method, path: &str, body: Value| {
        let answer = host.admin(method, &format!("/admin/policies/scheduler{path}")).json(&body).send().await;
        answer.unwrap().json::<Value>().await.unwrap()
    };
    let live = async || slot_of(&host, "scheduler").await;
    let swapped = ask(Method::PUT, "?mode=canary", json!({"name": "srpt"})).await;
    let reason = swapped["canary"]["reason"].as_str().unwrap();
    assert!(reason.starts_with("only faults can fail it") && reason.contains("no baseline"), "{swapped}");
    assert_eq!(live().await["canary"]["reason"], reason);
    ask(Method::POST, "/promote", Value::Null).await;
    assert_eq!(live().await["canary"]["state"], "promoted");
    let swapped = ask(Method::PUT, "", json!({"name": "fair"})).await;
    assert_eq!((&swapped["canary"], &live().await["canary"]), (&Value::Null, &Value::Null), "{swapped}");

    ask(Method::PUT, "?mode=canary", json!({"name": "srpt"})).await;
    ask(Method::POST, "/rollback", Value::Null).await;
    assert_eq!(live().await["canary"]["state"], "rolled_back");
    ask(Method::PUT, "", json!({"name": "srpt"})).await;
    ask(Method::POST, "/rollback", Value::Null).await;
    assert_eq!(live().await["canary"], Value::Null, "the trial's verdict is not about this rollback");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canary_is_not_judged_by_a_change_in_another_slot() {
    let host = Host::start(config()).await;
    let put = async |path: &str, name: &str| {
        let put = host.admin(Method::PUT, &format!("/admin/policies/{path}")).json(&json!({"name": name}));
        assert_eq!(put.send().await.unwrap().status(), 200, "{path}");
    };
    put("scheduler?mode=canary&window_s=300", "srpt").await;
    put("admission", "builtin").await;
    host.events(json!({"max_tokens": 4})).await;
    let slot = slot_of(&host, "scheduler").await;
    assert_eq!((&slot["state"], &slot["name"]), (&json!("canary"), &json!("srpt")), "it stays a canary");
    let reason = slot["canary"]["reason"].as_str().unwrap();
    assert!(reason.contains("the admission policy changed"), "{reason}");
    let history = host.admin_get("/admin/policies/scheduler/history").await;
    let entries = history.as_array().unwrap();
    let modes: Vec<&str> = entries.iter().map(|e| e["mode"].as_str().unwrap()).collect();
    assert_eq!(modes, ["start", "canary", "disturbed"], "{history}");
    assert_eq!(entries[2]["reason"], reason);
    host.server.shutdown().await;
}

//! Policies that settings and files configure, and lists of admission policies.

use infer_server::config::{Config, PolicyChoice};
use reqwest::Method;
use serde_json::{Value, json};

use super::{slot, slot_of};
use crate::common::{Host, config};

/// A file does not undo what an operator swapped in, even if it has the same name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_replaces_only_policies_that_the_files_configured() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policies.json");
    let write =
        |patience: u64| std::fs::write(&file, json!({"scheduler": {"patience_ms": patience}}).to_string());
    write(1_000).unwrap();
    let host = Host::start(Config {
        scheduler: PolicyChoice { name: "srpt".into(), config: r#"{"patience_ms": 1000}"#.into() },
        policy_config: Some(file.clone()),
        ..config()
    })
    .await;
    let put = async |name: &str, config: Value| {
        let body = json!({"name": name, "config": config});
        let put = host.admin(Method::PUT, "/admin/policies/scheduler").json(&body).send().await;
        assert_eq!(put.unwrap().status(), 200);
    };
    let rollback = async || {
        let back = host.admin(Method::POST, "/admin/policies/scheduler/rollback").send().await;
        assert_eq!(back.unwrap().status(), 200);
    };
    let reload = async |patience: u64| {
        write(patience).unwrap();
        host.server.reload().await;
        slot_of(&host, "scheduler").await["config"]["patience_ms"].clone()
    };
    assert_eq!(reload(2_000).await, 2_000, "the configured policy has its new configuration");
    put("srpt", json!({"patience_ms": 77})).await;
    assert_eq!(reload(3_000).await, 77, "an operator set this one");
    rollback().await;
    assert_eq!(reload(4_000).await, 4_000, "the configured policy is back");
    // Also after a rollback that loads it again.
    put("srpt", json!({"patience_ms": 78})).await;
    put("srpt", json!({"patience_ms": 79})).await;
    rollback().await;
    rollback().await;
    assert_eq!(reload(5_000).await, 5_000);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_starts_with_configured_policies_and_names_a_wrong_flag() {
    let scheduler =
        PolicyChoice { name: "static-batch".to_owned(), config: r#"{"max_batch": 2}"#.to_owned() };
    let wrong = PolicyChoice::named("no-such");
    let started = infer_server::serve::start(Config { scheduler: wrong, ..config() }).await;
    let error = started.err().unwrap().to_string();
    assert!(error.starts_with("--scheduler: there is no scheduler policy `no-such`"), "{error}");
    let scheduler = PolicyChoice { config: "{}".to_owned(), ..scheduler };
    let host = Host::start(Config { scheduler, ..config() }).await;
    let policies = host.admin_get("/admin/policies").await;
    assert_eq!(slot(&policies, "scheduler")["name"], "static-batch");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admission_takes_a_list_at_the_start_and_in_swaps() {
    let list = PolicyChoice {
        name: "memory-aware, builtin".to_owned(),
        config: r#"{"memory-aware": {"reserve": 0.2}}"#.to_owned(),
    };
    let host = Host::start(Config { admission: list, ..config() }).await;
    let policies = host.admin_get("/admin/policies").await;
    let admission = slot(&policies, "admission");
    assert_eq!(admission["name"], "memory-aware+builtin-accept");
    assert_eq!(
        admission["config"],
        json!([{"name": "memory-aware", "config": {"reserve": 0.2}}, {"name": "builtin-accept", "config": {}}])
    );
    assert_eq!(host.events(json!({"max_tokens": 3, "ignore_eos": true})).await.last().unwrap().0, "done");

    let members = json!([{"name": "builtin"}, {"name": "memory-aware", "config": {"max_in_flight": 7}}]);
    let put = host.admin(Method::PUT, "/admin/policies/admission").json(&members).send().await.unwrap();
    let answer: Value = put.json().await.unwrap();
    assert_eq!(answer["to"], "builtin-accept+memory-aware", "{answer}");
    assert_eq!(host.events(json!({"max_tokens": 3, "ignore_eos": true})).await.last().unwrap().0, "done");
    let policies = host.admin_get("/admin/policies").await;
    assert_eq!(slot(&policies, "admission")["config"][1]["config"]["max_in_flight"], 7);
    assert_eq!(slot(&policies, "admission")["faults"], 0);

    // Consoles get a schema for each member, and the configuration in the form that swaps take.
    let schema = &slot(&policies, "admission")["config_schema"];
    assert_eq!(schema["prefixItems"].as_array().unwrap().len(), 2, "{schema}");
    assert_eq!(schema["prefixItems"][1]["properties"]["max_in_flight"]["type"], "integer", "{schema}");
    let mut config = slot(&policies, "admission")["config"].clone();
    config[1]["config"]["max_in_flight"] = json!(9);
    let put = async |body: &Value| {
        let answer = host.admin(Method::PUT, "/admin/policies/admission").json(body).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    assert_eq!(put(&config).await.0, 200);
    let policies = host.admin_get("/admin/policies").await;
    assert_eq!(slot(&policies, "admission")["config"], config);

    // In the form of `--admission` and `--policy-config`.
    let names = "memory-aware, token-bucket";
    let config = json!({"memory-aware": {"max_in_flight": 8}});
    let (status, answer) = put(&json!({"name": names, "config": config})).await;
    assert_eq!((status, &answer["to"]), (200, &json!("memory-aware+token-bucket")), "{answer}");
    let policies = host.admin_get("/admin/policies").await;
    assert_eq!(slot(&policies, "admission")["config"][0]["config"], config["memory-aware"]);
    let (status, answer) = put(&json!({"name": names, "config": {"reserve": 0.5}})).await;
    assert_eq!((status, &answer["error"]["param"]), (422, &json!("config")), "{answer}");
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("has `reserve`, which is not one of memory-aware")
    );
    host.server.shutdown().await;
}

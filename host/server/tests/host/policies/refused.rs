//! Policies and requests that the admin plane refuses.

use reqwest::Method;
use serde_json::{Value, json};

use super::slot;
use crate::common::{Host, config};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn error_about_a_long_text_shows_little_of_it() {
    let host = Host::start(config()).await;
    let long = "x".repeat(60_000);
    let put = |path: &str| host.admin(Method::PUT, &format!("/admin/policies/{path}"));
    let load = || host.admin(Method::POST, "/admin/adapters");
    let two = "memory-aware,token-bucket";
    for (request, said) in [
        (put("scheduler").json(&json!(long)), "invalid type: string"),
        (put("scheduler").json(&json!({&long: 1})), "unknown field"),
        (put("scheduler").json(&json!({"name": long})), "there is no scheduler policy"),
        (put("admission").json(&json!({"name": two, "config": {&long: {}}})), "the configuration has"),
        (load().json(&json!(long)), "invalid type: string"),
        (load().json(&json!({"name": "a", "path": long})), "at most 4096 bytes"),
    ] {
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 422, "{said}");
        let body: Value = answer.json().await.unwrap();
        let message = body["error"]["message"].as_str().unwrap();
        assert!(message.contains(said) && message.len() < 1_000, "{said}: {} bytes", message.len());
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_policy_is_refused_with_the_check_that_failed() {
    let host = Host::start(config()).await;
    let put = |path: &str| host.admin(Method::PUT, &format!("/admin/policies/{path}"));
    let scheduler = infer_bundle::find("scheduler", "continuous").unwrap().component;
    let damaged = &scheduler[..scheduler.len() / 2];
    let cases = [
        (put("scheduler").json(&json!({"name": "no-such"})), 422, "name", "`static-batch`"),
        (put("scheduler").body("not wasm"), 422, "format", "WebAssembly"),
        (put("scheduler").body(damaged), 422, "format", "component"),
        (put("admission").body(scheduler), 422, "world", "scheduler policy"),
        (
            put("scheduler").json(&json!({"name": "static-batch", "config": {"nonsense": 1}})),
            422,
            "configure",
            "configuration",
        ),
        (
            put("scheduler").json(&json!({"name": "builtin", "config": {"x": 1}})),
            422,
            "configure",
            "no configuration",
        ),
        (
            put("scheduler?mode=shadow&window_s=5").json(&json!({"name": "continuous"})),
            422,
            "invalid_value",
            "only a canary",
        ),
        (
            put("scheduler?mode=canary&window_s=0").json(&json!({"name": "continuous"})),
            422,
            "invalid_value",
            "1 to 300",
        ),
        (put("scheduler?force=yes").json(&json!({"name": "continuous"})), 422, "invalid_value", "force"),
        (put("scheduler?mode=never").json(&json!({"name": "continuous"})), 422, "invalid_value", "mode"),
        (put("scheduler?when=now").json(&json!({"name": "continuous"})), 422, "unknown_parameter", "when"),
        (
            put("scheduler").json(&json!([{"name": "continuous"}, {"name": "static-batch"}])),
            422,
            "list",
            "only admission",
        ),
        (
            put("admission").json(&json!([{"name": "memory-aware"}, {"name": "memory-aware"}])),
            422,
            "list",
            "twice",
        ),
        (
            put("admission").json(&json!([{"name": "memory-aware"}, {"name": "no-such"}])),
            422,
            "name",
            "no-such",
        ),
        (put("scheduler").json(&json!({"nam": "continuous"})), 422, "invalid_value", "nam"),
        (put("scheduler").header("content-type", "application/json").body("{"), 400, "invalid_json", "JSON"),
        (
            put("scheduler").body(r#"{"name": "srpt", "config": {"patience_ms": 1, "patience_ms": 2}}"#),
            400,
            "invalid_json",
            "the key `patience_ms` occurs twice",
        ),
        (
            put("scheduler?config=%7B%22a%22:%7B%22b%22:1,%22b%22:2%7D%7D").body(scheduler),
            400,
            "invalid_json",
            "config: not valid JSON: the key `b` occurs twice",
        ),
        (put("scheduler"), 400, "empty_body", "empty"),
        (
            put("scheduler").header("content-encoding", "gzip").body(scheduler),
            415,
            "unsupported_media_type",
            "content-encoding `gzip`",
        ),
        (put("nothing").body(scheduler), 404, "not_found", "prefix-cache"),
        (host.admin(Method::POST, "/admin/policies/scheduler/rollback"), 409, "no_previous", "previous"),
        (host.admin(Method::POST, "/admin/policies/scheduler/promote"), 409, "nothing_to_promote", "neither"),
        (host.admin(Method::DELETE, "/admin/policies/scheduler/shadow"), 409, "no_shadow", "shadow"),
        (host.admin(Method::GET, "/admin/policies/scheduler/shadow"), 404, "not_found", "shadow"),
        (host.admin(Method::DELETE, "/admin/policies/quarantine/77"), 404, "not_found", "quarantine"),
    ];
    for (request, status, code, part) in cases {
        let answer = request.send().await.unwrap();
        let got = answer.status();
        let body: Value = answer.json().await.unwrap();
        assert_eq!((got.as_u16(), &body["error"]["code"]), (status, &json!(code)), "{body}");
        assert!(body["error"]["message"].as_str().unwrap().contains(part), "{part}: {body}");
    }
    let policies = host.admin_get("/admin/policies").await;
    assert_eq!(slot(&policies, "scheduler")["name"], "continuous", "nothing changed");
    host.server.shutdown().await;
}

//! Keys, what they open, and what tenants don't share.

use infer_server::config::Config;
use infer_server::tenants::{KeyDigest, fresh};
use reqwest::Method;
use serde_json::{Value, json};

use super::{Key, chat, complete, done, host_with, key, metrics, write};
use crate::common::{Host, config, events, request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_keys_open_only_the_data_plane() {
    let alice = key("alice", "max-priority = 1");
    let (host, _file) = host_with(&[&alice], config()).await;
    for (path, code) in [("/health", 200), ("/health/ready", 200), ("/version", 200), ("/v1/models", 401)] {
        assert_eq!(host.client.get(host.url(path)).send().await.unwrap().status(), code, "{path}");
    }
    for path in ["/v1/completions", "/tokenize", "/detokenize"] {
        let answer = host.post(path, &request(json!({}))).await;
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["www-authenticate"]),
            (401, &"Bearer".parse().unwrap())
        );
        let body: Value = answer.json().await.unwrap();
        let error = &body["error"];
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("authentication_error"), &json!("missing_api_key"))
        );
        assert!(error["message"].is_string() && error["param"].is_null(), "{body}");
    }
    let stranger = Key { text: fresh().unwrap(), table: String::new() };
    let body: Value = complete(&host, &stranger, json!({})).await.json().await.unwrap();
    assert_eq!(body["error"]["code"], "invalid_api_key");

    // A tenant's key is not accepted as an admin token, nor the admin token as a key.
    let url = format!("http://{}/admin/state", host.server.admin_addr);
    assert_eq!(host.client.get(url).bearer_auth(&alice.text).send().await.unwrap().status(), 401);
    let admin = Key { text: host.server.admin_token.clone(), table: String::new() };
    assert_eq!(complete(&host, &admin, json!({})).await.status(), 401);

    // The priority is capped, and operators see the tenant's name.
    host.server.engine().hold_steps();
    let held = complete(&host, &alice, json!({"priority": 9})).await;
    let state = host.admin_get("/admin/state").await;
    let row = &state["requests"][0];
    assert_eq!((&row["tenant_name"], &row["priority"]), (&json!("alice"), &json!(1)));
    host.server.engine().release_steps();
    drop(events(held).await);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_keys_open_nothing_after_a_reload_and_their_streams_go_on() {
    let [kept, leaked, gone] = ["alice", "alice", "bob"].map(|tenant| key(tenant, ""));
    let [old, new] = [&leaked, &kept].map(|key| KeyDigest::of(&key.text));
    let (host, file) = host_with(&[&kept, &gone], config()).await;
    std::fs::write(file.path(), format!("[tenants.alice]\nkeys = [\"{old}\", \"{new}\"]\n{}", gone.table))
        .unwrap();
    let reload = async || {
        assert_eq!(host.admin(Method::POST, "/admin/reload").send().await.unwrap().status(), 200);
    };
    let statuses = async || {
        let mut statuses = Vec::new();
        for key in [&kept, &leaked, &gone] {
            let models = host.client.get(host.url("/v1/models")).bearer_auth(&key.text).send();
            statuses.push(models.await.unwrap().status().as_u16());
        }
        statuses
    };
    reload().await;
    assert_eq!(statuses().await, [200, 200, 200]);

    host.server.engine().hold_steps();
    let running = [complete(&host, &leaked, json!({})).await, complete(&host, &gone, json!({})).await];
    // One of two keys of a tenant, and a tenant with its only one.
    write(file.path(), &[&kept]);
    reload().await;
    assert_eq!(statuses().await, [200, 401, 401]);
    host.server.engine().release_steps();
    for answer in running {
        assert_eq!(events(answer).await.last().unwrap().0, "done");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_hints_count_unless_the_file_says_otherwise() {
    let (alice, bob) = (key("alice", ""), key("bob", "output-hints = false"));
    let (host, _file) = host_with(&[&alice, &bob], config()).await;
    host.server.engine().hold_steps();
    let fields = json!({"max_tokens": 40, "n": 2, "expected_output_tokens": 7});
    let held = [complete(&host, &alice, fields.clone()).await, complete(&host, &bob, fields).await];
    let state = host.admin_get("/admin/state").await;
    // Nothing is known of either one's outputs, so the limit is expected.
    for (tenant, expected) in [("alice", 7), ("bob", 40)] {
        let mut choices = 0;
        for row in state["requests"].as_array().unwrap().iter().filter(|row| row["tenant_name"] == tenant) {
            let detail = host.admin_get(&format!("/admin/requests/{}", row["id"])).await;
            assert_eq!(detail["expected_tokens"], expected, "{detail}");
            choices += 1;
        }
        assert_eq!(choices, 2, "{state}");
    }
    host.server.engine().release_steps();
    for answer in held {
        drop(events(answer).await);
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefixes_are_shared_only_within_tenant_and_salt() {
    let (alice, bob) = (key("alice", ""), key("bob", ""));
    let (host, _file) = host_with(&[&alice, &bob], config()).await;
    let prompt: Vec<u32> = (0..100).map(|n| n % 90).collect();
    let cached = async |key: &Key, salt: Option<&str>| {
        let done = done(&host, key, json!({"prompt": prompt, "cache_salt": salt, "session_id": "s"})).await;
        done["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!(cached(&alice, None).await, 0);
    assert_eq!(cached(&bob, None).await, 0, "another tenant finds nothing");
    assert_eq!(cached(&alice, Some("x")).await, 0, "nor does another salt");
    assert!(cached(&alice, None).await >= 96);
    assert!(cached(&alice, Some("x")).await >= 96);
    assert!(cached(&bob, None).await >= 96);
    assert_eq!(cached(&bob, Some("x")).await, 0, "a salt is a tenant's own");

    let counted = [
        "infer_tenant_requests_total{tenant=\"alice\"} 4",
        "infer_tenant_prompt_tokens_total{tenant=\"bob\"} 300",
        "infer_tenant_generated_tokens_total{tenant=\"default\"} 0",
    ];
    host.until_metrics(&counted).await;
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chats_need_a_key_and_obey_its_limits() {
    let alice = key("alice", "max-priority = 1");
    // Refills too slowly to matter during the test.
    let slow = key("slow", "tokens-per-minute = 1\nburst = 40");
    let (host, _file) = host_with(&[&alice, &slow], config()).await;

    let stranger = Key { text: fresh().unwrap(), table: String::new() };
    for (key, code) in [(None, "missing_api_key"), (Some(&stranger), "invalid_api_key")] {
        for stream in [false, true] {
            let answer = chat(&host, key, json!({"stream": stream})).await;
            assert_eq!(answer.status(), 401);
            assert_eq!(answer.headers()["www-authenticate"], "Bearer");
            let body: Value = answer.json().await.unwrap();
            assert_eq!(body["error"]["type"], "authentication_error");
            assert_eq!(body["error"]["code"], code, "errors are one body even if a stream was requested");
        }
    }

    // The priority is capped; a lower one is kept.
    host.server.engine().hold_steps();
    let asked = |priority: i32| {
        chat(&host, Some(&alice), json!({"priority": priority, "max_tokens": 9, "stream": true}))
    };
    let (above, below) = (asked(9).await, asked(-3).await);
    let state = host.admin_get("/admin/state").await;
    let mut rows: Vec<_> =
        state["requests"].as_array().unwrap().iter().map(|row| row["priority"].as_i64().unwrap()).collect();
    rows.sort_unstable();
    assert_eq!(rows, [-3, 1], "{state}");
    assert!(state["requests"].as_array().unwrap().iter().all(|row| row["tenant_name"] == "alice"));
    host.server.engine().release_steps();
    for answer in [above, below] {
        assert!(answer.text().await.unwrap().ends_with("data: [DONE]\n\n"));
    }

    // The rate limit, and the usage by tenant.
    let fields = json!({"max_tokens": 20, "ignore_eos": true});
    let taken: Value = chat(&host, Some(&slow), fields.clone()).await.json().await.unwrap();
    assert_eq!(taken["usage"]["completion_tokens"], 20, "{taken}");
    let refused = chat(&host, Some(&slow), fields).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    let body: Value = refused.json().await.unwrap();
    assert_eq!(
        (&body["error"]["type"], &body["error"]["code"]),
        (&json!("rate_limit_error"), &json!("rate_limited"))
    );
    let metrics = metrics(&host).await;
    let prompt = &taken["usage"]["prompt_tokens"];
    for line in [
        "infer_tenant_requests_total{tenant=\"alice\"} 2".to_owned(),
        "infer_tenant_requests_total{tenant=\"slow\"} 1".to_owned(),
        "infer_tenant_requests_refused_total{tenant=\"slow\"} 1".to_owned(),
        format!("infer_tenant_prompt_tokens_total{{tenant=\"slow\"}} {prompt}"),
        "infer_tenant_generated_tokens_total{tenant=\"slow\"} 20".to_owned(),
        "infer_tenant_requests_failed_total{tenant=\"slow\"} 0".to_owned(),
    ] {
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_tenants_file_fails_startup_and_names_the_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "[tenants.a]\nkees = []\n").unwrap();
    let started = infer_server::serve::start(Config { api_keys: Some(file.path().to_owned()), ..config() });
    let error = started.await.map(|_| ()).unwrap_err();
    assert!(error.is_usage());
    let text = error.to_string();
    assert!(
        text.contains("--api-keys: ")
            && text.contains(":2: tenants.a.kees: unknown key; did you mean `keys`?")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_keys_all_requests_are_one_tenant() {
    let host = Host::start(config()).await;
    drop(host.events(json!({})).await);
    let models = host.client.get(host.url("/v1/models")).bearer_auth("anything").send().await.unwrap();
    assert_eq!(models.status(), 200, "an unneeded key is accepted");
    let row = host.admin(Method::GET, "/admin/state").send().await.unwrap().json::<Value>().await.unwrap();
    assert_eq!(row["requests_total"], 0);
    host.server.shutdown().await;
}

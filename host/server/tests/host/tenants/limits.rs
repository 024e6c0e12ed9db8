//! Rates and caps, and what operators see of those who wait.

use infer_server::config::{Config, PolicyChoice};
use serde_json::{Value, json};

use super::{chat, complete, done, host_with, key, metrics, write};
use crate::common::{config, events};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rate_limit_applies_per_tenant_by_default() {
    // Refills too slowly to matter during the test.
    let slow = key("slow", "tokens-per-minute = 1\nburst = 40");
    let quick = key("quick", "");
    let (host, _file) = host_with(&[&slow, &quick], config()).await;
    let tokens = json!({"prompt": [1, 2, 3, 4], "max_tokens": 20, "ignore_eos": true});
    done(&host, &slow, tokens.clone()).await;
    let refused = complete(&host, &slow, tokens.clone()).await;
    assert_eq!(refused.status(), 429);
    let after: u64 = refused.headers()["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((6 * 60..=8 * 60).contains(&after), "until the 8 missing tokens are refilled: {after} s");
    // A prompt that fills the burst leaves no room for output, so clients are told not to retry.
    let never = complete(&host, &slow, json!({"prompt": vec![1; 40], "max_tokens": 1})).await;
    assert_eq!(never.status(), 429);
    let retry = ["retry-after", "x-should-retry"].map(|name| never.headers().get(name).cloned());
    assert_eq!(retry, [None, Some("false".parse().unwrap())]);
    for _ in 0..4 {
        done(&host, &quick, tokens.clone()).await;
    }
    let metrics = metrics(&host).await;
    assert!(metrics.contains("infer_tenant_requests_refused_total{tenant=\"slow\"} 2"), "{metrics}");
    let slots = host.admin_get("/admin/policies").await;
    assert!(slots["slots"][1]["name"].as_str().unwrap().contains("token-bucket"), "{slots}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_beyond_their_rate_are_refused_before_admission_and_a_reload_brings_none_back() {
    let slow = key("slow", "requests-per-minute = 1");
    let quick = key("quick", "");
    let (host, file) = host_with(&[&slow, &quick], config()).await;
    // Neither asks for work of the engine.
    for path in ["/v1/models", "/v1/models/demo"] {
        let answer = host.client.get(host.url(path)).bearer_auth(&slow.text).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
    }
    let some = json!({"prompt": [1, 2, 3, 4], "max_tokens": 2, "ignore_eos": true});
    // Its choices are one request.
    done(&host, &slow, json!({"prompt": [1, 2, 3, 4], "max_tokens": 2, "n": 3})).await;

    let refused = complete(&host, &slow, some.clone()).await;
    assert_eq!(refused.status(), 429);
    let header = |name: &str| refused.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let after: u64 = header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&after), "{after}");
    assert!(header("retry-after-ms").is_some());
    assert_eq!((header("x-should-retry"), header("connection")), (None, None));
    let body: Value = refused.json().await.unwrap();
    let error = &body["error"];
    assert_eq!((&error["type"], &error["code"]), (&json!("rate_limit_error"), &json!("rate_limited")));
    assert_eq!(error["param"], Value::Null);
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with("the limit is 1 requests a minute; retry in "), "{message}");
    // Nothing is made of a body that is one too many.
    assert_eq!(complete(&host, &slow, json!({"prompt": 5})).await.status(), 429);

    write(file.path(), &[&slow, &quick]);
    host.server.reload().await;
    assert_eq!(chat(&host, Some(&slow), json!({"max_tokens": 2})).await.status(), 429);
    done(&host, &quick, some.clone()).await;
    let metrics = metrics(&host).await;
    for line in [
        "infer_requests_refused_total{reason=\"rate\"} 3",
        "infer_tenant_requests_refused_total{tenant=\"slow\"} 3",
        "infer_tenant_requests_total{tenant=\"slow\"} 1",
        "infer_tenant_requests_refused_total{tenant=\"quick\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    write(file.path(), &[&slow.granted(""), &quick]);
    host.server.reload().await;
    for _ in 0..3 {
        done(&host, &slow, some.clone()).await;
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_at_its_cap_waits_while_others_pass() {
    let (flood, quiet) = (key("flood", ""), key("quiet", ""));
    let admission = PolicyChoice {
        name: "tenant-cap,memory-aware".to_owned(),
        config: r#"{"tenant-cap": {"max_in_flight": 1, "max_held": 2}}"#.to_owned(),
    };
    let (host, _file) = host_with(&[&flood, &quiet], Config { admission, ..config() }).await;
    host.server.engine().hold_steps();
    let some = json!({"prompt": [1, 2, 3, 4], "max_tokens": 5, "ignore_eos": true});
    let mut streams = Vec::new();
    for held in 0..3 {
        streams.push(complete(&host, &flood, some.clone()).await);
        host.until("the others wait", |state| state["queue"]["held"] == held).await;
    }
    let refused = complete(&host, &flood, some.clone()).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("retry-after"));
    let body: Value = refused.json().await.unwrap();
    let message = body["error"]["message"].as_str().unwrap();
    assert!(message.contains("at most 1") && message.contains("2 wait, of at most 2"), "{body}");
    streams.push(complete(&host, &quiet, some.clone()).await);
    host.until("it passed", |state| state["queue"]["waiting"] == 2 && state["queue"]["held"] == 2).await;
    host.server.engine().release_steps();
    for stream in streams {
        assert_eq!(events(stream).await.last().unwrap().0, "done");
    }
    let slots = host.admin_get("/admin/policies").await;
    assert_eq!(slots["slots"][1]["faults"], 0, "{slots}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_see_what_each_tenant_waits_for() {
    let (flood, quiet) = (key("flood", "weight = 2.5"), key("quiet", ""));
    let (host, _file) = host_with(&[&flood, &quiet], config()).await;
    assert_eq!(host.admin_get("/admin/state").await["tenants"], json!([]), "none has sent a request");
    let some = json!({"prompt": [1, 2, 3, 4], "max_tokens": 5, "ignore_eos": true});
    done(&host, &quiet, some.clone()).await;
    host.server.engine().hold_steps();
    let waiting = [complete(&host, &flood, some.clone()).await, complete(&host, &flood, some).await];
    let state = host.admin_get("/admin/state").await;
    let [first, second] = &state["tenants"].as_array().unwrap()[..] else { panic!("{state}") };
    assert_eq!((&first["name"], &first["weight"]), (&json!("flood"), &json!(2.5)), "it has live requests");
    assert_eq!((&first["waiting"], &first["running"], &first["requests"]), (&json!(2), &json!(0), &json!(0)));
    assert_eq!(
        (&second["name"], &second["requests"], &second["waiting"]),
        (&json!("quiet"), &json!(1), &json!(0))
    );
    assert_eq!((&second["prompt_tokens"], &second["generated_tokens"]), (&json!(4), &json!(5)));
    let ms = |row: &Value, name: &str| row[name].as_f64().unwrap();
    assert!(
        ms(second, "ttft_p50_ms") > 0.0 && ms(second, "ttft_p50_ms") >= ms(second, "queue_p50_ms"),
        "{second}"
    );
    assert_eq!(ms(first, "ttft_p99_ms"), 0.0, "none of its requests has a token");

    let metrics = metrics(&host).await;
    for line in [
        "infer_tenant_requests_waiting{tenant=\"flood\"} 2",
        "infer_tenant_requests_running{tenant=\"quiet\"} 0",
        "infer_tenant_time_to_first_token_seconds_count{tenant=\"quiet\"} 1",
        "infer_tenant_request_queue_time_seconds_count{tenant=\"quiet\"} 1",
        "infer_tenant_inter_token_latency_seconds_count{tenant=\"quiet\"} 4",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    assert!(!metrics.contains("to_first_token_seconds_count{tenant=\"flood\"}"), "{metrics}");
    host.server.engine().release_steps();
    for stream in waiting {
        assert_eq!(events(stream).await.last().unwrap().0, "done");
    }
    host.server.shutdown().await;
}

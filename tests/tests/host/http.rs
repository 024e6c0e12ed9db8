//! End to end over HTTP: policies are swapped and misbehave while sixteen clients stream.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Host, STREAMS, answer_of, policy_limits};
use infer_server::config::{Config, PolicyLimits};
use infer_tests::{FAULTY_ADMISSION, FAULTY_SCHEDULER};
use reqwest::Method;
use serde_json::{Value, json};

const SWAPS: usize = 200;
const SWAP_EVERY: Duration = Duration::from_millis(50);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_swaps_under_sixteen_streams_change_no_token_and_fail_no_request() {
    let host = Host::start().await;
    let undisturbed = host.stream_all().await;
    assert!(undisturbed.iter().enumerate().all(|(i, tokens)| tokens.len() == 600 + 40 * i));

    let finished = AtomicBool::new(false);
    let swaps = async {
        let mut pauses_us = Vec::new();
        let mut ticks = tokio::time::interval(SWAP_EVERY);
        for swap in 0..SWAPS {
            ticks.tick().await;
            let name = if swap % 2 == 0 { "static-batch" } else { "continuous" };
            let put = host.admin(Method::PUT, "/admin/policies/scheduler").json(&json!({"name": name}));
            let answer = put.send().await.expect("an answer");
            assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
            let answer: Value = answer.json().await.expect("JSON");
            assert_eq!(answer["to"], name);
            pauses_us.push(answer["pause_us"].as_f64().expect("a pause"));
        }
        finished.store(true, Ordering::Relaxed);
        pauses_us
    };
    let rounds = async {
        // Rounds follow one another from the first swap on, so every swap falls into one.
        let mut rounds = 0;
        while !finished.load(Ordering::Relaxed) {
            assert_eq!(host.stream_all().await, undisturbed);
            rounds += 1;
        }
        rounds
    };
    let (mut pauses_us, rounds) = tokio::join!(swaps, rounds);
    pauses_us.sort_by(f64::total_cmp);
    println!(
        "{SWAPS} swaps over {rounds} rounds of {STREAMS} streams, pause median {:.1} us, largest {:.1} us",
        pauses_us[SWAPS / 2],
        pauses_us[SWAPS - 1]
    );
    assert_eq!(host.scheduler_slot().await["faults"], 0);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn misbehaving_scheduler_is_reported_and_changes_no_stream() {
    let host = Host::start().await;
    let undisturbed = host.stream_all().await;
    for (fault, reason) in [("trap", "trap"), ("spin", "deadline"), ("unknown-id", "invalid-decision")] {
        let before = host.scheduler_slot().await["fallbacks"].as_u64().expect("a count");
        let config = format!(r#"{{"fault": "{fault}", "after": 100}}"#);
        let put = host.put_scheduler(&[("config", &config)]);
        let answer = put.body(FAULTY_SCHEDULER).send().await.expect("an answer");
        assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
        assert_eq!(host.stream_all().await, undisturbed, "{fault}");
        let slot = host.scheduler_slot().await;
        assert!(slot["fallbacks"].as_u64().expect("a count") > before, "{slot}");
        assert_eq!(slot["faults"], 0, "its own: {slot}");
        assert_eq!(slot["last_fault"]["reason"], reason, "{slot}");
        assert_eq!(slot["last_fault"]["policy"], "faulty-scheduler", "{slot}");
        assert_ne!(slot["name"], "faulty-scheduler", "it was removed: {slot}");
    }
    let metrics = host.admin(Method::GET, "/metrics").send().await.expect("an answer");
    let metrics = metrics.text().await.expect("text");
    let faults: Vec<(&str, u64)> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("infer_policy_faults_total{kind=\"scheduler\",reason=\""))
        .filter_map(|rest| rest.split_once("\"} "))
        .map(|(reason, count)| (reason, count.parse().expect("a count")))
        .collect();
    for reason in ["trap", "deadline", "invalid-decision"] {
        assert!(faults.iter().any(|&(other, count)| other == reason && count > 0), "{reason}: {metrics}");
    }
    let sum: u64 = faults.iter().map(|(_, count)| count).sum();
    assert_eq!(host.scheduler_slot().await["fallbacks"], sum, "{metrics}");
    for line in [
        "infer_policy_changes_total{kind=\"scheduler\",change=\"swap\"} 3\n",
        "infer_policy_changes_total{kind=\"scheduler\",change=\"fault\"} 3\n",
        "infer_policy_quarantined 3.0\n",
    ] {
        assert!(metrics.contains(line), "{line} is missing in:\n{metrics}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_of_policies_are_the_settings() {
    let policy_limits = PolicyLimits {
        deadline: Duration::from_millis(321),
        memory_bytes: 2 << 20,
        strikes: 1,
        ..policy_limits()
    };
    let host = Host::start_with(|config| Config { policy_limits, ..config }).await;
    for (fallbacks, fault, message) in
        [(1, "spin", "ran longer than 321ms"), (2, "memory", "the limit is 2097152")]
    {
        let config = format!(r#"{{"fault": "{fault}", "after": 100}}"#);
        let put = host.put_scheduler(&[("config", &config)]).body(FAULTY_SCHEDULER);
        assert_eq!(answer_of(put).await.0, 200);
        host.stream_all().await;
        let slot = host.scheduler_slot().await;
        assert_eq!((&slot["name"], &slot["fallbacks"]), (&json!("continuous"), &json!(fallbacks)), "{slot}");
        let told = slot["last_fault"]["message"].as_str().expect("a message");
        assert!(told.contains(message), "{told}");
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_is_sent_to_the_event_feed_as_it_happens() {
    let host = Host::start().await;
    let mut feed = host.admin(Method::GET, "/admin/events?hz=1").send().await.expect("a feed");
    let put = host.put_scheduler(&[("config", r#"{"fault": "trap", "after": 100}"#)]);
    assert_eq!(answer_of(put.body(FAULTY_SCHEDULER)).await.0, 200);
    host.stream_all().await;
    let mut told = String::new();
    let fault = loop {
        let frame = told.split_once("event: fault\ndata: ").and_then(|(_, rest)| rest.split_once("\n\n"));
        if let Some((data, _)) = frame {
            break serde_json::from_str::<Value>(data).expect("JSON");
        }
        let chunk = feed.chunk().await.expect("readable").expect("the feed goes on");
        told.push_str(std::str::from_utf8(&chunk).expect("text"));
    };
    assert_eq!(
        (&fault["policy"], &fault["reason"], &fault["removed"]),
        (&json!("faulty-scheduler"), &json!("trap"), &json!(false)),
        "{fault}"
    );
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_member_of_a_list_is_quarantined_alone_and_in_every_list() {
    let host = Host::start().await;
    let slot = async || host.ask(Method::GET, "/admin/policies").await.1["slots"][1].clone();
    let admission = || host.admin(Method::PUT, "/admin/policies/admission");
    let named = |name: &str| admission().json(&json!({"name": name}));
    // From here on it can be named; with this configuration it is harmless.
    assert_eq!(answer_of(admission().body(FAULTY_ADMISSION)).await.0, 200);
    assert_eq!(answer_of(named("builtin")).await.0, 200);
    let config = json!({"fault": "trap", "after": 10});
    let faulty = json!({"name": "faulty-admission", "config": config});
    let list = json!([{"name": "memory-aware"}, faulty]);
    assert_eq!(answer_of(admission().json(&list)).await.0, 200);
    for _ in 0..1_000 {
        if slot().await["name"] != "memory-aware+faulty-admission" {
            break;
        }
        // Each report measures the pressure.
        host.ask(Method::GET, "/admin/state").await;
    }
    assert_eq!(slot().await["name"], "builtin-accept", "three faults removed the list");

    for barred in [faulty.clone(), list, json!([faulty, {"name": "builtin"}])] {
        let (status, answer) = answer_of(admission().json(&barred)).await;
        assert_eq!(status, 422, "{answer}");
        assert_eq!(answer["error"]["code"], "quarantined", "{answer}");
        assert!(answer.to_string().contains("`faulty-admission`"), "{answer}");
    }
    let (_, back) = host.ask(Method::POST, "/admin/policies/admission/rollback").await;
    assert_eq!(
        back["to"], "faulty-admission",
        "the list is skipped, the member's other configuration is not: {back}"
    );
    host.server.shutdown().await;
}

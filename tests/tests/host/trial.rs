//! Policies tried over HTTP while sixteen clients stream: shadows, canaries, removals, replays, reloads.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::common::{Host, PATIENCE, answer_of, policy_limits};
use infer_server::config::{Config, PolicyChoice};
use infer_server::faults::{ReplayOptions, replay};
use infer_server::policies;
use infer_tests::{FAULTY_ADMISSION, FAULTY_SCHEDULER};
use reqwest::Method;
use serde_json::{Value, json};

const TRAP: &str = r#"{"fault": "trap", "after": 100}"#;

/// The scheduler's history as mode, new policy and reason.
async fn history(host: &Host) -> Vec<(String, String, String)> {
    let (_, history) = host.ask(Method::GET, "/admin/policies/scheduler/history").await;
    let text = |entry: &Value, key: &str| entry[key].as_str().expect("a text").to_owned();
    let entries = history.as_array().expect("a list").iter();
    entries.map(|e| (text(e, "mode"), text(e, "to"), text(e, "reason"))).collect()
}

/// What a host streams whose policies nobody changes. A host whose canary must not be compared with anything does nothing
/// before it: it may be slower afterwards because others use the machine.
async fn undisturbed_elsewhere() -> Vec<Vec<u64>> {
    let other = Host::start().await;
    let streams = other.stream_all().await;
    other.server.shutdown().await;
    streams
}

/// Waits for a file that another thread writes.
async fn written(path: &Path) {
    let until = Instant::now() + PATIENCE;
    while !path.exists() {
        assert!(Instant::now() < until, "{} is not written", path.display());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn modes(history: &[(String, String, String)]) -> Vec<(&str, &str)> {
    history.iter().map(|(mode, to, _)| (mode.as_str(), to.as_str())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shadow_is_compared_promoted_stopped_and_ends_when_it_fails() {
    let host = Host::start().await;
    let undisturbed = host.stream_all().await;
    let put = host.put_scheduler(&[("mode", "shadow")]);
    let (status, answer) = answer_of(put.json(&json!({"name": "static-batch"}))).await;
    assert_eq!((status, &answer["mode"]), (200, &json!("shadow")), "{answer}");
    assert_eq!(answer["state"], "cold");
    assert_eq!(host.stream_all().await, undisturbed);
    let (_, shadow) = host.ask(Method::GET, "/admin/policies/scheduler/shadow").await;
    assert_eq!((&shadow["policy"], &shadow["state"]), (&json!("static-batch"), &json!("watching")));
    let [questions, agreements] =
        ["questions", "agreements"].map(|key| shadow[key].as_u64().expect("a count"));
    assert!(questions > 500 && agreements < questions, "{shadow}");
    let divergences = shadow["divergences"].as_object().expect("counts").values();
    assert_eq!(divergences.map(|n| n.as_u64().expect("a count")).sum::<u64>(), questions - agreements);
    assert!(!shadow["examples"].as_array().expect("a list").is_empty());
    assert!(
        shadow["cost"]["p50_us"].as_f64() > Some(0.0) && shadow["live_cost"]["p99_us"].as_f64() > Some(0.0)
    );
    let slot = host.scheduler_slot().await;
    assert_eq!((&slot["name"], &slot["shadow"]["policy"]), (&json!("continuous"), &json!("static-batch")));

    let (status, answer) = host.ask(Method::POST, "/admin/policies/scheduler/promote").await;
    assert_eq!((status, &answer["to"], &answer["mode"]), (200, &json!("static-batch"), &json!("promote")));
    assert_eq!(answer["state"], "kept");
    let put = host.put_scheduler(&[("mode", "shadow")]);
    assert_eq!(answer_of(put.json(&json!({"name": "continuous"}))).await.0, 200);
    let (status, stopped) = host.ask(Method::DELETE, "/admin/policies/scheduler/shadow").await;
    assert_eq!((status, &stopped["state"]), (200, &json!("stopped")), "{stopped}");

    let put = host.put_scheduler(&[("mode", "shadow"), ("config", TRAP)]);
    assert_eq!(answer_of(put.body(FAULTY_SCHEDULER)).await.0, 200);
    assert_eq!(host.stream_all().await, undisturbed);
    let slot = host.scheduler_slot().await;
    assert_eq!(
        (&slot["shadow"]["state"], &slot["shadow"]["fault"]["reason"]),
        (&json!("failed"), &json!("trap"))
    );
    assert_eq!((&slot["name"], &slot["faults"]), (&json!("static-batch"), &json!(0)), "{slot}");
    let history = history(&host).await;
    let want = [
        ("start", "continuous"),
        ("shadow", "static-batch"),
        ("shadow", "static-batch"),
        ("promote", "static-batch"),
        ("shadow", "continuous"),
        ("shadow", "continuous"),
        ("shadow", "faulty-scheduler"),
        ("shadow", "faulty-scheduler"),
    ];
    assert_eq!(modes(&history), want);
    assert!(history[7].2.contains("trap"), "{history:?}");
    let (_, entries) = host.ask(Method::GET, "/admin/policies/scheduler/history").await;
    let by: Vec<_> = entries.as_array().expect("a list").iter().map(|entry| entry["by"].as_str()).collect();
    let own = Some("admin");
    assert_eq!(by, [None, own, own, own, own, own, own, None], "nobody wanted the fault: {entries}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_refuses_its_predecessors_state_says_why() {
    let host = Host::start().await;
    let (status, first) = answer_of(host.put_scheduler(&[]).body(FAULTY_SCHEDULER)).await;
    assert_eq!((status, &first["state"]), (200, &json!("cold")), "{first}");
    assert_eq!(first.get("state_note"), None, "there was no state for it");
    let note = "it refuses its predecessor's state: `keep_calls` is off";
    for (mode, config) in [("now", r#"{"after": 99}"#), ("shadow", r#"{"after": 98}"#)] {
        let put = host.put_scheduler(&[("mode", mode), ("config", config)]);
        let (status, answer) = answer_of(put.body(FAULTY_SCHEDULER)).await;
        assert_eq!((status, &answer["state"]), (200, &json!("cold")), "{answer}");
        assert_eq!(answer["state_note"], note);
    }
    let history = history(&host).await;
    let reasons: Vec<&str> = history[1..].iter().map(|(.., reason)| reason.as_str()).collect();
    let [swapped, shadow] = ["swap", "in shadow"].map(|how| format!("{how}; {note}"));
    assert_eq!(reasons, ["swap", swapped.as_str(), shadow.as_str()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_canary_is_rolled_back_quarantined_and_can_be_replayed() {
    let undisturbed = undisturbed_elsewhere().await;
    let host = Host::start().await;
    let put = || host.put_scheduler(&[("mode", "canary"), ("config", TRAP)]).body(FAULTY_SCHEDULER);
    let (status, answer) = answer_of(put()).await;
    assert_eq!((status, &answer["mode"]), (200, &json!("canary")), "{answer}");
    assert_eq!(host.stream_all().await, undisturbed);
    let slot = host.scheduler_slot().await;
    assert_eq!(
        (&slot["name"], &slot["faults"], &slot["fallbacks"]),
        (&json!("continuous"), &json!(0), &json!(1)),
        "one fault is enough: {slot}"
    );
    assert_eq!(slot["canary"]["state"], "rolled_back");
    let history = history(&host).await;
    assert_eq!(
        modes(&history),
        [("start", "continuous"), ("canary", "faulty-scheduler"), ("fault", "continuous")]
    );
    assert!(history[2].2.starts_with("trap: "), "{history:?}");

    let (_, policies) = host.ask(Method::GET, "/admin/policies").await;
    let entry = &policies["quarantine"][0];
    assert_eq!((&entry["name"], &entry["kind"]), (&json!("faulty-scheduler"), &json!("scheduler")));
    let (status, refused) = answer_of(put()).await;
    assert_eq!((status, &refused["error"]["code"]), (422, &json!("quarantined")), "{refused}");
    assert!(refused["error"]["message"].as_str().expect("a text").contains("trap"), "{refused}");
    let lift = format!("/admin/policies/quarantine/{}", entry["sha256"].as_str().expect("a digest"));
    assert_eq!(host.ask(Method::DELETE, &lift).await.0, 200);
    assert_eq!(answer_of(put()).await.0, 200);
    let (status, back) = host.ask(Method::POST, "/admin/policies/scheduler/rollback").await;
    assert_eq!((status, &back["to"]), (200, &json!("continuous")));
    let (_, policies) = host.ask(Method::GET, "/admin/policies").await;
    assert_eq!(policies["quarantine"], json!([]), "an operator's rollback quarantines nothing");

    let path = PathBuf::from(slot["last_fault"]["artifact"].as_str().expect("a path"));
    written(&path).await;
    let ask = |options: ReplayOptions| {
        let loader = policies::loader_with(&policy_limits()).expect("the sandbox starts");
        replay(&path, &loader, &options).expect("the question can be asked")
    };
    // The policy counts its calls; the hundred and first fails.
    let once = ask(ReplayOptions::default());
    assert_eq!((&*once.question, once.same, once.asked), ("schedule", Some(false), 1), "{once:?}");
    assert!(once.then.starts_with("trap: schedule() trapped"), "{once:?}");
    assert!(once.answer.as_ref().is_some_and(|plan| plan["run"].is_array()), "{once:?}");
    let often = ask(ReplayOptions { times: 500, ..ReplayOptions::default() });
    assert_eq!((often.fails, often.same, often.asked), (true, Some(true), 101), "{often:?}");
    assert_eq!((&often.answer, &often.view), (&None, &once.view), "a trap answers nothing");
    let component = infer_bundle::find("scheduler", "static-batch").expect("bundled").component.to_vec();
    let other = ask(ReplayOptions { component: Some(component), times: 500, ..ReplayOptions::default() });
    assert!(other.policy.starts_with("static-batch ") && other.same == Some(false), "{other:?}");
    host.server.shutdown().await;
}

/// Quarantining one configuration of a component must not block a rollback to the same component with another
/// configuration.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quarantine_of_a_configuration_does_not_block_other_configurations() {
    let host = Host::start().await;
    let swap = async |query: &[(&str, &str)]| {
        let (status, answer) = answer_of(host.put_scheduler(query).body(FAULTY_SCHEDULER)).await;
        (status, answer["error"]["code"].clone())
    };
    let by_name = async |name: &str| {
        assert_eq!(answer_of(host.put_scheduler(&[]).json(&json!({"name": name}))).await.0, 200);
    };
    let rollback = async || host.ask(Method::POST, "/admin/policies/scheduler/rollback").await;
    assert_eq!(swap(&[]).await.0, 200);
    assert_eq!(swap(&[("mode", "shadow"), ("config", TRAP)]).await.0, 200);
    host.stream_all().await;
    assert_eq!(host.scheduler_slot().await["shadow"]["state"], "failed");
    let (_, policies) = host.ask(Method::GET, "/admin/policies").await;
    let trap: Value = serde_json::from_str(TRAP).expect("JSON");
    assert_eq!(policies["quarantine"][0]["config"], trap);

    by_name("static-batch").await;
    let (status, back) = rollback().await;
    assert_eq!((status, &back["to"]), (200, &json!("faulty-scheduler")), "{back}");
    // Also if it has to be loaded again.
    by_name("static-batch").await;
    by_name("continuous").await;
    assert_eq!(rollback().await.1["to"], "static-batch");
    assert_eq!(rollback().await.1["to"], "faulty-scheduler");
    assert_eq!(swap(&[]).await.0, 200, "it needs no force");
    let quarantined = (422, json!("quarantined"));
    assert_eq!(swap(&[("config", TRAP)]).await, quarantined, "the quarantined configuration does");

    // A forced swap that fails does not end the quarantine.
    let admission = host.admin(Method::PUT, "/admin/policies/admission?mode=canary&window_s=300");
    assert_eq!(answer_of(admission.json(&json!({"name": "memory-aware"}))).await.0, 200);
    let forced = swap(&[("mode", "canary"), ("config", TRAP), ("force", "true")]).await;
    assert_eq!(forced, (409, json!("on_trial")));
    assert_eq!(swap(&[("config", TRAP)]).await, quarantined);
    assert_eq!(host.ask(Method::POST, "/admin/policies/admission/promote").await.0, 200);

    // `force` clears the quarantine, so a later swap away and rollback work.
    assert_eq!(swap(&[("config", TRAP), ("force", "true")]).await.0, 200);
    by_name("continuous").await;
    let (status, back) = rollback().await;
    assert_eq!((status, &back["to"]), (200, &json!("faulty-scheduler")), "{back}");
    assert_eq!(host.scheduler_slot().await["config"], trap);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canary_without_a_fault_stays_live_and_what_it_served_is_the_next_baseline() {
    let undisturbed = undisturbed_elsewhere().await;
    let host = Host::start().await;
    let canary = async |window_s: &str| {
        let put = host.put_scheduler(&[("mode", "canary"), ("window_s", window_s)]);
        let (status, answer) = answer_of(put.json(&json!({"name": "continuous"}))).await;
        assert_eq!(status, 200, "{answer}");
        answer["canary"]["reason"].as_str().expect("a text").to_owned()
    };
    let reason = canary("2").await;
    assert!(reason.starts_with("only faults can fail it;"), "{reason}");
    assert_eq!(host.scheduler_slot().await["state"], "canary");
    let admission = host.admin(Method::PUT, "/admin/policies/admission?mode=canary");
    let (status, other) = answer_of(admission.json(&json!({"name": "memory-aware"}))).await;
    assert_eq!((status, &other["error"]["code"]), (409, &json!("on_trial")), "{other}");
    let mut rounds = 0;
    let slot = loop {
        assert_eq!(host.stream_all().await, undisturbed);
        let slot = host.scheduler_slot().await;
        rounds += 1;
        if slot["state"] != "canary" {
            break slot;
        }
        assert!(rounds < 30, "the canary never ends: {slot}");
    };
    assert_eq!((&slot["state"], &slot["canary"]["state"]), (&json!("live"), &json!("promoted")), "{slot}");
    assert!(slot["canary"]["after"]["tokens_per_second"].as_f64() > Some(0.0), "{slot}");
    let history = history(&host).await;
    assert_eq!(modes(&history)[1..], [("canary", "continuous"), ("stays", "continuous")]);
    let reason = canary("300").await;
    assert!(reason.contains(" s of work before it"), "{reason}");
    host.server.shutdown().await;
}

/// Reloads `kind` with another configuration in the file. Returns the reload's error and the live configuration.
async fn reload(host: &Host, file: &Path, kind: &str, config: &Value) -> (Option<String>, Value) {
    std::fs::write(file, json!({kind: config}).to_string()).expect("the file can be written");
    let outcomes = host.server.reload().await;
    let outcome = outcomes.into_iter().find(|outcome| outcome.what == kind).expect("the slot is reloaded");
    let (_, policies) = host.ask(Method::GET, "/admin/policies").await;
    let slots = policies["slots"].as_array().expect("three slots");
    let slot = slots.iter().find(|slot| slot["kind"] == kind).expect("the slot");
    (outcome.error, slot["config"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_replaces_the_configuration_that_a_fault_or_a_rollback_brought_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let (component, file) = (dir.path().join("faulty.wasm"), dir.path().join("policies.json"));
    std::fs::write(&component, FAULTY_SCHEDULER).expect("the component can be written");
    std::fs::write(&file, "{}").expect("the file can be written");
    let scheduler = PolicyChoice { name: component.display().to_string(), config: "{}".to_owned() };
    let policy_config = Some(file.clone());
    let host = Host::start_with(|config| Config { scheduler, policy_config, ..config }).await;
    let reload = async |config: Value| reload(&host, &file, "scheduler", &config).await;

    let bad = json!({"fault": "trap", "after": 60});
    assert_eq!(reload(bad.clone()).await, (None, bad.clone()));
    host.stream_all().await;
    let slot = host.scheduler_slot().await;
    assert_eq!((&slot["name"], &slot["config"]), (&json!("faulty-scheduler"), &json!({})), "{slot}");
    assert_eq!(reload(json!({"after": 7})).await, (None, json!({"after": 7})));
    let (error, live) = reload(bad).await;
    assert!(error.is_some_and(|error| error.contains("force")) && live == json!({"after": 7}), "{live}");
    assert_eq!(reload(json!({})).await, (None, json!({})));

    let (status, _) = host.ask(Method::POST, "/admin/policies/scheduler/rollback").await;
    assert_eq!((status, &host.scheduler_slot().await["config"]), (200, &json!({"after": 7})));
    assert_eq!(reload(json!({"after": 8})).await, (None, json!({"after": 8})));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_replaces_the_configuration_of_a_list_that_a_fault_brought_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let (component, file) = (dir.path().join("faulty.wasm"), dir.path().join("policies.json"));
    std::fs::write(&component, FAULTY_ADMISSION).expect("the component can be written");
    std::fs::write(&file, "{}").expect("the file can be written");
    let name = component.display().to_string();
    let admission = PolicyChoice { name: format!("memory-aware,{name}"), config: "{}".to_owned() };
    let policy_config = Some(file.clone());
    let host = Host::start_with(|config| Config { admission, policy_config, ..config }).await;
    let reload = async |own: Value| reload(&host, &file, "admission", &json!({&name: own})).await;

    let bad = json!({"fault": "trap", "after": 10});
    let (error, live) = reload(bad.clone()).await;
    assert_eq!((error, &live[1]["config"]), (None, &bad));
    let slot = async || host.ask(Method::GET, "/admin/policies").await.1["slots"][1].clone();
    for _ in 0..1_000 {
        if slot().await["config"] != live {
            break;
        }
        // Each report measures the pressure.
        host.ask(Method::GET, "/admin/state").await;
    }
    let slot = slot().await;
    assert_eq!(slot["name"], "memory-aware+faulty-admission", "{slot}");
    assert_eq!(slot["config"][1]["config"], json!({}), "the list before the reload came back: {slot}");
    let (error, live) = reload(json!({"after": 7})).await;
    assert_eq!((error, &live[1]["config"]), (None, &json!({"after": 7})));
    let (error, live) = reload(bad).await;
    assert!(error.is_some_and(|error| error.contains("faulty-admission")), "{live}");
    assert_eq!(live[1]["config"], json!({"after": 7}));
    host.server.shutdown().await;
}

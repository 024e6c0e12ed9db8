//! Policies swapped over the admin plane while tokens stream: by name, by bytes, rolled back, refused.

use std::sync::Arc;

use crate::common::{Host, config, events, token_ids};
use infer_core::engine::CANARY_WINDOW;
use infer_core::policy::PolicyKind;
use infer_core::{Engine, Micros};
use infer_server::config::{Config, PolicyChoice};
use infer_server::engine::{EngineHandle, NotChanged, Provided, SlotChange, SwapMode};
use infer_server::policies::{self, PolicyManager, PolicySource, SwapOrder};
use reqwest::Method;
use serde_json::{Value, json};

const SCHEDULER: PolicyKind = PolicyKind::Scheduler;

fn slot<'a>(policies: &'a Value, kind: &str) -> &'a Value {
    policies["slots"].as_array().unwrap().iter().find(|s| s["kind"] == kind).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_swap_by_name_and_by_bytes_under_a_stream_and_roll_back() {
    let host = Host::start(config()).await;
    let fields = json!({"ignore_eos": true, "max_tokens": 400});
    let undisturbed = token_ids(&host.events(fields.clone()).await);
    let stream = host.complete(fields).await;

    let put = |kind: &str| host.admin(Method::PUT, &format!("/admin/policies/{kind}"));
    let answer: Value =
        put("scheduler").json(&json!({"name": "static-batch"})).send().await.unwrap().json().await.unwrap();
    assert_eq!(
        (&answer["kind"], &answer["from"], &answer["to"]),
        (&json!("scheduler"), &json!("continuous"), &json!("static-batch")),
        "{answer}"
    );
    assert!(answer["pause_us"].as_f64().unwrap() > 0.0);
    assert_eq!(answer["state"], "cold");

    let component = infer_bundle::find("scheduler", "continuous").unwrap();
    let answer = put("scheduler").body(component.component).send().await.unwrap();
    assert_eq!(answer.status(), 200, "{:?}", answer.text().await);
    for kind in ["admission", "prefix-cache"] {
        let name = if kind == "admission" { "memory-aware" } else { "lru" };
        let answer = put(kind).json(&json!({"name": name, "config": {}})).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{kind}: {:?}", answer.text().await);
    }
    let policies = host.admin_get("/admin/policies").await;
    let scheduler = slot(&policies, "scheduler");
    assert_eq!((&scheduler["name"], &scheduler["state"]), (&json!("continuous"), &json!("live")));
    assert_eq!(scheduler["sha256"], component.sha256);
    assert_eq!(scheduler["previous"], "static-batch");
    assert_eq!(scheduler["faults"], 0);
    let available: Vec<_> =
        policies["available"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
    for name in ["continuous", "static-batch", "memory-aware", "lru", "builtin-fcfs"] {
        assert!(available.contains(&name), "{name} in {available:?}");
    }

    let back = host.admin(Method::POST, "/admin/policies/scheduler/rollback").send().await.unwrap();
    let back: Value = back.json().await.unwrap();
    assert_eq!((&back["to"], &back["state"]), (&json!("static-batch"), &json!("kept")), "{back}");
    let history = host.admin_get("/admin/policies/scheduler/history").await;
    let to: Vec<_> = history.as_array().unwrap().iter().map(|e| e["to"].as_str().unwrap()).collect();
    assert_eq!(to, ["continuous", "static-batch", "continuous", "static-batch"], "{history}");

    let disturbed = events(stream).await;
    assert_eq!(token_ids(&disturbed), undisturbed);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollbacks_restore_all_earlier_policies_with_their_configurations() {
    let host = Host::start(config()).await;
    let stream = host.complete(json!({"ignore_eos": true, "max_tokens": 600})).await;
    let bytes = |kind: &str, name: &str| infer_bundle::find(kind, name).unwrap().component;
    let put = async |path: &str, body: Value| {
        let answer = host.admin(Method::PUT, &format!("/admin/policies/{path}")).json(&body).send().await;
        assert_eq!(answer.unwrap().status(), 200, "{body}");
    };
    // By bytes and by name, with configurations; the shadow in between was never live.
    put("scheduler", json!({"name": "static-batch", "config": {"batch_size": 3}})).await;
    let given = host.admin(Method::PUT, "/admin/policies/scheduler").body(bytes("scheduler", "srpt"));
    assert_eq!(given.send().await.unwrap().status(), 200);
    put("scheduler?mode=shadow", json!({"name": "fair"})).await;
    put("scheduler", json!({"name": "static-batch", "config": {"batch_size": 5}})).await;
    put("prefix-cache", json!({"name": "s3-fifo"})).await;
    put("prefix-cache", json!({"name": "session"})).await;
    put("admission", json!([{"name": "builtin"}, {"name": "memory-aware", "config": {"max_in_flight": 7}}]))
        .await;
    put("admission", json!({"name": "builtin"})).await;
    put("admission", json!({"name": "memory-aware"})).await;

    let rollback = async |kind: &str| {
        let answer = host.admin(Method::POST, &format!("/admin/policies/{kind}/rollback")).send().await;
        let answer = answer.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let path = [
        ("scheduler", "srpt", json!({})),
        ("scheduler", "static-batch", json!({"batch_size": 3})),
        ("scheduler", "continuous", json!({})),
        ("prefix-cache", "s3-fifo", json!({})),
        ("prefix-cache", "lru", json!({})),
        ("admission", "builtin-accept", json!({})),
        (
            "admission",
            "builtin-accept+memory-aware",
            json!([{"name": "builtin-accept", "config": {}},
                   {"name": "memory-aware", "config": {"max_in_flight": 7}}]),
        ),
        ("admission", "memory-aware", json!({})),
    ];
    for (kind, name, config) in &path {
        let before = slot(&host.admin_get("/admin/policies").await, kind).clone();
        assert_eq!(before["previous"], *name, "consoles show it before the rollback");
        let (status, answer) = rollback(kind).await;
        assert_eq!(
            (status, &answer["to"], &answer["mode"]),
            (200, &json!(name), &json!("rollback")),
            "{answer}"
        );
        let now = slot(&host.admin_get("/admin/policies").await, kind).clone();
        assert_eq!((&now["name"], &now["config"]), (&json!(name), config));
    }
    for kind in ["scheduler", "prefix-cache", "admission"] {
        let (status, answer) = rollback(kind).await;
        assert_eq!((status, &answer["error"]["code"]), (409, &json!("no_previous")), "{answer}");
        assert_eq!(slot(&host.admin_get("/admin/policies").await, kind)["previous"], Value::Null);
    }
    // After a rollback, a new policy's predecessor is the live policy, not one that was rolled back from.
    put("scheduler", json!({"name": "fair"})).await;
    assert_eq!(rollback("scheduler").await.1["to"], "continuous");
    assert_eq!(rollback("scheduler").await.0, 409);
    assert_eq!(token_ids(&events(stream).await).len(), 600);
    host.server.shutdown().await;
}

/// A playbook that runs twice must not cost the operator the way back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_swap_changes_nothing_and_digests_tell_configurations_apart() {
    let host = Host::start(config()).await;
    let ask = async |method: Method, path: &str, body: Value| {
        let answer = host.admin(method, &format!("/admin/policies/scheduler{path}")).json(&body).send().await;
        let answer = answer.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        answer.json::<Value>().await.unwrap()
    };
    let srpt = |patience_ms: u64| json!({"name": "srpt", "config": {"patience_ms": patience_ms}});
    let first = ask(Method::PUT, "", srpt(1_000)).await;
    let again = ask(Method::PUT, "", srpt(1_000)).await;
    let other = ask(Method::PUT, "", srpt(2_000)).await;
    assert_eq!((&first["state"], &again["state"]), (&json!("cold"), &json!("kept")));
    let told =
        |answer: &Value| (answer["unchanged"] == true, answer["config_sha256"].as_str().unwrap().to_owned());
    let [(_, one), (_, two)] = [&first, &other].map(told);
    assert_eq!([&first, &again, &other].map(told).map(|told| told.0), [false, true, false]);
    assert!(one.len() == 64 && two.len() == 64 && one != two && told(&again).1 == one, "{one} {two}");
    assert_eq!(
        (&again["from"], &again["to"], &again["mode"]),
        (&json!("srpt"), &json!("srpt"), &json!("now"))
    );

    // On trial it may be the same policy once more; that is not on the way back either.
    ask(Method::PUT, "?mode=canary", srpt(2_000)).await;
    ask(Method::POST, "/promote", Value::Null).await;
    let live = slot(&host.admin_get("/admin/policies").await, "scheduler").clone();
    assert_eq!((&live["previous"], &live["previous_config_sha256"]), (&json!("srpt"), &json!(one)), "{live}");
    let back = ask(Method::POST, "/rollback", Value::Null).await;
    assert_eq!((&back["to"], told(&back).1), (&json!("srpt"), one.clone()));
    let back = ask(Method::POST, "/rollback", Value::Null).await;
    assert_eq!((&back["to"], told(&back).1), (&json!("continuous"), String::new()));

    let history = host.admin_get("/admin/policies/scheduler/history").await;
    let entries = history.as_array().unwrap();
    let noted: Vec<_> = entries.iter().map(|e| [&e["mode"], &e["config_sha256"], &e["by"]]).collect();
    let own = Some("admin");
    let want = [
        ("start", "", None),
        ("swap", one.as_str(), own),
        ("swap", two.as_str(), own),
        ("canary", two.as_str(), own),
        ("stays", two.as_str(), own),
        ("rollback", one.as_str(), own),
        ("rollback", "", own),
    ];
    assert_eq!(json!(noted), json!(want));
    let times: Vec<&str> = entries.iter().map(|e| e["at_utc"].as_str().unwrap()).collect();
    assert!(
        times.is_sorted() && times.iter().all(|time| time.len() == "2026-01-02T03:04:05Z".len()),
        "{times:?}"
    );
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canary_says_what_can_fail_it_and_its_verdict_ends_with_the_next_swap() {
    let host = Host::start(config()).await;
    let ask = async |method: Method, path: &str, body: Value| {
        let answer = host.admin(method, &format!("/admin/policies/scheduler{path}")).json(&body).send().await;
        answer.unwrap().json::<Value>().await.unwrap()
    };
    let live = async || slot(&host.admin_get("/admin/policies").await, "scheduler").clone();
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

/// With `of`, a second operator or a retry after a lost response changes nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_makes_changes_fail_unless_the_named_policy_is_there() {
    let host = Host::start(config()).await;
    let ask = async |method: Method, path: &str, body: &str| {
        let answer = host.admin(method, &format!("/admin/policies/scheduler{path}")).body(body.to_owned());
        let answer = answer.send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let refused = (409, json!("not_there"));
    let code = |(status, answer): (u16, Value)| (status, answer["error"]["code"].clone());
    let (status, answer) = ask(Method::PUT, "", &"w".repeat(9 << 20)).await;
    assert_eq!((status, &answer["error"]["message"]), (413, &json!("a component has at most 8 MiB")));
    // JSON is recognized without a header.
    assert_eq!(ask(Method::PUT, "", r#" {"name": "fair"}"#).await.0, 200);
    assert_eq!(ask(Method::PUT, "?of=fair", r#"{"name": "srpt"}"#).await.0, 200);
    assert_eq!(code(ask(Method::PUT, "?of=fair", r#"{"name": "srpt"}"#).await), refused);

    let (status, answer) = ask(Method::POST, "/rollback?of=srpt", "").await;
    assert_eq!((status, &answer["to"]), (200, &json!("fair")), "{answer}");
    assert_eq!(code(ask(Method::POST, "/rollback?of=srpt", "").await), refused);
    assert_eq!(code(ask(Method::POST, "/rollback?of=", "").await), refused);
    let fair = infer_bundle::find("scheduler", "fair").unwrap().sha256;

    assert_eq!(ask(Method::PUT, "?mode=shadow", r#"{"name": "srpt"}"#).await.0, 200);
    assert_eq!(ask(Method::PUT, "?mode=shadow", r#"{"name": "static-batch"}"#).await.0, 200);
    assert_eq!(code(ask(Method::POST, "/promote?of=srpt", "").await), refused);
    assert_eq!(ask(Method::POST, "/promote?of=static-batch", "").await.0, 200);
    let (status, answer) = ask(Method::POST, "/rollback?of=static-batch", "").await;
    assert_eq!((status, &answer["to"]), (200, &json!("fair")), "{answer}");

    assert_eq!(ask(Method::PUT, &format!("?mode=canary&of={fair}"), r#"{"name": "srpt"}"#).await.0, 200);
    assert_eq!(code(ask(Method::POST, "/promote?of=fair", "").await), refused);
    assert_eq!(ask(Method::POST, "/promote?of=srpt", "").await.0, 200);

    // The native policy of every slot is there under both of its names.
    for kind in ["scheduler", "admission", "prefix-cache"] {
        let path = |of: &str| format!("/admin/policies/{kind}{of}");
        let swap = async |of: &str| {
            let answer =
                host.admin(Method::PUT, &path(of)).body(r#"{"name": "builtin"}"#).send().await.unwrap();
            assert_eq!(answer.status(), 200, "{kind}: {of}");
            answer.json::<Value>().await.unwrap()
        };
        let own = swap("").await["to"].as_str().unwrap().to_owned();
        for of in [own.as_str(), "builtin"] {
            swap(&format!("?of={of}")).await;
        }
        let back = host.admin(Method::POST, &path("/rollback?of=builtin")).send().await.unwrap();
        assert_eq!(back.status(), 200, "{kind}");
    }
    host.server.shutdown().await;
}

/// Lets a call look at its slot, changes the slot, and lets the call go on: as if a fault or a verdict on a canary came
/// in between.
async fn overtaken<T>(engine: &EngineHandle, change: SlotChange, call: impl Future<Output = T>) -> T {
    let (entered, inside) = tokio::sync::oneshot::channel();
    let (let_go, held) = std::sync::mpsc::channel::<()>();
    let look = move |_: &Engine, _| {
        entered.send(()).unwrap();
        let _ = held.recv();
    };
    let mut occupied = std::pin::pin!(engine.inspect(look));
    assert!(futures_util::poll!(occupied.as_mut()).is_pending());
    inside.await.unwrap();
    // While the engine is blocked, its look and the change are queued in this order.
    let mut call = std::pin::pin!(call);
    assert!(futures_util::poll!(call.as_mut()).is_pending());
    let mut changed = std::pin::pin!(engine.change(change, Provided::default(), None));
    assert!(futures_util::poll!(changed.as_mut()).is_pending());
    drop(let_go);
    occupied.await.unwrap();
    changed.await.unwrap().unwrap();
    call.await
}

#[tokio::test]
async fn change_of_a_slot_that_has_just_changed_is_refused() {
    let host = Host::start(config()).await;
    let engine = host.server.engine().clone();
    let manager = PolicyManager::new(policies::loader().unwrap(), engine.clone(), Arc::default());
    let swap = async |name: &str, mode: SwapMode| {
        let source = PolicySource::Name(name.to_owned());
        let order = SwapOrder { source, config: json!({}), mode, force: false, of: None, by: None };
        manager.swap(SCHEDULER, order).await.unwrap();
    };
    let live = async || slot(&host.admin_get("/admin/policies").await, "scheduler")["name"].clone();
    swap("fair", SwapMode::Now).await;
    swap("srpt", SwapMode::Canary(CANARY_WINDOW)).await;

    // The canary is removed: its predecessor must not be rolled back, too.
    let rollback = manager.rollback(SCHEDULER, None, None);
    let refused = overtaken(&engine, SlotChange::Rollback(SCHEDULER), rollback).await.unwrap_err();
    let message = "the scheduler slot has just changed and runs `fair`; see its history, then retry";
    assert_eq!((refused.check(), refused.to_string()), ("not_there", message.to_owned()));
    assert_eq!(live().await, "fair");

    // The canary is accepted: its promotion does not mean the shadow beside it.
    swap("srpt", SwapMode::Canary(CANARY_WINDOW)).await;
    swap("static-batch", SwapMode::Shadow).await;
    let promote = manager.promote(SCHEDULER, None, None);
    let refused = overtaken(&engine, SlotChange::Promote(SCHEDULER), promote).await.unwrap_err();
    assert_eq!((refused.check(), live().await), ("not_there", json!("srpt")));

    // Without a shadow, nothing is left to promote.
    swap("fair", SwapMode::Canary(CANARY_WINDOW)).await;
    let promote = manager.promote(SCHEDULER, None, None);
    let refused = overtaken(&engine, SlotChange::Promote(SCHEDULER), promote).await.unwrap_err();
    assert_eq!((refused.check(), live().await), ("nothing_to_promote", json!("fair")));
    host.server.shutdown().await;
}

#[tokio::test]
async fn policy_that_fails_on_its_way_into_its_slot_stays_out() {
    let host = Host::start(config()).await;
    let engine = host.server.engine();
    let component = infer_bundle::find("scheduler", "srpt").unwrap().component;
    let policy = policies::loader().unwrap().load(SCHEDULER, component, "{}").unwrap();
    let info = policy.info();
    let provided = Provided { there: None, sound: vec![info.clone()] };
    // As its trial in the same slot might end.
    engine.observer().quarantine().add(SCHEDULER, &info, "clients were worse off", Micros(1));
    let change = engine.change(SlotChange::Swap(policy, SwapMode::Now), provided, None).await.unwrap();
    let Err(NotChanged::Quarantined(entry)) = change else { panic!("it is refused") };
    assert_eq!(entry.reason, "clients were worse off");
    assert_eq!(slot(&host.admin_get("/admin/policies").await, "scheduler")["name"], "continuous");
    host.server.shutdown().await;
}

#[tokio::test]
async fn shadow_that_is_quarantined_meanwhile_is_not_promoted() {
    let host = Host::start(config()).await;
    let engine = host.server.engine().clone();
    let manager = PolicyManager::new(policies::loader().unwrap(), engine.clone(), Arc::default());
    let source = PolicySource::Name("srpt".to_owned());
    let order =
        SwapOrder { source, config: json!({}), mode: SwapMode::Shadow, force: false, of: None, by: None };
    manager.swap(SCHEDULER, order).await.unwrap();
    let report = engine.report().await.unwrap();
    let shadow = report.snapshot.policies.iter().find_map(|slot| slot.shadow.as_ref()).unwrap();
    engine.observer().quarantine().add(SCHEDULER, &shadow.policy, "it failed elsewhere", Micros(1));
    let refused = manager.promote(SCHEDULER, None, None).await.unwrap_err();
    assert_eq!(refused.check(), "quarantined", "{refused}");
    assert_eq!(slot(&host.admin_get("/admin/policies").await, "scheduler")["name"], "continuous");
    host.server.shutdown().await;
}

/// Nobody has to wait for the bundled policies to be compiled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_be_swapped_in_is_found_out_without_anybody_asking() {
    let host = Host::start(config()).await;
    host.until("the policies are listed", |_| host.server.lists_policies()).await;
    host.server.shutdown().await;
}

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
        slot(&host.admin_get("/admin/policies").await, "scheduler")["config"]["patience_ms"].clone()
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
async fn canary_is_not_judged_by_a_change_in_another_slot() {
    let host = Host::start(config()).await;
    let put = async |path: &str, name: &str| {
        let put = host.admin(Method::PUT, &format!("/admin/policies/{path}")).json(&json!({"name": name}));
        assert_eq!(put.send().await.unwrap().status(), 200, "{path}");
    };
    put("scheduler?mode=canary&window_s=300", "srpt").await;
    put("admission", "builtin").await;
    host.events(json!({"max_tokens": 4})).await;
    let slot = slot(&host.admin_get("/admin/policies").await, "scheduler").clone();
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

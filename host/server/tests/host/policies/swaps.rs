//! Swaps and rollbacks, and what they tell.

use reqwest::Method;
use serde_json::{Value, json};

use super::{slot, slot_of};
use crate::common::{Host, config, events, token_ids};

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
        let before = slot_of(&host, kind).await;
        assert_eq!(before["previous"], *name, "consoles show it before the rollback");
        let (status, answer) = rollback(kind).await;
        assert_eq!(
            (status, &answer["to"], &answer["mode"]),
            (200, &json!(name), &json!("rollback")),
            "{answer}"
        );
        let now = slot_of(&host, kind).await;
        assert_eq!((&now["name"], &now["config"]), (&json!(name), config));
    }
    for kind in ["scheduler", "prefix-cache", "admission"] {
        let (status, answer) = rollback(kind).await;
        assert_eq!((status, &answer["error"]["code"]), (409, &json!("no_previous")), "{answer}");
        assert_eq!(slot_of(&host, kind).await["previous"], Value::Null);
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
    let live = slot_of(&host, "scheduler").await;
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

/// Nobody has to wait for the bundled policies to be compiled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_can_be_swapped_in_is_found_out_without_anybody_asking() {
    let host = Host::start(config()).await;
    host.until("the policies are listed", |_| host.server.lists_policies()).await;
    host.server.shutdown().await;
}

//! Changes of a policy slot that name what they are about by its tag: component and configuration.

use reqwest::Method;
use serde_json::{Value, json};

use crate::common::{Host, config};

/// What a host answers to changes of its scheduler.
async fn ask(host: &Host, method: Method, path: &str, body: Value) -> (u16, Value) {
    let answer = host.admin(method, &format!("/admin/policies/scheduler{path}")).json(&body).send().await;
    let answer = answer.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

/// The tag of the live scheduler.
async fn live(host: &Host) -> String {
    let policies = host.admin_get("/admin/policies").await;
    let mut slots = policies["slots"].as_array().unwrap().iter();
    let slot = slots.find(|slot| slot["kind"] == "scheduler").unwrap();
    slot["tag"].as_str().unwrap().to_owned()
}

fn srpt(patience_ms: u64) -> Value {
    json!({"name": "srpt", "config": {"patience_ms": patience_ms}})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tag_makes_a_change_fail_after_one_of_the_configuration_alone() {
    let host = Host::start(config()).await;
    let first = ask(&host, Method::PUT, "", srpt(1_000)).await.1;
    let one = live(&host).await;
    assert_eq!(first["tag"], one, "{first}");
    let (status, second) = ask(&host, Method::PUT, &format!("?of={one}"), srpt(2_000)).await;
    let two = live(&host).await;
    assert_eq!((status, &second["tag"]), (200, &json!(two)), "{second}");
    assert_ne!(one, two);

    let swap = (Method::PUT, "", srpt(3_000));
    let rollback = (Method::POST, "/rollback", Value::Null);
    for (method, path, body) in [swap, rollback] {
        let (status, answer) = ask(&host, method, &format!("{path}?of={one}"), body).await;
        assert_eq!((status, &answer["error"]["code"]), (409, &json!("not_there")), "{answer}");
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("now runs `{two}`, not `{one}`")), "{message}");
        assert_eq!(live(&host).await, two);
    }

    // A name or a component is there with any configuration.
    let sha256 = infer_bundle::find("scheduler", "srpt").unwrap().sha256;
    for (of, patience_ms) in [("srpt", 3_000), (sha256, 1_000)] {
        assert_eq!(ask(&host, Method::PUT, &format!("?of={of}"), srpt(patience_ms)).await.0, 200, "{of}");
    }
    assert_eq!(live(&host).await, one, "the same component with the same configuration");
    let (status, back) = ask(&host, Method::POST, &format!("/rollback?of={one}"), Value::Null).await;
    assert_eq!((status, &back["tag"]), (200, &json!(live(&host).await)), "{back}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promotion_can_name_the_configuration_of_what_is_tried() {
    let host = Host::start(config()).await;
    let other = ask(&host, Method::PUT, "", srpt(2_000)).await.1;
    let other = other["tag"].as_str().unwrap();
    let native = || json!({"name": "builtin"});
    let swapped = ask(&host, Method::PUT, "", native()).await.1;
    assert_eq!(swapped["tag"], live(&host).await, "{swapped}");
    for mode in ["shadow", "canary"] {
        let tried = ask(&host, Method::PUT, &format!("?mode={mode}"), srpt(1_000)).await.1;
        let tag = tried["tag"].as_str().unwrap().to_owned();
        if mode == "shadow" {
            assert_eq!(host.admin_get("/admin/policies/scheduler/shadow").await["tag"], tag);
        }
        let promote =
            async |of: &str| ask(&host, Method::POST, &format!("/promote?of={of}"), Value::Null).await;
        let (status, answer) = promote(other).await;
        assert_eq!((status, &answer["error"]["code"]), (409, &json!("not_there")), "{mode}: {answer}");
        let (status, answer) = promote(&tag).await;
        assert_eq!((status, live(&host).await), (200, tag), "{mode}: {answer}");
        assert_eq!(ask(&host, Method::PUT, "", native()).await.0, 200);
    }
    host.server.shutdown().await;
}

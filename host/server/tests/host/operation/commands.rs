//! Requests, queue and cache, operated by commands while requests are under way.

use infer_server::config::Config;
use serde_json::{Value, json};

use super::endless;
use crate::common::process::{Home, complaint};
use crate::common::{Host, config, events};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_queue_and_cache_are_operated_by_commands() {
    let home = Home::new();
    let host = Host::start(Config { max_batch_size: 1, ..config() }).await;
    let types = async |arguments: &[&str]| {
        let mut command = home.command("", &[&["admin"], arguments].concat());
        command.env("INFER_ADMIN", format!("http://{}", host.server.admin_addr));
        command.env("INFER_ADMIN_TOKEN", &host.server.admin_token);
        tokio::task::spawn_blocking(move || command.output().expect("sh starts")).await.unwrap()
    };
    let sees = async |arguments: &[&str]| {
        let output = types(arguments).await;
        assert!(output.status.success(), "{arguments:?}: {}", complaint(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(sees(&["requests"]).await, "no request is live\n");
    assert_eq!(sees(&["tenants"]).await, "no tenant has sent a request\n");
    // One runs and one waits, however long commands take.
    let engine = host.server.engine().clone();
    engine.allow_steps(8);
    let (running, waiting) = (host.complete(endless()).await, host.complete(endless()).await);
    host.until("one runs", |s| s["queue"]["running"] == 1 && s["requests_total"] == 2).await;
    let listed = sees(&["requests"]).await;
    let mut lines = listed.lines();
    assert!(lines.next().unwrap().starts_with("id  state"), "{listed}");
    assert!(listed.contains("  default  ") && listed.contains("/1500  "), "{listed}");
    assert_eq!(sees(&["clear-queue"]).await, "failed 1 waiting requests\n");
    assert_eq!(events(waiting).await.pop().unwrap().1["code"], "queue_cleared");
    let requests: Vec<Value> = serde_json::from_str(&sees(&["requests", "--json"]).await).unwrap();
    let id = requests[0]["id"].to_string();
    assert_eq!(sees(&["cancel", &id]).await, format!("cancelled {id}\n"));
    assert_eq!(events(running).await.pop().unwrap().1["finish_reason"], "cancelled");
    assert_eq!(types(&["cancel", &id]).await.status.code(), Some(1));
    assert_eq!(types(&["cancel", "a/b"]).await.status.code(), Some(2));
    engine.release_steps();
    assert_eq!(host.events(json!({})).await.pop().unwrap().0, "done");
    engine.idle().await;
    let tenants = sees(&["tenants"]).await;
    let row: Vec<&str> = tenants.lines().nth(1).unwrap().split_whitespace().take(5).collect();
    assert_eq!(row, ["default", "1", "0", "0", "0"], "weight, running, waiting, held: {tenants}");
    let rows: Value = serde_json::from_str(&sees(&["tenants", "--json"]).await).unwrap();
    assert_eq!((&rows[0]["name"], &rows[0]["failed"]), (&json!("default"), &json!(1)), "the queue's");
    let state: Value = serde_json::from_str(&sees(&["state"]).await).unwrap();
    let dropped = format!("dropped {} cached blocks; 0 are in use\n", state["memory"]["cached"]);
    assert_eq!(sees(&["empty-cache"]).await, dropped);
    let none = "0 of at most 0 adapters, which take 0 of at most 1073741824 bytes\n";
    assert_eq!(sees(&["adapters", "list"]).await, none);
    for arguments in [&["adapters", "load", "sql", "nowhere"][..], &["adapters", "unload", "a/b c"]] {
        let output = types(arguments).await;
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {}", complaint(&output));
        assert!(complaint(&output).contains(" adapter"), "{}", complaint(&output));
    }
    assert_eq!(sees(&["reload"]).await, "there is nothing to reload\n");
    assert_eq!(sees(&["drain"]).await, "the host refuses new requests; 0 are live\n");
    assert_eq!(sees(&["undrain"]).await, "the host takes new requests\n");
    assert_eq!(host.events(json!({})).await.pop().unwrap().0, "done");
    host.server.shutdown().await;
}

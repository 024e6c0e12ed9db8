//! Operators of the admin plane: what each role may do, and reloads of their file.

use std::path::Path;

use crate::common::{Host, config, first_chunk};
use futures_util::StreamExt;
use infer_server::config::{Config, PolicyChoice};
use infer_server::tenants::KeyDigest;
use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const VIEWER: &str = "the-token-of-a-viewer-0123456789";
const OPERATOR: &str = "the-token-of-an-operator-0123456789";

fn table(name: &str, role: &str, token: &str) -> String {
    format!("[operators.{name}]\nrole = \"{role}\"\ntokens = [\"{}\"]\n", KeyDigest::of(token))
}

/// A file with `ana`, a viewer, and `bo`, an operator.
fn file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), table("ana", "viewer", VIEWER) + &table("bo", "operator", OPERATOR)).unwrap();
    file
}

async fn start(file: &Path) -> Host {
    Host::start(Config { operators: Some(file.to_owned()), show_text: true, ..config() }).await
}

async fn ask(host: &Host, token: &str, method: Method, path: &str) -> Response {
    let url = format!("http://{}{path}", host.server.admin_addr);
    host.client.request(method, url).bearer_auth(token).send().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_viewer_sees_everything_but_text_and_changes_nothing() {
    let file = file();
    let host = start(file.path()).await;
    // Fills whole blocks, which stay cached.
    let prompt = "A prefix cache keeps the keys and values of prompts that were computed before. ".repeat(2);
    host.events(json!({"prompt": prompt, "max_tokens": 4})).await;
    for path in [
        "/admin/state",
        "/admin/blocks",
        "/admin/blocks/map",
        "/admin/blocks/0",
        "/admin/cache",
        "/admin/policies",
        "/admin/policies/scheduler/history",
        "/metrics",
    ] {
        assert_eq!(ask(&host, VIEWER, Method::GET, path).await.status(), 200, "{path}");
    }
    let shadow = ask(&host, VIEWER, Method::GET, "/admin/policies/scheduler/shadow").await;
    assert_eq!(shadow.status(), 404, "it may look; there is none");
    for (token, is_shown) in [(VIEWER, false), (OPERATOR, true)] {
        let cache: Value = ask(&host, token, Method::GET, "/admin/cache").await.json().await.unwrap();
        let prefix = &cache["prefixes"][0];
        assert_eq!(prefix["text"].is_string(), is_shown, "{prefix}");
        let path = format!("/admin/blocks/{}", prefix["block"]);
        let block: Value = ask(&host, token, Method::GET, &path).await.json().await.unwrap();
        assert_eq!(block["text"].is_string(), is_shown, "{block}");
    }
    for (method, path) in [
        (Method::DELETE, "/admin/cache"),
        (Method::DELETE, "/admin/policies/quarantine/00"),
        (Method::PUT, "/admin/policies/scheduler"),
        (Method::POST, "/admin/policies/scheduler/rollback"),
        (Method::POST, "/admin/policies/scheduler/promote"),
        (Method::DELETE, "/admin/policies/scheduler/shadow"),
        (Method::DELETE, "/admin/requests/1"),
        (Method::DELETE, "/admin/queue"),
        (Method::POST, "/admin/reload"),
        (Method::POST, "/admin/drain"),
        (Method::DELETE, "/admin/drain"),
        (Method::POST, "/admin/trace/start"),
        (Method::POST, "/admin/trace/stop"),
    ] {
        let answer = ask(&host, VIEWER, method.clone(), path).await;
        assert_eq!(answer.status(), 403, "{method} {path}");
        let body: Value = answer.json().await.unwrap();
        assert_eq!(
            (&body["error"]["code"], &body["error"]["message"]),
            (&json!("role_required"), &json!("this takes the role `operator`; `ana` is a `viewer`"))
        );
    }
    // Neither role helps with a path that isn't there, or with a method that it doesn't have.
    assert_eq!(ask(&host, VIEWER, Method::GET, "/admin/nothing").await.status(), 404);
    assert_eq!(ask(&host, VIEWER, Method::POST, "/admin/state").await.status(), 405);
    assert_eq!(ask(&host, OPERATOR, Method::DELETE, "/admin/queue").await.status(), 200);
    assert_eq!(host.admin(Method::DELETE, "/admin/queue").send().await.unwrap().status(), 200);

    let own = host.server.admin_token.clone();
    for (token, name, role) in
        [(VIEWER, "ana", "viewer"), (OPERATOR, "bo", "operator"), (own.as_str(), "admin", "operator")]
    {
        let state: Value = ask(&host, token, Method::GET, "/admin/state").await.json().await.unwrap();
        assert_eq!(state["operator"], json!({"name": name, "role": role}));
    }
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_ends_the_streams_of_who_is_no_operator_any_more() {
    let file = file();
    let host = start(file.path()).await;
    let feed = ask(&host, VIEWER, Method::GET, "/admin/events?changes=true").await;
    let recording = ask(&host, OPERATOR, Method::POST, "/admin/trace/start").await;
    assert_eq!((feed.status().as_u16(), recording.status().as_u16()), (200, 200));
    let (feed, recording) = (first_chunk(feed).await, first_chunk(recording).await);

    std::fs::write(file.path(), table("ana", "owner", VIEWER)).unwrap();
    let answer = host.admin(Method::POST, "/admin/reload").send().await.unwrap();
    assert_eq!(answer.status(), 422);
    let body: Value = answer.json().await.unwrap();
    let outcome = &body["reloaded"][0];
    let words = ":2: operators.ana.role: expected `viewer` or `operator`";
    assert!(outcome["what"] == "operators" && outcome["error"].as_str().unwrap().contains(words), "{body}");
    assert_eq!(ask(&host, VIEWER, Method::GET, "/admin/state").await.status(), 200);

    // The host reads its body, which doesn't come.
    let mut upload = TcpStream::connect(host.server.admin_addr).await.unwrap();
    let head = format!(
        "PUT /admin/policies/scheduler HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {OPERATOR}\r\n\
         expect: 100-continue\r\ncontent-length: 99\r\n\r\n"
    );
    upload.write_all(head.as_bytes()).await.unwrap();
    let mut goes_on = [0; 25];
    upload.read_exact(&mut goes_on).await.unwrap();
    assert_eq!(&goes_on, b"HTTP/1.1 100 Continue\r\n\r\n");

    std::fs::write(file.path(), table("bo", "viewer", OPERATOR)).unwrap();
    let outcomes = host.server.reload().await;
    assert_eq!((outcomes[0].what, outcomes[0].done.as_str()), ("operators", "1 tokens"), "{outcomes:?}");
    // Each goes on until its caller is dismissed.
    drop(feed.collect::<Vec<_>>().await);
    let mut rest = Vec::new();
    for chunk in recording.collect::<Vec<_>>().await {
        rest.extend_from_slice(chunk.expect("readable").as_ref());
    }
    let rest = String::from_utf8(rest).unwrap();
    assert!(rest.contains("\"reason\":\"dismissed\""), "{rest}");
    let mut refused = String::new();
    upload.read_to_string(&mut refused).await.unwrap();
    assert!(refused.starts_with("HTTP/1.1 401 ") && refused.contains("a reload took"), "{refused}");
    assert_eq!(ask(&host, VIEWER, Method::GET, "/admin/state").await.status(), 401);
    assert_eq!(ask(&host, OPERATOR, Method::POST, "/admin/drain").await.status(), 403);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_history_of_a_slot_says_who_changed_it() {
    let (file, dir) = (file(), tempfile::tempdir().unwrap());
    let configs = dir.path().join("policies.json");
    let write = |batch_size: u32| {
        std::fs::write(&configs, json!({"scheduler": {"batch_size": batch_size}}).to_string()).unwrap();
    };
    write(2);
    let host = Host::start(Config {
        operators: Some(file.path().to_owned()),
        scheduler: PolicyChoice { name: "static-batch".into(), config: r#"{"batch_size": 2}"#.into() },
        policy_config: Some(configs.clone()),
        ..config()
    })
    .await;
    write(3);
    host.server.reload().await;
    write(4);
    assert_eq!(ask(&host, OPERATOR, Method::POST, "/admin/reload").await.status(), 200);
    let rollback = "/admin/policies/scheduler/rollback";
    assert_eq!(ask(&host, OPERATOR, Method::POST, rollback).await.status(), 200);
    assert_eq!(host.admin(Method::POST, rollback).send().await.unwrap().status(), 200);

    let path = "/admin/policies/scheduler/history";
    let history: Value = ask(&host, VIEWER, Method::GET, path).await.json().await.unwrap();
    let noted: Vec<_> = history.as_array().unwrap().iter().map(|e| [&e["mode"], &e["by"]]).collect();
    let want = [
        ("start", None),
        ("swap", None),
        ("swap", Some("bo")),
        ("rollback", Some("bo")),
        ("rollback", Some("admin")),
    ];
    assert_eq!(json!(noted), json!(want), "a reload by a signal is nobody's: {history}");
    host.server.shutdown().await;
}

#[tokio::test]
async fn a_host_does_not_start_with_a_bad_file_of_operators() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let with_own = table("eve", "viewer", config().admin_token.as_deref().unwrap());
    for (text, words) in [
        ("\n[operators.ana]\nrole = \"viewer\"\n", ":2: operators.ana: needs `tokens`"),
        (with_own.as_str(), "`eve` has the host's own token (INFER_ADMIN_TOKEN)"),
    ] {
        std::fs::write(file.path(), text).unwrap();
        let config = Config { operators: Some(file.path().to_owned()), ..config() };
        let error = infer_server::serve::start(config).await.err().expect("it doesn't start");
        let said = error.to_string();
        assert!(error.is_usage() && said.starts_with("--operators: ") && said.contains(words), "{said}");
    }
}

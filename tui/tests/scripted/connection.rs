//! Tests the connection against a scripted host over real sockets: tokens, actions, errors, restarts.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use crate::support::peer::Peer;
use crate::support::sample;
use infer_api::admin::{AdminEvent, State};
use infer_tui::conn::feed::{self, Update};
use infer_tui::conn::token::TokenSource;
use infer_tui::conn::{Client, ConnError};
use infer_tui::order::{Mode, Order, Source};
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, channel};

fn client(port: u16, directory: &Path) -> Client {
    let base = format!("http://127.0.0.1:{port}/").parse().expect("a URL");
    let source = TokenSource::new(None, None, &[directory.to_owned()], &base);
    Client::with_token(base, source)
}

fn write_token(directory: &Path, port: u16, token: &str) {
    std::fs::write(directory.join(format!("admin-{port}.token")), token).expect("writable");
}

/// A peer and a client that finds its token in a file.
async fn connected() -> (Peer, Client, tempfile::TempDir) {
    let directory = tempfile::tempdir().expect("writable");
    let peer = Peer::start("secret").await;
    let port = peer.address.port();
    write_token(directory.path(), port, "secret\n");
    (peer, client(port, directory.path()), directory)
}

/// How long anything may take on a busy machine; normally it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(300);

/// Waits for the first update that fits.
async fn until(reports: &mut Receiver<Update>, what: &str, fits: impl Fn(&Update) -> bool) -> Update {
    let found = async {
        loop {
            let report = reports.recv().await.expect("the feed runs");
            if fits(&report) {
                return report;
            }
        }
    };
    tokio::time::timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("never came: {what}"))
}

fn is_snapshot(report: &Update) -> bool {
    matches!(report, Update::Event(AdminEvent::Snapshot(_)))
}

#[tokio::test]
async fn every_endpoint_returns_its_type() {
    let (peer, client, _directory) = connected().await;
    assert_eq!(client.state().await.unwrap(), sample::state(60));
    assert_eq!(client.map("state", 2_000, None).await.unwrap(), sample::map());
    assert_eq!(client.block(0).await.unwrap(), sample::block());
    assert_eq!(client.cache().await.unwrap(), sample::cache());
    assert_eq!(client.request(1_180).await.unwrap(), sample::request(60));
    assert_eq!(client.policies().await.unwrap(), sample::policies());
    assert_eq!(client.history("scheduler").await.unwrap(), sample::history());
    let of = Some("continuous".to_owned());
    let answer = client.swap(&Order { of, ..order("static-batch") }).await.unwrap();
    assert_eq!((answer.from.as_str(), answer.to.as_str()), ("continuous", "static-batch"));
    assert_eq!(client.rollback("scheduler", "static-batch").await.unwrap().kind, "scheduler");
    assert_eq!(client.promote("scheduler", "a b&c").await.unwrap().kind, "scheduler");
    client.stop_shadow("scheduler").await.unwrap();
    client.clear_queue().await.unwrap();
    client.empty_cache().await.unwrap();
    assert_eq!(peer.asked().last().unwrap(), "DELETE /admin/cache");
    client.drain().await.unwrap();
    client.undrain().await.unwrap();
    assert_eq!(peer.asked().last().unwrap(), "DELETE /admin/drain");
    client.cancel(7).await.unwrap();
    let asked = peer.asked();
    assert_eq!(asked.last().unwrap(), "DELETE /admin/requests/7");
    client.cancel_all(17).await.unwrap();
    assert_eq!(peer.asked().last().unwrap(), "DELETE /admin/requests/17?by=first_id");
    for change in [
        "PUT /admin/policies/scheduler?mode=now&force=false&of=continuous",
        "POST /admin/policies/scheduler/rollback?of=static-batch",
        "POST /admin/policies/scheduler/promote?of=a+b%26c",
    ] {
        assert!(asked.contains(&change.to_owned()), "{change}: {asked:?}");
    }
    let text = client.state_json().await.unwrap();
    assert_eq!(serde_json::from_str::<infer_api::admin::State>(&text).unwrap(), sample::state(60));
}

fn order(name: &str) -> Order {
    let (kind, source) = ("scheduler".into(), Source::of(name));
    Order { kind, source, mode: Mode::Now, config: None, force: false, of: None }
}

#[tokio::test]
async fn a_component_is_read_from_its_file_and_a_missing_file_is_named() {
    let (_peer, client, directory) = connected().await;
    let path = directory.path().join("mine.wasm");
    std::fs::write(&path, [0; 77]).unwrap();
    let config = Some(serde_json::json!({"a": "b c&d"}));
    let order = Order { config, ..order(path.to_str().unwrap()) };
    assert_eq!(client.swap(&order).await.unwrap().to, "component of 77 bytes");
    let missing = Order { source: Source::of("./none.wasm"), ..order };
    let error = client.swap(&missing).await.unwrap_err().to_string();
    assert!(error.starts_with("./none.wasm: "), "{error}");
}

#[tokio::test]
async fn a_refusal_carries_the_hosts_message() {
    let (_peer, client, _directory) = connected().await;
    let error = client.swap(&order("broken")).await.unwrap_err();
    assert_eq!(error.to_string(), "broken: the self-test trapped (HTTP 422)");
    assert_eq!(client.cancel(999).await.unwrap_err().to_string(), "no request 999 (HTTP 404)");
    assert_eq!(
        client.cancel(403).await.unwrap_err().to_string(),
        "this takes the role `operator`; `ana` is a `viewer` (HTTP 403)"
    );
}

#[tokio::test]
async fn an_address_without_an_admin_plane_is_named() {
    let (peer, client, _directory) = connected().await;
    client.state().await.unwrap();
    let base = format!("http://{}/elsewhere/", peer.address).parse().expect("a URL");
    let token = TokenSource::new(None, Some("secret".to_owned()), &[], &base);
    let client = Client::with_token(base, token);
    for error in [client.state().await.unwrap_err(), client.events(4).await.unwrap_err()] {
        assert!(matches!(error, ConnError::NotAdmin { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_snapshot_of_many_requests_is_read() {
    let (peer, _client, _directory) = connected().await;
    let base = format!("http://{}/crowded/", peer.address).parse().expect("a URL");
    let token = TokenSource::new(None, Some("secret".to_owned()), &[], &base);
    let mut events = Client::with_token(base, token).events(4).await.unwrap();
    let AdminEvent::Snapshot(state) = events.next().await.unwrap() else { panic!("a snapshot first") };
    assert_eq!(*state, sample::crowd());
    let bytes = serde_json::to_vec(&state).unwrap().len();
    assert!(bytes > 1 << 20, "more than other readers accept: {bytes}");
    assert!(matches!(events.next().await, Err(ConnError::Lost(_))), "it ends here");
}

#[test]
fn empty_variables_count_as_absent() {
    let output = Command::new(env!("CARGO_BIN_EXE_infer-tui"))
        .args(["--once", "--token-file", "/nonexistent/token"])
        .env("INFER_ADMIN", "")
        .env("INFER_TUI_THEME", "")
        .output()
        .expect("the console");
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(output.status.code(), Some(1), "no usage error: {text}");
    assert!(text.contains("/nonexistent/token"), "{text}");
}

#[tokio::test]
async fn a_wrong_token_says_where_it_came_from() {
    let (peer, client, directory) = connected().await;
    let port = peer.address.port();
    write_token(directory.path(), port, "stale");
    let error = client.state().await.unwrap_err();
    assert!(matches!(error, ConnError::Unauthorized { .. }), "{error:?}");
    let file = format!("admin-{port}.token");
    assert!(error.to_string().contains(&file), "{error}");
    std::fs::remove_file(directory.path().join(&file)).unwrap();
    let error = client.state().await.unwrap_err().to_string();
    assert!(error.contains("no token found") && error.contains(&file), "{error}");
    assert!(!error.contains("stale"), "a token is never shown: {error}");
}

#[tokio::test]
async fn json_prints_the_snapshot_with_and_without_once() {
    let peer = Peer::start("secret").await;
    for flags in ["--json", "--once --json"] {
        let admin = peer.address.to_string();
        let printed = tokio::task::spawn_blocking(move || {
            Command::new(env!("CARGO_BIN_EXE_infer-tui"))
                .args(["--admin", &admin])
                .args(flags.split(' '))
                .env("INFER_ADMIN_TOKEN", "secret")
                .output()
        });
        let output = printed.await.unwrap().unwrap();
        assert!(output.status.success(), "{flags}: {}", String::from_utf8_lossy(&output.stderr));
        let state: State = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(state, sample::state(60), "{flags}");
    }
}

#[tokio::test]
async fn print_presses_all_keys_and_prints_only_text() {
    let peer = Peer::start("secret").await;
    let admin = peer.address.to_string();
    // Mouse and clipboard need a terminal; without one they must not print escape sequences.
    let keys = ":filter state:decode<enter>3my";
    let printed = tokio::task::spawn_blocking(move || {
        Command::new(env!("CARGO_BIN_EXE_infer-tui"))
            .args(["--admin", &admin, "--print", "--after", "0", "--keys", keys])
            .env("INFER_ADMIN_TOKEN", "secret")
            .output()
    });
    let output = printed.await.unwrap().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("match /state:decode") && text.contains("copied "), "{text}");
    assert!(!text.contains('\u{1b}'), "{text:?}");
}

#[tokio::test]
async fn messages_of_the_host_have_no_control_characters() {
    let peer = Peer::start("secret").await;
    let admin = peer.address.to_string();
    let told = tokio::task::spawn_blocking(move || {
        Command::new(env!("CARGO_BIN_EXE_infer-tui"))
            .args(["--admin", &format!("{admin}/rude"), "--once"])
            .env("INFER_ADMIN_TOKEN", "secret")
            .output()
    });
    let output = told.await.unwrap().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("]0;title") && !text.trim_end().chars().any(char::is_control), "{text:?}");
}

#[tokio::test]
async fn a_change_without_a_response_may_still_take_effect() {
    let (peer, client, _directory) = connected().await;
    client.state().await.unwrap();
    let error = client.cancel(444).await.unwrap_err();
    assert!(matches!(error, ConnError::Unanswered(_)), "{error:?}");
    assert!(error.to_string().contains("may still take effect"), "{error}");
    let error = client.request(444).await.unwrap_err();
    assert!(matches!(error, ConnError::Lost(_)), "it changes nothing: {error:?}");
    peer.kill().await;
    let error = client.cancel(7).await.unwrap_err();
    assert!(matches!(error, ConnError::Unreachable { .. }), "it was never sent: {error:?}");
}

#[tokio::test]
async fn an_unreachable_address_says_how_to_start_a_host() {
    let directory = tempfile::tempdir().unwrap();
    let peer = Peer::start("x").await;
    let kept = peer.kill().await;
    let port = kept.number;
    let error = client(port, directory.path()).state().await.unwrap_err().to_string();
    let advice = format!("infer serve --admin 127.0.0.1:{port}");
    assert!(error.contains(&advice), "{error}");
}

#[tokio::test]
async fn the_feed_survives_a_restart_with_a_new_token() {
    let (peer, client, directory) = connected().await;
    let (out, mut reports) = channel(64);
    let again = Arc::new(Notify::new());
    let feed = tokio::spawn(feed::run(client, 10, again.clone(), out));
    until(&mut reports, "fault", |r| matches!(r, Update::Event(AdminEvent::Fault(_)))).await;
    until(&mut reports, "first snapshot", is_snapshot).await;
    again.notify_one();
    until(&mut reports, "a new stream after the notification", |r| matches!(r, Update::Connected)).await;
    until(&mut reports, "its snapshot", is_snapshot).await;
    let port = peer.kill().await;
    until(&mut reports, "loss", |r| matches!(r, Update::Lost { .. })).await;
    write_token(directory.path(), port.number, "another");
    let peer = Peer::start_on(port, "another").await;
    until(&mut reports, "connected again", |r| matches!(r, Update::Connected)).await;
    until(&mut reports, "snapshot after the restart", is_snapshot).await;
    drop(reports);
    tokio::time::timeout(PATIENCE, feed).await.expect("ends with its receiver").unwrap();
    peer.kill().await;
}

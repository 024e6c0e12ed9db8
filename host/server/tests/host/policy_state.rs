//! Swaps, histories and the quarantine across restarts (`--policy-state`).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use infer_core::Micros;
use infer_core::policy::PolicyKind;
use infer_server::config::{Config, PolicyChoice};
use infer_server::serve;
use reqwest::Method;
use serde_json::{Value, json};

use crate::common::{Host, config};

fn keeping(dir: &Path) -> Config {
    Config { policy_state: Some(dir.to_owned()), ..config() }
}

/// What an operator does and sees.
trait Operated {
    async fn ask(&self, method: Method, path: &str, body: Value) -> Value;
    async fn upload(&self, kind: &str, query: &str, component: &[u8]) -> Value;
    async fn slot(&self, kind: &str) -> Value;
    async fn history(&self, kind: &str) -> Vec<Value>;
}

impl Operated for Host {
    async fn ask(&self, method: Method, path: &str, body: Value) -> Value {
        let answer = self.admin(method, &format!("/admin/policies/{path}")).json(&body).send().await.unwrap();
        let (status, answer) = (answer.status(), answer.json::<Value>().await.unwrap());
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    async fn upload(&self, kind: &str, query: &str, component: &[u8]) -> Value {
        let path = format!("/admin/policies/{kind}{query}");
        let answer = self.admin(Method::PUT, &path).body(component.to_owned()).send().await.unwrap();
        let (status, answer) = (answer.status(), answer.json::<Value>().await.unwrap());
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    async fn slot(&self, kind: &str) -> Value {
        let all = self.admin_get("/admin/policies").await;
        let slots = all["slots"].as_array().unwrap();
        slots.iter().find(|slot| slot["kind"] == kind).unwrap().clone()
    }

    async fn history(&self, kind: &str) -> Vec<Value> {
        let history = self.admin_get(&format!("/admin/policies/{kind}/history")).await;
        history.as_array().unwrap().clone()
    }
}

/// The names of the components in a directory.
fn components(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".wasm")).collect()
}

fn saved(dir: &Path) -> Value {
    serde_json::from_slice(&fs::read(dir.join("policies.json")).unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn swaps_and_their_history_outlive_the_host_and_a_rollback_leads_to_what_is_configured() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("state");
    let srpt = infer_bundle::find("scheduler", "srpt").unwrap();
    let host = Host::start(keeping(&dir)).await;
    let answer = host.upload("scheduler", "?config=%7B%22patience_ms%22%3A77%7D", srpt.component).await;
    assert_eq!(answer["not_saved"], Value::Null, "{answer}");
    // It is saved when the answer is there.
    assert_eq!(components(&dir), [format!("{}.wasm", srpt.sha256)]);
    assert_eq!(saved(&dir)["slots"]["scheduler"]["swapped"][0]["config"], json!({"patience_ms": 77}));
    host.ask(Method::PUT, "admission", json!({"name": "memory-aware,token-bucket"})).await;
    host.ask(Method::PUT, "prefix-cache", json!({"name": "builtin"})).await;
    let native = host.slot("prefix-cache").await["name"].clone();
    let state = host.admin_get("/admin/state").await;
    assert_eq!(state["policy_state"], json!({"saved": true}));
    host.server.shutdown().await;

    let host = Host::start(keeping(&dir)).await;
    let scheduler = host.slot("scheduler").await;
    assert_eq!((&scheduler["name"], &scheduler["state"]), (&json!("srpt"), &json!("live")), "{scheduler}");
    assert_eq!(
        (&scheduler["config"]["patience_ms"], &scheduler["previous"]),
        (&json!(77), &json!("continuous"))
    );
    assert_eq!(scheduler["sha256"], srpt.sha256);
    assert_eq!(host.slot("admission").await["name"], "memory-aware+token-bucket");
    assert_eq!(host.slot("prefix-cache").await["name"], native);
    let history = host.history("scheduler").await;
    let noted: Vec<_> =
        history.iter().map(|e| [&e["mode"], &e["to"], &e["by"], &e["before_restart"]]).collect();
    assert_eq!(
        json!(noted),
        json!([
            ["start", "continuous", null, true],
            ["swap", "srpt", "admin", true],
            ["start", "srpt", null, null],
        ])
    );
    let reason = history[2]["reason"].as_str().unwrap();
    assert!(reason.contains("before the restart, in place of continuous"), "{reason}");
    for kind in ["scheduler", "admission", "prefix-cache"] {
        host.ask(Method::POST, &format!("{kind}/rollback"), Value::Null).await;
    }
    assert_eq!(components(&dir), Vec::<String>::new(), "nothing names it any more");
    host.server.shutdown().await;

    let host = Host::start(keeping(&dir)).await;
    for (kind, name) in [("scheduler", "continuous"), ("admission", "memory-aware"), ("prefix-cache", "lru")]
    {
        let slot = host.slot(kind).await;
        assert_eq!((&slot["name"], &slot["previous"]), (&json!(name), &Value::Null), "{slot}");
    }
    assert_eq!(host.history("scheduler").await.len(), 5);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quarantine_outlives_the_host_and_holds_for_what_flags_name() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("state");
    let host = Host::start(keeping(&dir)).await;
    let snapshot = host.server.engine().report().await.unwrap().snapshot;
    let policy = &snapshot.policies[PolicyKind::Scheduler as usize].policy;
    assert_eq!(policy.name, "continuous");
    let quarantine = host.server.engine().observer().quarantine();
    quarantine.add(PolicyKind::Scheduler, policy, "it ran out of fuel", Micros(1));
    let entry = quarantine.find(policy).unwrap();
    host.server.shutdown().await;

    let host = Host::start(keeping(&dir)).await;
    let scheduler = host.slot("scheduler").await;
    let live = (&scheduler["name"], &scheduler["state"]);
    assert_eq!(live, (&json!("builtin-fcfs"), &json!("fallback")), "{scheduler}");
    let listed = host.admin_get("/admin/policies").await["quarantine"].clone();
    assert_eq!(listed[0]["reason"], "it ran out of fuel");
    assert_eq!((&listed[0]["at_utc"], &listed[0]["at_ms"]), (&json!(entry.at_utc), &json!(0)));
    let answer = host.admin(Method::PUT, "/admin/policies/scheduler").json(&json!({"name": "continuous"}));
    assert_eq!(answer.send().await.unwrap().status(), 422);
    let start = &host.history("scheduler").await[1];
    assert_eq!(start["reason"], "start: the configured policy is in quarantine");
    host.events(json!({"max_tokens": 4})).await;
    // Something else can take its place, and is there again, with no way back.
    host.ask(Method::PUT, "scheduler", json!({"name": "srpt"})).await;
    host.server.shutdown().await;

    let host = Host::start(keeping(&dir)).await;
    let scheduler = host.slot("scheduler").await;
    assert_eq!((&scheduler["name"], &scheduler["previous"]), (&json!("srpt"), &Value::Null), "{scheduler}");
    let lifted = host.ask(Method::DELETE, &format!("quarantine/{}", policy.digest), Value::Null).await;
    assert_eq!(lifted, json!({"lifted": policy.digest}));
    assert_eq!(saved(&dir)["quarantine"], json!([]));
    host.server.shutdown().await;

    let host = Host::start(keeping(&dir)).await;
    let scheduler = host.slot("scheduler").await;
    assert_eq!(
        (&scheduler["name"], &scheduler["previous"]),
        (&json!("srpt"), &json!("continuous")),
        "{scheduler}"
    );
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flag_that_was_changed_wins_over_what_was_swapped_in_its_slot() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("state");
    let host = Host::start(keeping(&dir)).await;
    host.ask(Method::PUT, "scheduler", json!({"name": "srpt"})).await;
    host.ask(Method::PUT, "prefix-cache", json!({"name": "s3-fifo"})).await;
    host.server.shutdown().await;
    let changed = || Config { scheduler: PolicyChoice::named("fair"), ..keeping(&dir) };
    let host = Host::start(changed()).await;
    assert_eq!(host.slot("scheduler").await["name"], "fair");
    assert_eq!(host.slot("prefix-cache").await["name"], "s3-fifo", "nobody changed this flag");
    host.server.shutdown().await;
    // What was given up doesn't come back with the flag.
    let host = Host::start(keeping(&dir)).await;
    assert_eq!(host.slot("scheduler").await["name"], "continuous");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn choice_of_an_operator_that_is_configured_since_is_live_as_what_is_configured() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("state");
    let host = Host::start(keeping(&dir)).await;
    host.ask(Method::PUT, "scheduler", json!({"name": "fair"})).await;
    host.server.shutdown().await;
    let fair = PolicyChoice { name: "fair".into(), config: "{}".into() };
    let host = Host::start(Config { scheduler: fair, ..keeping(&dir) }).await;
    let slot = host.slot("scheduler").await;
    assert_eq!((&slot["name"], &slot["previous"]), (&json!("fair"), &Value::Null), "{slot}");
    host.server.shutdown().await;
    assert_eq!(saved(&dir)["slots"]["scheduler"]["swapped"], Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_passed_its_trial_is_live_after_a_restart() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("state");
    let host = Host::start(keeping(&dir)).await;
    host.ask(Method::PUT, "scheduler", json!({"name": "fair"})).await;
    host.ask(Method::PUT, "scheduler?mode=canary&window_s=300", json!({"name": "srpt"})).await;
    host.ask(Method::PUT, "admission?mode=shadow", json!({"name": "token-bucket"})).await;
    let slots = saved(&dir)["slots"].clone();
    assert_eq!(
        (&slots["scheduler"]["canary"], &slots["admission"]["shadow"]),
        (&json!("srpt"), &json!("token-bucket"))
    );
    host.server.shutdown().await;

    let host = Host::start(keeping(&dir)).await;
    let scheduler = host.slot("scheduler").await;
    assert_eq!((&scheduler["name"], &scheduler["state"]), (&json!("fair"), &json!("live")), "{scheduler}");
    let admission = host.slot("admission").await;
    assert_eq!(
        (&admission["name"], &admission["shadow"]),
        (&json!("memory-aware"), &Value::Null),
        "{admission}"
    );
    host.ask(Method::PUT, "scheduler?mode=canary&window_s=300", json!({"name": "srpt"})).await;
    host.ask(Method::POST, "scheduler/promote", Value::Null).await;
    host.server.shutdown().await;

    let host = Host::start(keeping(&dir)).await;
    let scheduler = host.slot("scheduler").await;
    assert_eq!((&scheduler["name"], &scheduler["state"]), (&json!("srpt"), &json!("live")), "{scheduler}");
    host.server.shutdown().await;
}

/// Writes a file of `--policy-config` in `home` with this number. Returns what a host makes of it.
fn with_file(home: &Path, patience: u64) -> Config {
    let file = home.join("policies.json");
    let config = json!({"patience_ms": patience});
    fs::write(&file, json!({"scheduler": config}).to_string()).unwrap();
    let scheduler = PolicyChoice { name: "srpt".to_owned(), config: config.to_string() };
    Config { scheduler, policy_config: Some(file), ..keeping(&home.join("state")) }
}

/// A reload leaves what an operator swapped in alone, and so does the next start, which finds the same files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_that_was_reloaded_counts_as_known_and_one_that_was_not_as_changed() {
    let home = tempfile::tempdir().unwrap();
    let configured = |patience: u64| with_file(home.path(), patience);
    let host = Host::start(configured(1)).await;
    host.ask(Method::PUT, "scheduler", json!({"name": "fair"})).await;
    let now = configured(2);
    host.server.reload().await;
    assert_eq!(host.slot("scheduler").await["name"], "fair");
    host.server.shutdown().await;
    let host = Host::start(now).await;
    let scheduler = host.slot("scheduler").await;
    assert_eq!((&scheduler["name"], &scheduler["previous"]), (&json!("fair"), &json!("srpt")), "{scheduler}");
    host.server.shutdown().await;
    let host = Host::start(configured(3)).await;
    let scheduler = host.slot("scheduler").await;
    assert_eq!(
        (&scheduler["name"], &scheduler["config"]["patience_ms"]),
        (&json!("srpt"), &json!(3)),
        "{scheduler}"
    );
    // A reload that takes effect is known, too.
    let now = configured(4);
    host.server.reload().await;
    host.ask(Method::PUT, "scheduler", json!({"name": "fair"})).await;
    host.server.shutdown().await;
    let host = Host::start(now).await;
    assert_eq!(host.slot("scheduler").await["name"], "fair");
    host.server.shutdown().await;
}

/// Nobody swapped in what the file said when the trial began.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_that_was_reloaded_during_a_trial_wins_over_what_it_said_before() {
    let home = tempfile::tempdir().unwrap();
    let configured = |patience: u64| with_file(home.path(), patience);
    let trial = "scheduler?mode=canary&window_s=300";
    let host = Host::start(configured(1)).await;
    host.ask(Method::PUT, trial, json!({"name": "fair"})).await;
    let now = configured(2);
    host.server.reload().await;
    assert_eq!(host.slot("scheduler").await["state"], "canary");
    host.server.shutdown().await;
    let host = Host::start(now).await;
    let scheduler = host.slot("scheduler").await;
    assert_eq!(
        (&scheduler["name"], &scheduler["config"]["patience_ms"], &scheduler["previous"]),
        (&json!("srpt"), &json!(2), &Value::Null),
        "{scheduler}"
    );
    // What is promoted after the reload was chosen with the file as it is.
    host.ask(Method::PUT, trial, json!({"name": "fair"})).await;
    let now = configured(3);
    host.server.reload().await;
    host.ask(Method::POST, "scheduler/promote", Value::Null).await;
    host.server.shutdown().await;
    let host = Host::start(now).await;
    let scheduler = host.slot("scheduler").await;
    assert_eq!((&scheduler["name"], &scheduler["previous"]), (&json!("fair"), &json!("srpt")), "{scheduler}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_restored_leaves_the_slot_to_what_is_configured() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("state");
    let srpt = infer_bundle::find("scheduler", "srpt").unwrap();
    let host = Host::start(keeping(&dir)).await;
    host.upload("scheduler", "", srpt.component).await;
    host.ask(Method::PUT, "prefix-cache", json!({"name": "s3-fifo"})).await;
    host.server.shutdown().await;
    // As if this host brought another version of the one, and the other were gone.
    let mut state = saved(&dir);
    state["slots"]["prefix-cache"]["swapped"][0]["sha256"] = json!("0b".repeat(32));
    fs::write(dir.join("policies.json"), state.to_string()).unwrap();
    fs::write(dir.join(&components(&dir)[0]), "damaged").unwrap();
    let host = Host::start(keeping(&dir)).await;
    assert_eq!(host.slot("scheduler").await["name"], "continuous");
    let not_restored = host.admin_get("/admin/policies").await["not_restored"].clone();
    assert!(
        not_restored[0].as_str().is_some_and(|why| why.contains("scheduler policy `srpt`")),
        "{not_restored}"
    );
    let state = host.admin_get("/admin/state").await;
    assert_eq!(state["policy_state"], json!({"saved": true, "not_restored": not_restored}));
    let prefix = host.slot("prefix-cache").await;
    let bundled = infer_bundle::find("prefix-cache", "s3-fifo").unwrap();
    assert_eq!((&prefix["name"], &prefix["sha256"]), (&json!("s3-fifo"), &json!(bundled.sha256)), "{prefix}");
    host.server.shutdown().await;

    // A later start may be able to load it.
    let component = dir.join(&components(&dir)[0]);
    fs::write(&component, srpt.component).unwrap();
    let host = Host::start(keeping(&dir)).await;
    assert_eq!(host.slot("scheduler").await["name"], "srpt");
    assert_eq!(host.admin_get("/admin/policies").await["not_restored"], Value::Null);
    host.server.shutdown().await;
    // Until an operator changes the slot.
    fs::write(&component, "damaged").unwrap();
    let host = Host::start(keeping(&dir)).await;
    host.ask(Method::PUT, "scheduler", json!({"name": "fair"})).await;
    assert_eq!(host.admin_get("/admin/policies").await["not_restored"], Value::Null);
    assert_eq!(components(&dir), Vec::<String>::new());
    host.server.shutdown().await;

    let whole = fs::read(dir.join("policies.json")).unwrap();
    let cut = &whole[..whole.len() / 2];
    let future = String::from_utf8(whole.clone()).unwrap().replace("\"version\": 1", "\"version\": 99");
    for unreadable in [cut, future.as_bytes()] {
        fs::write(dir.join("policies.json"), unreadable).unwrap();
        let host = Host::start(keeping(&dir)).await;
        assert_eq!(host.slot("prefix-cache").await["name"], "lru");
        let state = host.admin_get("/admin/state").await;
        let why = state["policy_state"]["not_restored"][0].as_str().unwrap();
        assert!(why.contains("was not restored: it ") && why.contains("unread"), "{why}");
        assert!(fs::read(dir.join("unread/policies.json")).unwrap() == unreadable, "it is kept");
        host.ask(Method::PUT, "prefix-cache", json!({"name": "s3-fifo"})).await;
        host.server.shutdown().await;
        let host = Host::start(keeping(&dir)).await;
        assert_eq!(host.slot("prefix-cache").await["name"], "s3-fifo");
        host.server.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_that_cannot_save_serves_swaps_and_says_so() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("state");
    let host = Host::start(keeping(&dir)).await;
    let gauge = async || {
        let text = host.admin(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
        let line = text.lines().find(|line| line.starts_with("infer_policy_state_saved ")).unwrap();
        line.to_owned()
    };
    host.ask(Method::PUT, "scheduler", json!({"name": "fair"})).await;
    assert_eq!(gauge().await, "infer_policy_state_saved 1.0");
    // Not removed: the host may be writing what its policies know.
    fs::rename(&dir, home.path().join("elsewhere")).unwrap();
    let answer = host.ask(Method::PUT, "scheduler", json!({"name": "srpt"})).await;
    let why = answer["not_saved"].as_str().unwrap();
    assert!(why.contains("No such file or directory"), "{answer}");
    assert_eq!(host.slot("scheduler").await["name"], "srpt");
    assert_eq!(host.admin_get("/admin/state").await["policy_state"], json!({"saved": false, "error": why}));
    assert_eq!(host.admin_get("/admin/policies").await["not_saved"], why);
    assert_eq!(gauge().await, "infer_policy_state_saved 0.0");
    host.events(json!({"max_tokens": 4})).await;
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
    let answer = host.ask(Method::POST, "scheduler/rollback", Value::Null).await;
    assert_eq!((&answer["to"], &answer["not_saved"]), (&json!("fair"), &Value::Null));
    assert_eq!(saved(&dir)["slots"]["scheduler"]["swapped"][0]["name"], "fair");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directory_that_is_not_the_hosts_own_fails_the_start_and_stays_as_it_is() {
    let home = tempfile::tempdir().unwrap();
    let dir = home.path().join("state");
    let refused = async |config: Config| serve::start(config).await.err().expect("it fails").to_string();
    let host = Host::start(keeping(&dir)).await;
    let said = refused(keeping(&dir)).await;
    assert!(said.starts_with("--policy-state: another host uses "), "{said}");
    host.server.shutdown().await;
    assert!(!dir.join("policies.json.lock").exists());

    fs::write(dir.join("policies.json"), "{\"precious\": true}").unwrap();
    let said = refused(keeping(&dir)).await;
    assert!(said.starts_with("--policy-state: ") && said.contains("something else"), "{said}");
    assert_eq!(fs::read_to_string(dir.join("policies.json")).unwrap(), "{\"precious\": true}");
    let said = refused(keeping(&dir.join("policies.json"))).await;
    assert!(said.contains("can't be created"), "{said}");
}

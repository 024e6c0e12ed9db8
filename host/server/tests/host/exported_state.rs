//! What policies know outlives the host (`--policy-state`): a bucket is as empty after a restart as it was before.

use std::fs;
use std::path::{Path, PathBuf};

use infer_server::config::{Config, PolicyChoice};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Host, config};
use crate::tenants::{Key, complete, done, key, write};

/// Refills so slowly that no test takes long enough.
const LIMIT: &str = "tokens-per-minute = 1\nburst = 40";

/// A place for the state and for a file of keys.
struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn state(&self) -> PathBuf {
        self.0.path().join("state")
    }

    /// A host that keeps what its policies know, of tenants with these keys, in the order of the file.
    async fn host(&self, keys: &[&Key]) -> Host {
        let file = self.0.path().join("tenants.toml");
        write(&file, keys);
        Host::start(Config { api_keys: Some(file), ..keeping(&self.state()) }).await
    }
}

fn keeping(dir: &Path) -> Config {
    Config { policy_state: Some(dir.to_owned()), ..config() }
}

/// More than half of the limit.
fn much() -> Value {
    json!({"prompt": [1, 2, 3, 4], "max_tokens": 20, "ignore_eos": true})
}

async fn is_refused(host: &Host, key: &Key) {
    let answer = complete(host, key, much()).await;
    assert_eq!(answer.status(), 429, "{:?}", answer.text().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bucket_is_as_empty_after_a_restart_as_before() {
    let place = Place::new();
    let (limited, free) = (key("limited", LIMIT), key("free", ""));
    let host = place.host(&[&limited, &free]).await;
    done(&host, &limited, much()).await;
    is_refused(&host, &limited).await;
    let before = host.admin_get("/admin/state").await;
    host.server.shutdown().await;

    let host = place.host(&[&limited, &free]).await;
    is_refused(&host, &limited).await;
    // What is left fits.
    done(&host, &limited, json!({"prompt": [1, 2, 3, 4], "max_tokens": 5, "ignore_eos": true})).await;
    done(&host, &free, much()).await;
    let state = host.admin_get("/admin/state").await;
    let restored = state["policy_state"]["restored"].as_array().unwrap();
    let of_admission = restored.iter().find(|one| one["kind"] == "admission").unwrap();
    assert_eq!(of_admission["policy"], "memory-aware+token-bucket", "{state}");
    assert_eq!(host.admin_get("/admin/policies").await["restored"], json!(restored));
    // Times and counts are those of this host, but for its steps, which policies see.
    let steps = |of: &Value| of.as_u64().unwrap();
    let (here, all) = (steps(&state["counters"]["steps"]), steps(&state["step"]));
    assert!(here > 0 && all == steps(&before["step"]) + here, "{here} of {all}");
    // What goes back a little after a kill would look as if it had begun anew, and then counted all of that.
    let metrics = host.admin(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains(&format!("\ninfer_steps_total {here}\n")), "{here}: {metrics}");
    assert_eq!(state["policies"][1]["since_ms"], state["uptime_ms"]);
    let history = host.admin_get("/admin/policies/admission/history").await;
    let start = history.as_array().unwrap().last().unwrap();
    assert_eq!((&start["mode"], &start["at_ms"]), (&json!("start"), &json!(0)));
    let tenants = state["tenants"].as_array().unwrap();
    let generated = tenants.iter().map(|row| row["generated_tokens"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(generated, 25, "{state}");
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_mean_the_same_tenants_however_the_file_of_keys_changes() {
    let place = Place::new();
    let [gone, limited, quick, new] = ["gone", "limited", "quick", "new"].map(|name| key(name, LIMIT));
    let host = place.host(&[&gone, &limited, &quick]).await;
    done(&host, &gone, much()).await;
    done(&host, &limited, much()).await;
    host.server.shutdown().await;

    let host = place.host(&[&quick, &new, &limited]).await;
    is_refused(&host, &limited).await;
    done(&host, &quick, much()).await;
    done(&host, &new, much()).await;
    let metrics = host.admin(Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
    assert!(!metrics.contains("tenant=\"gone\""), "it can't use this host: {metrics}");
    host.server.shutdown().await;

    let host = place.host(&[&gone, &new]).await;
    is_refused(&host, &gone).await;
    is_refused(&host, &new).await;
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_file_is_set_aside_and_policies_begin_cold() {
    let place = Place::new();
    let limited = key("limited", LIMIT);
    let host = place.host(&[&limited]).await;
    done(&host, &limited, much()).await;
    host.server.shutdown().await;
    let file = place.state().join("exported.state");
    let mut bytes = fs::read(&file).unwrap();
    let has = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
    assert!(has("limited") && !has(&limited.text), "it has names, and no keys");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, &bytes).unwrap();

    let host = place.host(&[&limited]).await;
    let not_restored = host.admin_get("/admin/policies").await["not_restored"].clone();
    let why = not_restored[0].as_str().unwrap();
    assert!(why.contains("exported.state in ") && why.contains("was not restored: it is damaged"), "{why}");
    assert!(fs::read(place.state().join("unread/exported.state")).unwrap() == bytes, "it is kept");
    done(&host, &limited, much()).await;
    host.server.shutdown().await;

    let host = place.host(&[&limited]).await;
    assert_eq!(host.admin_get("/admin/policies").await["not_restored"], Value::Null);
    is_refused(&host, &limited).await;
    host.server.shutdown().await;
}

/// As at a swap: a policy of the same name goes on with what was known, a list with that of its members.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_configuration_goes_on_and_another_policy_does_not() {
    let place = Place::new();
    let host = async |name: &str, settings: Value| {
        let admission = PolicyChoice { name: name.to_owned(), config: settings.to_string() };
        Host::start(Config { admission, ..keeping(&place.state()) }).await
    };
    let status = async |host: &Host| host.complete(much()).await.status().as_u16();
    let bucket = |rate: u32| json!({"tokens_per_minute": rate, "burst": 40});

    let first = host("token-bucket", bucket(1)).await;
    first.events(much()).await;
    assert_eq!(status(&first).await, 429);
    first.server.shutdown().await;

    let changed = host("token-bucket", bucket(2)).await;
    assert_eq!(status(&changed).await, 429);
    changed.server.shutdown().await;

    let listed = host("memory-aware,token-bucket", json!({"token-bucket": bucket(2)})).await;
    assert_eq!(status(&listed).await, 429);
    listed.server.shutdown().await;

    let other = host("memory-aware", json!({})).await;
    other.events(much()).await;
    let state = other.admin_get("/admin/state").await["policy_state"].clone();
    let kinds: Vec<_> = state["restored"].as_array().unwrap().iter().map(|one| &one["kind"]).collect();
    assert_eq!((kinds, &state["not_restored"]), (vec![&json!("scheduler")], &Value::Null));
    other.server.shutdown().await;

    let back = host("token-bucket", bucket(1)).await;
    back.events(much()).await;
    back.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_policy_knew_waits_for_it_until_it_can_be_loaded_or_an_operator_replaces_it() {
    let place = Place::new();
    let bucket = infer_bundle::find("admission", "token-bucket").unwrap();
    let host = Host::start(keeping(&place.state())).await;
    let config = "%7B%22tokens_per_minute%22%3A1%2C%22burst%22%3A40%7D";
    let swap = host.admin(Method::PUT, &format!("/admin/policies/admission?config={config}"));
    assert_eq!(swap.body(bucket.component).send().await.unwrap().status(), 200);
    let status = async |host: &Host| host.complete(much()).await.status().as_u16();
    host.events(much()).await;
    assert_eq!(status(&host).await, 429);
    host.server.shutdown().await;

    let component = place.state().join(format!("{}.wasm", bucket.sha256));
    let known = || fs::read(place.state().join("exported.state")).unwrap();
    let waits = || known().windows(12).any(|part| part == b"token-bucket");
    // Twice, because the second start finds what the first has saved.
    for _ in 0..2 {
        fs::write(&component, "damaged").unwrap();
        let host = Host::start(keeping(&place.state())).await;
        let not_restored = host.admin_get("/admin/policies").await["not_restored"].clone();
        let why = not_restored[0].as_str().unwrap();
        assert!(
            why.contains("`token-bucket` couldn't be loaded; the next start tries again, with what"),
            "{why}"
        );
        // What is configured has no such limit, and is saved.
        host.events(much()).await;
        host.events(much()).await;
        host.server.shutdown().await;
        assert!(waits());
    }

    fs::write(&component, bucket.component).unwrap();
    let host = Host::start(keeping(&place.state())).await;
    assert_eq!(status(&host).await, 429);
    let restored = host.admin_get("/admin/policies").await["restored"].clone();
    let policies: Vec<_> = restored.as_array().unwrap().iter().map(|one| &one["policy"]).collect();
    assert!(policies.contains(&&json!("token-bucket")), "{restored}");
    host.server.shutdown().await;

    fs::write(&component, "damaged").unwrap();
    let host = Host::start(keeping(&place.state())).await;
    let swap = host.admin(Method::PUT, "/admin/policies/admission").json(&json!({"name": "builtin"}));
    assert_eq!(swap.send().await.unwrap().status(), 200);
    host.events(much()).await;
    host.server.shutdown().await;
    assert!(!waits(), "nobody waits for it any more");
}

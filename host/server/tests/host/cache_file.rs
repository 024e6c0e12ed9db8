//! The prefix cache outlives its host.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{self, Host, config, events, first_chunk, request};
use infer_model::{DType, KvCacheKind, Quantize};
use infer_server::config::{Bounds, Config};
use infer_server::serve;
use infer_server::tenants::{KeyDigest, fresh};
use reqwest::Method;
use serde_json::{Value, json};

/// Some two hundred tokens.
fn long(about: &str) -> String {
    (0..20).map(|nth| format!("{about} {nth} is a prefix that many requests share. ")).collect()
}

fn keeping(path: &Path) -> Config {
    Config { cache_file: Some(path.to_owned()), ..config() }
}

/// Text of a response, and how much of its prompt was cached.
async fn ask(host: &Host, key: &str, extra: Value) -> (String, u64) {
    let mut body = request(extra);
    body["stream"] = json!(false);
    let answer = host.client.post(host.url("/v1/completions")).bearer_auth(key).json(&body).send().await;
    let body: Value = answer.unwrap().error_for_status().unwrap().json().await.unwrap();
    let cached = body["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (body["choices"][0]["text"].as_str().unwrap().to_owned(), cached)
}

/// How much of a prompt a host that starts like this finds cached. It shuts down again.
async fn found(config: Config, prompt: &str) -> u64 {
    let host = Host::start(config).await;
    let (_, cached) = ask(&host, "", json!({"prompt": prompt})).await;
    host.server.shutdown().await;
    cached
}

fn file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("cache");
    (dir, path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_host_knows_the_prefixes_of_the_one_before() {
    let (dir, path) = file();
    let host = Host::start(keeping(&path)).await;
    let prompt = long("First");
    let (text, cached) = ask(&host, "", json!({"prompt": prompt})).await;
    assert_eq!(cached, 0);
    assert!(!path.exists(), "it is written at the end");
    host.server.shutdown().await;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left there");

    std::fs::write(path.with_added_extension("partial"), "prompts that a killed host wrote").unwrap();
    let host = Host::start(keeping(&path)).await;
    assert!(!path.with_added_extension("partial").exists(), "it is removed");
    let state = host.admin_get("/admin/state").await;
    let restored = state["memory"]["cached"].as_u64().unwrap();
    assert!(restored > 8, "{state}");
    let (again, cached) = ask(&host, "", json!({"prompt": prompt})).await;
    assert_eq!(again, text);
    assert!(cached >= (restored - 1) * 16 && cached > 128, "{cached} tokens of {restored} blocks");
    // What continues the prompt, and a swap that tells the new policy of the restored blocks.
    let swap = host.admin(Method::PUT, "/admin/policies/prefix-cache").json(&json!({"name": "s3-fifo"}));
    assert_eq!(swap.send().await.unwrap().status(), 200);
    let (_, cached) = ask(&host, "", json!({"prompt": format!("{prompt}And more.")})).await;
    assert!(cached > 128);
    host.server.shutdown().await;

    // The second host saved what it was given, too.
    assert!(found(keeping(&path), &prompt).await > 128);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn admin_plane_is_open_until_the_cache_is_saved() {
    let (_dir, path) = file();
    let host = Host::start(keeping(&path)).await;
    ask(&host, "", json!({"prompt": long("Saved")})).await;
    // Saving waits for another host that seems to write the file.
    let other = std::fs::File::create(path.with_added_extension("partial")).unwrap();
    other.lock().unwrap();
    let (data, admin) = (host.server.data_addr, host.server.admin_addr);
    let scrape = host.admin(Method::GET, "/metrics");
    let saving = |text: &str| text.contains("\ninfer_cache_file_saving 1.0\n");
    let scraped = async || scrape.try_clone().unwrap().send().await.unwrap().text().await.unwrap();
    assert!(!saving(&scraped().await));
    let ended = tokio::spawn(host.ends());
    while !saving(&scraped().await) {}
    assert!(tokio::net::TcpStream::connect(data).await.is_err(), "the data plane is closed");
    drop(other);
    ended.await.unwrap();
    assert!(tokio::net::TcpStream::connect(admin).await.is_err());
    assert!(found(keeping(&path), &long("Saved")).await > 128, "it is saved");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_plane_is_closed_while_the_cache_is_saved_also_after_streams_were_cut() {
    let (_dir, path) = file();
    let host = Host::start(keeping(&path)).await;
    ask(&host, "", json!({"prompt": long("Saved")})).await;
    let other = std::fs::File::create(path.with_added_extension("partial")).unwrap();
    other.lock().unwrap();
    host.server.engine().hold_steps();
    let cut = host.complete(json!({})).await;
    let data = host.server.data_addr;
    let scrape = host.admin(Method::GET, "/metrics");
    let is_saving = async || {
        let text = scrape.try_clone().unwrap().send().await.unwrap().text().await.unwrap();
        text.contains("\ninfer_cache_file_saving 1.0\n")
    };
    let ended = tokio::spawn(host.server.close_within(common::LONG));
    let (name, error) = events(cut).await.pop().unwrap();
    assert_eq!((name.as_str(), &error["code"]), ("error", &json!("stopped")));
    while !is_saving().await {}
    while tokio::net::TcpStream::connect(data).await.is_ok() {}
    assert!(is_saving().await, "nobody waits for it at a host that takes nothing");
    drop(other);
    ended.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_model_or_block_size_left_is_not_used() {
    let (_dir, path) = file();
    let prompt = long("Other");
    assert_eq!(found(keeping(&path), &prompt).await, 0);
    let saved = std::fs::read(&path).unwrap();
    for other in [
        Config { quantize: Quantize::Q8, ..keeping(&path) },
        Config { dtype: Some(DType::F32), ..keeping(&path) },
        Config { block_size: 32, ..keeping(&path) },
    ] {
        std::fs::write(&path, &saved).unwrap();
        assert_eq!(found(other, &prompt).await, 0);
    }
    std::fs::write(&path, &saved).unwrap();
    // Nor is it lost if such a host stops without a request.
    for other in [Config { quantize: Quantize::Q8, ..keeping(&path) }, keeping(&path)] {
        Host::start(other).await.server.shutdown().await;
    }
    let fewer_threads = Config { threads: 1, max_batch_size: 4, ..keeping(&path) };
    assert!(found(fewer_threads, &prompt).await > 128, "these change no bits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_file_is_left_out_and_replaced() {
    let (_dir, path) = file();
    let prompt = long("Damaged");
    assert_eq!(found(keeping(&path), &prompt).await, 0);
    let saved = std::fs::read(&path).unwrap();
    for damage in [
        |bytes: &mut Vec<u8>| bytes[..8].fill(0xff),
        |bytes: &mut Vec<u8>| bytes.truncate(bytes.len() - 1),
        |bytes: &mut Vec<u8>| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        },
    ] {
        let mut bytes = saved.clone();
        damage(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(found(keeping(&path), &prompt).await, 0);
        assert!(found(keeping(&path), &prompt).await > 128, "the shutdown wrote a sound one");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_keep_their_own_and_salted_prefixes_are_not_saved() {
    let (dir, path) = file();
    let keys = dir.path().join("tenants.toml");
    let tenant = |name: &str| {
        let text = fresh().unwrap();
        let table = format!("[tenants.{name}]\nkeys = [\"{}\"]\n", KeyDigest::of(&text));
        (text, table)
    };
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(tenant);
    let config = || Config { api_keys: Some(keys.clone()), ..keeping(&path) };
    std::fs::write(&keys, format!("{}{}", alice.1, bob.1)).unwrap();
    let (of_alice, of_bob, salted) = (long("Alice"), long("Bob"), long("Salted"));
    let host = Host::start(config()).await;
    ask(&host, &alice.0, json!({"prompt": of_alice})).await;
    ask(&host, &bob.0, json!({"prompt": of_bob})).await;
    let with_salt = json!({"prompt": salted, "cache_salt": "s"});
    ask(&host, &bob.0, with_salt.clone()).await;
    assert!(ask(&host, &bob.0, with_salt.clone()).await.1 > 128);
    host.server.shutdown().await;
    let saved = std::fs::read(&path).unwrap();

    // Other numbers, and one tenant less.
    std::fs::write(&keys, format!("{}{}", carol.1, bob.1)).unwrap();
    let host = Host::start(config()).await;
    for (key, body, hits) in [
        (&bob.0, json!({"prompt": of_bob}), true),
        (&bob.0, json!({"prompt": of_alice}), false),
        (&carol.0, json!({"prompt": of_alice}), false),
        (&carol.0, json!({"prompt": of_bob}), false),
        (&bob.0, with_salt, false),
        (&bob.0, json!({"prompt": salted}), false),
    ] {
        let (_, cached) = ask(&host, key, body.clone()).await;
        assert_eq!(cached > 0, hits, "{body}");
    }
    host.server.shutdown().await;

    std::fs::write(&path, saved).unwrap();
    std::fs::write(&keys, &alice.1).unwrap();
    let host = Host::start(config()).await;
    assert!(ask(&host, &alice.0, json!({"prompt": of_alice})).await.1 > 128);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_holds_no_more_than_it_may() {
    let (_dir, path) = file();
    let (older, newer) = (long("Older"), long("Newer"));
    // A block of the demo model takes twenty kilobytes.
    let small = || Config { cache_file_bytes: 300 << 10, ..keeping(&path) };
    let host = Host::start(small()).await;
    for prompt in [&older, &newer] {
        ask(&host, "", json!({"prompt": prompt})).await;
    }
    let cached = host.admin_get("/admin/state").await["memory"]["cached"].as_u64().unwrap();
    host.server.shutdown().await;
    let bytes = std::fs::metadata(&path).unwrap().len();
    assert!(bytes <= 300 << 10 && bytes > 250 << 10, "{bytes}");
    let saved = std::fs::read(&path).unwrap();
    assert!(found(small(), &newer).await > 128);
    std::fs::write(&path, &saved).unwrap();
    let host = Host::start(small()).await;
    assert!(host.admin_get("/admin/state").await["memory"]["cached"].as_u64().unwrap() < cached);
    let (_, of_older) = ask(&host, "", json!({"prompt": older})).await;
    assert!(of_older < 64, "{of_older}");
    host.server.shutdown().await;
    std::fs::write(&path, saved).unwrap();
    let none = Config { cache_file_bytes: 1, ..keeping(&path) };
    assert!(found(none, &newer).await > 128, "what is there is restored");
    assert!(found(keeping(&path), &newer).await > 128, "and stays, because nothing fits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_a_shutdown_cuts_leave_their_prefixes() {
    let (_dir, path) = file();
    let prompt = long("Cut");
    let bounds = Bounds { drain_timeout: Duration::from_millis(1), ..common::bounds() };
    let host = Host::start(Config { bounds, ..keeping(&path) }).await;
    let endless = json!({"prompt": prompt, "ignore_eos": true, "max_tokens": 1_500});
    let stream = first_chunk(host.complete(endless).await).await;
    host.server.shutdown().await;
    drop(stream);
    assert!(found(keeping(&path), &prompt).await > 128);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cleared_cache_is_not_saved() {
    let (_dir, path) = file();
    let prompt = long("Cleared");
    assert_eq!(found(keeping(&path), &prompt).await, 0);
    let host = Host::start(keeping(&path)).await;
    let cleared = host.admin(Method::DELETE, "/admin/cache").send().await.unwrap();
    assert!(cleared.status().is_success(), "{cleared:?}");
    assert!(!path.exists(), "it would come back if the host was killed");
    host.server.shutdown().await;
    assert_eq!(found(keeping(&path), &prompt).await, 0);

    let host = Host::start(keeping(&path)).await;
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let cleared = host.admin(Method::DELETE, "/admin/cache").send().await.unwrap();
    assert_eq!(cleared.status(), 500);
    let said = cleared.text().await.unwrap();
    assert!(said.contains("--cache-file can't be removed"), "{said}");
    assert_eq!(host.admin_get("/admin/state").await["memory"]["cached"], 0);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_to_the_file_stays_one() {
    let (dir, path) = file();
    let (link, prompt) = (dir.path().join("link"), long("Linked"));
    std::fs::write(&path, "").unwrap();
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert_eq!(found(keeping(&link), &prompt).await, 0);
    assert!(link.is_symlink() && !path.is_symlink());
    assert!(found(keeping(&path), &prompt).await > 128);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_without_a_file_are_refused_and_caches_without_blocks_need_none() {
    let (dir, path) = file();
    let other = dir.path().join("infer.toml");
    std::fs::write(&other, "port = 8000").unwrap();
    for (wrong, said) in [
        (dir.path().to_owned(), "it is no file"),
        (path.join("deeper"), "its directory does not exist"),
        (other.clone(), "it holds something else"),
    ] {
        let error = serve::start(keeping(&wrong)).await.err().expect("there can be no file");
        assert!(error.is_usage(), "{error}");
        let text = error.to_string();
        assert!(text.starts_with("--cache-file: ") && text.contains(said), "{text}");
    }
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "port = 8000");
    for config in [
        Config { kv_cache: KvCacheKind::Contiguous, max_batch_size: 2, ..keeping(&path) },
        Config { prefix_caching: false, ..keeping(&path) },
    ] {
        assert_eq!(found(config, &long("None")).await, 0);
        assert!(!path.exists());
    }
}

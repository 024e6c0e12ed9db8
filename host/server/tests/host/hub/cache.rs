//! What is in the cache, and what is downloaded because it is missing there.

use std::fs;
use std::path::Path;

use infer_model::{Model, ModelConfig, Pooling, Source, Tokenizer};
use infer_server::startup::checkpoint::{Hub, find, find_adapter};

use super::fake::{Act, COMMIT, FakeHub};
use super::files::{FILES, INDEX, SHARDS, TOOLS, WEIGHTS, content, digest, golden, weights};
use super::{hub, snapshot};

#[test]
fn checkpoint_is_downloaded_once_and_then_found_in_the_cache() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let hub = hub(&server, &cache);
    let found = find("org/tiny", &hub).unwrap();
    assert_eq!(found.names, ["org/tiny"]);
    Model::load(&found.source, None).unwrap();
    Tokenizer::load(&found.source).unwrap();
    assert_eq!(server.weights_from(), [0]);

    find("org/tiny", &Hub { offline: true, ..hub.clone() }).unwrap();
    assert_eq!(server.asked(), []);

    // The layout is that of the hub's own tools.
    let repository = cache.path().join("hub/models--org--tiny");
    assert_eq!(fs::read_to_string(repository.join("refs/main")).unwrap(), COMMIT);
    let link = fs::read_link(snapshot(&cache, "tiny").join(WEIGHTS)).unwrap();
    assert_eq!(link, Path::new("../../blobs").join(digest(&weights())));

    // A file missing from the cache is named offline, and downloaded alone online.
    fs::remove_file(repository.join("blobs/tokenizer.json-etag")).unwrap();
    let error = find("org/tiny", &Hub { offline: true, ..hub.clone() }).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json is missing") && error.contains("HF_HUB_OFFLINE"), "{error}");
    find("org/tiny", &hub).unwrap();
    assert!(!server.asked().iter().any(|(what, ..)| what.contains("safetensors")));
}

#[test]
fn single_file_of_weights_is_preferred_to_an_index() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let hub = hub(&server, &cache);
    find("org/merged", &hub).unwrap();
    assert!(!server.asked().iter().any(|(what, ..)| what.ends_with("index.json")));
    let index = r#"{"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}"#;
    fs::write(snapshot(&cache, "merged").join("model.safetensors.index.json"), index).unwrap();
    let found = find("org/merged", &Hub { offline: true, ..hub }).unwrap();
    Model::load(&found.source, None).unwrap();
}

#[test]
fn shards_are_downloaded_with_their_index() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let found = find("org/sharded", &hub(&server, &cache)).unwrap();
    Model::load(&found.source, None).unwrap();
    for file in [INDEX, SHARDS[0], SHARDS[1]] {
        assert!(snapshot(&cache, "sharded").join(file).is_file(), "{file}");
    }
}

#[test]
fn index_that_is_too_large_is_named_and_not_read() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let hub = hub(&server, &cache);
    find("org/sharded", &hub).unwrap();
    let index = snapshot(&cache, "sharded").join(INDEX);
    // In place of the link.
    fs::remove_file(&index).unwrap();
    fs::File::create(&index).unwrap().set_len((256 << 20) + 1).unwrap();
    let error = find("org/sharded", &Hub { offline: true, ..hub }).map(drop).unwrap_err().to_string();
    assert!(error.contains(&format!("{} has 268435457 bytes, and at most ", index.display())), "{error}");
}

#[test]
fn template_for_tools_is_downloaded_into_its_folder() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let hub = hub(&server, &cache);
    let found = find("org/templated", &hub).unwrap();
    assert_eq!(found.source.read(TOOLS).unwrap().as_deref(), content(TOOLS).as_deref());
    let link = fs::read_link(snapshot(&cache, "templated").join(TOOLS)).unwrap();
    assert!(link.starts_with("../../../blobs"), "{link:?}");
}

#[test]
fn adapters_are_downloaded_once_and_repositories_without_one_refused() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let hub = hub(&server, &cache);
    let found = find_adapter("org/adapter", &hub).unwrap();
    assert_eq!(found, snapshot(&cache, "adapter"));
    let base = Source::Directory(golden().with_file_name("qwen3-bf16"));
    Model::check_adapter(&Source::Directory(found), &ModelConfig::load(&base).unwrap()).unwrap();
    server.asked();
    find_adapter("org/adapter", &Hub { offline: true, ..hub.clone() }).unwrap();
    assert_eq!(server.asked(), []);
    let error = find_adapter("org/tiny", &hub).unwrap_err().to_string();
    assert!(error.contains("the repository has no adapter_config.json; give an adapter"), "{error}");
    let error = find_adapter("org/other", &Hub { offline: true, ..hub }).unwrap_err().to_string();
    assert!(error.contains("download the adapter first (`hf download org/other`)"), "{error}");
    let error = find_adapter("no/such/place", &Hub::default()).unwrap_err().to_string();
    assert!(error.contains("no/such/place does not exist; give the directory of an adapter"), "{error}");
}

#[test]
fn files_that_say_how_a_checkpoint_embeds_are_downloaded() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let found = find("org/embedding", &hub(&server, &cache)).unwrap();
    let pooling = ModelConfig::load(&found.source).unwrap().pooling;
    assert_eq!(pooling, Some(Pooling::Last { normalized: true }));
}

/// People link large repositories to another disk; the locks stay on the first.
#[test]
fn repository_linked_to_another_disk_is_completed() {
    let disk = Path::new("/dev/shm");
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let other = match tempfile::tempdir_in(disk) {
        Ok(other) => other,
        Err(why) => return eprintln!("skipped: {} can't be the other disk: {why}", disk.display()),
    };
    fs::create_dir_all(cache.path().join("hub")).unwrap();
    std::os::unix::fs::symlink(other.path(), cache.path().join("hub/models--org--tiny")).unwrap();
    find("org/tiny", &hub(&server, &cache)).unwrap();
    let refs: Vec<_> =
        fs::read_dir(other.path().join("refs")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(refs, ["main"], "nothing is left beside the ref");
}

#[test]
fn two_hosts_with_one_cache_download_each_file_once() {
    let (server, cache) = (FakeHub::acting(&[Act::AfterLists(2)]), tempfile::tempdir().unwrap());
    let hub = hub(&server, &cache);
    std::thread::scope(|scope| {
        let hosts = [(); 2].map(|()| scope.spawn(|| find("org/tiny", &hub).unwrap()));
        for host in hosts {
            Model::load(&host.join().unwrap().source, None).unwrap();
        }
    });
    let mut fetched: Vec<String> = server
        .asked()
        .into_iter()
        .filter(|(what, ..)| what.contains("/resolve/"))
        .map(|(what, ..)| what)
        .collect();
    fetched.retain(|what| what.starts_with("GET"));
    fetched.sort();
    let mut files: Vec<String> =
        FILES.iter().map(|file| format!("GET /org/tiny/resolve/{COMMIT}/{file}")).collect();
    files.sort();
    assert_eq!(fetched, files);
}

#[test]
fn only_missing_files_need_room() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let hub = hub(&server, &cache);
    let snapshot = snapshot(&cache, "huge");
    fs::create_dir_all(&snapshot).unwrap();
    for file in FILES {
        fs::copy(golden().join(file), snapshot.join(file)).unwrap();
    }
    // Without a ref, as after an interrupted download.
    find("org/huge", &hub).unwrap();
    fs::remove_file(snapshot.join(WEIGHTS)).unwrap();
    let error = find("org/huge", &hub).unwrap_err().to_string();
    assert!(error.contains("MiB free") && error.contains("HF_HUB_CACHE"), "{error}");
}

#[test]
fn newer_commit_of_a_repository_replaces_an_incomplete_one() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let repository = cache.path().join("hub/models--org--tiny");
    let old = repository.join("snapshots/fedcba");
    fs::create_dir_all(&old).unwrap();
    fs::create_dir_all(repository.join("refs")).unwrap();
    fs::write(repository.join("refs/main"), "fedcba").unwrap();
    fs::copy(golden().join("config.json"), old.join("config.json")).unwrap();
    let index = r#"{"weight_map": {"model.norm.weight": "model-00003-of-00004.safetensors"}}"#;
    fs::write(old.join("model.safetensors.index.json"), index).unwrap();
    let found = find("org/tiny", &hub(&server, &cache)).unwrap();
    Model::load(&found.source, None).unwrap();
    assert_eq!(fs::read_to_string(repository.join("refs/main")).unwrap(), COMMIT);
}

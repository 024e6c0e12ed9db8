//! `--model ORG/NAME` against a hub made of a socket: found in the cache, downloaded, resumed, refused.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use infer_model::{Model, Tokenizer};
use infer_server::checkpoint::{Hub, find};

const FILES: &[&str] = &[
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
];
const COMMIT: &str = "0123456789abcdef";

/// Answers like the hub's API as far as a download needs it.
struct FakeHub {
    endpoint: String,
    asked: Arc<Mutex<Vec<String>>>,
    /// Connections on which the weights break off halfway.
    cut: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl FakeHub {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let hub = Self { endpoint, asked: Arc::default(), cut: Arc::default(), stop: Arc::default() };
        let (asked, cut, stop) = (Arc::clone(&hub.asked), Arc::clone(&hub.cut), Arc::clone(&hub.stop));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let (asked, cut) = (Arc::clone(&asked), Arc::clone(&cut));
                std::thread::spawn(move || answer(stream.unwrap(), &asked, &cut));
            }
        });
        hub
    }

    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.endpoint.trim_start_matches("http://"));
    }
}

fn answer(mut stream: TcpStream, asked: &Mutex<Vec<String>>, cut: &AtomicUsize) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let Some(Ok(request)) = lines.next() else { return };
    let path = request.split(' ').nth(1).unwrap().to_owned();
    let mut start = None;
    for line in lines.map_while(Result::ok).take_while(|line| !line.is_empty()) {
        if let Some(range) = line.to_ascii_lowercase().strip_prefix("range: bytes=") {
            let (from, to) = range.split_once('-').unwrap();
            start = Some((from.parse::<usize>().unwrap(), to.parse::<usize>().ok()));
        }
    }
    asked.lock().unwrap().push(path.clone());
    let status = |stream: &mut TcpStream, status: &str| {
        let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    if let Some(rest) = path.strip_prefix("/api/models/") {
        let size = |name: &str| std::fs::metadata(golden().join(name)).unwrap().len();
        let files: Vec<(String, u64)> = match rest.split(['?', '/']).nth(1).unwrap() {
            "gated" => return status(&mut stream, "403 Forbidden"),
            "absent" => return status(&mut stream, "404 Not Found"),
            "pickled" => {
                vec![("config.json".into(), 9), ("tokenizer.json".into(), 9), ("model.bin".into(), 9)]
            }
            // Shards that were merged, and their index that was left.
            "merged" => {
                let index = ("model.safetensors.index.json".to_owned(), 9);
                FILES.iter().map(|file| ((*file).to_owned(), size(file))).chain([index]).collect()
            }
            "huge" => FILES.iter().map(|file| ((*file).to_owned(), 1 << 58)).collect(),
            _ => FILES.iter().map(|file| ((*file).to_owned(), size(file))).collect(),
        };
        let files: Vec<_> =
            files.iter().map(|(n, s)| serde_json::json!({"rfilename": n, "size": s})).collect();
        let body = serde_json::json!({"sha": COMMIT, "siblings": files}).to_string();
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        return;
    }
    let (_, name) = path.split_once("/resolve/main/").unwrap();
    let Ok(bytes) = std::fs::read(golden().join(name)) else { return status(&mut stream, "404 Not Found") };
    let (from, to) = start.unwrap_or((0, None));
    let to = to.map_or(bytes.len(), |to| to + 1).min(bytes.len());
    let _ = write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\nETag: \"{name}-etag\"\r\nX-Repo-Commit: {COMMIT}\r\n\
         Content-Range: bytes {from}-{}/{}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        to.max(1) - 1,
        bytes.len(),
        to - from
    );
    let half = name == "model.safetensors"
        && to - from > 1
        && cut.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
    let end = if half { from + (to - from) / 2 } else { to };
    let _ = stream.write_all(&bytes[from..end]);
}

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/llama-f32")
}

fn hub(server: &FakeHub, cache: &std::path::Path) -> Hub {
    Hub {
        cache: Some(cache.join("hub")),
        offline: false,
        endpoint: Some(server.endpoint.clone()),
        token: Some("secret".to_owned()),
    }
}

#[test]
fn a_checkpoint_is_downloaded_once_and_then_found_in_the_cache() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let hub = hub(&server, cache.path());
    let found = find("org/tiny", &hub).unwrap();
    assert_eq!(found.names, ["org/tiny"]);
    Model::load(&found.source, None).unwrap();
    Tokenizer::load(&found.source).unwrap();
    let asked = server.asked();
    assert!(asked.iter().any(|path| path.ends_with("/org/tiny/resolve/main/model.safetensors")), "{asked:?}");

    find("org/tiny", &Hub { offline: true, ..hub.clone() }).unwrap();
    assert_eq!(server.asked(), Vec::<String>::new());

    // A file that is gone from the cache is named offline, and fetched alone online.
    let snapshot = cache.path().join("hub/models--org--tiny/snapshots").join(COMMIT);
    std::fs::remove_file(snapshot.join("tokenizer.json")).unwrap();
    let error = find("org/tiny", &Hub { offline: true, ..hub.clone() }).unwrap_err();
    assert!(error.contains("tokenizer.json is missing") && error.contains("HF_HUB_OFFLINE"), "{error}");
    find("org/tiny", &hub).unwrap();
    assert!(!server.asked().iter().any(|path| path.contains("safetensors")));
}

#[test]
fn one_file_of_weights_is_taken_before_an_index_of_others() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let hub = hub(&server, cache.path());
    find("org/merged", &hub).unwrap();
    assert!(!server.asked().iter().any(|path| path.ends_with("index.json")));
    let snapshot = cache.path().join("hub/models--org--merged/snapshots").join(COMMIT);
    let index = r#"{"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}"#;
    std::fs::write(snapshot.join("model.safetensors.index.json"), index).unwrap();
    let found = find("org/merged", &Hub { offline: true, ..hub }).unwrap();
    Model::load(&found.source, None).unwrap();
}

#[test]
fn a_download_that_broke_off_goes_on_where_it_was() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    server.cut.store(2, Ordering::SeqCst);
    let found = find("org/tiny", &hub(&server, cache.path())).unwrap();
    Model::load(&found.source, None).unwrap();
    assert_eq!(server.cut.load(Ordering::SeqCst), 0);
}

#[test]
fn what_can_t_be_downloaded_says_why_and_what_to_do() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let hub = hub(&server, cache.path());
    for (name, parts) in [
        ("org/gated", &["refuses access to org/gated", "HF_TOKEN"][..]),
        ("org/absent", &["has no org/absent"]),
        ("org/pickled", &["has no model.safetensors", "GGUF"]),
        ("org/huge", &["MiB free", "HF_HUB_CACHE"]),
    ] {
        let error = find(name, &hub).unwrap_err();
        assert!(
            error.starts_with("--model: ") && parts.iter().all(|part| error.contains(part)),
            "{name}: {error}"
        );
    }
    let nowhere = Hub { endpoint: Some("http://127.0.0.1:1".to_owned()), ..hub };
    let error = find("org/tiny", &nowhere).unwrap_err();
    assert!(error.contains("can't be reached") && error.contains("hf download org/tiny"), "{error}");
}

//! `--model ORG/NAME` against hubs made of sockets: found in the cache, downloaded, resumed, refused; by hubs that break
//! off, stall, lie and send their clients elsewhere.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use infer_model::{Model, Tokenizer};
use infer_server::checkpoint::{CheckpointError, Hub, Patience, find};
use serde_json::json;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const FILES: &[&str] =
    &["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS];
const WEIGHTS: &str = "model.safetensors";
const COMMIT: &str = "0123456789abcdef";
const TOKEN: &str = "authorization: bearer secret";

/// What becomes of a request for the weights.
#[derive(Clone, Debug)]
enum Act {
    /// All that was asked for.
    Serve,
    /// A status and nothing else.
    Status(u16),
    /// So many bytes, then the connection ends.
    Cut(usize),
    /// So many bytes, then nothing, and the connection stays.
    Stall(usize),
    /// From the first byte on, whatever was asked for.
    FromTheFirstByte,
    /// As long as it should be, but other bytes.
    Garbled,
    /// A few bytes more than there are.
    TooLong,
    /// Nothing before so many have asked for the list of files.
    AfterLists(usize),
    /// Who asks is sent there.
    Redirect(Option<String>),
}

#[derive(Default)]
struct State {
    /// Method, path and first byte of each request, and whether it had the token.
    asked: Vec<(String, u64, bool)>,
    /// For one request each; then `otherwise`.
    acts: VecDeque<Act>,
    otherwise: Option<Act>,
    /// Instead of the weights' digest.
    etag: Option<String>,
}

/// Answers like the hub's API as far as a download needs it.
struct FakeHub {
    endpoint: String,
    state: Arc<Mutex<State>>,
}

impl FakeHub {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let hub = Self { endpoint, state: Arc::default() };
        let state = Arc::downgrade(&hub.state);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Some(state) = state.upgrade() else { return };
                std::thread::spawn(move || answer(stream.unwrap(), &state));
            }
        });
        hub
    }

    fn acting(acts: &[Act]) -> Self {
        let hub = Self::start();
        hub.state.lock().unwrap().acts.extend(acts.iter().cloned());
        hub
    }

    fn asked(&self) -> Vec<(String, u64, bool)> {
        std::mem::take(&mut self.state.lock().unwrap().asked)
    }

    /// First bytes of the requests for the weights' content.
    fn weights_from(&self) -> Vec<u64> {
        let asked = self.asked();
        let weights = asked.iter().filter(|(what, ..)| what.starts_with("GET") && what.ends_with(WEIGHTS));
        weights.map(|(_, from, _)| *from).collect()
    }
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        let last = std::mem::take(&mut self.state);
        drop(last);
        let _ = TcpStream::connect(self.endpoint.trim_start_matches("http://"));
    }
}

fn answer(mut stream: TcpStream, state: &Mutex<State>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let Some(Ok(request)) = lines.next() else { return };
    let (method, path) = request.rsplit_once(' ').unwrap().0.split_once(' ').unwrap();
    let heads: Vec<String> = lines
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
        .map(|l| l.to_ascii_lowercase())
        .collect();
    let from =
        heads.iter().find_map(|head| head.strip_prefix("range: bytes=")?.strip_suffix('-')?.parse().ok());
    let asked = (format!("{method} {path}"), from.unwrap_or(0), heads.iter().any(|head| head == TOKEN));
    state.lock().unwrap().asked.push(asked);
    if let Some(rest) = path.strip_prefix("/api/models/") {
        return list(&mut stream, rest.split(['?', '/']).nth(1).unwrap());
    }
    let (repository, name) = path.split_once(&format!("/resolve/{COMMIT}/")).unwrap();
    let Ok(bytes) = fs::read(golden().join(name)) else { return status(&mut stream, 404, "") };
    if method == "HEAD" {
        let size = if repository.ends_with("huge") { 1 << 58 } else { bytes.len() as u64 };
        let etag = if name == WEIGHTS { digest(&bytes) } else { format!("{name}-etag") };
        let etag = state.lock().unwrap().etag.clone().filter(|_| name == WEIGHTS).unwrap_or(etag);
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nETag: \"{etag}\"\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
        );
        return;
    }
    let act = match name {
        WEIGHTS => {
            let mut state = state.lock().unwrap();
            state.acts.pop_front().or(state.otherwise.clone()).unwrap_or(Act::Serve)
        }
        _ => Act::Serve,
    };
    send(stream, &bytes, from, act, state);
}

fn list(stream: &mut TcpStream, repository: &str) {
    let size = |name: &str| fs::metadata(golden().join(name)).unwrap().len();
    let all = || FILES.iter().map(|file| ((*file).to_owned(), size(file)));
    let files: Vec<(String, u64)> = match repository {
        "gated" => return status(stream, 403, ""),
        "absent" => return status(stream, 404, ""),
        "broken" => return status(stream, 500, ""),
        "pickled" => vec![("config.json".into(), 9), ("tokenizer.json".into(), 9), ("model.bin".into(), 9)],
        // Shards that were merged, and their index that was left.
        "merged" => all().chain([("model.safetensors.index.json".to_owned(), 9)]).collect(),
        _ => all().collect(),
    };
    let files: Vec<_> = files.iter().map(|(n, s)| json!({"rfilename": n, "size": s})).collect();
    let body = json!({"sha": COMMIT, "siblings": files}).to_string();
    let _ = write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
}

fn send(mut stream: TcpStream, bytes: &[u8], from: Option<u64>, act: Act, state: &Mutex<State>) {
    let from = from.filter(|_| !matches!(act, Act::FromTheFirstByte)).map(|from| from as usize);
    let mut content = bytes[from.unwrap_or(0)..].to_vec();
    match &act {
        Act::Status(code) => return status(&mut stream, *code, ""),
        Act::Redirect(None) => return status(&mut stream, 302, ""),
        Act::Redirect(Some(to)) => return status(&mut stream, 302, &format!("Location: {to}\r\n")),
        Act::Garbled => content.fill(b'?'),
        Act::TooLong => content.extend(b"more"),
        Act::AfterLists(count) => {
            let lists =
                || state.lock().unwrap().asked.iter().filter(|(what, ..)| what.contains("/api/")).count();
            while lists() < *count {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        Act::Serve | Act::Cut(_) | Act::Stall(_) | Act::FromTheFirstByte => {}
    }
    let (first, all) = (from.unwrap_or(0), bytes.len());
    let range = format!("Content-Range: bytes {first}-{}/{all}\r\n", all - 1);
    let (code, range) =
        if from.is_some() { ("206 Partial Content", range) } else { ("200 OK", String::new()) };
    let length = content.len();
    let _ = write!(stream, "HTTP/1.1 {code}\r\n{range}Content-Length: {length}\r\nConnection: close\r\n\r\n");
    let sent = match act {
        Act::Cut(bytes) | Act::Stall(bytes) => bytes,
        _ => length,
    };
    let _ = stream.write_all(&content[..sent]);
    if matches!(act, Act::Stall(_)) {
        // Until the client gives up.
        let _ = stream.read(&mut [0]);
    }
}

fn status(stream: &mut TcpStream, code: u16, heads: &str) {
    let _ = write!(stream, "HTTP/1.1 {code} So\r\n{heads}Content-Length: 0\r\nConnection: close\r\n\r\n");
}

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/llama-f32")
}

fn weights() -> Vec<u8> {
    fs::read(golden().join(WEIGHTS)).unwrap()
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn hub(server: &FakeHub, cache: &TempDir) -> Hub {
    Hub {
        cache: Some(cache.path().join("hub")),
        offline: false,
        endpoint: Some(server.endpoint.clone()),
        token: Some("secret".to_owned()),
        patience: Patience { silence: Duration::from_millis(300), pause: Duration::from_millis(1) },
    }
}

fn snapshot(cache: &TempDir, name: &str) -> PathBuf {
    cache.path().join(format!("hub/models--org--{name}/snapshots")).join(COMMIT)
}

/// Files of the contents, the weights' part among them.
fn blobs(cache: &TempDir) -> Vec<String> {
    let all = fs::read_dir(cache.path().join("hub/models--org--tiny/blobs")).into_iter().flatten();
    all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// What an earlier process left of the weights.
fn leave_part(cache: &TempDir, bytes: &[u8]) {
    let blobs = cache.path().join("hub/models--org--tiny/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.part", digest(&weights()))), bytes).unwrap();
}

#[test]
fn a_checkpoint_is_downloaded_once_and_then_found_in_the_cache() {
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

    // A file that is gone from the cache is named offline, and fetched alone online.
    fs::remove_file(repository.join("blobs/tokenizer.json-etag")).unwrap();
    let error = find("org/tiny", &Hub { offline: true, ..hub.clone() }).unwrap_err().to_string();
    assert!(error.contains("tokenizer.json is missing") && error.contains("HF_HUB_OFFLINE"), "{error}");
    find("org/tiny", &hub).unwrap();
    assert!(!server.asked().iter().any(|(what, ..)| what.contains("safetensors")));
}

#[test]
fn one_file_of_weights_is_taken_before_an_index_of_others() {
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
fn whatever_is_there_and_whatever_the_hub_does_the_weights_are_the_hub_s() {
    let whole = weights();
    let (half, fifth, size) = (whole.len() / 2, whole.len() / 5, whole.len() as u64);
    let longer = [whole.clone(), whole.clone()].concat();
    let fifth_and_half = [(half + fifth) as u64, half as u64];
    type Case<'a> = (&'a str, &'a [u8], &'a [Act], &'a [u64]);
    let cases: [Case<'_>; 12] = [
        ("half", &whole[..half], &[], &[half as u64]),
        ("half, a refusal", &whole[..half], &[Act::Status(503)], &[half as u64; 2]),
        (
            "half, a refusal, a cut",
            &whole[..half],
            &[Act::Status(429), Act::Cut(fifth)],
            &[half as u64, half as u64, fifth_and_half[0]],
        ),
        ("all of it, not yet in its place", &whole, &[], &[]),
        ("more than all of it", &longer, &[], &[0]),
        ("as much, but something else", &vec![b'!'; whole.len()], &[], &[0]),
        ("half of something else", &longer[fifth..half], &[], &[(half - fifth) as u64, 0]),
        (
            "nothing, cuts in the middle",
            &[],
            &[Act::Cut(fifth), Act::Cut(half)],
            &[0, fifth as u64, fifth_and_half[0]],
        ),
        ("nothing, a cut before the first byte", &[], &[Act::Cut(0)], &[0, 0]),
        ("half, a hub without ranges", &whole[..half], &[Act::FromTheFirstByte], &[half as u64]),
        ("half, a hub that stalls", &whole[..half], &[Act::Stall(fifth)], &[half as u64, fifth_and_half[0]]),
        ("a hub that stalls before it ends", &[], &[Act::Stall(whole.len() - 1)], &[0, size - 1]),
    ];
    for (what, left, acts, from) in cases {
        let (server, cache) = (FakeHub::acting(acts), tempfile::tempdir().unwrap());
        leave_part(&cache, left);
        find("org/tiny", &hub(&server, &cache)).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(fs::read(snapshot(&cache, "tiny").join(WEIGHTS)).unwrap() == whole, "{what}");
        assert!(!blobs(&cache).iter().any(|name| name.ends_with(".part")), "{what}");
        assert_eq!(server.weights_from(), from, "{what}");
    }
}

#[test]
fn a_hub_that_does_not_give_what_it_has_is_named_and_leaves_nothing_in_the_cache() {
    let etag = |etag: &str| (None, Some(etag.to_owned()));
    let outside = tempfile::tempdir().unwrap();
    let path = outside.path().join("written-by-the-hub").display().to_string();
    type Faults = (Option<Act>, Option<String>);
    let cases: [(Faults, &str); 10] = [
        ((Some(Act::Garbled), None), "SHA-256"),
        ((Some(Act::TooLong), None), "sends more of model.safetensors"),
        ((Some(Act::Status(503)), None), "status 503"),
        ((Some(Act::Status(416)), None), "status 416"),
        ((Some(Act::Stall(0)), None), "broke off"),
        ((Some(Act::Redirect(None)), None), "no address"),
        ((Some(Act::Redirect(Some("file:///etc/passwd".to_owned()))), None), "no address"),
        ((Some(Act::Redirect(Some(String::new()))), None), "circle"),
        (etag(&path), "no plain name"),
        (etag(".."), "no plain name"),
    ];
    for ((otherwise, etag), words) in cases {
        let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
        let case = format!("{otherwise:?} {etag:?}");
        *server.state.lock().unwrap() = State { otherwise, etag, ..State::default() };
        let error = find("org/tiny", &hub(&server, &cache)).unwrap_err();
        assert!(matches!(error, CheckpointError::Failed(_)), "{case}: {error:?}");
        assert!(error.to_string().contains(words), "{case}: {error}");
        assert!(!blobs(&cache).contains(&digest(&weights())), "{case}: {:?}", blobs(&cache));
        assert!(!snapshot(&cache, "tiny").join(WEIGHTS).exists(), "{case}");
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "nothing is written elsewhere");
}

#[test]
fn the_token_goes_to_the_hub_and_to_nobody_that_it_sends_its_clients_to() {
    let (server, elsewhere, cache) = (FakeHub::start(), FakeHub::start(), tempfile::tempdir().unwrap());
    let there = format!("{}/org/tiny/resolve/{COMMIT}/{WEIGHTS}", elsewhere.endpoint);
    server.state.lock().unwrap().otherwise = Some(Act::Redirect(Some(there)));
    let found = find("org/tiny", &hub(&server, &cache)).unwrap();
    Model::load(&found.source, None).unwrap();
    let (own, others) = (server.asked(), elsewhere.asked());
    assert!(own.len() > 1 && own.iter().all(|(_, _, token)| *token), "{own:?}");
    assert!(others.len() == 1 && others.iter().all(|(_, _, token)| !token), "{others:?}");
}

#[test]
fn two_hosts_with_one_cache_fetch_each_file_once() {
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
fn only_what_is_missing_needs_room() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let hub = hub(&server, &cache);
    let snapshot = snapshot(&cache, "huge");
    fs::create_dir_all(&snapshot).unwrap();
    for file in FILES {
        fs::copy(golden().join(file), snapshot.join(file)).unwrap();
    }
    // No ref yet: its download was interrupted.
    find("org/huge", &hub).unwrap();
    fs::remove_file(snapshot.join(WEIGHTS)).unwrap();
    let error = find("org/huge", &hub).unwrap_err().to_string();
    assert!(error.contains("MiB free") && error.contains("HF_HUB_CACHE"), "{error}");
}

#[test]
fn a_repository_that_was_cut_anew_meanwhile_is_taken_as_it_is_now() {
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

#[test]
fn what_can_t_be_downloaded_says_why_and_what_to_do() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let hub = hub(&server, &cache);
    let nowhere = Hub { endpoint: Some("http://127.0.0.1:1".to_owned()), ..hub.clone() };
    let silly = Hub { endpoint: Some("huggingface.co".to_owned()), ..hub.clone() };
    for (hub, name, wrong, parts) in [
        (&hub, "org/gated", true, &["refuses access to org/gated", "HF_TOKEN"][..]),
        (&hub, "org/absent", true, &["has no org/absent"]),
        (&hub, "org/pickled", true, &["has no model.safetensors", "GGUF"]),
        (&silly, "org/tiny", true, &["HF_ENDPOINT", "no URL"]),
        (&hub, "org/huge", false, &["MiB free", "HF_HUB_CACHE"]),
        (&hub, "org/broken", false, &["status 500", "later"]),
        (&nowhere, "org/tiny", false, &["can't be reached", "hf download org/tiny"]),
    ] {
        let error = find(name, hub).unwrap_err();
        assert_eq!(matches!(error, CheckpointError::Wrong(_)), wrong, "{name}: another name would help");
        let error = error.to_string();
        assert!(
            error.starts_with("--model: ") && parts.iter().all(|part| error.contains(part)),
            "{name}: {error}"
        );
    }
}

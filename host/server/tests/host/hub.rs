//! `--model ORG/NAME` against fake hubs: found in the cache, downloaded, resumed and refused, with hubs that
//! break off, stall, lie and redirect.

use std::collections::VecDeque;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Host, config};
use infer_model::{Model, Tokenizer};
use infer_server::config::Config;
use infer_server::startup::checkpoint::{CheckpointError, Hub, Patience, find};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

const FILES: &[&str] =
    &["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS];
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const SHARDS: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
const COMMIT: &str = "0123456789abcdef";
const TOKEN: &str = "authorization: bearer secret";
/// Every request and response of a hub that doesn't stall stays far below this, however busy the machine is.
const PATIENT: Duration = Duration::from_secs(30);
/// For hubs that stall.
const IMPATIENT: Duration = Duration::from_secs(1);

/// How the hub responds to a request for the content of the weights.
#[derive(Clone, Debug)]
enum Act {
    /// As requested.
    Serve,
    /// With this status and no body.
    Status(u16),
    /// Sends this many bytes, then closes the connection.
    Cut(usize),
    /// Sends this many bytes, then keeps the connection open.
    Stall(usize),
    /// Ignores the range and sends the file from its first byte.
    FromTheFirstByte,
    /// Sends other bytes of the right length.
    Garbled,
    /// Sends more bytes than the file has.
    TooLong,
    /// Waits until the list of files was requested this many times.
    AfterLists(usize),
    /// Redirects to this location, or without one.
    Redirect(Option<String>),
}

#[derive(Default)]
struct State {
    /// Method, path and first byte of each request, and whether it had the token.
    asked: Vec<(String, u64, bool)>,
    /// One act for each request; then `otherwise`.
    acts: VecDeque<Act>,
    otherwise: Option<Act>,
    /// Status of the first requests for the list of files.
    lists: VecDeque<u16>,
    /// The etag of the weights in place of their digest.
    etag: Option<String>,
    /// Redirects like the public hub: HEAD of weights with `x-linked-*`, small files to a relative location,
    /// and the content of weights to this server.
    redirects_to: Option<String>,
}

/// A server with the part of the hub's API that a download needs.
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
        let failure = state.lock().unwrap().lists.pop_front();
        return match failure {
            Some(code) => status(&mut stream, code, "Retry-After: 0\r\n"),
            None => list(&mut stream, rest.split(['?', '/']).nth(1).unwrap()),
        };
    }
    let (place, name) = path.split_once(&format!("/resolve/{COMMIT}/")).unwrap();
    let Some(bytes) = content(name) else { return status(&mut stream, 404, "") };
    let redirects_to = state.lock().unwrap().redirects_to.clone();
    let is_small = !name.ends_with(".safetensors");
    if redirects_to.is_some() && is_small && !place.starts_with("/cache") {
        return status(&mut stream, 307, &format!("Location: /cache{path}\r\n"));
    }
    if method == "HEAD" {
        let size = if place.ends_with("huge") { 1 << 58 } else { bytes.len() as u64 };
        let etag = if is_small { format!("{name}-etag") } else { digest(&bytes) };
        let etag = state.lock().unwrap().etag.clone().filter(|_| name == WEIGHTS).unwrap_or(etag);
        if let (Some(elsewhere), false) = (redirects_to, is_small) {
            let linked = format!("X-Linked-Size: {size}\r\nX-Linked-Etag: \"{etag}\"\r\n");
            let heads = format!("Location: {elsewhere}{path}\r\nETag: \"of-the-redirect\"\r\n{linked}");
            return status(&mut stream, 302, &heads);
        }
        let _ = write!(
            stream,
            "HTTP/1.1 200 OK\r\nETag: \"{etag}\"\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
        );
        return;
    }
    if let (Some(elsewhere), false) = (redirects_to, is_small) {
        return status(&mut stream, 302, &format!("Location: {elsewhere}{path}\r\n"));
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
    let size = |name: &str| content(name).unwrap().len() as u64;
    let all = || FILES.iter().map(|file| ((*file).to_owned(), size(file)));
    let files: Vec<(String, u64)> = match repository {
        "gated" => return status(stream, 403, ""),
        "absent" => return status(stream, 404, ""),
        "broken" => return status(stream, 500, ""),
        "pickled" => vec![("config.json".into(), 9), ("tokenizer.json".into(), 9), ("model.bin".into(), 9)],
        "sharded" => {
            let small = all().filter(|(name, _)| name != WEIGHTS);
            small.chain([INDEX, SHARDS[0], SHARDS[1]].map(|name| (name.to_owned(), size(name)))).collect()
        }
        // Lists a file that it does not have.
        "incomplete" => all().chain([("chat_template.jinja".to_owned(), 9)]).collect(),
        // Merged shards whose index was left behind.
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
        // Wait until the client gives up.
        let _ = stream.read(&mut [0]);
    }
}

fn status(stream: &mut TcpStream, code: u16, heads: &str) {
    let _ = write!(stream, "HTTP/1.1 {code} So\r\n{heads}Content-Length: 0\r\nConnection: close\r\n\r\n");
}

/// A file of the hub: the golden checkpoint, also in two shards.
fn content(name: &str) -> Option<Vec<u8>> {
    let whole = fs::read(golden().join(WEIGHTS)).unwrap();
    if let Some(at) = SHARDS.iter().position(|shard| *shard == name) {
        return Some(shards(&whole)[at].clone());
    }
    match name {
        INDEX => {
            let names = tensors(&whole).into_iter().enumerate();
            let map: serde_json::Map<_, _> =
                names.map(|(i, (name, _))| (name, json!(SHARDS[i % 2]))).collect();
            Some(json!({"weight_map": map}).to_string().into_bytes())
        }
        name => fs::read(golden().join(name)).ok(),
    }
}

/// Names and descriptions of the tensors of a safetensors file, in the order of their names.
fn tensors(file: &[u8]) -> Vec<(String, Value)> {
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Map<String, Value> = serde_json::from_slice(&file[8..8 + header]).unwrap();
    header.into_iter().filter(|(name, _)| name != "__metadata__").collect()
}

/// The tensors of a file, alternately in two files.
fn shards(file: &[u8]) -> [Vec<u8>; 2] {
    let data = &file[8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize..];
    let mut shards = [(serde_json::Map::new(), Vec::new()), (serde_json::Map::new(), Vec::new())];
    for (i, (name, mut tensor)) in tensors(file).into_iter().enumerate() {
        let (header, bytes) = &mut shards[i % 2];
        let [from, to] = [0, 1].map(|end| tensor["data_offsets"][end].as_u64().unwrap() as usize);
        tensor["data_offsets"] = json!([bytes.len(), bytes.len() + to - from]);
        bytes.extend(&data[from..to]);
        header.insert(name, tensor);
    }
    shards.map(|(header, bytes)| {
        let mut header = serde_json::to_vec(&header).unwrap();
        header.resize(header.len().next_multiple_of(8), b' ');
        [&(header.len() as u64).to_le_bytes()[..], &header, &bytes].concat()
    })
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
        certificates: None,
        patience: Patience { silence: PATIENT, pause: Duration::from_millis(1) },
    }
}

/// A client that gives up a stalling hub soon.
fn impatient(hub: Hub) -> Hub {
    Hub { patience: Patience { silence: IMPATIENT, ..hub.patience }, ..hub }
}

fn snapshot(cache: &TempDir, name: &str) -> PathBuf {
    cache.path().join(format!("hub/models--org--{name}/snapshots")).join(COMMIT)
}

/// Names of the contents in the cache, including a part of the weights.
fn blobs(cache: &TempDir) -> Vec<String> {
    let all = fs::read_dir(cache.path().join("hub/models--org--tiny/blobs")).into_iter().flatten();
    all.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Imitates a part of the weights that an earlier process left.
fn leave_part(cache: &TempDir, bytes: &[u8]) {
    let blobs = cache.path().join("hub/models--org--tiny/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(format!("{}.part", digest(&weights()))), bytes).unwrap();
}

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
fn download_resumes_and_ends_with_the_hubs_weights() {
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
        ("all of it, not yet renamed", &whole, &[], &[]),
        ("more than all of it", &longer, &[], &[0]),
        ("other bytes of the right length", &vec![b'!'; whole.len()], &[], &[0]),
        ("half, of other bytes", &longer[fifth..half], &[], &[(half - fifth) as u64, 0]),
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
        let stalls = acts.iter().any(|act| matches!(act, Act::Stall(_)));
        let hub = hub(&server, &cache);
        let hub = if stalls { impatient(hub) } else { hub };
        find("org/tiny", &hub).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(fs::read(snapshot(&cache, "tiny").join(WEIGHTS)).unwrap() == whole, "{what}");
        assert!(!blobs(&cache).iter().any(|name| name.ends_with(".part")), "{what}");
        assert_eq!(server.weights_from(), from, "{what}");
    }
}

#[test]
fn faulty_hub_is_named_and_leaves_nothing_in_the_cache() {
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
        ((Some(Act::Redirect(None)), None), "not a valid address"),
        ((Some(Act::Redirect(Some("file:///etc/passwd".to_owned()))), None), "not a valid address"),
        ((Some(Act::Redirect(Some(String::new()))), None), "times in a row"),
        (etag(&path), "not a plain name"),
        (etag(".."), "not a plain name"),
    ];
    for ((otherwise, etag), words) in cases {
        let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
        let case = format!("{otherwise:?} {etag:?}");
        *server.state.lock().unwrap() = State { otherwise, etag, ..State::default() };
        let error = find("org/tiny", &impatient(hub(&server, &cache))).unwrap_err();
        assert!(matches!(error, CheckpointError::Failed(_)), "{case}: {error:?}");
        assert!(error.to_string().contains(words), "{case}: {error}");
        assert!(!blobs(&cache).contains(&digest(&weights())), "{case}: {:?}", blobs(&cache));
        assert!(!snapshot(&cache, "tiny").join(WEIGHTS).exists(), "{case}");
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0, "nothing is written outside the cache");
}

#[test]
fn token_is_sent_to_the_hub_and_not_where_it_redirects() {
    let (server, elsewhere, cache) = (FakeHub::start(), FakeHub::start(), tempfile::tempdir().unwrap());
    let there = format!("{}/org/tiny/resolve/{COMMIT}/{WEIGHTS}", elsewhere.endpoint);
    server.state.lock().unwrap().otherwise = Some(Act::Redirect(Some(there)));
    let found = find("org/tiny", &hub(&server, &cache)).unwrap();
    Model::load(&found.source, None).unwrap();
    let (own, others) = (server.asked(), elsewhere.asked());
    assert!(own.len() > 1 && own.iter().all(|(_, _, token)| *token), "{own:?}");
    assert!(others.len() == 1 && others.iter().all(|(_, _, token)| !token), "{others:?}");
}

/// The public hub redirects HEAD requests for weights to another server, with the size and etag in
/// `x-linked-*`.
#[test]
fn redirects_of_the_public_hub_are_followed_without_the_token() {
    for name in ["tiny", "sharded"] {
        let (server, elsewhere) = (FakeHub::start(), FakeHub::start());
        let cache = tempfile::tempdir().unwrap();
        server.state.lock().unwrap().redirects_to = Some(elsewhere.endpoint.clone());
        let found = find(&format!("org/{name}"), &hub(&server, &cache)).unwrap();
        Model::load(&found.source, None).unwrap();
        let (own, others) = (server.asked(), elsewhere.asked());
        assert!(own.iter().all(|(_, _, token)| *token), "{name}: {own:?}");
        assert!(own.iter().any(|(what, ..)| what.starts_with("HEAD /cache/")), "{name}: {own:?}");
        let contents: &[&str] = if name == "tiny" { &[WEIGHTS] } else { &SHARDS };
        let paths: Vec<String> =
            contents.iter().map(|file| format!("GET /org/{name}/resolve/{COMMIT}/{file}")).collect();
        let asked: Vec<_> = others.iter().map(|(what, ..)| what.clone()).collect();
        assert_eq!(asked, paths, "only contents are elsewhere");
        assert!(others.iter().all(|(_, _, token)| !token), "{name}: {others:?}");
        let weights = fs::read_link(snapshot(&cache, name).join(contents[0])).unwrap();
        let digest = digest(&content(contents[0]).unwrap());
        assert_eq!(weights, Path::new("../../blobs").join(digest), "the content's etag, not the redirect's");
    }
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
fn failing_list_of_files_is_requested_again() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    server.state.lock().unwrap().lists.extend([503, 429, 500]);
    find("org/tiny", &hub(&server, &cache)).unwrap();
    let lists = server.asked().iter().filter(|(what, ..)| what.contains("/api/")).count();
    assert_eq!(lists, 4);
}

/// People link large repositories to another disk; the locks stay on the first.
#[test]
fn repository_linked_to_another_disk_is_completed() {
    let disk = Path::new("/dev/shm");
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let Ok(other) = tempfile::tempdir_in(disk) else { return };
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

#[test]
fn failed_download_says_why_and_what_to_do() {
    let (server, cache) = (FakeHub::start(), tempfile::tempdir().unwrap());
    let hub = hub(&server, &cache);
    let nowhere = Hub { endpoint: Some("http://127.0.0.1:1".to_owned()), ..hub.clone() };
    let garbled = Hub { token: Some("two\nlines".to_owned()), ..hub.clone() };
    let untrusted = Hub { certificates: Some("/nonexistent/ca.pem".into()), ..hub.clone() };
    let empty = tempfile::NamedTempFile::new().unwrap();
    let uncertain = Hub { certificates: Some(empty.path().to_owned()), ..hub.clone() };
    let silly = Hub { endpoint: Some("huggingface.co".to_owned()), ..hub.clone() };
    for (hub, name, wrong, parts) in [
        (&hub, "org/gated", true, &["refuses access to org/gated", "HF_TOKEN"][..]),
        (&hub, "org/absent", true, &["has no org/absent"]),
        (&hub, "org/pickled", true, &["has no model.safetensors", "GGUF"]),
        (&silly, "org/tiny", true, &["HF_ENDPOINT", "not a URL"]),
        (&garbled, "org/tiny", true, &["HF_TOKEN", "characters"]),
        (&untrusted, "org/tiny", true, &["/nonexistent/ca.pem", "SSL_CERT_FILE"]),
        (&uncertain, "org/tiny", true, &["has no certificate", "SSL_CERT_FILE"]),
        (&hub, "org/incomplete", false, &["lists chat_template.jinja", "does not have it"]),
        (&hub, "org/huge", false, &["MiB free", "HF_HUB_CACHE"]),
        (&hub, "org/broken", false, &["status 500", "later"]),
        (&nowhere, "org/tiny", false, &["can't be reached", "hf download org/tiny"]),
    ] {
        let error = find(name, hub).unwrap_err();
        assert_eq!(matches!(error, CheckpointError::Wrong(_)), wrong, "{name}: bad usage or not");
        let error = error.to_string();
        assert!(
            error.starts_with("--model: ") && parts.iter().all(|part| error.contains(part)),
            "{name}: {error}"
        );
    }
}

/// A host stands in for the mirror: it speaks TLS and has no repositories.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_of_a_mirror_is_trusted_if_it_is_named() {
    let cache = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| cache.path().join(name));
    fs::write(&cert, made.cert.pem()).unwrap();
    fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let mirror = Host::start(Config { tls: Some((cert.clone(), key)), ..config() }).await;
    let hub = Hub {
        cache: Some(cache.path().join("hub")),
        endpoint: Some(format!("https://localhost:{}", mirror.server.data_addr.port())),
        patience: Patience { silence: PATIENT, pause: Duration::from_millis(1) },
        ..Hub::default()
    };
    for (certificates, words) in [(Some(cert), "has no org/none"), (None, "SSL_CERT_FILE")] {
        let hub = Hub { certificates, ..hub.clone() };
        let found = tokio::task::spawn_blocking(move || find("org/none", &hub)).await.unwrap();
        let error = found.unwrap_err();
        assert!(matches!(error, CheckpointError::Wrong(_)) && error.to_string().contains(words), "{error}");
    }
    mirror.server.shutdown().await;
}

//! A hub on this machine: the part of the API that a download needs, and the faults that a test asks for.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;

use super::files::{ADAPTER, FILES, INDEX, POOLING, SHARDS, TOOLS, WEIGHTS, content, digest};

pub(super) const COMMIT: &str = "0123456789abcdef";
const TOKEN: &str = "authorization: bearer secret";

/// How the hub responds to a request for the content of the weights.
#[derive(Clone, Debug)]
pub(super) enum Act {
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
pub(super) struct State {
    /// Method, path and first byte of each request, and whether it had the token.
    pub asked: Vec<(String, u64, bool)>,
    /// One act for each request; then `otherwise`.
    pub acts: VecDeque<Act>,
    pub otherwise: Option<Act>,
    /// Status of the first requests for the list of files.
    pub lists: VecDeque<u16>,
    /// The etag of the weights in place of their digest.
    pub etag: Option<String>,
    /// Redirects like the public hub: HEAD of weights with `x-linked-*`, small files to a relative location,
    /// and the content of weights to this server.
    pub redirects_to: Option<String>,
}

/// A server with the part of the hub's API that a download needs.
pub(super) struct FakeHub {
    pub endpoint: String,
    pub state: Arc<Mutex<State>>,
}

impl FakeHub {
    pub fn start() -> Self {
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

    pub fn acting(acts: &[Act]) -> Self {
        let hub = Self::start();
        hub.state.lock().unwrap().acts.extend(acts.iter().cloned());
        hub
    }

    pub fn asked(&self) -> Vec<(String, u64, bool)> {
        std::mem::take(&mut self.state.lock().unwrap().asked)
    }

    /// First bytes of the requests for the weights' content.
    pub fn weights_from(&self) -> Vec<u64> {
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
        let etag = if is_small { format!("{}-etag", name.replace('/', "-")) } else { digest(&bytes) };
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
        "adapter" => ADAPTER.map(|name| (name.to_owned(), size(name))).into(),
        "templated" => all().chain([(TOOLS.to_owned(), size(TOOLS))]).collect(),
        "embedding" => all().chain(POOLING.map(|name| (name.to_owned(), size(name)))).collect(),
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

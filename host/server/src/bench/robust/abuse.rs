//! Hostile clients of every kind at once, next to an honest one: the host's memory stays bounded, and honest requests
//! are served.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::time::{Duration, Instant};

use infer_core::testing::SplitMix;
use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;

use super::host::{Host, HostKind, HostOptions};
use super::{RobustError, mib, raw};

/// Honest requests that an attack lasts for, however slow the machine is, and how much that may prolong it.
const FEWEST_HONEST: usize = 4;
const EXTENSION: Duration = Duration::from_secs(120);

/// Result of the benchmark.
#[derive(Clone, Debug, Serialize)]
pub struct AbuseReport {
    /// Hostile clients of each kind.
    pub peers: usize,
    /// Duration of the attack.
    pub seconds: f64,
    /// Bytes that the hostile clients sent.
    pub sent_bytes: u64,
    /// Requests of the honest client.
    pub honest: usize,
    /// Honest requests without a complete response.
    pub harmed: usize,
    /// What went wrong with the first of those.
    pub example: Option<String>,
    /// Slowest first token of an honest request, in milliseconds.
    pub worst_ttft_ms: f64,
    /// Resident memory before, peak, after.
    pub resident_bytes: [u64; 3],
    /// Open files before the attack and after it.
    pub open_files: [u64; 2],
}

/// A kind of hostile client; returns the bytes sent.
type Attack = fn(SocketAddr, usize, End) -> std::pin::Pin<Box<dyn Future<Output = u64> + Send>>;

/// The kinds, with their names.
const ATTACKS: [(&str, Attack); 7] = [
    ("slow readers", |address, n, end| Box::pin(slow_reader(address, n, end))),
    ("half-open connections", |address, _, end| Box::pin(half_open(address, end))),
    ("header floods", |address, _, end| Box::pin(header_flood(address, end))),
    ("announced gigabytes", |address, _, end| Box::pin(gigabyte(address, true, end))),
    ("streamed gigabytes", |address, _, end| Box::pin(gigabyte(address, false, end))),
    ("JSON bombs", |address, n, end| Box::pin(json_bomb(address, n, end))),
    ("pipelined nonsense", |address, n, end| Box::pin(nonsense(address, n, end))),
];

/// Names of the kinds.
pub fn kinds() -> Vec<&'static str> {
    ATTACKS.iter().map(|(name, _)| *name).collect()
}

/// The end of the attack, as a hostile client sees it.
#[derive(Clone)]
struct End(watch::Receiver<bool>);

impl End {
    fn is_here(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for it.
    async fn reached(&self) {
        let mut over = self.0.clone();
        let _ = over.wait_for(|over| *over).await;
    }

    /// Waits for it, but not beyond `time`.
    async fn reached_or(&self, time: Instant) {
        let _ = tokio::time::timeout_at(time.into(), self.reached()).await;
    }
}

/// Attacks a host with `peers` clients of each kind for `seconds`, or longer if four honest requests take longer. `exe`
/// is the `infer` binary.
pub async fn abuse(exe: &Path, peers: usize, seconds: f64) -> Result<AbuseReport, RobustError> {
    let running = (peers + 32) as u32;
    let host = Host::start(
        exe,
        HostOptions { kind: HostKind::Scripted, running, waiting: 10_000, step_us: 500, pool_mib: 4_096 },
    )?;
    let honest_request = raw::request(&[1, 2, 3], 8);
    // One request first, so that one-time allocations aren't counted.
    let _ = raw::complete(host.address, &honest_request).await;
    let before = host.usage()?;
    let (over, end) = watch::channel(false);
    let begun = Instant::now();
    let mut attackers = tokio::task::JoinSet::new();
    for n in 0..peers {
        for (_, attack) in ATTACKS {
            attackers.spawn(attack(host.address, n, End(end.clone())));
        }
    }
    let mut report = AbuseReport {
        peers,
        seconds,
        sent_bytes: 0,
        honest: 0,
        harmed: 0,
        example: None,
        worst_ttft_ms: 0.0,
        resident_bytes: [before.resident_bytes; 3],
        open_files: [before.open_files; 2],
    };
    let wanted = Duration::from_secs_f64(seconds);
    let goes_on = |honest: usize| {
        let limit = if honest < FEWEST_HONEST { wanted + EXTENSION } else { wanted };
        begun.elapsed() < limit
    };
    while goes_on(report.honest) {
        report.note(raw::complete(host.address, &honest_request).await);
        report.resident_bytes[1] = report.resident_bytes[1].max(host.usage()?.resident_bytes);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    report.seconds = begun.elapsed().as_secs_f64();
    over.send_replace(true);
    report.sent_bytes = attackers.join_all().await.into_iter().sum();
    report.note(raw::complete(host.address, &honest_request).await);
    report.open_files[1] = host.files_left(before.open_files + 2).await?;
    report.resident_bytes[2] = host.usage()?.resident_bytes;
    Ok(report)
}

impl AbuseReport {
    fn note(&mut self, outcome: std::io::Result<raw::Stream>) {
        self.honest += 1;
        let wrong = match outcome {
            Ok(stream) if stream.status == 200 && stream.done && stream.tokens.len() == 8 => {
                self.worst_ttft_ms = self.worst_ttft_ms.max(stream.ttft.as_secs_f64() * 1e3);
                return;
            }
            Ok(stream) => format!("status {}, {} tokens", stream.status, stream.tokens.len()),
            Err(error) => error.to_string(),
        };
        self.harmed += 1;
        self.example.get_or_insert(wrong);
    }

    /// Renders the report as text.
    #[must_use]
    pub fn text(&self) -> String {
        let [before, most, after] = self.resident_bytes.map(mib);
        let mut out = format!(
            "{} each of {}, for {:.0} s, sent {:.1} MiB\nhonest requests {}, harmed {}, slowest first token {:.1} ms\n",
            self.peers,
            kinds().join(", "),
            self.seconds,
            mib(self.sent_bytes),
            self.honest,
            self.harmed,
            self.worst_ttft_ms
        );
        if let Some(example) = &self.example {
            out += &format!("  {example}\n");
        }
        out += &format!(
            "memory {before:.1} MiB before, {most:.1} peak, {after:.1} after; open files {} before, {} after\n",
            self.open_files[0], self.open_files[1]
        );
        out
    }
}

/// Sends until everything is sent, the peer closes, or `stop` is ready; returns the bytes sent.
async fn send(socket: &mut TcpStream, bytes: &[u8], stop: impl Future<Output = ()>) -> u64 {
    let mut stop = pin!(stop);
    let mut sent = 0;
    while sent < bytes.len() {
        tokio::select! {
            () = stop.as_mut() => break,
            written = socket.write(&bytes[sent..]) => match written {
                Ok(n) if n > 0 => sent += n,
                _ => break,
            },
        }
    }
    sent as u64
}

/// Reads until the peer closes or the attack ends.
async fn drain(socket: &mut TcpStream, end: &End) {
    let mut buffer = [0; 4_096];
    let read_all = async { while let Ok(1..) = socket.read(&mut buffer).await {} };
    tokio::select! {
        () = read_all => {}
        () = end.reached() => {}
    }
}

/// Requests a long stream and reads one byte per second.
async fn slow_reader(address: SocketAddr, n: usize, end: End) -> u64 {
    let Ok(socket) = TcpSocket::new_v4() else { return 0 };
    let _ = socket.set_recv_buffer_size(1_024);
    let Ok(mut socket) = socket.connect(address).await else { return 0 };
    let request = raw::request(&[7, 1 + n as u32 % 50, 1 + n as u32 / 50], 2_000);
    let sent = send(&mut socket, &request, end.reached()).await;
    let mut byte = [0];
    while !end.is_here() {
        end.reached_or(Instant::now() + Duration::from_secs(1)).await;
        tokio::select! {
            () = end.reached() => break,
            read = socket.read(&mut byte) => {
                if !matches!(read, Ok(1)) {
                    break;
                }
            }
        }
    }
    sent
}

/// Sends half a request line and keeps the connection open.
async fn half_open(address: SocketAddr, end: End) -> u64 {
    let mut sent = 0;
    while !end.is_here() {
        let Ok(mut socket) = TcpStream::connect(address).await else { break };
        sent += send(&mut socket, b"POST /v1/compl", end.reached()).await;
        drain(&mut socket, &end).await;
    }
    sent
}

/// Sends headers without end.
async fn header_flood(address: SocketAddr, end: End) -> u64 {
    let line = format!("x-flood: {}\r\n", "y".repeat(4_000));
    let mut sent = 0;
    while !end.is_here() {
        let Ok(mut socket) = TcpStream::connect(address).await else { break };
        sent += send(&mut socket, b"GET / HTTP/1.1\r\n", end.reached()).await;
        loop {
            let n = send(&mut socket, line.as_bytes(), end.reached()).await;
            sent += n;
            if n < line.len() as u64 {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    sent
}

/// Sends a body of a gigabyte, with a content length or in chunks.
async fn gigabyte(address: SocketAddr, announced: bool, end: End) -> u64 {
    let how = if announced { "content-length: 1073741824" } else { "transfer-encoding: chunked" };
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\n{how}\r\n\r\n");
    let piece = if announced { " ".repeat(65_536) } else { format!("10000\r\n{}\r\n", " ".repeat(65_536)) };
    let mut sent = 0;
    while !end.is_here() {
        let Ok(mut socket) = TcpStream::connect(address).await else { break };
        sent += send(&mut socket, head.as_bytes(), end.reached()).await;
        for _ in 0..16_384 {
            let n = send(&mut socket, piece.as_bytes(), end.reached()).await;
            sent += n;
            if n < piece.len() as u64 {
                break;
            }
        }
        drain(&mut socket, &end).await;
    }
    sent
}

/// Sends bodies that exhaust the stack or the memory of a careless parser.
async fn json_bomb(address: SocketAddr, n: usize, end: End) -> u64 {
    let bombs = [
        "[".repeat(1 << 20),
        "{\"a\":".repeat(1 << 18),
        format!("{{\"model\":\"demo\",\"prompt\":[{}1]}}", "1,".repeat(1 << 20)),
        format!("{{\"model\":\"demo\",\"prompt\":\"{}\"}}", "\\u0041".repeat(1 << 18)),
        format!("{{{}\"z\":1}}", (0..100_000).map(|n| format!("\"k{n}\":{n},")).collect::<String>()),
        format!("{{\"model\":\"demo\",\"prompt\":\"x\",\"max_tokens\":{}}}", "9".repeat(1 << 20)),
    ];
    let body = &bombs[n % bombs.len()];
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut sent = 0;
    while !end.is_here() {
        let Ok(mut socket) = TcpStream::connect(address).await else { break };
        sent += send(&mut socket, head.as_bytes(), end.reached()).await;
        sent += send(&mut socket, body.as_bytes(), end.reached()).await;
        drain(&mut socket, &end).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    sent
}

/// Pipelines requests without reading the responses, alternating with random bytes.
async fn nonsense(address: SocketAddr, n: usize, end: End) -> u64 {
    let mut random = SplitMix(n as u64);
    let noise: Vec<u8> = std::iter::repeat_with(|| random.next_u64() as u8).take(65_536).collect();
    let pipeline = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n".repeat(2_000).into_bytes();
    let mut sent = 0;
    let mut turn = n;
    while !end.is_here() {
        let Ok(mut socket) = TcpStream::connect(address).await else { break };
        turn += 1;
        let bytes = if turn.is_multiple_of(2) { &noise } else { &pipeline };
        let soon = Instant::now() + Duration::from_millis(300);
        sent += send(&mut socket, bytes, end.reached_or(soon)).await;
        end.reached_or(soon).await;
    }
    sent
}

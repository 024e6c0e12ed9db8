//! Peers that mean harm, all at once, while an honest client goes on: memory stays bounded, and nobody else
//! is affected.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

use super::host::{Host, HostKind, HostOptions};
use super::{RobustError, mib, raw};

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct AbuseReport {
    /// Peers of each kind.
    pub peers: usize,
    /// For how long.
    pub seconds: f64,
    /// Bytes that they sent.
    pub sent_bytes: u64,
    /// Requests of the honest client, and how many were not answered as they should.
    pub honest: usize,
    /// The latter.
    pub harmed: usize,
    /// The first of them.
    pub example: Option<String>,
    /// Slowest honest first token, in milliseconds.
    pub worst_ttft_ms: f64,
    /// Resident memory before, at its most, after.
    pub resident_bytes: [u64; 3],
    /// Open files before and after all have left.
    pub open_files: [u64; 2],
}

/// A kind of peer.
type Attack = fn(SocketAddr, usize, Instant) -> std::pin::Pin<Box<dyn Future<Output = u64> + Send>>;

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

/// Lets `peers` of each kind loose for `seconds`. `exe` is the program `infer`.
pub async fn abuse(exe: &Path, peers: usize, seconds: f64) -> Result<AbuseReport, RobustError> {
    let running = (peers + 32) as u32;
    let host = Host::start(
        exe,
        HostOptions { kind: HostKind::Scripted, running, waiting: 10_000, step_us: 500, pool_mib: 4_096 },
    )?;
    let honest_request = raw::request(&[1, 2, 3], 8);
    // Once alone, so that what grows only once has grown.
    let _ = raw::complete(host.address, &honest_request).await;
    let before = host.usage()?;
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let mut attackers = tokio::task::JoinSet::new();
    for n in 0..peers {
        for (_, attack) in ATTACKS {
            attackers.spawn(attack(host.address, n, end));
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
    while Instant::now() < end {
        report.note(raw::complete(host.address, &honest_request).await);
        report.resident_bytes[1] = report.resident_bytes[1].max(host.usage()?.resident_bytes);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    report.sent_bytes = attackers.join_all().await.into_iter().sum();
    report.note(raw::complete(host.address, &honest_request).await);
    // What lingers is given up after at most this.
    for _ in 0..100 {
        report.open_files[1] = host.usage()?.open_files;
        if report.open_files[1] <= before.open_files + 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
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

    /// For people.
    #[must_use]
    pub fn text(&self) -> String {
        let [before, most, after] = self.resident_bytes.map(mib);
        let mut out = format!(
            "{} each of {}, for {:.0} s; they sent {:.1} MiB\nhonest requests {}, harmed {}, slowest first token {:.1} ms\n",
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
            "memory {before:.1} MiB before, {most:.1} at most, {after:.1} after; open files {} before, {} after\n",
            self.open_files[0], self.open_files[1]
        );
        out
    }
}

/// Sends until it has all sent, the peer closes, or time is up. Bytes sent.
async fn send(socket: &mut TcpStream, bytes: &[u8], end: Instant) -> u64 {
    let mut sent = 0;
    while sent < bytes.len() {
        match tokio::time::timeout_at(end.into(), socket.write(&bytes[sent..])).await {
            Ok(Ok(n)) if n > 0 => sent += n,
            _ => break,
        }
    }
    sent as u64
}

/// Reads what comes until the peer closes or time is up.
async fn drain(socket: &mut TcpStream, end: Instant) {
    let mut buffer = [0; 4_096];
    while let Ok(Ok(1..)) = tokio::time::timeout_at(end.into(), socket.read(&mut buffer)).await {}
}

/// Asks for a long stream and takes a byte a second.
async fn slow_reader(address: SocketAddr, n: usize, end: Instant) -> u64 {
    let Ok(socket) = TcpSocket::new_v4() else { return 0 };
    let _ = socket.set_recv_buffer_size(1_024);
    let Ok(mut socket) = socket.connect(address).await else { return 0 };
    let sent = send(&mut socket, &raw::request(&[7, 1 + n as u32 % 50, 1 + n as u32 / 50], 2_000), end).await;
    let mut byte = [0];
    while Instant::now() < end {
        let wake = (Instant::now() + Duration::from_secs(1)).min(end);
        tokio::time::sleep_until(wake.into()).await;
        if !matches!(tokio::time::timeout_at(end.into(), socket.read(&mut byte)).await, Ok(Ok(1))) {
            break;
        }
    }
    sent
}

/// Says nothing, or half a head, and stays.
async fn half_open(address: SocketAddr, end: Instant) -> u64 {
    let mut sent = 0;
    while Instant::now() < end {
        let Ok(mut socket) = TcpStream::connect(address).await else { break };
        sent += send(&mut socket, b"POST /v1/compl", end).await;
        drain(&mut socket, end).await;
    }
    sent
}

/// Sends headers and never stops.
async fn header_flood(address: SocketAddr, end: Instant) -> u64 {
    let line = format!("x-flood: {}\r\n", "y".repeat(4_000));
    let mut sent = 0;
    while Instant::now() < end {
        let Ok(mut socket) = TcpStream::connect(address).await else { break };
        sent += send(&mut socket, b"GET / HTTP/1.1\r\n", end).await;
        loop {
            let n = send(&mut socket, line.as_bytes(), end).await;
            sent += n;
            if n < line.len() as u64 {
                break;
            }
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    sent
}

/// Sends a gigabyte of body, announced or in chunks.
async fn gigabyte(address: SocketAddr, announced: bool, end: Instant) -> u64 {
    let how = if announced { "content-length: 1073741824" } else { "transfer-encoding: chunked" };
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\n{how}\r\n\r\n");
    let piece = if announced { " ".repeat(65_536) } else { format!("10000\r\n{}\r\n", " ".repeat(65_536)) };
    let mut sent = 0;
    while Instant::now() < end {
        let Ok(mut socket) = TcpStream::connect(address).await else { break };
        sent += send(&mut socket, head.as_bytes(), end).await;
        for _ in 0..16_384 {
            let n = send(&mut socket, piece.as_bytes(), end).await;
            sent += n;
            if n < piece.len() as u64 {
                break;
            }
        }
        drain(&mut socket, end).await;
    }
    sent
}

/// Sends bodies that cost a careless parser its stack or its memory.
async fn json_bomb(address: SocketAddr, n: usize, end: Instant) -> u64 {
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
    while Instant::now() < end {
        let Ok(mut socket) = TcpStream::connect(address).await else { break };
        sent += send(&mut socket, head.as_bytes(), end).await + send(&mut socket, body.as_bytes(), end).await;
        drain(&mut socket, end).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    sent
}

/// Sends requests without reading answers, or bytes that are none.
async fn nonsense(address: SocketAddr, n: usize, end: Instant) -> u64 {
    let mut state = n as u64 + 1;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    })
    .take(65_536)
    .collect();
    let pipeline = "GET /health HTTP/1.1\r\nhost: x\r\n\r\n".repeat(2_000).into_bytes();
    let mut sent = 0;
    let mut turn = n;
    while Instant::now() < end {
        let Ok(mut socket) = TcpStream::connect(address).await else { break };
        turn += 1;
        let bytes = if turn.is_multiple_of(2) { &noise } else { &pipeline };
        let soon = (Instant::now() + Duration::from_millis(300)).min(end);
        sent += send(&mut socket, bytes, soon).await;
        tokio::time::sleep_until(soon.into()).await;
    }
    sent
}

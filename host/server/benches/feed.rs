//! What a console that stays connected costs a host: processor time of the whole process, the reader of the
//! feed in the same process included, on an idle host and with 5,000 requests that wait, at twenty looks a
//! second instead of four so that the machine's own noise is a smaller part. A change is read and thrown
//! away. `cargo bench --workspace --all-features --bench feed`. Linux.
#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use infer_core::{AdapterId, Micros, Request, SamplingParams, SessionId, TenantId};
use infer_server::config::Config;
use infer_server::engine::{NewRequest, RequestMeta};
use infer_server::serve::{self, RunningServer};

const SECONDS: u64 = 8;
const HZ: f64 = 20.0;
/// What a console asks for.
const USUAL_HZ: f64 = 4.0;
const WAITING: u32 = 5_000;

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let config = Config {
        port: 0,
        admin_port: 0,
        threads: 2,
        kv_memory_bytes: Some(64 << 20),
        max_waiting_requests: WAITING,
        admin_token: Some("bench-token-0123456789".to_owned()),
        ..Config::default()
    };
    let server = runtime.block_on(serve::start(config)).unwrap_or_else(|e| panic!("the host starts: {e}"));
    report(&server, "idle host");
    server.engine().hold_steps();
    let live: Vec<_> = (0..WAITING).map(|index| runtime.block_on(submit(&server, index))).collect();
    report(&server, "5,000 requests wait");
    drop(live);
    server.engine().release_steps();
}

async fn submit(server: &RunningServer, index: u32) -> infer_server::engine::LiveRequest {
    let request = Request {
        tenant: TenantId(0),
        session: SessionId(0),
        cache_salt: 0,
        adapter: AdapterId::NONE,
        priority: 0,
        deadline: Micros::NEVER,
        prompt: (0..64).map(|at| at * 7 + index % 50).collect(),
        max_new_tokens: 32,
        expected_output: None,
        min_new_tokens: 0,
        stop_tokens: [].into(),
        sampling: SamplingParams::default(),
    };
    let meta = RequestMeta { request_id: format!("req-{index:08}"), ..RequestMeta::default() };
    server.engine().submit(NewRequest { request, meta }).await.unwrap_or_else(|e| panic!("{e:?}"))
}

/// Time without a console, with one, and so what one costs.
fn report(server: &RunningServer, what: &str) {
    let alone = busy(|| ());
    let mut feed = TcpStream::connect(server.admin_addr).expect("it listens");
    let token = &server.admin_token;
    let head = format!(
        "GET /admin/events?hz={HZ}&changes=true HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    feed.write_all(head.as_bytes()).expect("sent");
    feed.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket");
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        let _ = feed.read(&mut buffer);
    }
    let with = busy(|| bytes += feed.read(&mut buffer).unwrap_or(0));
    let ticks = SECONDS as f64 * HZ;
    let cost = (with - alone) / ticks;
    println!(
        "{what}: {:.0} us and {:.0} bytes a change, {:.3} % of a core at {USUAL_HZ} a second ({:.2} % alone)",
        cost * 1e6,
        bytes as f64 / ticks,
        cost * USUAL_HZ * 100.0,
        alone / SECONDS as f64 * 100.0
    );
}

/// Seconds of processor time that the process takes in a while.
fn busy(mut meanwhile: impl FnMut()) -> f64 {
    let before = processor_time();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(SECONDS) {
        meanwhile();
        std::thread::sleep(Duration::from_millis(5));
    }
    processor_time() - before
}

fn processor_time() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux").flatten();
    let spent = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    spent.sum::<f64>() / 1e9
}

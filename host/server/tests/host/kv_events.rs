//! KV events: a subscriber that joins late and misses messages rebuilds the index exactly, and peers that mean harm
//! end only their own connections.

#![cfg(feature = "kv-events")]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crate::common::{Host, LONG, config};
use infer_core::kv_events::KvEvent;
use infer_server::config::{AdapterChoice, Config, MaxSeqLen};
use infer_server::engine::KvBatch;
use infer_server::kv_events::{Adapter, Batch, Endpoint, Endpoints, Event, decode};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

/// Hash, parent, tokens and scope of a block.
type Block = (u64, Option<u64>, Vec<u32>, Option<String>);

/// A router's copy of the index.
#[derive(Default)]
struct Index {
    blocks: BTreeMap<u64, Block>,
    next: u64,
    replayed: usize,
}

impl Index {
    fn apply(&mut self, number: u64, batch: Batch) {
        assert_eq!(number, self.next, "no gap is left");
        self.next += 1;
        for event in batch.events {
            match event {
                Event::Cleared => self.blocks.clear(),
                Event::Removed { hashes } => {
                    for hash in hashes {
                        assert!(self.blocks.remove(&hash).is_some(), "{hash:x} was there");
                    }
                }
                Event::Stored { hashes, mut parent, tokens, block_size, scope, .. } => {
                    assert_eq!(tokens.len(), hashes.len() * block_size as usize);
                    for (hash, tokens) in hashes.into_iter().zip(tokens.chunks(block_size as usize)) {
                        assert!(
                            parent.is_none_or(|parent| self.blocks.contains_key(&parent)),
                            "parents first"
                        );
                        self.blocks.insert(hash, (hash, parent, tokens.to_vec(), scope.clone()));
                        parent = Some(hash);
                    }
                }
            }
        }
    }

    fn tree(&self) -> Tree {
        let blocks = self.blocks.values();
        blocks.map(|(hash, parent, tokens, _)| (*hash, (*parent, tokens.clone()))).collect()
    }
}

/// By hash, each block's parent and tokens.
type Tree = BTreeMap<u64, (Option<u64>, Vec<u32>)>;

fn number(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame.try_into().unwrap())
}

/// Requests a replay from message `from` on.
async fn replay(endpoint: &str, from: u64) -> Vec<(u64, Batch)> {
    let mut socket = DealerSocket::new();
    socket.connect(endpoint).await.unwrap();
    let frames: Vec<hyper::body::Bytes> = vec![Vec::new().into(), from.to_be_bytes().to_vec().into()];
    socket.send(ZmqMessage::try_from(frames).unwrap()).await.unwrap();
    let mut all = Vec::new();
    loop {
        let answer = socket.recv().await.unwrap().into_vec();
        let [_, at, payload] = &answer[..] else { panic!("{answer:?}") };
        if number(at) == u64::MAX {
            assert!(payload.is_empty());
            return all;
        }
        all.push((number(at), decode(payload).unwrap()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriber_rebuilds_the_index_exactly_across_gaps() {
    let any = || "tcp://127.0.0.1:0".parse::<Endpoint>().unwrap();
    // The pool is small enough that blocks are evicted.
    let config = Config {
        kv_events: Some(Endpoints { events: any(), replay: Some(any()) }),
        kv_memory_bytes: Some(1 << 20),
        max_seq_len: MaxSeqLen::Tokens(256),
        max_batch_size: 2,
        ..config()
    };
    let host = Host::start(config).await;
    let endpoints = host.server.kv_endpoints().unwrap().clone();
    let replay_at = endpoints.replay.unwrap().to_string();
    let complete = async |n: u32, salt: Option<&str>| {
        let prompt: Vec<u32> = (0..100).map(|at| 1 + (at * 7 + n * 13) % 90).collect();
        let fields = json!({"prompt": prompt, "max_tokens": 40, "ignore_eos": true, "cache_salt": salt});
        assert_eq!(host.events(fields).await.last().unwrap().0, "done");
    };
    // Before the subscriber connects.
    for n in 0..3 {
        complete(n, None).await;
    }
    let mut socket = SubSocket::new();
    socket.connect(&endpoints.events.to_string()).await.unwrap();
    socket.subscribe("kv@").await.unwrap();
    // Its subscription may still be on its way. What comes before it is missed, and so is its first message.
    let more = async {
        for n in (3..40).cycle() {
            complete(n, Some("early")).await;
        }
    };
    tokio::select! {
        message = socket.recv() => drop(message.unwrap()),
        () = more => {}
    }
    for n in 3..40 {
        complete(n, (n % 3 == 0).then_some("salt")).await;
    }
    // The request that was cut off has left, too.
    host.until("nothing is left", |state| state["requests"] == json!([])).await;
    let truth = host.server.engine().kv_snapshot().await.unwrap();
    let truth: Tree =
        truth.blocks.into_iter().map(|block| (block.hash, (block.parent, block.tokens.to_vec()))).collect();
    // The last events may still be on their way to the publisher.
    let begun = Instant::now();
    let (first, last) = loop {
        let sent = replay(&replay_at, 0).await;
        let (first, last) = (sent[0].0, sent[sent.len() - 1].0);
        let mut index = Index { next: first, ..Index::default() };
        sent.into_iter().for_each(|(number, batch)| index.apply(number, batch));
        if index.tree() == truth {
            break (first, last);
        }
        assert!(begun.elapsed() < LONG, "what was sent is never all that happened");
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    // Receives all messages but every third, which counts as lost.
    let mut index = Index { next: first, ..Index::default() };
    while index.next <= last {
        let frames = socket.recv().await.unwrap().into_vec();
        let [topic, at, payload] = &frames[..] else { panic!("{frames:?}") };
        assert!(topic.starts_with(b"kv@127.0.0.1:") && topic.ends_with(b"@demo"));
        let at = number(at);
        if at % 3 == 1 && at < last {
            continue;
        }
        if at > index.next {
            for (number, batch) in replay(&replay_at, index.next).await {
                if number < at {
                    index.replayed += 1;
                    index.apply(number, batch);
                }
            }
        }
        if at == index.next {
            index.apply(at, decode(payload).unwrap());
        }
    }
    assert!(index.replayed > 3, "there were gaps: {}", index.replayed);
    let salted: BTreeSet<bool> = index.blocks.values().map(|block| block.3.is_some()).collect();
    assert_eq!(salted.len(), 2, "salted blocks say so, others don't");
    let state = host.admin_get("/admin/state").await;
    assert!(state["counters"]["evicted_blocks"].as_u64().unwrap() > 0, "blocks went, too");
    assert_eq!(index.tree(), truth);
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blocks_of_adapters_are_told_with_their_names() {
    let golden = |name: &str| format!("{}/../../tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    let choice = |name: &str| AdapterChoice {
        name: format!("my-{name}"),
        place: golden(&format!("qwen3-lora/{name}")),
    };
    let any = || "tcp://127.0.0.1:0".parse::<Endpoint>().unwrap();
    let config = Config {
        kv_events: Some(Endpoints { events: any(), replay: Some(any()) }),
        model: golden("qwen3-bf16"),
        served_model_names: vec!["base".to_owned()],
        lora: ["all", "some"].map(choice).into(),
        ..config()
    };
    let host = Host::start(config).await;
    let replay_at = host.server.kv_endpoints().unwrap().replay.clone().unwrap().to_string();
    for model in ["base", "my-some"] {
        let fields = json!({"model": model, "prompt": vec![7; 40], "max_tokens": 2, "ignore_eos": true});
        assert_eq!(host.events(fields).await.last().unwrap().0, "done");
    }
    let stored = |(_, batch): (u64, Batch)| {
        batch.events.into_iter().filter_map(|event| match event {
            Event::Stored { adapter, .. } => Some(adapter),
            Event::Removed { .. } | Event::Cleared => None,
        })
    };
    // The last events may still be on their way to the publisher.
    let mut told = BTreeSet::new();
    while told.len() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
        told = replay(&replay_at, 0).await.into_iter().flat_map(stored).collect();
    }
    assert_eq!(told, BTreeSet::from([None, Some(Adapter { number: 2, name: "my-some".to_owned() })]));
    host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_contains_the_batches_before_its_number_and_no_other() {
    let host = Host::start(config()).await;
    let engine = host.server.engine();
    let (sender, told) = std::sync::mpsc::channel();
    let listen = Box::new(move |batch: KvBatch| drop(sender.send(batch)));
    engine.watch_kv(listen).unwrap();
    let complete = async |salt: &str| {
        let fields = json!({"max_tokens": 40, "ignore_eos": true, "cache_salt": salt});
        assert_eq!(host.events(fields).await.last().unwrap().0, "done");
    };
    let mut hashes = BTreeSet::new();
    let mut batches = 0;
    for salt in ["a", "b"] {
        complete(salt).await;
        let snapshot = engine.kv_snapshot().await.unwrap();
        for batch in told.try_iter() {
            assert_eq!(batch.number, batches, "no number is left out");
            batches += 1;
            assert!(batch.number < snapshot.next && !batch.events.is_empty());
            for event in batch.events {
                match event {
                    KvEvent::Stored(block) => assert!(hashes.insert(block.hash)),
                    KvEvent::Removed { hash } => assert!(hashes.remove(&hash)),
                }
            }
        }
        assert_eq!(batches, snapshot.next);
        assert!(!hashes.is_empty());
        assert_eq!(snapshot.blocks.iter().map(|block| block.hash).collect::<BTreeSet<_>>(), hashes);
    }
    host.server.shutdown().await;
}

/// A host that publishes, and a subscriber.
struct Site {
    host: Host,
    events: String,
    replay: String,
    subscriber: SubSocket,
}

impl Site {
    async fn start() -> Self {
        let any = || "tcp://127.0.0.1:0".parse::<Endpoint>().unwrap();
        let host = Host::start(Config {
            kv_events: Some(Endpoints { events: any(), replay: Some(any()) }),
            ..config()
        })
        .await;
        let endpoints = host.server.kv_endpoints().unwrap().clone();
        let mut subscriber = SubSocket::new();
        subscriber.connect(&endpoints.events.to_string()).await.unwrap();
        subscriber.subscribe("").await.unwrap();
        Self {
            host,
            events: endpoints.events.to_string(),
            replay: endpoints.replay.unwrap().to_string(),
            subscriber,
        }
    }

    /// Checks that requests are served and replays sent, and that the subscriber is told what happens from now on.
    async fn serves(&mut self) {
        let Self { host, replay: replay_at, subscriber, .. } = self;
        let health = host.client.get(host.url("/health")).send().await.unwrap();
        assert_eq!(health.status(), 200);
        let next = replay(replay_at, 0).await.last().map_or(0, |(number, _)| number + 1);
        let told = async { while number(&subscriber.recv().await.unwrap().into_vec()[1]) < next {} };
        // Its subscription may still be on its way.
        let begun = Instant::now();
        let happens = async {
            for n in 0.. {
                let salt = format!("{next}-{n}");
                let fields = json!({"max_tokens": 40, "ignore_eos": true, "cache_salt": salt});
                assert_eq!(host.events(fields).await.last().unwrap().0, "done");
                if begun.elapsed() > LONG {
                    break;
                }
            }
        };
        tokio::select! {
            () = told => {}
            () = happens => panic!("the subscriber is told nothing"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriber_of_a_host_before_the_restart_is_sent_everything_anew() {
    let mut before = Site::start().await;
    before.serves().await;
    let sent = replay(&before.replay, 0).await;
    before.host.server.shutdown().await;
    let mut site = Site::start().await;
    // The new process has sent more than the one before.
    while replay(&site.replay, 0).await.len() <= sent.len() {
        site.serves().await;
    }
    for (number, _) in [&sent[0], &sent[sent.len() - 1]] {
        let anew = replay(&site.replay, number + 1).await;
        assert!(anew.len() > sent.len() && anew[0].0 > *number + 1, "{number}, {}", anew[0].0);
        assert_eq!(anew[0].1.events.first(), Some(&Event::Cleared));
    }
    site.host.server.shutdown().await;
}

/// As after a restart for which the clock was set back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn subscriber_that_is_ahead_of_the_host_is_sent_everything_anew() {
    let mut site = Site::start().await;
    site.serves().await;
    let last = replay(&site.replay, 0).await.last().unwrap().0;
    assert!(replay(&site.replay, last + 1_000).await.is_empty());
    loop {
        let frames = site.subscriber.recv().await.unwrap().into_vec();
        if number(&frames[1]) > last && decode(&frames[2]).unwrap().events.first() == Some(&Event::Cleared) {
            break;
        }
    }
    site.host.server.shutdown().await;
}

/// A peer that has sent these bytes.
async fn peer(endpoint: &str, bytes: &[u8]) -> TcpStream {
    let mut peer = TcpStream::connect(endpoint.trim_start_matches("tcp://")).await.unwrap();
    peer.write_all(bytes).await.unwrap();
    peer
}

/// What a peer gets until the host ends its connection.
async fn until_ended(mut peer: TcpStream) -> Vec<u8> {
    let mut got = Vec::new();
    let ended = tokio::time::timeout(Duration::from_secs(60), peer.read_to_end(&mut got)).await;
    // The host doesn't read what follows, so it may reset the connection.
    let _ = ended.expect("the host ends the connection");
    got
}

/// A greeting of ZMTP 3 that names the mechanism NULL.
fn greeting() -> Vec<u8> {
    let mut bytes = [&[0xff_u8][..], &[0; 8], &[0x7f, 3, 0], b"NULL"].concat();
    bytes.resize(64, 0);
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_length_beyond_all_memory_ends_only_its_connection() {
    let mut site = Site::start().await;
    site.serves().await;
    let attack = [&greeting()[..], &[2, 0x40], &[0; 7]].concat();
    for endpoint in [&site.events, &site.replay] {
        until_ended(peer(endpoint, &attack).await).await;
    }
    site.serves().await;
    site.host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_subscriptions_end_only_their_connection() {
    let mut site = Site::start().await;
    let ready = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB";
    let subscriptions: Vec<u8> =
        (0..2_000_u16).flat_map(|n| [[0, 4], [1, 0], n.to_be_bytes()].concat()).collect();
    until_ended(peer(&site.events, &[&greeting()[..], ready, &subscriptions].concat()).await).await;
    site.serves().await;
    site.host.server.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_connections_take_no_more_than_their_places() {
    let mut site = Site::start().await;
    let mut silent = Vec::new();
    for _ in 0..70 {
        silent.push(peer(&site.events, b"").await);
    }
    assert_eq!(until_ended(silent.pop().unwrap()).await, b"", "the last one isn't even greeted");
    site.serves().await;
    site.host.server.shutdown().await;
}

//! KV events: a subscriber that joins late and misses messages rebuilds the index exactly.

#![cfg(feature = "kv-events")]

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{Host, config};
use infer_server::config::Config;
use infer_server::kv_events::{Batch, Event, decode};
use serde_json::json;
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
                Event::Stored { hashes, mut parent, tokens, block_size, scope } => {
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
}

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
    let any = || "tcp://127.0.0.1:0".to_owned();
    // The pool is small enough that blocks are evicted.
    let config = Config {
        kv_events: Some((any(), Some(any()))),
        kv_memory_bytes: Some(1 << 20),
        max_seq_len: Some(256),
        max_batch_size: 2,
        ..config()
    };
    let host = Host::start(config).await;
    let endpoints = host.server.kv_endpoints().unwrap().clone();
    let replay_at = endpoints.replay.unwrap();
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
    socket.connect(&endpoints.events).await.unwrap();
    socket.subscribe("kv@").await.unwrap();
    let mut index = Index::default();
    for n in 3..40 {
        complete(n, (n % 3 == 0).then_some("salt")).await;
    }
    // Receives all messages but every third, which counts as lost.
    let last = replay(&replay_at, 0).await.last().unwrap().0;
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
    let truth = host.server.engine().kv_snapshot().await.unwrap();
    let salted: BTreeSet<bool> = index.blocks.values().map(|block| block.3.is_some()).collect();
    assert_eq!(salted.len(), 2, "salted blocks say so, others don't");
    let state = host.admin_get("/admin/state").await;
    assert!(state["counters"]["evicted_blocks"].as_u64().unwrap() > 0, "blocks went, too");
    let truth: BTreeMap<u64, (Option<u64>, Vec<u32>)> =
        truth.into_iter().map(|block| (block.hash, (block.parent, block.tokens.to_vec()))).collect();
    let copy: BTreeMap<u64, (Option<u64>, Vec<u32>)> =
        index.blocks.into_iter().map(|(hash, (_, parent, tokens, _))| (hash, (parent, tokens))).collect();
    assert_eq!(copy, truth);
    host.server.shutdown().await;
}

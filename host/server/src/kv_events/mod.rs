//! KV events over ZMQ, as routers for vLLM subscribe to them: which prefixes this host can serve from its
//! cache.
//!
//! A PUB socket sends one message per batch: topic, sequence number (8 bytes, big-endian), payload (msgpack,
//! see `wire`). A ROUTER socket sends again what a subscriber has missed, as far as the buffer reaches: asked
//! for a number, it answers with every batch from there on, then with an end mark. The first batch after the
//! start, the first after batches were lost on the way here, and the first after somebody asked for what the buffer
//! no longer has, clears the subscribers' index and stores all there is, so that an index can always be exact again.

mod publisher;
mod sent;
mod wire;

pub use publisher::{Endpoints, KvSender, Publisher, channel};
pub use wire::{Batch, Event, decode, encode};

//! KV events over ZMQ, in vLLM's format: they tell routers which prefixes this host has cached.
//!
//! A PUB socket sends one message per batch: topic, sequence number (8 bytes, big-endian), payload (msgpack,
//! see `wire`). A ROUTER socket resends what a subscriber has missed, as far as the buffer reaches: given a
//! number, it sends every batch from that one on, then an end mark. A batch that clears the subscribers'
//! index and stores all cached blocks comes first, again after batches were lost inside the host, and again
//! after a subscriber asked for one that the buffer no longer has. So an index can always become exact again.
//!
//! Numbers begin at the time of the start, in microseconds since 1970, so those of an earlier process are below all of
//! this one: whoever asks for one misses everything, like one whose batches the buffer no longer has.
//!
//! Peers aren't authenticated and reach zeromq only through `gate`, which bounds what they can do.

mod endpoint;
#[cfg(feature = "kv-events")]
mod gate;
#[cfg(feature = "kv-events")]
mod publisher;
#[cfg(not(feature = "kv-events"))]
#[path = "none.rs"]
mod publisher;
#[cfg(feature = "kv-events")]
mod sent;
#[cfg(feature = "kv-events")]
mod wire;

pub use endpoint::{BindError, Endpoint, Endpoints};
pub use publisher::Publisher;
#[cfg(feature = "kv-events")]
pub use wire::{Adapter, Batch, Event, decode, encode};

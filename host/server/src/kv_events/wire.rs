//! Batches in vLLM's msgpack format: `[ts, [event..], dp_rank]`, where an event is
//! `["BlockStored", hashes, parent, tokens, block_size, lora_id, medium, lora_name, extra_keys]`,
//! `["BlockRemoved", hashes, medium]` or `["AllBlocksCleared"]`.
//!
//! Consecutive blocks of a chain are one event. `extra_keys` separates the caches of tenants and salts, `lora_name` those of
//! adapters; `lora_id` is a number that no other adapter of the process has: the place in `--lora`, from 1, and of those
//! that are loaded later the next ones.

use infer_core::kv_events::{KvBlock, KvEvent};
use infer_core::{AdapterId, TenantId};
use serde::de::{self, SeqAccess, Visitor};
use serde::ser::SerializeTuple;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::engine::AdapterNames;

/// The tier of all blocks: the memory of the device, whatever the device is.
const MEDIUM: &str = "GPU";

/// One message's payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// Unix time in seconds.
    pub at: f64,
    /// The events, in order.
    pub events: Vec<Event>,
}

/// An event as routers read it.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Consecutive blocks of a chain.
    Stored {
        /// Their hashes.
        hashes: Vec<u64>,
        /// The block before the first of them.
        parent: Option<u64>,
        /// The tokens of all of them.
        tokens: Vec<u32>,
        /// Tokens per block.
        block_size: u32,
        /// The cache they belong to; `None` for the shared one.
        scope: Option<String>,
        /// The adapter that they were computed with; `None` for none.
        adapter: Option<Adapter>,
    },
    /// Blocks that were evicted.
    Removed {
        /// Their hashes.
        hashes: Vec<u64>,
    },
    /// All blocks are gone.
    Cleared,
}

/// An adapter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Adapter {
    /// Its number, from 1.
    pub number: u32,
    /// Its name in requests.
    pub name: String,
}

impl Batch {
    /// A batch of events, with consecutive blocks of a chain joined. `adapters` are those that blocks may be
    /// of.
    pub fn new(at: f64, happened: &[KvEvent], adapters: &AdapterNames) -> Self {
        let mut batch = Self { at, events: Vec::new() };
        happened.iter().for_each(|event| batch.push(event, adapters));
        batch
    }

    /// A batch that clears the index and stores all `blocks`, which have parents before children.
    pub fn snapshot(at: f64, blocks: Vec<KvBlock>, adapters: &AdapterNames) -> Self {
        let mut batch = Self { at, events: vec![Event::Cleared] };
        blocks.into_iter().for_each(|block| batch.push(&KvEvent::Stored(block), adapters));
        batch
    }

    /// Whether this is a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.events.first() == Some(&Event::Cleared)
    }

    fn push(&mut self, event: &KvEvent, adapters: &AdapterNames) {
        match (event, self.events.last_mut()) {
            (KvEvent::Removed { hash }, Some(Event::Removed { hashes })) => hashes.push(*hash),
            (KvEvent::Removed { hash }, _) => self.events.push(Event::Removed { hashes: vec![*hash] }),
            (KvEvent::Stored(block), Some(Event::Stored { hashes, tokens, scope, adapter, .. }))
                if block.parent.is_some()
                    && block.parent == hashes.last().copied()
                    && *scope == scope_of(block)
                    && adapter.as_ref().map_or(0, |adapter| adapter.number) == block.adapter.0 =>
            {
                hashes.push(block.hash);
                tokens.extend(&block.tokens);
            }
            (KvEvent::Stored(block), _) => self.events.push(Event::Stored {
                hashes: vec![block.hash],
                parent: block.parent,
                tokens: block.tokens.to_vec(),
                block_size: block.tokens.len() as u32,
                scope: scope_of(block),
                adapter: adapter_of(block, adapters),
            }),
        }
    }
}

fn scope_of(block: &KvBlock) -> Option<String> {
    let TenantId(tenant) = block.tenant;
    (tenant != 0 || block.salt != 0).then(|| format!("{tenant}:{:x}", block.salt))
}

fn adapter_of(block: &KvBlock, adapters: &AdapterNames) -> Option<Adapter> {
    if block.adapter == AdapterId::NONE {
        return None;
    }
    let name = adapters.get(&block.adapter).cloned();
    debug_assert!(name.is_some(), "the engine thread names {:?}", block.adapter);
    Some(Adapter { number: block.adapter.0, name: name.unwrap_or_default() })
}

/// Encodes a batch as msgpack.
pub fn encode(batch: &Batch) -> Vec<u8> {
    rmp_serde::to_vec(&(batch.at, &batch.events, 0)).expect("batches are msgpack")
}

/// Decodes msgpack, for subscribers.
pub fn decode(bytes: &[u8]) -> Result<Batch, rmp_serde::decode::Error> {
    let (at, events, _rank): (f64, Vec<Event>, Option<i64>) = rmp_serde::from_slice(bytes)?;
    Ok(Batch { at, events })
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Stored { hashes, parent, tokens, block_size, scope, adapter } => {
                let extra_keys = scope.as_ref().map(|scope| vec![[scope]; hashes.len()]);
                let mut event = serializer.serialize_tuple(9)?;
                event.serialize_element("BlockStored")?;
                event.serialize_element(hashes)?;
                event.serialize_element(parent)?;
                event.serialize_element(tokens)?;
                event.serialize_element(block_size)?;
                event.serialize_element(&adapter.as_ref().map(|adapter| adapter.number))?;
                event.serialize_element(MEDIUM)?;
                event.serialize_element(&adapter.as_ref().map(|adapter| &adapter.name))?;
                event.serialize_element(&extra_keys)?;
                event.end()
            }
            Self::Removed { hashes } => ("BlockRemoved", hashes, MEDIUM).serialize(serializer),
            Self::Cleared => ("AllBlocksCleared",).serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(EventVisitor)
    }
}

struct EventVisitor;

impl<'de> Visitor<'de> for EventVisitor {
    type Value = Event;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an event, an array that begins with its name")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Event, A::Error> {
        let name: String = need(&mut seq)?;
        match name.as_str() {
            "BlockStored" => {
                let (hashes, parent) = (need(&mut seq)?, need(&mut seq)?);
                let (tokens, block_size) = (need(&mut seq)?, need(&mut seq)?);
                let number: Option<u32> = need(&mut seq)?;
                let _medium: Option<String> = need(&mut seq)?;
                let name: Option<String> = need(&mut seq)?;
                let adapter = number.zip(name).map(|(number, name)| Adapter { number, name });
                let extra_keys: Option<Vec<Vec<String>>> = need(&mut seq)?;
                let scope = extra_keys.and_then(|keys| keys.into_iter().flatten().next());
                Ok(Event::Stored { hashes, parent, tokens, block_size, scope, adapter })
            }
            "BlockRemoved" => {
                let hashes = need(&mut seq)?;
                let _medium: Option<String> = need(&mut seq)?;
                Ok(Event::Removed { hashes })
            }
            "AllBlocksCleared" => Ok(Event::Cleared),
            other => Err(de::Error::custom(format!("unknown event `{other}`"))),
        }
    }
}

fn need<'de, A: SeqAccess<'de>, T: Deserialize<'de>>(seq: &mut A) -> Result<T, A::Error> {
    seq.next_element()?.ok_or_else(|| de::Error::custom("the event is too short"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(hash: u64, parent: Option<u64>, salt: u64) -> KvEvent {
        adapted(hash, parent, salt, AdapterId::NONE)
    }

    fn adapted(hash: u64, parent: Option<u64>, salt: u64, adapter: AdapterId) -> KvEvent {
        let tokens = [hash as u32, 7].into();
        KvEvent::Stored(KvBlock { hash, parent, tokens, tenant: TenantId(0), salt, adapter })
    }

    #[test]
    fn chains_are_joined_and_survive_encoding() {
        let happened = [
            stored(1, None, 0),
            stored(2, Some(1), 0),
            stored(3, Some(1), 0),
            stored(4, Some(3), 9),
            KvEvent::Removed { hash: 2 },
            KvEvent::Removed { hash: u64::MAX },
        ];
        let batch = Batch::new(1.5, &happened, &AdapterNames::new());
        assert_eq!(batch.events.len(), 4);
        let Event::Stored { hashes, tokens, block_size, scope, .. } = &batch.events[0] else { panic!() };
        assert_eq!(
            (&hashes[..], &tokens[..], *block_size, scope),
            (&[1, 2][..], &[1, 7, 2, 7][..], 2, &None)
        );
        assert_eq!(decode(&encode(&batch)).unwrap(), batch);
        let cleared = Batch { at: 0.0, events: vec![Event::Cleared] };
        assert_eq!(decode(&encode(&cleared)).unwrap(), cleared);
    }

    #[test]
    fn blocks_of_adapters_carry_its_number_and_name() {
        let [none, second] = [AdapterId::NONE, AdapterId(2)];
        let happened =
            [adapted(1, None, 0, none), adapted(2, None, 0, second), adapted(3, Some(2), 0, second)];
        let names = AdapterNames::from([(AdapterId(1), "sql".to_owned()), (second, "support".to_owned())]);
        let batch = Batch::new(0.0, &happened, &names);
        let of = |event: &Event| match event {
            Event::Stored { hashes, adapter, .. } => (hashes.len(), adapter.clone()),
            other => panic!("{other:?}"),
        };
        let support = Adapter { number: 2, name: "support".to_owned() };
        assert_eq!(batch.events.iter().map(of).collect::<Vec<_>>(), [(1, None), (2, Some(support))]);
        let encoded = encode(&batch);
        assert_eq!(decode(&encoded).unwrap(), batch);
        // As routers read it: the number, the tier and the name follow the size of a block.
        let as_sent = b"\x02\x02\xa3GPU\xa7support";
        assert!(encoded.windows(as_sent.len()).any(|part| part == as_sent), "{encoded:02x?}");
    }

    #[test]
    fn encoding_is_byte_exact() {
        let batch = Batch::new(0.0, &[stored(5, None, 0)], &AdapterNames::new());
        // [0.0, [["BlockStored", [5], nil, [5, 7], 2, nil, "GPU", nil, nil]], 0]
        let mut want = vec![0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x91, 0x99, 0xab];
        want.extend(b"BlockStored");
        want.extend([0x91, 5, 0xc0, 0x92, 5, 7, 2, 0xc0, 0xa3]);
        want.extend(b"GPU");
        want.extend([0xc0, 0xc0, 0]);
        assert_eq!(encode(&batch), want);
    }
}

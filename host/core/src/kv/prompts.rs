//! Whole prompts whose last logits are kept: an exact repetition needs no prefill.
//!
//! An entry ends in a block of the tree, full or partial, and lives only as long as that block; so everything
//! before it is cached too. Bounded by its slots, least recently used out first.

use super::index::Scope;
use crate::detmap::DetMap;
use crate::ids::{BlockId, LogitsSlot, Micros};
use crate::list::Lru;

#[derive(Clone, Debug, Default)]
enum Slot {
    #[default]
    Free,
    /// A batch in flight writes its logits.
    Reserved,
    Live(Entry),
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub key: u64,
    pub scope: Scope,
    /// The full block before `block`.
    pub parent: Option<BlockId>,
    /// The prompt's last block.
    pub block: BlockId,
    /// The prompt's tokens in `block`.
    pub tail: Box<[u32]>,
    pub last_used: Micros,
}

#[derive(Debug)]
pub(crate) struct Prompts {
    slots: Vec<Slot>,
    free: Vec<u32>,
    order: Lru,
    by_key: DetMap<u64, u32>,
    /// Slots that the batch being made or computed reads: their logits must stay.
    reading: Vec<LogitsSlot>,
    ttl: Micros,
}

impl Prompts {
    pub fn new(entries: u32, ttl: Micros) -> Self {
        Self {
            slots: vec![Slot::Free; entries as usize],
            free: (0..entries).rev().collect(),
            order: Lru::new(entries),
            by_key: DetMap::default(),
            reading: Vec::new(),
            ttl,
        }
    }

    pub fn enabled(&self) -> bool {
        !self.slots.is_empty()
    }

    /// The entry of exactly this prompt.
    pub fn find(&self, key: u64, parent: Option<BlockId>, scope: Scope, tail: &[u32]) -> Option<LogitsSlot> {
        let &at = self.by_key.get(&key)?;
        let entry = self.live(LogitsSlot(at));
        (entry.parent == parent && entry.scope == scope && *entry.tail == *tail).then_some(LogitsSlot(at))
    }

    pub fn live(&self, slot: LogitsSlot) -> &Entry {
        match &self.slots[slot.0 as usize] {
            Slot::Live(entry) => entry,
            _ => panic!("slot {slot:?} holds an entry"),
        }
    }

    /// Reserves a slot to write to and returns the entry that it evicted. `None` while all are being read or
    /// written.
    pub fn reserve(&mut self) -> Option<(LogitsSlot, Option<Entry>)> {
        if let Some(at) = self.free.pop() {
            self.slots[at as usize] = Slot::Reserved;
            return Some((LogitsSlot(at), None));
        }
        let oldest = self.order.iter().find(|&at| !self.reading.contains(&LogitsSlot(at)))?;
        let entry = self.take(LogitsSlot(oldest));
        self.slots[oldest as usize] = Slot::Reserved;
        Some((LogitsSlot(oldest), Some(entry)))
    }

    /// Gives a reserved slot back unused.
    pub fn cancel(&mut self, slot: LogitsSlot) {
        debug_assert!(matches!(self.slots[slot.0 as usize], Slot::Reserved));
        self.slots[slot.0 as usize] = Slot::Free;
        self.free.push(slot.0);
    }

    /// Fills a reserved slot. Returns the entry that another prompt with the same key had.
    pub fn insert(&mut self, slot: LogitsSlot, entry: Entry) -> Option<Entry> {
        debug_assert!(matches!(self.slots[slot.0 as usize], Slot::Reserved));
        let collided = self.by_key.get(&entry.key).copied();
        let collided = collided.map(|at| self.remove(LogitsSlot(at)));
        self.by_key.insert(entry.key, slot.0);
        self.slots[slot.0 as usize] = Slot::Live(entry);
        self.order.push_back(slot.0);
        collided
    }

    /// Notes a use. Its logits stay until `end_reading`.
    pub fn read(&mut self, slot: LogitsSlot, now: Micros) {
        self.touch(slot, now);
        self.reading.push(slot);
    }

    pub fn touch(&mut self, slot: LogitsSlot, now: Micros) {
        if let Slot::Live(entry) = &mut self.slots[slot.0 as usize] {
            entry.last_used = now;
            self.order.remove(slot.0);
            self.order.push_back(slot.0);
        }
    }

    /// The batch that read kept logits is done. Frees slots whose entries were removed meanwhile.
    pub fn end_reading(&mut self) {
        for slot in std::mem::take(&mut self.reading) {
            if matches!(self.slots[slot.0 as usize], Slot::Free) && !self.free.contains(&slot.0) {
                self.free.push(slot.0);
            }
        }
    }

    /// Forgets an entry.
    pub fn remove(&mut self, slot: LogitsSlot) -> Entry {
        let entry = self.take(slot);
        if !self.reading.contains(&slot) {
            self.free.push(slot.0);
        }
        entry
    }

    fn take(&mut self, slot: LogitsSlot) -> Entry {
        let Slot::Live(entry) = std::mem::take(&mut self.slots[slot.0 as usize]) else {
            panic!("slot {slot:?} holds an entry")
        };
        self.by_key.remove(&entry.key);
        self.order.remove(slot.0);
        entry
    }

    /// Entries that end in a block.
    pub fn ending_in(&self, block: BlockId) -> Vec<LogitsSlot> {
        self.iter().filter(|(_, entry)| entry.block == block).map(|(slot, _)| slot).collect()
    }

    /// Entries that ended in `from` end in `to`, which holds the same.
    pub fn rebase(&mut self, from: BlockId, to: BlockId) {
        for slot in &mut self.slots {
            if let Slot::Live(entry) = slot
                && entry.block == from
            {
                entry.block = to;
            }
        }
    }

    /// The entry that outlived its time, oldest first.
    pub fn expired(&self, now: Micros) -> Option<LogitsSlot> {
        self.next_expiry().filter(|&at| at <= now)?;
        self.order.iter().next().map(LogitsSlot)
    }

    pub fn next_expiry(&self) -> Option<Micros> {
        let oldest = self.order.iter().next()?;
        Some(self.live(LogitsSlot(oldest)).last_used.plus(self.ttl))
    }

    pub fn iter(&self) -> impl Iterator<Item = (LogitsSlot, &Entry)> {
        self.slots.iter().enumerate().filter_map(|(at, slot)| match slot {
            Slot::Live(entry) => Some((LogitsSlot(at as u32), entry)),
            _ => None,
        })
    }
}

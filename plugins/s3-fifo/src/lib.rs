//! `s3-fifo`: a small queue on probation and a main one; blocks that aren't used again while in the small one
//! are evicted.
//!
//! After S3-FIFO (Yang et al., SOSP 2023, "FIFO queues are all you need for cache eviction"): most of what
//! enters a cache is never used again, so new blocks pass through a queue of a tenth of the cache, and get
//! into the main queue only if they were used meanwhile. A use moves nothing; it adds one to a count of up to
//! three, and a block with uses left at the tail of the main queue pays one and goes round again. A scan of
//! long prompts then costs only the small queue, where LRU would lose everything.
//!
//! Missing is the ghost queue, which remembers what left the small queue and sends it straight to the main
//! one when it returns. A policy doesn't see contents: the pool reuses block numbers, and neither depth nor
//! session tells whether a prefix is the same text as before. To make up for it, one use on probation is
//! enough here; with ghosts the paper asks for two.
//!
//! Queues are ordered by when a block was stored, and followers leave before what they follow. A promoted
//! block takes those before it along, because they were used whenever it was.
//!
//! A sequence that resumes after a preemption uses its blocks once more, and no event tells that from another
//! request's use: while memory is so short that the scheduler preempts, a scan can get into the main queue.

use infer_policy_sdk::{
    BlockId, BlockMap, EventKind, Events, IdleTree, Micros, Policy, PrefixCache, Taken, export_policy,
};
use serde::{Deserialize, Serialize};

/// Uses are counted up to this.
const MOST_USES: u8 = 3;
/// Moves within one call; blocks judged after that are evicted regardless of their uses. Keeps a call short
/// if everything in a large cache was used.
const MOST_MOVES: u64 = 4_096;

/// The policy's configuration.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Share of the cached blocks that new ones may take up.
    pub small: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { small: 0.1 }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Queue {
    #[default]
    Small,
    Main,
}

/// A block's position in its queue, which it also has while it is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    queue: Queue,
    /// Larger is later; 0 if the block isn't in the cache.
    turn: u64,
    uses: u8,
}

/// Two queues with lazy promotion.
pub struct S3Fifo {
    config: Config,
    places: BlockMap<Place>,
    idle: IdleTree<(Queue, u64)>,
    /// Idle blocks of the small queue.
    idle_small: usize,
    last_turn: u64,
}

impl Policy for S3Fifo {
    type Config = Config;
    const NAME: &'static str = "s3-fifo";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");
    const DESCRIPTION: &'static str = "New blocks pass through a small queue and stay only if they are used \
         meanwhile, so a scan of long prompts evicts nothing valuable.";
    const CONFIG_SCHEMA: &'static str = r#"{
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "small": {
                "type": "number", "minimum": 0, "maximum": 1, "default": 0.1,
                "description": "Share of the cached blocks that newcomers may take up"
            }
        }
    }"#;

    fn new(config: Config) -> Result<Self, String> {
        if !(0.0..=1.0).contains(&config.small) {
            return Err(format!("`small` must be from 0 to 1, not {}", config.small));
        }
        Ok(Self {
            config,
            places: BlockMap::default(),
            idle: IdleTree::default(),
            idle_small: 0,
            last_turn: 0,
        })
    }
}

impl PrefixCache for S3Fifo {
    fn observe(&mut self, events: &Events) -> Vec<BlockId> {
        for event in events.iter() {
            self.take(event.block);
            let Some(place) = self.places.get_mut(event.block) else { continue };
            match event.kind {
                EventKind::Stored => *place = Place::default(),
                EventKind::Reused => place.uses = place.uses.saturating_add(1).min(MOST_USES),
                EventKind::Dropped => {
                    *place = Place::default();
                    continue;
                }
                EventKind::Idle => {}
            }
            if place.turn == 0 {
                self.last_turn += 1;
                place.turn = self.last_turn;
            }
            if event.kind == EventKind::Idle {
                let (queue, turn) = (place.queue, place.turn);
                self.idle_small += usize::from(queue == Queue::Small);
                self.idle.insert(event.block, event.parent, (queue, turn));
            }
        }
        Vec::new()
    }

    fn evict(&mut self, _now: Micros, need: u32) -> Vec<BlockId> {
        let mut named = Vec::new();
        let last_move = self.last_turn.saturating_add(MOST_MOVES);
        while named.len() < need as usize
            && let Some(block) = self.tail()
        {
            match self.places.get(block).copied().unwrap_or_default() {
                Place { queue, uses, .. } if uses > 0 && self.last_turn < last_move => match queue {
                    Queue::Small => self.promote(block),
                    Queue::Main => self.enter_main(block, uses - 1),
                },
                _ => named.extend(self.take(block)),
            }
        }
        let names = named.iter().map(|taken| taken.block).collect();
        // Named blocks stay until the host reports that they are gone.
        for taken in named.into_iter().rev() {
            self.idle_small += usize::from(taken.key.0 == Queue::Small);
            self.idle.put_back(taken);
        }
        names
    }
}

impl S3Fifo {
    fn take(&mut self, block: BlockId) -> Option<Taken<(Queue, u64)>> {
        let taken = self.idle.remove(block)?;
        self.idle_small -= usize::from(taken.key.0 == Queue::Small);
        Some(taken)
    }

    /// The next block to judge: one of the small queue while that holds more than its share.
    fn tail(&self) -> Option<BlockId> {
        let small = self.idle.leaves().next().filter(|((queue, _), _)| *queue == Queue::Small);
        let main = self.idle.first_leaf_from((Queue::Main, 0));
        let over = self.idle_small as f64 > self.idle.len() as f64 * self.config.small;
        let (first, second) = if over { (small, main) } else { (main, small) };
        first.or(second).map(|(_, block)| block)
    }

    /// Moves a block of the small queue, and those before it, to the main one.
    fn promote(&mut self, leaf: BlockId) {
        let mut next = Some(leaf);
        while let Some(block) = next
            && let Some((Queue::Small, _)) = self.idle.key(block)
        {
            let uses = if block == leaf { 0 } else { self.places.get(block).map_or(0, |place| place.uses) };
            self.enter_main(block, uses);
            next = self.idle.above(block);
        }
    }

    fn enter_main(&mut self, block: BlockId, uses: u8) {
        self.last_turn += 1;
        let place = Place { queue: Queue::Main, turn: self.last_turn, uses };
        if let Some(known) = self.places.get_mut(block) {
            self.idle_small -= usize::from(known.queue == Queue::Small);
            *known = place;
            self.idle.set_key(block, (place.queue, place.turn));
        }
    }
}

export_policy!(prefix_cache: S3Fifo);

#[cfg(test)]
mod tests;

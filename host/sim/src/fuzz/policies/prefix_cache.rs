//! Prefix-cache policies of every style. They keep a strict mirror of the events.

use std::collections::{BTreeMap, BTreeSet};

use infer_core::policy::{
    CacheEventKind, CacheEvents, Ended, Hit, PolicyFault, PrefixCachePolicy, Retention,
};
use infer_core::{BlockId, Micros};

use super::Temper;
use crate::fuzz::case::Style;

pub(super) struct Cache {
    pub temper: Temper,
    /// Known blocks and their parents.
    known: BTreeMap<u32, u32>,
    idle: BTreeSet<u32>,
}

const STORED: u8 = CacheEventKind::Stored as u8;
const REUSED: u8 = CacheEventKind::Reused as u8;
const IDLE: u8 = CacheEventKind::Idle as u8;
const DROPPED: u8 = CacheEventKind::Dropped as u8;

impl Cache {
    pub fn new(temper: Temper, cached: Option<&CacheEvents>) -> Self {
        let mut cache = Self { temper, known: BTreeMap::new(), idle: BTreeSet::new() };
        if let Some(events) = cached {
            cache.absorb(events);
        }
        cache
    }

    pub fn forget(&mut self) {
        self.known.clear();
        self.idle.clear();
    }

    fn absorb(&mut self, events: &CacheEvents) {
        for at in 0..events.len() {
            let (block, parent) = (events.block[at], events.parent[at]);
            match events.kind[at] {
                STORED => {
                    assert!(self.known.insert(block, parent).is_none(), "block {block} is stored twice");
                }
                REUSED => {
                    self.known.entry(block).or_insert(parent);
                    self.idle.remove(&block);
                }
                IDLE => {
                    self.known.entry(block).or_insert(parent);
                    self.idle.insert(block);
                }
                DROPPED => {
                    self.known.remove(&block);
                    self.idle.remove(&block);
                    let orphan = self.known.iter().find(|&(_, &above)| above == block);
                    assert!(orphan.is_none(), "block {block} is dropped before {orphan:?}, which follows it");
                }
                kind => panic!("there is no event of kind {kind}"),
            }
        }
    }

    fn some_idle(&mut self, most: usize) -> Vec<BlockId> {
        let skip = self.temper.dice.below(3) as usize;
        let mut names: Vec<_> = self.idle.iter().skip(skip).take(most).map(|&block| BlockId(block)).collect();
        if self.temper.dice.chance(50) {
            names.reverse();
        }
        names
    }

    /// Blocks that may not be dropped.
    fn sin(&mut self) -> Result<Vec<BlockId>, PolicyFault> {
        match self.temper.dice.below(4) {
            0 => Err(self.temper.fault()),
            1 => Ok(vec![BlockId(u32::MAX)]),
            2 => Ok(self.known.keys().map(|&block| BlockId(block)).collect()),
            _ => Ok(vec![BlockId(self.temper.dice.below(99) as u32)]),
        }
    }
}

impl PrefixCachePolicy for Cache {
    fn reuse(&mut self, hit: &Hit) -> Result<u32, PolicyFault> {
        assert!(hit.cached_tokens > 0, "reuse is only called for a hit");
        if self.temper.sins() {
            return if self.temper.dice.chance(50) {
                Err(self.temper.fault())
            } else {
                Ok(hit.cached_tokens.saturating_add(1 + self.temper.dice.below(1 << 32) as u32))
            };
        }
        Ok(match self.temper.style {
            Style::Stall => 0,
            Style::Random | Style::Crumbs if self.temper.dice.chance(30) => {
                self.temper.dice.below(u64::from(hit.cached_tokens)) as u32
            }
            _ => hit.cached_tokens,
        })
    }

    fn retain(&mut self, ended: &Ended) -> Result<Retention, PolicyFault> {
        if self.temper.sins() {
            return Err(self.temper.fault());
        }
        let all = u64::from(ended.prompt_tokens) + u64::from(ended.generated_tokens);
        let dice = &mut self.temper.dice;
        let keep_tokens = match self.temper.style {
            Style::Stall | Style::Starve => 0,
            Style::Random | Style::Crumbs if dice.chance(40) => dice.below(all + 5) as u32,
            Style::Timid => u32::MAX,
            _ => all as u32,
        };
        let ttl = match dice.below(5) {
            0 => dice.below(50_000),
            1 if self.temper.style == Style::Timid => u64::MAX,
            _ => 0,
        };
        Ok(Retention { keep_tokens, ttl: Micros(ttl) })
    }

    fn observe(&mut self, events: &CacheEvents) -> Result<Vec<BlockId>, PolicyFault> {
        assert!(!events.is_empty(), "observe is only called with events");
        self.absorb(events);
        if self.temper.sins() {
            return self.sin();
        }
        Ok(match self.temper.style {
            Style::Thrash => self.some_idle(usize::MAX),
            Style::Random if self.temper.dice.chance(3) => self.some_idle(2),
            _ => Vec::new(),
        })
    }

    fn evict(&mut self, _now: Micros, need: u32) -> Result<Vec<BlockId>, PolicyFault> {
        assert!(need > 0, "evict is only called for blocks");
        if self.temper.sins() {
            return self.sin();
        }
        Ok(match self.temper.style {
            Style::Timid | Style::Starve => Vec::new(),
            Style::Thrash => self.some_idle(usize::MAX),
            Style::Backwards => self.idle.iter().rev().take(need as usize).map(|&b| BlockId(b)).collect(),
            _ => {
                let most = self.temper.dice.below(u64::from(need) * 2 + 1) as usize;
                self.some_idle(most)
            }
        })
    }
}
